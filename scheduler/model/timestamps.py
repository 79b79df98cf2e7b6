"""Converts times between Python and the database (UTC milliseconds)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def to_millis(instant: datetime) -> int:
    """An aware time as UTC milliseconds, the only form in which times are stored."""
    return (instant - EPOCH) // MILLISECOND


def from_millis(value: int) -> datetime:
    """The aware UTC time of these milliseconds."""
    return EPOCH + MILLISECOND * value  # three times as fast as timedelta(milliseconds=value), and a row has fifteen


def from_optional_millis(value: int | None) -> datetime | None:
    """The time of a stored value, which may be null."""
    return None if value is None else from_millis(value)


def to_optional_millis(instant: datetime | None) -> int | None:
    """A time as it is stored; null for None."""
    return None if instant is None else to_millis(instant)
