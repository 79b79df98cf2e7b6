"""Local days: where each begins and ends as instants, on days of 23 and 25 hours too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cron.dst_changes import offset_changes

A_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class LocalDay:
    """A local day, or the part of it that was asked for: the instants [begins, ends), UTC."""

    date: date
    begins: datetime
    ends: datetime


@lru_cache(maxsize=1024)  # every beat with a budget asks when today is over
def whole_day(day: date, zone: ZoneInfo) -> LocalDay:
    """The day from its first midnight to the first of the next; empty if the zone left it out."""
    return LocalDay(day, _midnight(day, zone), _midnight(day + A_DAY, zone))


def days_between(zone: ZoneInfo, begin: datetime, end: datetime) -> Iterator[LocalDay]:
    """The local days of the instants [begin, end), the first and the last cut to them; days that have no time are left out."""
    day = begin.astimezone(zone).date() - A_DAY  # where the clock goes back over midnight, an instant may belong to the day after
    while (full := whole_day(day, zone)).begins < end:
        begins, ends = max(begin, full.begins), min(end, full.ends)
        if begins < ends:
            yield LocalDay(day, begins, ends)
        day += A_DAY


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    """The instant at which a day's clock first reads 00:00, or the first after it where the clock leaves that out."""
    reading = datetime.combine(day, time.min)
    instant = reading.replace(tzinfo=zone).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == reading:
        return instant
    return max(change.instant for change in offset_changes(zone, instant - A_DAY, instant))
