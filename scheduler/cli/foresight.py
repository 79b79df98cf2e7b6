"""The commands `simulate` and `replay`: play a config or recorded days in virtual time, and print what would happen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TypeVar

from heartbeat.words import abbreviate_duration, format_count, format_usd
from scheduler.cli import output
from scheduler.cli.daemon_files import Source
from scheduler.cli.output import Column, entry_label, format_list, format_table, format_time, print_answer, wrap_text
from scheduler.cli.progress import show_progress
from scheduler.config.settings import load
from scheduler.config.settings.config_snapshot import load_stored, store_config
from scheduler.foresight.assumptions import check_begin
from scheduler.foresight.playback import temporary_folder
from scheduler.foresight.replay import WARM_UP, Past, Replay, ReplayedRun, ReplayTotals, replay, settings_of_records, verdict_text
from scheduler.foresight.simulation import (
    LongestSilence,
    SimulatedDay,
    SimulatedEntry,
    SimulatedRecipient,
    SimulatedSkips,
    Simulation,
    count_text,
    read_assumptions,
    read_history,
    simulate,
    usd_text,
)
from scheduler.insight.reason_texts import SlotCause
from scheduler.model.expected_error import InputError
from scheduler.store import entries

T = TypeVar("T")

MAX_ROWS = 12  # agents and jobs of a simulation that are listed
MAX_RUNS = 30  # changed runs of a replay that are listed
LONGEST = timedelta(days=400)  # of a simulation


def print_simulation(
    span: timedelta,
    begin: datetime | None,
    answers: str | None,
    like_history: bool,
    work: str | None,
    faults: tuple[str, ...],
    seed: int,
    seeds: int,
    source: Source,
) -> None:
    """Play the config from `begin` on, and print what happens. Raises ConfigError, and InputError for a wrong option."""
    if span > LONGEST:
        raise InputError(f"--for: write a time of at most {LONGEST.days}d")
    now = output.utc_now()
    begin = (begin or now).replace(microsecond=0)
    check_begin("--from", begin, now)
    with show_progress("playing the config", delay=0.0) as progress:
        settings = load.load_config(source.config, os.environ, resolve_secrets=False).settings
        with source.open() as db:
            known = entries.all_entries(db)
            recording = read_history(db, now, settings) if like_history else None
        assumed = read_assumptions(settings, begin, answers, work, faults, recording)
        with temporary_folder() as folder:
            found = simulate(settings, assumed, begin, begin + span, range(seed, seed + seeds), folder, known, progress.note)
    print_answer(found.as_data(), source.form, _simulation_lines(found))


def _simulation_lines(found: Simulation) -> Iterator[str]:
    yield f"{_period(found, found.zone)}, {format_count(len(found.seeds), 'seed')} from {found.seeds[0]}"
    for assumption in found.assumed:
        yield from wrap_text(f"assumed: {assumption}", 2)
    yield ""
    cost = f", {usd_text(found.usd)}" if found.usd else ""
    runs = f"{count_text(found.runs)} runs, {count_text(found.failed)} failed"
    yield f"{runs}, {count_text(found.calls)} calls, {count_text(found.messages)} messages{cost}"
    if found.busiest_minute:
        yield f"busiest minute: {format_count(found.busiest_minute.runs, 'start')} at {format_time(found.busiest_minute.at)[:16]}"
    yield ""
    yield from _table(found.entries[:MAX_ROWS], ENTRY_COLUMNS)
    if len(found.entries) > MAX_ROWS:
        yield f"and {len(found.entries) - MAX_ROWS:,} more agents and jobs (--format json lists them)"
    yield from _table(found.skips, SKIP_COLUMNS)
    yield from _table(found.days, DAY_COLUMNS)
    for early in found.early_budget_ends:
        yield f"{entry_label(early)}: its budget ends early on {count_text(early.days)} days, at {early.earliest} at the earliest"
    yield from _table(found.recipients, RECIPIENT_COLUMNS)
    yield from _table(found.longest_silences, SILENCE_COLUMNS)


def _table(items: list[T], columns: list[Column[T]]) -> Iterator[str]:
    if items:
        yield format_list(items, columns)
        yield ""


def _busy_hours(recipient: SimulatedRecipient) -> str:
    """The hours with the most messages, each with its number."""
    ranked = sorted(range(24), key=lambda hour: (-recipient.by_hour[hour], hour))
    return ", ".join(f"{hour:02}h {recipient.by_hour[hour]:g}" for hour in ranked[:4] if recipient.by_hour[hour])


ENTRY_COLUMNS: list[Column[SimulatedEntry]] = [
    Column("NAME", entry_label),
    Column("RUNS", lambda each: count_text(each.runs)),
    Column("CALLS", lambda each: count_text(each.calls)),
    Column("MESSAGES", lambda each: count_text(each.messages)),
    Column("COST", lambda each: usd_text(each.usd)),
]
SKIP_COLUMNS: list[Column[SimulatedSkips]] = [
    Column("SKIPPED", lambda each: count_text(each.planned_runs)),
    Column("WHY", lambda each: each.why),
    Column("", lambda each: SlotCause(each.why).text),
]
DAY_COLUMNS: list[Column[SimulatedDay]] = [
    Column("DAY", lambda each: f"{each.day:%a %m-%d}"),
    Column("RUNS", lambda each: count_text(each.runs)),
    Column("CALLS", lambda each: count_text(each.calls)),
    Column("COST", lambda each: usd_text(each.usd)),
]
RECIPIENT_COLUMNS: list[Column[SimulatedRecipient]] = [
    Column("RECIPIENT", lambda each: each.recipient),
    Column("MESSAGES", lambda each: count_text(each.messages)),
    Column("MOST IN THE HOURS", _busy_hours),
]
SILENCE_COLUMNS: list[Column[LongestSilence]] = [
    Column("NOT LOOKED AFTER", entry_label),
    Column("FOR", lambda each: abbreviate_duration(each.until - each.since)),
    Column("SINCE", lambda each: format_time(each.since)[:16]),
    Column("BECAUSE OF", lambda each: each.because or "-"),
]


def _period(played: Simulation | Replay, zone: str) -> str:
    begin, until = format_time(played.from_)[:16], format_time(played.until)[:16]
    return f"{begin} to {until}, {zone} ({abbreviate_duration(played.until - played.from_)})"


def print_replay(since: datetime, source: Source) -> None:
    """Play the time from `since` until now again, and print the differences.

    Raises ConfigError, and InputError if nothing is recorded.
    """
    until = output.utc_now()
    check_begin("--since", since, until)
    with show_progress("playing the records", delay=0.0) as progress:
        loaded = load.load_config(source.config, os.environ, resolve_secrets=False)
        settings = load_stored(store_config(loaded)).settings  # without secrets, as the config of the records is
        with source.open() as db:
            past = Past.read(db, since - WARM_UP, settings, settings_of_records(db))
        if not any(run.slot >= since for run in past.runs):
            raise InputError(f"no run since {format_time(since)} is recorded; write an earlier time with --since")
        with temporary_folder() as folder:
            found = replay(past, settings, since, until, folder, progress.note)
    print_answer(found.as_data(), source.form, _replay_lines(found))


def _replay_lines(found: Replay) -> Iterator[str]:
    yield _period(found, output.zone_name())
    yield ""
    yield format_table(("", "RECORDED", "REPLAYED"), list(_total_rows(found.before, found.after)), numbers=(1, 2))
    yield ""
    yield f"{format_count(found.unchanged, 'run')} unchanged, {len(found.changed):,} changed"
    for unknown in found.unknown:
        yield f"{entry_label(unknown)}: {format_count(unknown.runs, 'run')} without a record, whose end is unknown"
    if found.changed:
        yield ""
        yield format_list(found.changed[:MAX_RUNS], REPLAY_COLUMNS)
    if len(found.changed) > MAX_RUNS:
        yield f"and {len(found.changed) - MAX_RUNS:,} more (--format json lists them)"


def _total_rows(before: ReplayTotals, after: ReplayTotals) -> Iterator[tuple[str, str, str]]:
    for name in ("runs", "failed", "calls", "messages", "suppressed", "skipped"):
        yield name, f"{getattr(before, name):,}", f"{getattr(after, name):,}"
    yield "cost", format_usd(before.usd), format_usd(after.usd)


REPLAY_COLUMNS: list[Column[ReplayedRun]] = [
    Column("RUN", lambda each: str(each.id), is_number=True),
    Column("TIME", lambda each: format_time(each.planned_at)[5:16]),
    Column("NAME", entry_label),
    Column("RECORDED", lambda each: verdict_text(each.before)),
    Column("REPLAYED", lambda each: verdict_text(each.after)),
]
