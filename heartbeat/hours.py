"""Decides when an entry may run: by active hours at which times of a local day, and by calendars on which days."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise
from typing import Protocol
from zoneinfo import ZoneInfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EVERY_DAY = frozenset(range(7))
TWO_YEARS = timedelta(days=731)
FIRST_INSTANT = datetime.min.replace(tzinfo=UTC)
LAST_INSTANT = datetime.max.replace(tzinfo=UTC)

_DAY = 86_400
_WEEK_MINUTES = 7 * 1440
_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00")

Span = tuple[int, int]  # [opens, closes), seconds


class OpenTimes(Protocol):
    """Something with opening times: hours, days, or both. All instants are aware and UTC.

    `openings` are the spans [open, close) that overlap (after, until] or are open at `after`, in order and in full length.
    """

    @property
    def always(self) -> bool: ...
    def open_at(self, now: datetime) -> bool: ...
    def openings(self, after: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]: ...


def first_open(times: OpenTimes, now: datetime) -> datetime | None:
    """The earliest instant from `now` on at which it is open. None if it stays closed for two years."""
    opening = next(times.openings(now, now + TWO_YEARS), None)
    return max(now, opening[0]) if opening else None


def first_closed(times: OpenTimes, now: datetime) -> datetime | None:
    """The earliest instant from `now` on at which it is closed. None if it stays open for two years."""
    if not times.open_at(now):
        return now
    _, closes = next(times.openings(now, now + TWO_YEARS))
    return None if closes > now + TWO_YEARS else closes


@dataclass(frozen=True, slots=True)
class Window:
    """One window of local time: [start, end) in minutes of the day, on the `days` (0 = Monday) on which it starts.

    `start` is 0 to 1439 and `end` 1 to 1440 (24:00). If start > end, the window continues past midnight. Use `window` to make a
    checked one.
    """

    start: int
    end: int
    days: frozenset[int]
    zone: ZoneInfo

    @property
    def length_minutes(self) -> int:
        """Its length on a day without a clock change."""
        return (self.end - self.start) % 1440 or 1440

    def contains(self, now: datetime) -> bool:
        """Whether the local time at `now` is inside the window."""
        local = now.astimezone(self.zone)
        minute, weekday = local.hour * 60 + local.minute, local.weekday()
        if self.start < self.end:
            return self.start <= minute < self.end and weekday in self.days
        if minute >= self.start:
            return weekday in self.days
        return minute < self.end and (weekday - 1) % 7 in self.days

    def utc_spans(self, day: int) -> Iterator[Span]:
        """The UTC spans of the window that starts on local `day` (days since 1970-01-01).

        Empty if `day` is not one of `days`. Two or more spans, touching or apart, if there is a clock change within the window.
        """
        if (day + 3) % 7 not in self.days:  # 1970-01-01 was a Thursday
            return
        start = day * _DAY + self.start * 60
        end = start + self.length_minutes * 60
        for begin, until, offset in _offset_periods(self.zone, day):
            opens, closes = max(start - offset, begin), min(end - offset, until)
            if opens < closes:
                yield opens, closes

    def key(self) -> str:
        days = ",".join(DAYS[day] for day in sorted(self.days))
        return f"{_format_minutes(self.start)}-{_format_minutes(self.end)} {days} {self.zone.key}"


@dataclass(frozen=True, slots=True)
class Hours:
    """The union of several windows. Without windows it is always open.

    All instants are aware and UTC. `always` is also true if windows of one zone cover the whole week.
    """

    windows: tuple[Window, ...] = ()
    always: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "always", not self.windows or _cover_the_week(self.windows))

    def open_at(self, now: datetime) -> bool:
        return self.always or any(window.contains(now) for window in self.windows)

    def openings(self, after: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
        """The spans [open, close) that overlap (after, until] or are open at `after`, in order and in full length.

        Windows that touch or overlap are merged. If it is always open, the only span is from `FIRST_INSTANT` to `LAST_INSTANT`.
        A span that windows of several zones keep open for years is cut two years before `after` and beyond `until`.
        """
        if self.always:
            yield FIRST_INSTANT, LAST_INSTANT
            return
        yield from openings_of_spans(self._spans_from(after, until), after, until)

    def key(self) -> str:
        """The same text for the same hours, in whatever order their windows are."""
        return "always" if self.always else "; ".join(sorted(window.key() for window in self.windows))

    def _spans_from(self, after: datetime, until: datetime) -> Iterator[Span]:
        """The merged spans from the one that is open at `after`, or the first later one, on."""
        reached = int(after.timestamp())
        for span in _spans_near(self.windows, reached // _DAY):
            if span[1] > reached:
                yield span
                reached = span[1]
        yield from (span for span in self._computed_spans(after, until) if span[1] > reached)

    def _computed_spans(self, after: datetime, until: datetime) -> Iterator[Span]:
        """The same without the cache. Looks back as far as the first span reaches."""
        instant = int(after.timestamp())
        last = int(until.timestamp()) // _DAY + TWO_YEARS.days + 3
        for back in (3, 10, 60, TWO_YEARS.days):
            first = instant // _DAY - back
            spans = merge_spans(_ordered_spans(self.windows, range(first, last)))
            found = next((span for span in spans if span[1] > instant), None)
            if found is None:
                return
            # Windows of the days before `first` have ended by then, so nothing earlier touches this span.
            if found[0] > (first + 2) * _DAY or back == TWO_YEARS.days:
                yield found
                yield from spans
                return


def window(start: int, end: int, days: frozenset[int], zone: ZoneInfo) -> Window:
    """A checked window from minutes as `parse_time` returns them. An end of 00:00 is the following midnight.

    Raises ValueError with one line that says what is wrong.
    """
    if start == end:
        raise ValueError(f"start and end are both {_format_minutes(start)}; write two different times, or always")
    if start == 1440:
        raise ValueError("24:00 cannot be a start; write 00:00")
    return Window(start, end or 1440, days, zone)


def parse_time(text: object) -> int:
    """Minutes of the day, 0 to 1440, from "HH:MM". Raises ValueError with one line that says what is wrong."""
    if isinstance(text, int) and not isinstance(text, bool) and 0 <= text <= 1440:
        raise ValueError(f'{text} is a number, not a time; write "{_format_minutes(text)}" in quotes')
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        raise ValueError(f'{text!r} is not a time; write "08:00", two digits each, from "00:00" to "24:00"')
    return int(text[:2]) * 60 + int(text[3:])


def parse_span(text: object) -> tuple[int, int]:
    """Start and end in minutes from "HH:MM-HH:MM". Raises ValueError with one line that says what is wrong."""
    start, dash, end = text.partition("-") if isinstance(text, str) else ("", "", "")
    if not dash:
        raise ValueError(f'{text!r} is not a window; write "08:00-22:00"')
    return parse_time(start.strip()), parse_time(end.strip())


def parse_days(value: object) -> frozenset[int]:
    """Days, 0 = Monday, from a name, a range (such as fri-mon), or a list of both. Raises ValueError."""
    parts = value if isinstance(value, list | tuple) else [value]
    days = frozenset(day for part in parts for day in _parse_day_range(part))
    if not days:
        raise ValueError("no day is named; write mon-fri or [mon, wed], or leave the key out for every day")
    return days


def _parse_day_range(part: object) -> Iterable[int]:
    first, dash, last = part.strip().lower().partition("-") if isinstance(part, str) else ("", "", "")
    ends = [first, last] if dash else [first]
    if not all(name in DAYS for name in ends):
        raise ValueError(f"{part!r} is not a day; write mon, tue, wed, thu, fri, sat or sun, or a range like mon-fri")
    begin, end = DAYS.index(ends[0]), DAYS.index(ends[-1])
    return [(begin + step) % 7 for step in range((end - begin) % 7 + 1)]


def _format_minutes(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def openings_of_spans(spans: Iterable[Span], after: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Those of these spans, which are in order, that overlap (after, until] or are open at `after`."""
    for begin, end in spans:
        opens, closes = datetime.fromtimestamp(begin, UTC), datetime.fromtimestamp(end, UTC)
        if opens > until:
            return
        if closes > after:
            yield opens, closes


def _cover_the_week(windows: tuple[Window, ...]) -> bool:
    if sum(window.length_minutes * len(window.days) for window in windows) < _WEEK_MINUTES:
        return False
    if len({window.zone.key for window in windows}) > 1:
        return False
    reach = 0
    for start, end in sorted(_week_spans(windows)):
        if start > reach:
            return False
        reach = max(reach, end)
    return reach >= _WEEK_MINUTES


def _week_spans(windows: tuple[Window, ...]) -> Iterator[Span]:
    """The minutes of this week, and of the week before, whose Sunday night may continue into this one."""
    for window in windows:
        for day in window.days:
            start = day * 1440 + window.start
            yield start, start + window.length_minutes
            yield start - _WEEK_MINUTES, start - _WEEK_MINUTES + window.length_minutes


def _ordered_spans(windows: Iterable[Window], days: range) -> Iterator[Span]:
    """The spans of all windows on these days, ordered by their start. If the clock is set back over midnight, the spans of two
    days interleave.
    """
    waiting: list[Span] = []
    for day in days:
        for window in windows:
            for span in window.utc_spans(day):
                heappush(waiting, span)
        # No zone is a whole day ahead of UTC, so no later day opens before this day's midnight in UTC.
        while waiting and waiting[0][0] < day * _DAY:
            yield heappop(waiting)
    yield from sorted(waiting)


def merge_spans(spans: Iterator[Span]) -> Iterator[Span]:
    """The spans with those merged that touch or overlap."""
    current = next(spans, None)
    if current is None:
        return
    opens, closes = current
    for begin, end in spans:
        if begin > closes:
            yield opens, closes
            opens, closes = begin, end
        closes = max(closes, end)
    yield opens, closes


@lru_cache(maxsize=4096)  # called six times per run, and many agents share their hours
def _spans_near(windows: tuple[Window, ...], day: int) -> tuple[Span, ...]:
    """The merged spans that end within the week from the beginning of `day` (UTC) on. Empty if the first one may begin earlier.

    A window that starts more than three local days earlier ends more than a day and a half before `day`. A window that starts
    on the eighth day after it does not open within that week. So the windows outside this range touch none of these spans.
    """
    spans = [span for span in merge_spans(_ordered_spans(windows, range(day - 3, day + 8))) if span[1] > day * _DAY]
    if spans and spans[0][0] <= (day - 1) * _DAY:
        return ()
    return tuple(span for span in spans if span[1] < (day + 7) * _DAY)


@lru_cache(maxsize=8192)
def _offset_periods(zone: ZoneInfo, day: int) -> tuple[tuple[int, int, int], ...]:
    """The UTC periods [begin, end) of constant UTC offset around local `day` and the day after, all in seconds.

    A change that is reversed within four days would be missed. No zone has had one since 1970.
    """
    begin, end = (day - 1) * _DAY, (day + 3) * _DAY
    if _utc_offset(zone, begin) == _utc_offset(zone, end):
        return ((begin, end, _utc_offset(zone, begin)),)
    changes = [begin, *_offset_changes(zone, begin, end), end]
    return tuple((start, stop, _utc_offset(zone, start)) for start, stop in pairwise(changes))


def _offset_changes(zone: ZoneInfo, begin: int, end: int) -> Iterator[int]:
    step = _DAY // 4
    for start in range(begin, end, step):
        if _utc_offset(zone, start) != _utc_offset(zone, start + step):
            yield _find_offset_change(zone, start, start + step)


def _find_offset_change(zone: ZoneInfo, before: int, behind: int) -> int:
    """The first second with the offset that the zone has at `behind`, by bisection."""
    offset = _utc_offset(zone, behind)
    while behind - before > 1:
        middle = (before + behind) // 2
        before, behind = (before, middle) if _utc_offset(zone, middle) == offset else (middle, behind)
    return behind


@lru_cache(maxsize=8192)
def _utc_offset(zone: ZoneInfo, instant: int) -> int:
    offset = datetime.fromtimestamp(instant, zone).utcoffset()
    assert offset is not None
    return offset.days * _DAY + offset.seconds


_UTC = ZoneInfo("UTC")
_EPOCH = date(1970, 1, 1).toordinal()
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
            if opens < closes:
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
