"""The command `plan`: lists upcoming runs, or with `--worst` the most that a day can cost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click

from scheduler.cli import arguments, daemon_state, options, output
from scheduler.cli.arguments import ZONE_RULE, Moment, Span
from scheduler.cli.daemon_state import declared
from scheduler.cli.options import Mistake
from scheduler.cli.output import LINE, called, table, utc_now, wrapped
from scheduler.config.build import load
from scheduler.config.file.message_parts import format_duration
from scheduler.insight import forecast
from scheduler.insight.daily_maximum import DailyMaximum, EntryMaximum, compute_daily_maximum, maximum_as_data
from scheduler.model.outcome import Kind

HEAD = ("DAY", "LOCAL", "UTC", "TIMES", "NAME", "ZONE")
WORST_HEAD = ("NAME", "RUNS", "ATTEMPTS", "USD EACH", "USD A DAY", "BY")
NO_LIMIT = "no bound"
DAY_COLUMNS = 5
ROOM = 65  # columns of a line for names, before it is said how many more there are

Row = tuple[str, list[str]]  # the instant by which it is sorted, and its cells


@click.command()
@click.argument("name", required=False)
@click.option("--for", "span", type=Span(), default="24h", show_default=True, help="How far ahead.")
@click.option("--from", "begin", type=Moment(), help=f"Begin at this time instead of now. {ZONE_RULE}")
@click.option("--all", "each", is_flag=True, help="Each firing on a line of its own, however many.")
@click.option("--worst", is_flag=True, help="Instead, the most that a day can cost by the config, of each entry and of all.")
@options.config
@options.state
@options.form
def plan(
    name: str | None, span: timedelta, begin: datetime | None, each: bool, worst: bool, path: Path, state: Path | None, form: str
) -> None:
    """Say what fires in the next hours or days.

    With NAME, only that agent or job, each firing on its line. Where the daemon has run before, the grids are those of its
    database, else those that a first start now would give. Days and local times are those of each entry's own zone.
    """
    if not timedelta() < span <= forecast.MAX_SPAN:
        raise Mistake(f"--for: write a time of at most {format_duration(forecast.MAX_SPAN)}")
    if begin is not None and begin.year not in forecast.ALLOWED_YEARS:
        raise Mistake(f"--from: write a time in the years {forecast.ALLOWED_YEARS[0]} to {forecast.ALLOWED_YEARS[-1]}")
    if worst:
        _print_worst_day(path, form)
        return
    where, now = daemon_state.place(path, state), output.utc_now()
    config = declared(path, state, where)
    with daemon_state.reading(where) as db:
        seen = forecast.forecast_entries(db, config, now)
    if name is not None:
        known = {(each.course.kind, each.course.name) for each in seen}
        key = arguments.choose(name, known.__contains__, lambda: known)
        seen = [foreseen for foreseen in seen if (foreseen.course.kind, foreseen.course.name) == key]
    begin = begin or now
    told = {"running": daemon_state.running(where) is not None} | forecast.forecast_data(
        seen, begin, begin + span, each=each or name is not None
    )
    click.echo(json.dumps(told, indent=2) if form == "json" else "\n".join(_lines(told)))


def _lines(told: dict[str, Any]) -> Iterator[str]:
    rows = sorted((row for entry in told["entries"] for row in _rows(entry, told["clock_changes"])), key=lambda row: row[0])
    if rows:
        yield from _marked(rows, told["clock_changes"])
        yield ""
        yield _sums(told)
    else:
        yield from wrapped(
            f"nothing fires from {output.local(told['from'])} to {output.local(told['until'])} {output.zone_name()}", 2
        )
    yield from _notes(told)


def _rows(entry: dict[str, Any], changes: list[dict[str, Any]]) -> Iterator[Row]:
    zone = ZoneInfo(entry["zone"])
    changing = {_local(change["at"], zone).date() for change in changes if change["zone"] == entry["zone"]}
    for day in entry["days"]:
        ambiguous = date.fromisoformat(day["day"]) in changing
        for first, last, count in _told_together(day):
            local = _clock(first, zone, ambiguous) if count == 1 else f"{_local(first, zone):%H:%M}-{_local(last, zone):%H:%M}"
            utc = f"{datetime.fromisoformat(first):%m-%d %H:%M}"
            yield first, [_weekday(day["day"]), local, utc, str(count), called(entry["kind"], entry["name"]), entry["zone"]]


def _told_together(day: dict[str, Any]) -> list[tuple[str, str, int]]:
    """The firings of a day that stand on one line: the first, the last and how many."""
    if day["firings"] is None:
        return [(day["first"], day["last"], day["count"])]
    return [(instant, instant, 1) for instant in day["firings"]]


def _marked(rows: list[Row], changes: list[dict[str, Any]]) -> Iterator[str]:
    """The table, with a line at each instant at which a clock is changed."""
    days = [cells[0] for _, cells in rows]
    shown = [["" if before == day else day, *cells[1:]] for before, day, (_, cells) in zip(["", *days], days, rows, strict=False)]
    zones = {cells[-1] for _, cells in rows}
    head, *lines = (table(HEAD, shown) if len(zones) > 1 else table(HEAD[:-1], [cells[:-1] for cells in shown])).splitlines()
    marks = [(change["at"], f"--- clock of {change['zone']}: {change['before']} is {change['after']} ---") for change in changes]
    yield head
    # A mark stands before what fires at its own instant: that is the new clock's.
    for _, line in sorted([*marks, *zip((at for at, _ in rows), lines, strict=True)], key=lambda marked: marked[0]):
        yield line
    if len(zones) == 1:
        yield f"times in {zones.pop()}"


def _sums(told: dict[str, Any]) -> str:
    """How often each entry fires on each day; the days that have no room are one column."""
    days = [day["day"] for day in told["days"]]
    shown = days if len(days) <= DAY_COLUMNS else days[: DAY_COLUMNS - 1]
    later = ["LATER"] if len(shown) < len(days) else []

    def row(name: str, counts: dict[str, int]) -> list[str]:
        rest = [str(sum(count for day, count in counts.items() if day not in shown))] if later else []
        return [name, *(str(counts.get(day, 0)) for day in shown), *rest, str(sum(counts.values()))]

    fires = [entry for entry in told["entries"] if entry["total"]]
    rows = [row(called(each["kind"], each["name"]), {day["day"]: day["count"] for day in each["days"]}) for each in fires]
    for what, word in (("beats", "all agents"), ("runs", "all jobs")):
        counts = {day["day"]: day[what] for day in told["days"]}
        rows += [row(word, counts)] if any(counts.values()) else []
    return table(("PER DAY", *map(_weekday, shown), *later, "TOTAL"), rows)


def _notes(told: dict[str, Any]) -> Iterator[str]:
    entries = told["entries"]
    for woken in (entry for entry in entries if entry["wakes"]):
        words = f"{called(woken['kind'], woken['name'])}: up to {woken['wakes']['at_most']:,} more by wakes of"
        yield from _listed(words, [{"kind": Kind.CRON, "name": name} for name in woken["wakes"]["by"]], then=" ")
    if not told["wakes_known"] and any(entry["kind"] == Kind.HEARTBEAT for entry in entries):
        yield "beats by wakes of jobs are not known: the config alone says whom they wake"
    for source, words in SOURCES.items():
        yield from _listed(words, [entry for entry in entries if entry["total"] and entry["source"] == source])
    for state, words in STATES.items():
        yield from _listed(words, [entry for entry in entries if not entry["total"] and entry["state"] == state])
    yield f"daemon: {'running' if told['running'] else 'down; nothing fires until it runs'}"


SOURCES = {
    "database": "grid from the database",
    "reload": "grid once the config is taken up",
    "fresh start": "grid of a first start now",
}
STATES = {"active": "nothing in this time", "paused": "paused", "done": "done", "disabled": "disabled"}


def _listed(words: str, entries: list[dict[str, Any]], then: str = ": ") -> Iterator[str]:
    """The names of some entries after a word, as many as a line holds and at least one."""
    found = [called(entry["kind"], entry["name"]) for entry in entries]
    whole = f"{words}{then}{', '.join(found)}"
    if len(whole) <= LINE:
        yield from [whole] if found else []
        return
    lengths = accumulate((len(name) + 2 for name in found), initial=len(words))
    shown = found[: max(1, sum(length <= ROOM for length in lengths) - 1)]
    left = len(found) - len(shown)
    yield from wrapped(f"{words}{then}{', '.join(shown)}" + (f" and {left} more" if left else ""), 2)


def _local(instant: str, zone: ZoneInfo) -> datetime:
    return datetime.fromisoformat(instant).astimezone(zone)


def _clock(instant: str, zone: ZoneInfo, ambiguous: bool) -> str:
    local = _local(instant, zone)
    return f"{local:%H:%M:%S}".removesuffix(":00") + (f" {local:%Z}" if ambiguous else "")


def _weekday(day: str) -> str:
    return f"{date.fromisoformat(day):%a %m-%d}"


def _print_worst_day(path: Path, form: str) -> None:
    """Print the ceilings of the config at `path`. Raises ConfigError."""
    found = compute_daily_maximum(load.load_config(path, os.environ, resolve_secrets=False).settings, utc_now())
    click.echo(json.dumps(maximum_as_data(found), indent=2) if form == "json" else "\n".join(_worst_day_lines(found)))


def _worst_day_lines(found: DailyMaximum) -> Iterator[str]:
    if not found.entries:
        yield "nothing asks an agent"
        return
    yield table(WORST_HEAD, [_worst_day_row(ceiling) for ceiling in found.entries])
    total = NO_LIMIT if found.usd_per_day is None else f"at most {_usd(found.usd_per_day)} USD a day"
    yield f"all: {total}" + (" by limits.budget" if found.limited_by == "limits.budget" else "")
    if any(ceiling.limited_by == "runs" and ceiling.usd_per_day for ceiling in found.entries):
        yield "by runs: unless somebody sets the clock, stops the daemon or runs jobs by hand"


def _worst_day_row(ceiling: EntryMaximum) -> list[str]:
    each = "not known" if ceiling.usd_per_attempt is None else _usd(ceiling.usd_per_attempt)
    usd = NO_LIMIT if ceiling.usd_per_day is None else _usd(ceiling.usd_per_day)
    return [called(ceiling.kind, ceiling.name), str(ceiling.runs), str(ceiling.attempts), each, usd, ceiling.limited_by]


def _usd(amount: float) -> str:
    """Rounded up: nothing passes what is printed."""
    places = 2 if amount >= 1 or not amount else 4
    return f"{ceil(round(amount * 10**places, 3)) / 10**places:,.{places}f}"
