"""Arguments as people type them: lengths of time, and points in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import click

from scheduler.cli import times
from scheduler.config.fields import some_duration
from scheduler.tables.store import row_number

ZONE_RULE = "Without an offset it is in the config's top-level timezone."


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


class Number(click.ParamType[int]):
    """The number of a run or a message, as lists show it."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = value if isinstance(value, int) else row_number(value)
        return number or self.fail(f"{value!r} is not a number as lists show it, like 12", param, ctx)


class Moment(click.ParamType[datetime]):
    """A time as `moment` reads it, in the zone of the config."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return moment(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def moment(text: str, zone: tzinfo | None = None) -> datetime:
    """The instant, in UTC, of `2026-11-20` or `2026-11-20T03:00` (in `zone`, else the one that all times are
    printed in) or with an offset or Z; `2h` is two hours ago. Raises ValueError with one line."""
    try:
        return times.utc_now() - some_duration(text)
    except ValueError:
        pass
    try:
        said = datetime.fromisoformat(text)
        return (said if said.tzinfo else said.replace(tzinfo=zone or times.zone())).astimezone(UTC)
    except (ValueError, OverflowError):
        wanted = "write 2026-11-20T03:00, 2026-11-20T03:00:00Z, or 2h for two hours ago"
        raise ValueError(f"{text!r} is not a time; {wanted}") from None
