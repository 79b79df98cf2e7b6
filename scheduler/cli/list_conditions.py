"""Lists the conditions that agents have reported."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import click

from heartbeatd.answers import Condition, ConditionReport
from scheduler.cli import arguments, daemon_files
from scheduler.cli.output import format_detailed_table, format_short_time, format_target, utc_now, zone_name
from scheduler.insight.reason_texts import ENDED_BY_TEXTS
from scheduler.model.condition import ReportKind
from scheduler.store.conditions import list_conditions

COLUMNS = ("AGENT", "KEY", "SEVERITY", "SINCE", "LAST SEEN", "REPORTED", "TO")
MAX_KEY_WIDTH = 18  # a longer key is printed on a line of its own, because the table may have to cut it


def print_conditions(name: str | None, closed: bool, path: Path, state: Path | None, form: str) -> None:
    """Print the conditions of an agent, or of all agents."""
    with daemon_files.open_for_reading(daemon_files.locate_files_or_warn(path, state)) as db:
        names = None if name is None else [_resolve_agent(db, name)]
        found = list_conditions(db, names, closed=closed) if db else []
    if form == "json":
        click.echo(json.dumps([each.as_data() for each in found], indent=2))
    elif found:
        click.echo(_conditions_table(found, utc_now()))
        click.echo(f"times in {zone_name()}")
    else:
        click.echo("there are no conditions" if closed else "there are no open conditions")


def _resolve_agent(db: sqlite3.Connection | None, text: str) -> str:
    """The name of an agent in the database. Raises InputError for another name."""
    name = arguments.name_of_kind("agent", text, "only agents have conditions")
    if db and list_conditions(db, [name], closed=True):
        return name  # its row may have been deleted
    return arguments.resolve_recorded(f"agent/{name}", db)[1]


def _conditions_table(found: list[Condition], now: datetime) -> str:
    """A table of the conditions. Below each row are further reports, how it ended, and the beginning of its text."""
    return format_detailed_table(COLUMNS, [(_condition_row(each, now), _detail_lines(each, now)) for each in found])


def _condition_row(each: Condition, now: datetime) -> list[str]:
    first = next(iter(_reports_newest_first(each)), None)
    return [
        each.name,
        each.key,
        each.severity,
        format_short_time(each.opened_at, now),
        format_short_time(each.last_seen_at, now),
        format_short_time(first.reported_at, now) if first and first.reported_at else "not yet",
        format_target(first) if first else "-",
    ]


def _detail_lines(each: Condition, now: datetime) -> Iterator[str]:
    further = [report for report in _reports_newest_first(each)[1:] if report.reported_at]
    if len(each.key) > MAX_KEY_WIDTH:
        yield each.key
    if further:
        times = (f"{format_target(report)} {format_short_time(report.reported_at, now)}" for report in further)
        yield f"also to {', '.join(times)}"
    yield from (report.says for report in each.reports if not report.reported_at)
    if any(report.kind == ReportKind.FLAPPING for report in each.reports):
        yield "reported as flapping: changes are not reported until it is stable"
    if each.acknowledged_at:
        when = format_short_time(each.acknowledged_at, now)
        yield f"acknowledged {when} by {each.acknowledged_by}: quiet until it gets worse or ends"
    if each.closed_at:
        yield f"closed {format_short_time(each.closed_at, now)}: {ENDED_BY_TEXTS[each.ended_by or '']}"
    yield f"“{each.text.strip()}”"


def _reports_newest_first(each: Condition) -> list[ConditionReport]:
    return sorted(each.reports, key=lambda report: str(report.reported_at), reverse=True)
