"""Finds where local days begin and end, also on days of 23 and 25 hours, and reads the names of days that people write."""

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
    """A local day, part of it, or a local month: the instants [begins, ends), UTC."""

    date: date
    begins: datetime
    ends: datetime


@lru_cache(maxsize=1024)  # every run with a budget needs the end of its day
def whole_day(day: date, zone: ZoneInfo) -> LocalDay:
    """The day from its first midnight to the first midnight of the next; empty if the zone skipped the day."""
    return LocalDay(day, _midnight(day, zone), _midnight(day + A_DAY, zone))


@lru_cache(maxsize=256)
def whole_month(day: date, zone: ZoneInfo) -> LocalDay:
    """The month of a day, from its first midnight to the first midnight of the next month. Its date is the first of the month."""
    first = day.replace(day=1)
    return LocalDay(first, _midnight(first, zone), _midnight((first + 31 * A_DAY).replace(day=1), zone))


def days_between(zone: ZoneInfo, begin: datetime, end: datetime) -> Iterator[LocalDay]:
    """The local days of the instants [begin, end). The first and the last are cut to them; empty days are left out."""
    day = begin.astimezone(zone).date() - A_DAY  # if the clock goes back over midnight, an instant may belong to the next day
    while (full := whole_day(day, zone)).begins < end:
        begins, ends = max(begin, full.begins), min(end, full.ends)
        if begins < ends:
            yield LocalDay(day, begins, ends)
        day += A_DAY


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    """The first instant at which the local clock shows 00:00 or, if it skips that, a later time."""
    reading = datetime.combine(day, time.min)
    instant = reading.replace(tzinfo=zone).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == reading:
        return instant
    return max(change.instant for change in offset_changes(zone, instant - A_DAY, instant))


def offset_text(local: datetime) -> str:
    """The offset of a local time from UTC: +01:00."""
    text = f"{local:%z}"
    return f"{text[:3]}:{text[3:5]}"


def is_repeated(local: datetime) -> bool:
    """Whether the clock of its zone shows this time twice, because it is set back. Without a zone with rules it is False."""
    return local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()


def local_text(instant: datetime, zone: ZoneInfo | None) -> str:
    """A time to the second. In the hour that a clock change repeats, its offset from UTC follows."""
    local = instant.astimezone(zone)
    return f"{local:%Y-%m-%d %H:%M:%S}" + (f" {offset_text(local)}" if is_repeated(local) else "")


def clock_before_and_after(instant: datetime, zone: ZoneInfo) -> tuple[str, str]:
    """The local time that the clock would have shown at its change, and the one that it shows, with the names of the zone."""
    tick = timedelta(microseconds=1)
    before, after = (instant - tick).astimezone(zone), instant.astimezone(zone)
    return f"{before + tick:%H:%M} {before:%Z}", f"{after:%H:%M %Z}"


DAYS_AGO = {"today": 0, "yesterday": 1}
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def parse_named_day(text: str, now: datetime) -> date | None:
    """The day that `today` or `yesterday` names, in the zone of `now`; None for any other text."""
    return now.date() - timedelta(days=DAYS_AGO[text]) if text in DAYS_AGO else None


def parse_day(text: str, now: datetime) -> date:
    """The day named by 2026-11-20, today, yesterday, or a weekday such as mon or monday: the last such day, today included.

    It is in the zone of `now`. Raises ValueError with a message of one line.
    """
    word = text.strip().lower()
    weekday = next((number for number, name in enumerate(WEEKDAYS) if word in (name, name[:3])), None)
    if weekday is not None:
        return now.date() - timedelta(days=(now.weekday() - weekday) % 7)
    try:
        return parse_named_day(word, now) or date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a day; write 2026-11-20, today, yesterday or monday") from None
