"""The command `plan`: lists upcoming runs, or with `--worst` the maximum cost of a day."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from heartbeat.words import list_names, squeeze
from heartbeatd.answers import ClockChange, PlanForecast, PlannedEntry
from heartbeatd.questions import GetPlan
from scheduler.cli import daemon_files, options, output
from scheduler.cli.daemon_files import Source, load_declared_plan
from scheduler.cli.operation_options import Make
from scheduler.cli.output import format_highest_usd
from scheduler.cli.progress import show_progress
from scheduler.config.settings import load
from scheduler.config.settings.file_checks import prompt_warnings
from scheduler.insight import forecast
from scheduler.insight.daily_maximum import DAYS_OF_MONTH, DailyMaximum, EntryMaximum, compute_daily_maximum
from scheduler.model.expected_error import InputError
from scheduler.model.levels import Level
from scheduler.model.outcome import Kind

COLUMNS = ("DAY", "LOCAL", "UTC", "TIMES", "NAME", "ZONE")
MAX_REMINDER = 160  # characters of the line of a reminder
NO_LIMIT = "no limit"
DAY_COLUMNS = 5
NAMES_WIDTH = 65  # columns for names; the rest of the line has the number of further ones

TimedRow = tuple[datetime, list[str]]  # the time by which the row is sorted, and its cells


def print_plan(make: Make[GetPlan], name: str | None, worst: bool, other: Path | None, source: Source) -> None:
    """Print the plan, the maximum cost of a day, or what another config would change."""
    files, now, asked = daemon_files.locate_files(source.config, source.state), output.utc_now(), make()
    try:
        begin, until = forecast.period_of(asked, now)
    except ValueError as error:
        raise InputError(f"--{error}") from None
    if other is not None:
        from scheduler.cli import config_preview

        preview = config_preview.preview_files(source, other, name, asked.for_)
        output.print_answer(preview.data, source.form, preview.lines)
        if source.form == "text":
            config_preview.print_schedules(preview, asked.for_)
        return
    if worst:
        if name is not None:
            raise InputError(f"--worst lists all agents and jobs; leave out {name!r}")
        _print_worst_day(source)
        return
    with show_progress("reading the config and the database"):
        config = load_declared_plan(source, files)
        with daemon_files.open_for_reading(files) as db:
            seen = forecast.forecast_entries(db, config, now)
            running = daemon_files.is_daemon_running(files, db)
    if name is not None:
        known = {(each.course.kind, each.course.name) for each in seen}
        key = options.resolve_entry(name, known)
        seen = [foreseen for foreseen in seen if (foreseen.course.kind, foreseen.course.name) == key]
    with show_progress("planning"):
        planned = forecast.forecast_runs(seen, begin, until, each=asked.all or name is not None)
    data = {"running": running} | planned.as_data()
    output.print_answer(data, source.form, _plan_lines(planned, running=running))


def _plan_lines(data: PlanForecast, *, running: bool) -> Iterator[str]:
    rows = sorted((row for entry in data.entries for row in _entry_rows(entry, data.clock_changes)), key=lambda row: row[0])
    if rows:
        yield from _table_with_clock_changes(rows, data.clock_changes)
        yield ""
        yield _daily_counts_table(data)
    else:
        span = f"from {output.format_time(data.from_)} to {output.format_time(data.until)} {output.zone_name()}"
        yield from output.wrap_text(f"nothing fires {span}", 2)
    yield from _note_lines(data, running=running)


def _entry_rows(entry: PlannedEntry, changes: list[ClockChange]) -> Iterator[TimedRow]:
    zone = ZoneInfo(entry.zone)
    changing = {change.at.astimezone(zone).date() for change in changes if change.zone == entry.zone}
    for day in entry.days:
        runs = [(day.first, day.last, day.count)] if day.firings is None else [(instant, instant, 1) for instant in day.firings]
        for first, last, count in runs:
            local = f"{first.astimezone(zone):%H:%M}-{last.astimezone(zone):%H:%M}"
            if count == 1:
                local = output.format_clock(first, zone, with_zone=day.day in changing)
            cells = [_format_day(day.day), local, f"{first:%m-%d %H:%M}", str(count), output.entry_label(entry), entry.zone]
            yield first, cells


def _table_with_clock_changes(rows: list[TimedRow], changes: list[ClockChange]) -> Iterator[str]:
    """The table, with a line at each clock change."""
    days = [cells[0] for _, cells in rows]
    shown = [["" if before == day else day, *cells[1:]] for before, day, (_, cells) in zip(["", *days], days, rows, strict=False)]
    zones = {cells[-1] for _, cells in rows}
    head, *lines = (
        output.format_table(COLUMNS, shown)
        if len(zones) > 1
        else output.format_table(COLUMNS[:-1], [cells[:-1] for cells in shown])
    ).splitlines()
    texts = [f"--- clock of {change.zone}: {change.before} is {change.after} ---" for change in changes]
    marks = [(change.at, output.paint(text, Level.LOST)) for change, text in zip(changes, texts, strict=True)]
    yield head
    # The line of a clock change comes before runs at the same time, which are in the new clock's time.
    for _, line in sorted([*marks, *zip((at for at, _ in rows), lines, strict=True)], key=lambda marked: marked[0]):
        yield line
    if len(zones) == 1:
        yield f"times in {zones.pop()}"


def _daily_counts_table(data: PlanForecast) -> str:
    """How many times each entry runs on each day. The days that do not fit share one column."""
    days = [day.day for day in data.days]
    shown = days if len(days) <= DAY_COLUMNS else days[: DAY_COLUMNS - 1]
    later = ["LATER"] if len(shown) < len(days) else []

    def row(name: str, counts: dict[date, int]) -> list[str]:
        rest = [str(sum(count for day, count in counts.items() if day not in shown))] if later else []
        return [name, *(str(counts.get(day, 0)) for day in shown), *rest, str(sum(counts.values()))]

    fires = [entry for entry in data.entries if entry.total]
    rows = [row(output.entry_label(each), {day.day: day.count for day in each.days}) for each in fires]
    for key, word in (("beats", "all agents"), ("runs", "all jobs")):
        counts = {day.day: getattr(day, key) for day in data.days}
        rows += [row(word, counts)] if any(counts.values()) else []
    return output.format_table(("PER DAY", *map(_format_day, shown), *later, "TOTAL"), rows)


def _note_lines(data: PlanForecast, *, running: bool) -> Iterator[str]:
    entries = data.entries
    for reminder in (each for entry in entries for each in entry.reminders):
        when = f"reminder at {output.format_time(reminder.at)} (wake {reminder.wake})"
        says = f"{output.entry_label(reminder)}: {when}: {reminder.text}"
        yield from output.wrap_text(squeeze(says, MAX_REMINDER), 2)
    for entry in entries:
        if entry.wakes:
            cause = "by wakes of" if entry.kind == "heartbeat" else "after"
            words = f"{output.entry_label(entry)}: up to {entry.wakes.at_most:,} more runs {cause}"
            yield from _format_names(words, [Kind.CRON.label_of(name) for name in entry.wakes.by], then=" ")
    if not data.wakes_known and any(entry.kind == "heartbeat" for entry in entries):
        yield "the number of runs started by wakes is unknown: only the config contains the agents that jobs wake"
    for source, words in SOURCE_NOTES.items():
        yield from _format_names(
            words, [output.entry_label(entry) for entry in entries if entry.total and entry.source == source]
        )
    for state, words in forecast.STATES_WITHOUT_RUNS.items():
        found = [output.entry_label(entry) for entry in entries if not (entry.total or entry.wakes) and entry.state == state]
        yield from (output.paint(line, Level.PLANNED) for line in _format_names(words, found))
    state = output.paint("running", Level.GOOD) if running else output.paint("down", Level.BAD)
    yield f"daemon: {state}{'' if running else '; nothing runs until it is started'}"


SOURCE_NOTES = {
    "database": "schedule from the database",
    "reload": "schedule after a reload",
    "fresh start": "schedule of a first start now",
}


def _format_names(words: str, found: list[str], then: str = ": ") -> Iterator[str]:
    """The names of some entries after a label: as many as fit into a line, and at least one."""
    fits = len(f"{words}{then}{', '.join(found)}") <= output.LINE_WIDTH
    names = list_names(found, width=None if fits else NAMES_WIDTH - len(words))
    yield from output.wrap_text(f"{words}{then}{names}", 2) if found else ()


def _format_day(day: date) -> str:
    return f"{day:%a %m-%d}"


def _print_worst_day(source: Source) -> None:
    """Print the maximum cost of a day with the config. Raises ConfigError."""
    with show_progress("computing the maximum cost"):
        settings = load.load_config(source.config, os.environ, resolve_secrets=False).settings
        found = compute_daily_maximum(settings, output.utc_now())
    for warning in prompt_warnings(settings):
        click.echo(warning, err=True)
    output.print_answer(found.as_data(), source.form, _worst_day_lines(found))


WORST_COLUMNS: list[output.Column[EntryMaximum]] = [
    output.Column("NAME", output.entry_label),
    output.Column("RUNS", lambda each: str(each.runs)),
    output.Column("TRIES", lambda each: str(each.tries)),
    output.Column("USD EACH", lambda each: "not known" if each.usd_per_try is None else format_highest_usd(each.usd_per_try)),
    output.Column(
        "USD A DAY",
        lambda each: NO_LIMIT if each.usd_per_day is None else format_highest_usd(each.usd_per_day),
        level=lambda each: Level.LOST if each.usd_per_day is None else None,
    ),
    output.Column("BY", lambda each: each.by),
]


def _worst_day_lines(found: DailyMaximum) -> Iterator[str]:
    if not found.entries:
        yield "no entry calls an agent"
        return
    yield output.format_list(found.entries, WORST_COLUMNS)
    yield "RUNS: planned ones, a late one, and as many by wakes as limits.wake_flood allows"
    total = NO_LIMIT if found.usd_per_day is None else f"at most {format_highest_usd(found.usd_per_day)} USD a day"
    of_days = None if found.usd_per_day is None else found.usd_per_day * DAYS_OF_MONTH
    if found.usd_per_month is not None and (of_days is None or round(of_days - found.usd_per_month, 6) > 0):  # a limit of its own
        total += f", {format_highest_usd(found.usd_per_month)} USD a month"
    yield f"all: {total}" + (" by limits.budget" if found.by == "limits.budget" else "")
    if any(ceiling.by == "runs" and ceiling.usd_per_day for ceiling in found.entries):
        yield "by runs: if nobody changes the clock, restarts the daemon, or runs agents or jobs by hand"
