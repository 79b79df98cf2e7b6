"""Decides by calendars on which days an entry runs."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from heartbeat.hours import (
    DAYS,
    EVERY_DAY,
    FIRST_INSTANT,
    LAST_INSTANT,
    TWO_YEARS,
    Hours,
    Span,
    Window,
    merge_spans,
    openings_of_spans,
)

_UTC = ZoneInfo("UTC")
_EPOCH = date(1970, 1, 1).toordinal()
_DAY = 86_400
_EDGE_DAYS = 4  # days at both ends of a stretch that are computed one by one
_MARGIN_DAYS = 2  # more than any UTC offset plus a correction of the clock by one day
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)

DateRange = tuple[date, date]  # both included


@dataclass(frozen=True, slots=True)
class Calendar:
    """A set of days: date ranges, in order and not overlapping, and days of the week (0 = Monday)."""

    dates: tuple[DateRange, ...] = ()
    weekdays: frozenset[int] = frozenset()

    def contains(self, day: date) -> bool:
        before = bisect_right(self.dates, (day, date.max)) - 1
        return day.weekday() in self.weekdays or (before >= 0 and day <= self.dates[before][1])

    def __or__(self, other: Calendar) -> Calendar:
        return make_calendar((*self.dates, *other.dates), self.weekdays | other.weekdays)

    def __str__(self) -> str:
        return ",".join([*(f"{first}..{last}" for first, last in self.dates), *(DAYS[day] for day in sorted(self.weekdays))])


EMPTY_CALENDAR = Calendar()


@dataclass(frozen=True, slots=True)
class AllowedDays:
    """The days of `zone` on which calendars allow a run: none of `skip`, and only those of `only` unless that is None.

    All instants are aware and UTC.
    """

    zone: ZoneInfo = _UTC
    skip: Calendar = EMPTY_CALENDAR
    only: Calendar | None = None
    always: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "always", self.skip == EMPTY_CALENDAR and self.only is None)

    def open_at(self, now: datetime) -> bool:
        return self.always or self.allows(now.astimezone(self.zone).date())

    def openings(self, after: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
        """The spans [open, close) that overlap (after, until] or are open at `after`, in order and in full length.

        If it is always open, the only span is from `FIRST_INSTANT` to `LAST_INSTANT`. A span of years is cut two years before
        `after` and beyond `until`.
        """
        if self.always:
            yield FIRST_INSTANT, LAST_INSTANT
            return
        spans = self._allowed_spans(_day_number(after) - _MARGIN_DAYS, _day_number(until) + _MARGIN_DAYS)
        yield from openings_of_spans(merge_spans(spans), after, until)

    def _allowed_spans(self, day: int, last: int) -> Iterator[Span]:
        """The UTC spans of the allowed days, one per stretch of days, from the one that contains `day` or follows it, to
        `last`.
        """
        while day <= last and (found := _allowed_stretch(self, day)) is not None:
            yield from _utc_spans(self.zone, *found)
            day = found[1]

    def key(self) -> str:
        """One line that decides the days. `read_days` reads it."""
        only = [] if self.only is None else [f"only:{self.only}"]
        return " ".join([self.zone.key, f"skip:{self.skip}", *only])

    def allows(self, day: date) -> bool:
        """Whether runs are allowed on this day."""
        return not self.skip.contains(day) and (self.only is None or self.only.contains(day))


ALL_DAYS = AllowedDays()


@lru_cache(maxsize=1024)
def read_days(key: str) -> AllowedDays:
    """The allowed days for a `key`."""
    zone, skip, *only = key.split(" ")
    return AllowedDays(ZoneInfo(zone), _parse_calendar(skip), _parse_calendar(only[0]) if only else None)


def make_calendar(dates: tuple[DateRange, ...], weekdays: frozenset[int] = frozenset()) -> Calendar:
    """The calendar for date ranges in any order. Ranges that touch or overlap are merged."""
    found: list[DateRange] = []
    for first, last in sorted(dates):
        if found and first.toordinal() <= found[-1][1].toordinal() + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return Calendar(tuple(found), weekdays)


@dataclass(frozen=True, slots=True)
class HoursAndDays:
    """The times at which both the hours and the calendars are open."""

    hours: Hours
    days: AllowedDays

    @property
    def always(self) -> bool:
        return self.hours.always and self.days.always

    def open_at(self, now: datetime) -> bool:
        return self.hours.open_at(now) and self.days.open_at(now)

    def openings(self, after: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
        """The spans [open, close) that overlap (after, until] or are open at `after`, in order and in full length."""
        by_hours, by_days = self.hours.openings(after, until), self.days.openings(after, until)
        one, other = next(by_hours, None), next(by_days, None)
        while one and other:
            opens, closes = max(one[0], other[0]), min(one[1], other[1])
            if opens < closes and opens <= until and closes > after:
                yield opens, closes
            if one[1] < other[1]:
                one = next(by_hours, None)
            else:
                other = next(by_days, None)


def parse_dates(text: str) -> DateRange:
    """The first and the last day of `2026-12-25` or `2026-12-24..2026-12-31`. Raises ValueError with one line that says what is
    wrong.
    """
    start, dots, end = text.partition("..")
    try:
        first, last = _parse_date(start), _parse_date(end if dots else start)
    except ValueError:
        raise ValueError(f"{text!r} is not a day; write 2026-12-25, or 2026-12-24..2026-12-31") from None
    if last < first:
        raise ValueError(f"{text!r} ends before it starts; write {last}..{first}")
    return first, last


def _parse_date(text: str) -> date:
    if not _DATE.fullmatch(text):  # date.fromisoformat also accepts 20261225 and 2026-W52-5
        raise ValueError(text)
    return date.fromisoformat(text)


def _parse_calendar(text: str) -> Calendar:
    parts = [part for part in text.partition(":")[2].split(",") if part]
    weekdays = frozenset(DAYS.index(part) for part in parts if part in DAYS)
    return make_calendar(tuple(parse_dates(part) for part in parts if part not in DAYS), weekdays)


@lru_cache(maxsize=8192)  # called several times per run, and many agents share their calendars
def _allowed_stretch(days: AllowedDays, day: int) -> tuple[int, int] | None:
    """The first stretch [begin, end) of allowed days that ends after `day`. None if there is none within two years.

    It is cut two years before and after. Days are counted from 1970-01-01.
    """

    def is_left(number: int) -> bool:
        return days.allows(date.fromordinal(number + _EPOCH))

    within = range(day, day + TWO_YEARS.days + 2 * _MARGIN_DAYS)
    first = next((number for number in within if is_left(number)), None)
    if first is None:
        return None
    end = next((number for number in range(first + 1, first + TWO_YEARS.days) if not is_left(number)), first + TWO_YEARS.days)
    if first == day:
        earliest = day - TWO_YEARS.days
        first = next((number + 1 for number in range(day - 1, earliest, -1) if not is_left(number)), earliest)
    return first, end


def _utc_spans(zone: ZoneInfo, begin: int, end: int) -> list[Span]:
    """The UTC spans of the local days [begin, end). Near both ends they are computed day by day."""
    local = Window(0, 1440, EVERY_DAY, zone)
    days = {*range(begin, min(begin + _EDGE_DAYS, end)), *range(max(begin, end - _EDGE_DAYS), end)}
    spans = [span for day in days for span in local.utc_spans(day)]
    # The UTC days that lie completely within the local days.
    inner = ((begin + 2) * _DAY, (end - 2) * _DAY)
    return sorted([*spans, inner] if end - begin > 2 * _EDGE_DAYS else spans)


def _day_number(instant: datetime) -> int:
    return int(instant.timestamp()) // _DAY
