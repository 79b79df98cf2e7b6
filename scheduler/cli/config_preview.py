"""Shows what a config would change, for `check --diff` and `reload --dry-run`: keys, next runs, runs and cost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from heartbeat.words import list_names
from heartbeatd.answers import ConfigForecast, RunsChange
from scheduler.cli import daemon_files
from scheduler.cli.daemon_files import DaemonFiles, Source
from scheduler.cli.output import format_time, round_up_usd, utc_now, wrap_text, zone_name
from scheduler.config.settings.config_diff import ConfigComparison, compare_stored
from scheduler.config.settings.config_snapshot import store_config, stored_overrides
from scheduler.config.settings.file_checks import prompt_warnings
from scheduler.config.settings.load import load_config
from scheduler.config.settings.time_checks import TimeCheck
from scheduler.engine.config_reload import restart_warnings
from scheduler.insight.forecast import foresee_changes
from scheduler.model.expected_error import InputError
from scheduler.store import config_history, entries

NOT_COMPARED = "a secret may have changed; the stored copy has none to compare with"
NEXT_RUNS = 2  # entries whose next run is shown; JSON has all of them


@dataclass(frozen=True, slots=True)
class Preview:
    """What a config would change: `data` for JSON, and `lines` for people. `warnings` are about prompts nearly too long."""

    data: dict[str, object]
    lines: tuple[str, ...]
    warnings: tuple[str, ...]
    is_against_daemon: bool  # the active config is that of a running daemon


def preview_file(source: Source) -> Preview:
    """What the config file would change in the active config: of the running daemon, or the last one before it stopped.

    While the daemon runs, its overrides apply, because a reload would apply them too. Otherwise those of this shell apply.
    Raises ConfigError if the file is invalid, and InputError if there is no active config.
    """
    path, files = source.config, daemon_files.locate_files(source.config, source.state)
    running = daemon_files.find_running_daemon(files) is not None
    with daemon_files.open_for_reading(files) as db:
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
        will = foresee_changes(db, found, times.now) if found.diff else None
        against = {"path": str(in_force.path), "hash": in_force.hash, "running": running}
        data = {"against": against, **found.diff.as_data(), "consequences": will and will.as_data()}
        head = f"compared with the config active since {format_time(since)}, daemon {'running' if running else 'down'}"
        note = (NOT_COMPARED,) if not found.diff and stored.hash != in_force.hash else ()
        lines = (head, *(_lines(found, will) if will else ("nothing changes", *note)))
        wrapped = tuple(part for line in lines for part in wrap_text(line, 2))
        return Preview(data, wrapped, tuple(prompt_warnings(loaded.settings)), running)


def _nothing_in_force(source: Source, files: DaemonFiles, *, exists: bool) -> str:
    if exists:
        return f"{files.shown} contains no config to compare with: the daemon of this version has not run yet"
    where = "" if source.state else f" (`state` of {source.config})"
    return f"there is no database {files.shown}{where}; --state names the one of the daemon"


def _lines(found: ConfigComparison, will: ConfigForecast) -> Iterator[str]:
    yield from found.diff.lines()
    yield from restart_warnings(found.old, found.new)
    if will.next:
        names = [f"{each.name} {_short(each.before)} -> {_short(each.after)}" for each in will.next]
        yield f"next runs ({zone_name()}): {list_names(names, NEXT_RUNS)}"
    shown = [f"{word} {_change(each)}" for word, each in will.runs_a_week if each.before or each.after]
    if shown:
        yield f"runs a week: {', '.join(shown)}"
    if will.usd_a_day is not None:
        before, after = _cost_text(will.usd_a_day.before), _cost_text(will.usd_a_day.after)
        yield f"maximum cost a day: {before if before == after else f'{before} -> {after}'}"


def _short(instant: datetime | None) -> str:
    return "never" if instant is None else format_time(instant)[5:16]


def _change(each: RunsChange) -> str:
    return f"{each.before:,}" if each.before == each.after else f"{each.before:,} -> {each.after:,}"


def _cost_text(usd: float | None) -> str:
    return "no limit" if usd is None else f"{round_up_usd(usd)} USD"
