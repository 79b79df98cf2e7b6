"""`cron`: a job now, and when an expression fires; its other commands are in `crontab`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import click

from cron.job_schedules import CronSchedule, ScheduleError, is_reboot, parse_schedule
from scheduler.cli import arguments, convert_crontab, options, output
from scheduler.cli.arguments import moment
from scheduler.cli.daemon_client import open_door
from scheduler.cli.options import Mistake
from scheduler.cli.output import table
from scheduler.cli.wake_progress import follow, mark
from scheduler.config.keys import time_zones
from scheduler.model.outcome import Kind


@click.group()
def cron() -> None:
    """Run a cron job now, see when an expression fires, take over or write a crontab."""


cron.add_command(convert_crontab.import_)
cron.add_command(convert_crontab.export_)


@cron.command()
@click.argument("name")
@click.option("--wait", is_flag=True, help="Wait for its end; exit code 1 if it failed.")
@options.config
def run(name: str, wait: bool, path: Path) -> int:
    """Run a cron job now, beside its schedule.

    Works with the daemon up or down; with it down the job is run at the next start.
    """
    name = arguments.only(Kind.CRON, name, "`heartbeatd wake` wakes agents")
    before = mark(path)
    wake_id = open_door(path).run_job(name)
    if wait:
        return follow(path, wake_id, before)
    click.echo(f"cron/{name} is in the queue")
    return 0


@cron.command()
@click.argument("expression")
@click.option("--timezone", metavar="ZONE", default="UTC", show_default=True, help="The IANA zone in which it is read.")
@click.option("--after", metavar="TIME", help="Only what comes after this time, in that zone unless it says its own; else now.")
@click.option("--count", type=click.IntRange(1, 10_000), default=5, show_default=True, help="How many.")
@options.form
def next(expression: str, timezone: str, after: str | None, count: int, form: str) -> None:  # noqa: A001 (the command's word)
    """Say when EXPRESSION, five fields or a macro in quotes, fires next."""
    schedule = _schedule(expression, timezone)
    found = list(islice(_firings(schedule, _start(after, schedule)), count))
    for warning in schedule.warnings:
        click.echo(f"warning: {warning}", err=True)
    if form == "json":
        click.echo(json.dumps([_utc(instant) for instant in found], indent=2))
    elif not found:
        click.echo(f"it does not fire again before the year {YEARS[-1]} is over")
    else:
        click.echo(table((f"LOCAL ({schedule.zone})", "UTC"), [(_local(instant, schedule), _utc(instant)) for instant in found]))


def _schedule(expression: str, timezone: str) -> CronSchedule:
    if is_reboot(expression):
        raise Mistake("@reboot has no times: it fires once when the daemon starts")
    try:
        return parse_schedule(expression, time_zones.find_zone(timezone))
    except (ScheduleError, ValueError) as error:
        raise Mistake(str(error)) from error


def _start(after: str | None, schedule: CronSchedule) -> datetime:
    if after is None:
        return output.utc_now()
    try:
        found = moment(after, schedule.zone)
    except ValueError as error:
        raise Mistake(str(error)) from error
    if found.year not in YEARS:
        raise Mistake(f"--after: write a time in the years {YEARS[0]} to {YEARS[-1]}")
    return found


YEARS = range(2, 9900)  # beyond them the calendar of this machine ends


def _firings(schedule: CronSchedule, after: datetime) -> Iterator[datetime]:
    instant = schedule.next(after)
    while instant is not None and instant.year in YEARS:
        yield instant
        instant = schedule.next(instant)


def _local(instant: datetime, schedule: CronSchedule) -> str:
    return f"{instant.astimezone(schedule.zone):%a %Y-%m-%d %H:%M %Z}"


def _utc(instant: datetime) -> str:
    return f"{instant.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
