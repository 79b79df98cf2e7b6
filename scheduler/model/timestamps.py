"""Times in the file and as JSON has them: UTC, to the millisecond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def to_millis(instant: datetime) -> int:
    """An aware time as UTC milliseconds, the only form in which times are bound."""
    return (instant - EPOCH) // MILLISECOND


def from_millis(value: int) -> datetime:
    """The aware UTC time of so many milliseconds."""
    return EPOCH + timedelta(milliseconds=value)


def from_optional_millis(value: int | None) -> datetime | None:
    """A stored time, or None."""
    return None if value is None else from_millis(value)


def to_optional_millis(instant: datetime | None) -> int | None:
    """A time as it is stored, or None."""
    return None if instant is None else to_millis(instant)


def iso_utc(instant: datetime | None) -> str | None:
    """A time as JSON has it: UTC with Z, milliseconds only where there are any."""
    if instant is None:
        return None
    return instant.replace(tzinfo=None).isoformat(timespec="milliseconds" if instant.microsecond else "seconds") + "Z"
