"""Shows what a config would change, for `check --diff`, `reload --dry-run` and `plan --diff`: keys, next runs, runs and cost."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import click

from heartbeat.words import format_duration, list_names
from scheduler.cli import daemon_files, options
from scheduler.cli.daemon_files import DaemonFiles, Source
from scheduler.cli.output import format_highest_usd, format_table, format_time, utc_now, wrap_text, zone_name
from scheduler.config.settings.config_diff import ConfigComparison, compare_configs, compare_stored
from scheduler.config.settings.config_snapshot import store_config, stored_overrides
from scheduler.config.settings.file_checks import prompt_warnings
from scheduler.config.settings.load import load_config
from scheduler.config.settings.time_checks import TimeCheck
from scheduler.engine.config_reload import restart_warnings
from scheduler.insight.forecast import A_WEEK, ConfigForecast, RunsChange, ScheduleChange, foresee_changes
from scheduler.model.expected_error import InputError
from scheduler.model.outcome import Key
from scheduler.store import config_history, entries
from scheduler.system.files import read_file
from scheduler.work.plan import make_plan

COLUMNS = ("NAME", "NEXT RUN", "THEN", "RUNS", "THEN")
MAX_ROWS = 20
NOT_COMPARED = "a secret may have changed; the stored copy has none to compare with"
NEXT_RUNS = 2  # entries whose next run is shown; JSON has all of them


@dataclass(frozen=True, slots=True)
class Preview:
    """What a config would change: `data` for JSON, and `lines` for people. `changed`: the entries with another schedule.

    `warnings` are about prompts that are nearly too long.
    """

    data: dict[str, object]
    lines: tuple[str, ...]
    changed: Sequence[ScheduleChange]
    warnings: tuple[str, ...] = ()
    is_against_daemon: bool = False  # the active config is that of a running daemon


def preview_file(source: Source) -> Preview:
    """What the config file would change in the active config: of the running daemon, or the last one before it stopped.

    While the daemon runs, its overrides apply, because a reload would apply them too. Otherwise those of this shell apply.
    Raises ConfigError if the file is invalid, and InputError if there is no active config.
    """
    path, files = source.config, daemon_files.locate_files(source.config, source.state)
    with daemon_files.open_for_reading(files) as db:
        running = daemon_files.is_daemon_running(files, db)
        last = config_history.config_in_force(db)
        if last is None:
            raise InputError(_nothing_in_force(source, files, exists=files.may_exist))
        in_force, since = last
        environ = daemon_files.replace_overrides(stored_overrides(in_force)) if running else os.environ
        times = TimeCheck(utc_now(), entries.has_seen_one_time_job)
        loaded = load_config(path, environ, resolve_secrets=False, time_check=times)
        stored = store_config(loaded, in_force.path)
        found = compare_stored(in_force, stored)
        if found is None:
            raise InputError("the active config was written for another version of heartbeatd and cannot be compared")
        head = f"compared with the config active since {format_time(since)}, daemon {'running' if running else 'down'}"
        against = {"path": str(in_force.path), "hash": in_force.hash, "running": running}
        preview = _preview(db, found, head, against)
        note = (NOT_COMPARED,) if not found.diff and stored.hash != in_force.hash else ()
        return replace(
            preview, lines=(*preview.lines, *note), warnings=tuple(prompt_warnings(loaded.settings)), is_against_daemon=running
        )


def preview_files(source: Source, other: Path, name: str | None, span: timedelta | None) -> Preview:
    """What the file `other` would change in the config file. Raises ConfigError if one of them is invalid.

    `name`: only for this agent or job. `span`: how far ahead runs are counted; None: a week.
    """
    path, files = source.config, daemon_files.locate_files(source.config, source.state)
    load_config(other, os.environ, resolve_secrets=False)  # its errors name this file
    first = load_config(path, os.environ, resolve_secrets=False)
    # It is loaded as the same file: that its folder is another is no change of relative paths.
    second = load_config(path, os.environ, resolve_secrets=False, content=read_file(other))
    found = ConfigComparison(compare_configs(first, second), first.settings, second.settings)
    only = None
    if name is not None:
        known = {key for each in (first, second) for key in make_plan(each.settings).entries}
        only = options.resolve_entry(name, known)
    against = {"path": str(path), "hash": first.settings.hash}
    with daemon_files.open_for_reading(files) as db:
        return _preview(db, found, f"{other} compared with {path}", against, only, span or A_WEEK)


def print_schedules(preview: Preview, span: timedelta | None) -> None:
    """Print a table of the entries whose schedule differs, with their next run and their runs a week, or in `span`."""
    rows = []
    for each in preview.changed[:MAX_ROWS]:
        runs = each.runs or each.runs_a_week
        rows.append([each.name, _short(each.before), _short(each.after), f"{runs.before:,}", f"{runs.after:,}"])
    if rows:
        head = [*COLUMNS[:3], "RUNS A WEEK" if span in (None, A_WEEK) else f"RUNS IN {format_duration(span)}", COLUMNS[-1]]
        click.echo(f"\n{format_table(head, rows, numbers=(3, 4))}")
    if len(preview.changed) > MAX_ROWS:
        click.echo(f"and {len(preview.changed) - MAX_ROWS:,} more; --format json lists all")


def _nothing_in_force(source: Source, files: DaemonFiles, *, exists: bool) -> str:
    if exists:
        return f"{files.shown} contains no config to compare with: the daemon of this version has not run yet"
    where = "" if source.state else f" (`state` of {source.config})"
    other = "`heartbeatd plan --diff FILE` compares two files"
    return f"there is no database {files.shown}{where}; --state names the one of the daemon, and {other}"


def _preview(
    db: sqlite3.Connection,
    found: ConfigComparison,
    head: str,
    against: Mapping[str, object],
    only: Key | None = None,
    span: timedelta = A_WEEK,
) -> Preview:
    now = utc_now()
    if only:
        found = replace(found, diff=found.diff.of_entries([only[0].label_of(only[1])]))
    will = foresee_changes(db, found, now, only, span) if found.diff else None
    data = {"against": against, **found.diff.as_data(), "consequences": will and will.as_data()}
    nothing = "nothing changes" + (f" for {only[0].label_of(only[1])}" if only else "")
    lines = (head, *_lines(found, will)) if will else (head, nothing)
    return Preview(data, tuple(part for line in lines for part in wrap_text(line, 2)), will.next if will else ())


def _lines(found: ConfigComparison, will: ConfigForecast) -> Iterator[str]:
    yield from found.diff.lines()
    yield from restart_warnings(found.old, found.new)
    if will.next:
        names = [f"{each.name} {_short(each.before)} -> {_short(each.after)}" for each in will.next]
        yield f"next runs ({zone_name()}): {list_names(names, NEXT_RUNS)}"
    shown = [f"{word} {_change(each)}" for word, each in will.runs or will.runs_a_week if each.before or each.after]
    if shown:
        span = "a week" if will.span_s is None else f"in {format_duration(timedelta(seconds=will.span_s))}"
        yield f"runs {span}: {', '.join(shown)}"
    if will.usd_a_day is not None:
        before, after = _cost_text(will.usd_a_day.before), _cost_text(will.usd_a_day.after)
        yield f"maximum cost a day: {before if before == after else f'{before} -> {after}'}"


def _short(instant: datetime | None) -> str:
    return "never" if instant is None else format_time(instant)[5:16]


def _change(each: RunsChange) -> str:
    return f"{each.before:,}" if each.before == each.after else f"{each.before:,} -> {each.after:,}"


def _cost_text(usd: float | None) -> str:
    return "no limit" if usd is None else f"{format_highest_usd(usd)} USD"
