"""Describes the current state of the daemon: whether it runs or is frozen, and which config is active."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cron.dst_changes import offset_changes
from heartbeatd.answers import ExplainedEvent, Fact
from scheduler.insight import reason_texts
from scheduler.insight.periods import Period
from scheduler.insight.reason_texts import Clock
from scheduler.insight.schedule_texts import TimeFormat
from scheduler.model import local_days
from scheduler.model.entry_schedule import MICROSECOND
from scheduler.store import boots, clock_changes
from scheduler.system.state_lock import RefusedStart

FROZEN_AFTER = timedelta(minutes=1)  # the main loop records a tick at least every 20 s


@dataclass(frozen=True, slots=True)
class DaemonState:
    """The daemon at one time.

    `last_seen` is its last recorded tick, None if it never ran. `is_stopped`: the system has stopped the process, for example by
    SIGSTOP. `refused_starts` are daemons that did not start, because this one held the lock or because of an invalid config.
    """

    is_running: bool
    pid: int | None
    last_seen: datetime | None
    ended_cleanly: bool
    is_frozen: bool
    is_stopped: bool
    refused_starts: tuple[RefusedStart, ...] = ()

    def problems(self, times: TimeFormat) -> list[tuple[str, str]]:
        """What is wrong now: a word for programs, and a text."""
        found = []
        failed = [each for each in self.refused_starts if each.problem and (self.last_seen is None or each.at > self.last_seen)]
        if failed and not self.is_running:
            found.append(("start_refused", f"{_count_starts(failed, 'a start', times)}: {failed[-1].problem}"))
        if self.last_seen is None and not self.is_running:
            found.append(("daemon_down", "the daemon has never run: `heartbeatd run` starts it"))
        elif not self.is_running and self.last_seen is not None:
            how = reason_texts.ending_text(self.ended_cleanly)
            found.append(("daemon_down", f"the daemon has not run since {times.at(self.last_seen)}; it {how}"))
        elif self.is_frozen and self.last_seen is not None:
            hangs = f"pid {self.pid} hangs, or cannot write its database"
            how = f"pid {self.pid} is stopped; `kill -CONT {self.pid}`" if self.is_stopped else hangs
            found.append(("frozen", f"the daemon is frozen since {times.at(self.last_seen)}: {how}"))
        second = [each for each in self.refused_starts if each.problem is None and each.at >= times.begin]
        if second and self.is_running:
            who = f"a second daemon ({shorten_path(second[-1].config)})"
            found.append(("second_daemon", f"{_count_starts(second, who, times)}: pid {self.pid} has locked the database"))
        return found


def _count_starts(refused: Sequence[RefusedStart], who: str, times: TimeFormat) -> str:
    number = f", {len(refused)} times" if len(refused) > 1 else ""
    return f"{who} was rejected at {times.at(refused[-1].at)}{number}"


def shorten_path(text: str) -> str:
    """The last two parts of a path: it is never broken at the end of a line."""
    return "/".join(Path(text).parts[-2:])[-40:]


def read_daemon_state(
    db: sqlite3.Connection,
    now: datetime,
    *,
    running: bool,
    pid: int | None = None,
    is_stopped: bool = False,
    refused_starts: Sequence[RefusedStart] = (),
) -> DaemonState:
    """The state of the daemon. `running`: a process holds its lock; `pid` and `is_stopped` describe that process."""
    boot = boots.latest_boot(db)
    last_seen = boot.last_tick_at if boot else None
    return DaemonState(
        is_running=running,
        pid=pid or (boot.pid if boot else None),
        last_seen=last_seen,
        ended_cleanly=bool(boot and boot.clean),
        is_frozen=running and last_seen is not None and now - last_seen > FROZEN_AFTER,
        is_stopped=is_stopped,
        refused_starts=tuple(refused_starts),
    )


DaemonEvent = tuple[datetime, str, str]  # time, one word for programs, a text for people


def daemon_state_at(db: sqlite3.Connection, instant: datetime, at: Clock, *, running: bool) -> Fact:
    """Whether the daemon was up or down at a time, since when and until when."""
    all_boots = boots.all_boots(db)
    for gap in boots.downtimes_between(all_boots, running=running):
        if gap.since < instant and (gap.until is None or instant < gap.until):
            says = f"down {_span_text(gap.since, gap.until, at)}, {reason_texts.ending_text(gap.clean)}"
            return Fact(label="daemon", code="down", says=says, at=gap.since)
    found = next((boot for boot in reversed(all_boots) if boot.started_at <= instant), None)
    if found is None:
        return Fact(label="daemon", code="never", says="had not run yet")
    until = None if found is all_boots[-1] and running else found.seen_until
    is_up = until is None or instant < until
    says = f"up {_span_text(found.started_at, until, at)}, pid {found.pid}"
    return Fact(label="daemon", code="up" if is_up else "down", says=says, at=found.started_at)


def _span_text(since: datetime, until: datetime | None, at: Clock) -> str:
    return f"from {at(since)}" + (f" to {at(until)}" if until else " on")


def events_of_period(db: sqlite3.Connection, daemon: DaemonState, period: Period, *, is_limited: bool) -> list[ExplainedEvent]:
    """Starts, stops and freezes of the daemon, rejected starts, system clock changes, and DST changes, sorted by time.

    `is_limited`: the reader may not see why a start was rejected, because that may concern any agent.
    """
    begin, end = period.begin, period.end
    found = list(_boot_events(db, running=daemon.is_running))
    found += [
        (jump.at, "clock_jumped", reason_texts.clock_change_text(jump))
        for jump in clock_changes.clock_changes_between(db, begin, end)
    ]
    found += [(freeze.until, "frozen", reason_texts.freeze_text(freeze)) for freeze in boots.freezes_between(db, begin, end)]
    for change in offset_changes(period.zone, begin - MICROSECOND, end - MICROSECOND):
        before, after = local_days.clock_before_and_after(change.instant, period.zone)
        found.append((change.instant, "clock_change", f"{period.zone}: {before} was {after}"))
    for start in daemon.refused_starts:
        why = "the log has the reason" if is_limited else start.problem or "another daemon had locked the database"
        found.append((start.at, "start_refused", f"a daemon ({shorten_path(start.config)}) could not start: {why}"))
    return [ExplainedEvent(at=at, what=what, says=says) for at, what, says in sorted(found) if begin <= at < end]


def _boot_events(db: sqlite3.Connection, *, running: bool) -> Iterator[DaemonEvent]:
    all_boots = boots.all_boots(db)
    for boot in all_boots:
        yield boot.started_at, "daemon_started", f"the daemon started, pid {boot.pid}"
    for down in boots.downtimes_between(all_boots, running=running):
        what = "daemon_stopped" if down.clean else "daemon_lost"
        yield down.since, what, f"the daemon {reason_texts.ending_text(down.clean)}"
