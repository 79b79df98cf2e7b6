"""The command `replay`: plays a recorded time again with another config, and prints what would have been different."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime

from heartbeat.words import abbreviate_duration, format_count, format_usd
from heartbeatd.answers import Replay, ReplayedRun, ReplayTotals
from scheduler.cli import output
from scheduler.cli.daemon_files import Source
from scheduler.cli.output import Column, entry_label, format_list, format_table, format_time, print_answer
from scheduler.cli.progress import show_progress
from scheduler.config.settings import load
from scheduler.foresight.assumptions import check_begin
from scheduler.foresight.playback import temporary_folder
from scheduler.foresight.replay import WARM_UP, Past, replay, settings_of_records, words_of
from scheduler.model.expected_error import InputError

MAX_RUNS = 30  # changed runs that are listed


def print_replay(since: datetime, source: Source) -> None:
    """Play the time from `since` until now again, and print the differences.

    Raises ConfigError, and InputError if nothing is recorded.
    """
    until = output.utc_now()
    check_begin("--since", since, until)
    with show_progress("playing the records", delay=0.0) as progress:
        settings = load.load_config(source.config, os.environ, resolve_secrets=False).settings
        with source.open() as db:
            past = Past.read(db, since - WARM_UP, settings, settings_of_records(db))
        if not any(run.slot >= since for run in past.runs):
            raise InputError(f"no run since {format_time(since)} is recorded; write an earlier time with --since")
        with temporary_folder() as folder:
            found = replay(past, settings, since, until, folder, progress.note)
    print_answer(found.as_data(), source.form, _lines(found))


def _lines(found: Replay) -> Iterator[str]:
    begin, until = format_time(found.from_)[:16], format_time(found.until)[:16]
    yield f"{begin} to {until}, {output.zone_name()} ({abbreviate_duration(found.until - found.from_)})"
    yield ""
    yield format_table(("", "RECORDED", "REPLAYED"), list(_total_rows(found.before, found.after)), numbers=(1, 2))
    yield ""
    yield f"{format_count(found.unchanged, 'run')} unchanged, {len(found.changed):,} changed"
    for unknown in found.unknown:
        yield f"{entry_label(unknown)}: {format_count(unknown.runs, 'run')} unknown, because nothing was recorded for them"
    if found.changed:
        yield ""
        yield format_list(found.changed[:MAX_RUNS], COLUMNS)
    if len(found.changed) > MAX_RUNS:
        yield f"and {len(found.changed) - MAX_RUNS:,} more (--format json lists them)"


def _total_rows(before: ReplayTotals, after: ReplayTotals) -> Iterator[tuple[str, str, str]]:
    for name in ("runs", "failed", "calls", "messages", "suppressed", "skipped"):
        yield name, f"{getattr(before, name):,}", f"{getattr(after, name):,}"
    yield "cost", format_usd(before.usd), format_usd(after.usd)


COLUMNS: list[Column[ReplayedRun]] = [
    Column("RUN", lambda each: str(each.id), is_number=True),
    Column("TIME", lambda each: format_time(each.slot)[5:16]),
    Column("NAME", entry_label),
    Column("RECORDED", lambda each: words_of(each.before)),
    Column("REPLAYED", lambda each: words_of(each.after)),
]
