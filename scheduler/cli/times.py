"""Times on the command line: people write and read the host's local time, programs get UTC."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import click

from scheduler.config.fields import some_duration


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def local(instant: str | datetime | None) -> str:
    """An instant, also as JSON has it, to the second in the host's zone; a dash for none."""
    if instant is None:
        return "-"
    moment = datetime.fromisoformat(instant) if isinstance(instant, str) else instant
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def short(instant: str | None, now: datetime) -> str:
    """An instant as a table has it, in the host's zone: the time alone if it is today's, else the day and the minute."""
    if instant is None:
        return "-"
    moment, today = datetime.fromisoformat(instant).astimezone(), now.astimezone().date()
    return f"{moment:%H:%M:%S}" if moment.date() == today else f"{moment:%m-%d %H:%M}"


def zone_name(localtime: Path = Path("/etc/localtime")) -> str:
    """What the host's zone is called: its IANA name where the host tells it, else the short name of its clock."""
    named = os.environ.get("TZ", "").removeprefix(":")
    if not named and localtime.is_symlink():
        _, _, named = str(localtime.readlink()).partition("zoneinfo/")
    return named or datetime.now().astimezone().tzname() or "local time"


def between(since: str | None, until: str | None) -> str:
    """How long something took, in seconds; a dash for what has not begun or ended."""
    if since is None or until is None:
        return "-"
    return f"{(datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds():.1f}s"


def rough(span: timedelta) -> str:
    """A length of time in its two largest units: 3d4h, 5m20s."""
    seconds = max(0, int(span.total_seconds()))
    parts = ((seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    told = [f"{number}{unit}" for number, unit in parts if number]
    return "".join(told[:2]) or "0s"


class Span(click.ParamType[timedelta]):
    """A length of time as the config writes it: 90s, 30m, 1h30m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            return some_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Moment(click.ParamType[datetime]):
    """A time as `moment` reads it, in the host's zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return moment(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def moment(text: str, zone: tzinfo | None = None) -> datetime:
    """The instant, in UTC, of `2026-11-20` or `2026-11-20T03:00` (in `zone`, else the host's) or with an offset or Z; `2h` is two
    hours ago. Raises ValueError with one line."""
    try:
        return utc_now() - some_duration(text)
    except ValueError:
        pass
    try:
        said = datetime.fromisoformat(text)
        return (said if said.tzinfo or zone is None else said.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        wanted = "write 2026-11-20T03:00, 2026-11-20T03:00:00Z, or 2h for two hours ago"
        raise ValueError(f"{text!r} is not a time; {wanted}") from None
