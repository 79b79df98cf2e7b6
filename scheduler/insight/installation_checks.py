"""Checks the installation, the config and the database, with advice, for the command `doctor` and for the status page."""

from __future__ import annotations

import os
import shlex
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from cron import crontab_reader
from cron.job import Job
from heartbeat.words import format_count, list_names
from scheduler import __version__
from scheduler.config.file.diagnostics import ConfigError
from scheduler.config.keys import time_zones
from scheduler.config.settings import load
from scheduler.config.settings.time_checks import TimeCheck
from scheduler.insight import status_data
from scheduler.insight.reason_texts import breaker_text
from scheduler.model.daemon_health import DEFAULT_QUEUE, QueueState, WorkerState
from scheduler.model.entry import HeartbeatEntry
from scheduler.model.problem import CHANNEL
from scheduler.net import proxies
from scheduler.store import boots, disk_reserve, entries, outbox, problems
from scheduler.store.transaction import is_file
from scheduler.system import state_lock
from scheduler.system.files import MAY_ANYTHING, others_may
from scheduler.work import run_extras

Level = Literal["ok", "warn", "bad"]

MAX_WORKERS_NAMED = 5
LATE = timedelta(minutes=10)  # a message that has waited longer is named


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check, with advice if it is not `ok`."""

    level: Level
    what: str
    text: str


def check_installation() -> Iterator[CheckResult]:
    """The versions of Python, SQLite and the zone rules."""
    yield CheckResult("ok", "python", _format_version(sys.version_info[:3]))
    yield check_sqlite(sqlite3.sqlite_version_info)
    yield CheckResult("ok", "tzdata", f"zone rules of {version('tzdata')}")


def check_sqlite(found: tuple[int, ...]) -> CheckResult:
    """Whether this version of SQLite has the bug that can lose written data when several connections checkpoint at the same time.

    The bug is in 3.7.0 to 3.51.2, and fixed in 3.44.6 and 3.50.7 of the older lines.
    """
    is_fixed = found >= (3, 51, 3) or (3, 50, 7) <= found < (3, 51) or (3, 44, 6) <= found < (3, 45) or found < (3, 7)
    if is_fixed:
        return CheckResult("ok", "sqlite", _format_version(found))
    bug = f"{_format_version(found)} has a bug when two programs write to a database at the same time, fixed in 3.51.3"
    advice = "do not write to it with another program while the daemon runs, and copy it only with `heartbeatd database backup`"
    return CheckResult("warn", "sqlite", f"{bug}; only the daemon writes to its database, so normal use is safe: {advice}")


def check_config(
    path: Path,
    environ: Mapping[str, str],
    now: datetime,
    read_crontab: Callable[[], str] | None = None,
    *,
    resolve_secrets: bool = True,
) -> Iterator[CheckResult]:
    """The errors and warnings of the config. A config that other users may write is an error, because it contains commands.

    `read_crontab` returns the output of `crontab -l`. Without it, no job is looked for there. With `resolve_secrets`, a variable
    that is not set is an error.
    """
    times = TimeCheck(now, entries.has_seen_one_time_job)
    try:
        loaded = load.load_config(path, environ, resolve_secrets=resolve_secrets, time_check=times, check_files=True)
    except ConfigError as error:
        first, more = str(error.errors[0]), len(error.errors) - 1
        yield CheckResult("bad", "config", first + (f" (and {more} more; `heartbeatd check` lists them)" if more else ""))
        return
    for warning in loaded.warnings:
        yield CheckResult("warn", "config", str(warning))
    crontab = read_crontab() if read_crontab else ""
    if doubled := jobs_in_crontab(crontab, loaded.settings.jobs.values()):
        names = list_names(doubled, 3)
        yield CheckResult(
            "warn", "crontab", f"`crontab -l` still has the commands of {names}, so both run them; remove them there"
        )
    for beat in loaded.settings.heartbeats.values():
        for remark in HeartbeatEntry(beat).checklist_remarks() if beat.enabled else ():
            yield CheckResult("warn", "checklist", f"{beat.name}: {remark}")
    authority = f"; also trusts {loaded.settings.network.ca_file}" if loaded.settings.network.ca_file else ""
    yield CheckResult("ok", "network", proxies.describe_proxies(loaded.settings.network) + authority)
    if loaded.settings.traces:
        level, text = run_extras.describe_traces(environ)
        yield CheckResult("ok" if level == "ok" else "warn", "traces", text)
    yield CheckResult("ok", "config", f"{path} is valid, mode {stat.S_IMODE(path.stat().st_mode):04o}")


def check_queue(state: QueueState) -> CheckResult:
    """Whether workers on other machines can execute runs now."""
    if state.why_runs_wait is not None:
        return CheckResult("warn" if state.workers else "bad", "queue", state.why_runs_wait)
    names = list_names([_describe_worker(each) for each in state.workers], MAX_WORKERS_NAMED)
    wait = "" if state.longest_wait is None else f"; the first run in the queue has waited for {state.longest_wait:.0f} s"
    return CheckResult("ok", "queue", f"{format_count(len(state.workers), 'worker')}: {names}{wait}")


def _describe_worker(worker: WorkerState) -> str:
    """Its name, and what is not usual: other queues, another version, runs in progress, and that it takes no more runs."""
    unusual = (
        worker.queues != (DEFAULT_QUEUE,) and f"queue {'+'.join(worker.queues)}",
        worker.version != __version__ and f"version {worker.version or 'unknown'}",
        worker.running and format_count(worker.running, "run"),
        worker.is_draining and "takes no more runs",
    )
    found = ", ".join(each for each in unusual if each)
    return f"{worker.name} ({found})" if found else worker.name


def check_replication(found: boots.Replication) -> CheckResult:
    """Whether a crash or a failover of the PostgreSQL server can lose commits."""
    lost = "loses the last commits, and their runs are repeated"
    if found.commits == "off":
        return CheckResult("warn", "server", f"synchronous_commit is off: a crash of the server {lost}; set it to on")
    names = format_count(found.standbys, "standby server")
    if found.standbys and not found.waits:
        return CheckResult(
            "warn", "server", f"{names}, asynchronous: a failover {lost}; set synchronous_standby_names on the server"
        )
    if found.standbys and found.commits == "local":
        return CheckResult("warn", "server", f"synchronous_commit is local: a failover {lost}; set it to on")
    return CheckResult("ok", "server", f"{names}, synchronous" if found.standbys else "no standby is connected")


def _check_clock(difference: str | None) -> CheckResult:
    """Whether the clocks of this host and of the PostgreSQL server agree."""
    if difference is None:
        return CheckResult("ok", "clock", "agrees with the clock of the PostgreSQL server")
    return CheckResult("warn", "clock", f"{difference}; synchronize the clocks of both hosts")


def jobs_in_crontab(table: str, jobs: Iterable[Job]) -> list[str]:
    """The names of the enabled jobs whose command is also in a crontab, at any time."""
    there = {
        (line.command, line.stdin) for line in crontab_reader.read_crontab(table, time_zones.UTC_ZONE, time_zones.find_zone).lines
    }
    return [job.name for job in jobs if job.enabled and (job.command, job.stdin) in there]


def check_folder(folder: Path) -> Iterator[CheckResult]:
    """Whether the daemon can use the folder of its database, and no other user can."""
    if not folder.exists():
        yield CheckResult("ok", "state", f"{folder} does not exist yet; `heartbeatd run` creates it")
        return
    found = folder.stat()
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield CheckResult(
            "bad", "state", f"{folder} cannot be written as user id {os.geteuid()}; chown it, or set `state:` elsewhere"
        )
    elif others_may(found, MAY_ANYTHING):
        mode = stat.S_IMODE(found.st_mode)
        yield CheckResult(
            "warn", "state", f"other users have access to {folder} (mode {mode:04o}); chmod 700 {shlex.quote(str(folder))}"
        )
    else:
        yield CheckResult("ok", "state", f"only the owner has access to {folder}")
    remote = state_lock.network_filesystem(folder)
    if remote:
        yield CheckResult(
            "bad", "state", f"{folder} is on {remote}, where SQLite's locks are not reliable; set `state:` to a local disk"
        )


def check_disk(database: Path) -> CheckResult:
    """Whether the disk has enough free space."""
    shortage = disk_reserve.shortage_message(disk_reserve.reserve_path(database))
    if shortage:
        return CheckResult("warn", "disk", shortage)
    held = disk_reserve.reserved_bytes(database)
    kept = f"{disk_reserve.format_mib(held)} in reserve for a full disk" if held else "`heartbeatd run` creates a reserve"
    return CheckResult("ok", "disk", f"{disk_reserve.format_mib(disk_reserve.free_bytes(database))} free, {kept}")


def check_records(
    db: sqlite3.Connection, now: datetime, format_time: Callable[[datetime | None], str], zone: str
) -> Iterator[CheckResult]:
    """Messages that do not arrive, channels that take none, open circuit breakers, the last time in which no daemon ran, and the
    clock and the replication of a server.

    `zone` is the name of the zone in which `format_time` shows times.
    """
    for channel in outbox.unfinished_by_channel(db):
        if channel.dead:
            text = f"{channel.channel}: {format_count(channel.dead, 'message')} given up; `heartbeatd outbox` lists them"
            yield CheckResult("warn", "outbox", text)
        elif channel.oldest_at and now - channel.oldest_at > LATE:
            waits = f"{format_count(channel.pending, 'message')} waiting since {format_time(channel.oldest_at)} {zone}"
            yield CheckResult("warn", "outbox", f"{channel.channel}: {waits}; `heartbeatd outbox` lists them")
    for each in problems.all_problems(db, also_over=False):
        if each.subject.kind == CHANNEL:
            text = f"{each.subject.label} has taken no messages since {format_time(each.since)} {zone}: {each.found.text}"
            yield CheckResult("bad", "channel", f"{text}; correct it, then try `heartbeatd ping {each.subject.name}`")
    for breaker in status_data.open_breakers(db):
        yield CheckResult("warn", "breaker", breaker_text(breaker, lambda at: f"{format_time(at)} {zone}"))
    for down in boots.latest_downtimes(db, limit=1):
        level: Level = "ok" if down.clean else "warn"
        how = "after a clean stop" if down.clean else "after an unexpected end (killed, or a power failure)"
        yield CheckResult(level, "down", f"last from {format_time(down.since)} to {format_time(down.until)} {zone}, {how}")
    if not is_file(db):
        leader = boots.find_leader(db)
        yield CheckResult("ok" if leader else "warn", "leader", leader.describe(format_time) if leader else "no daemon leads")
        yield _check_clock(boots.find_clock_difference(db, now))
        yield check_replication(boots.read_replication(db))


def _format_version(parts: tuple[int, ...]) -> str:
    return ".".join(map(str, parts))
