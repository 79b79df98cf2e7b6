"""Shows when an expression fires."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice

from cron.job_schedules import CronSchedule, is_reboot, parse_schedule
from scheduler.cli import output
from scheduler.cli.options import parse_time
from scheduler.cli.output import Column, format_list, print_answer
from scheduler.config.keys import time_zones
from scheduler.model.expected_error import InputError


def print_fire_times(expression: str, timezone: str, after: str | None, count: int, form: str) -> None:
    """Print the next times of an expression. Raises InputError."""
    if is_reboot(expression):
        raise InputError("a job with @reboot has no times: it starts once, when the daemon starts")
    try:
        schedule = parse_schedule(expression, time_zones.find_zone(timezone))
        begin = output.utc_now() if after is None else parse_time(after, schedule.zone)
    except ValueError as error:
        raise InputError(str(error)) from error
    if begin.year not in YEARS:
        raise InputError(f"--after: write a time in the years {YEARS[0]} to {YEARS[-1]}")
    found = list(islice(_fire_times(schedule, begin), count))
    output.print_warnings(schedule.warnings)
    columns: tuple[Column[datetime], ...] = (
        Column(f"LOCAL ({schedule.zone})", lambda instant: f"{instant.astimezone(schedule.zone):%a %Y-%m-%d %H:%M %Z}"),
        Column("UTC", _format_utc),
    )
    text = format_list(found, columns) if found else f"it does not fire again before the end of the year {YEARS[-1]}"
    print_answer([_format_utc(instant) for instant in found], form, [text])


YEARS = range(2, 9900)  # further than any time zone offset from the limits of datetime


def _fire_times(schedule: CronSchedule, after: datetime) -> Iterator[datetime]:
    instant = schedule.next(after)
    while instant is not None and instant.year in YEARS:
        yield instant
        instant = schedule.next(instant)


def _format_utc(instant: datetime) -> str:
    return f"{instant.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
