"""The changes of a time zone's UTC offset, and when each local time occurs between them.

The rules at a change are those of Debian's cron. A change of less than three hours forward, or at most three hours back, counts
as a daylight saving change: a job at fixed times runs as if the clock had not been changed. Its skipped times run together right
after the change, and its repeated times run only once. A wildcard job follows the clock. A larger change counts as a correction
of the clock, and every job follows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from zoneinfo import ZoneInfo

THREE_HOURS = timedelta(hours=3)
A_DAY = timedelta(days=1)  # longer than any change that counts as daylight saving
YEARS = 50  # how far ahead to look: 29 February falls on a given weekday every 40 years at the latest
MICROSECOND = datetime.resolution


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """A change of a zone's UTC offset: the instant (UTC), and the offsets before and after it."""

    instant: datetime
    offset_before: timedelta
    offset_after: timedelta

    @property
    def is_small(self) -> bool:
        return -THREE_HOURS <= self.offset_after - self.offset_before < THREE_HOURS


@dataclass(frozen=True, slots=True)
class OffsetPeriod:
    """The time from `start` to before `end` (aware, UTC), in which the UTC offset is constant.

    `first_wall_time` (naive) is the first wall time that belongs to this period. It lies before the local time at `start` if
    the clock change skipped times that still run, and after it if times occur again that must not run twice.
    """

    start: datetime
    end: datetime
    offset: timedelta
    first_wall_time: datetime

    def wall_time(self, instant: datetime) -> datetime:
        """The local time at this instant, naive."""
        return (instant + self.offset).replace(tzinfo=None)

    def instant_of(self, reading: datetime) -> datetime:
        """The instant of a wall time in this period, in UTC. Skipped wall times happen at its start."""
        return max(self.start, reading.replace(tzinfo=UTC) - self.offset)

    def wall_time_floor(self, after: datetime) -> datetime:
        """The wall times later than this one happen strictly after the instant."""
        opening = self.first_wall_time - MICROSECOND
        return opening if after < self.start else max(opening, self.wall_time(after))

    def wall_time_ceiling(self, until: datetime) -> datetime:
        """The last wall time that can happen at or before this instant."""
        return self.wall_time(min(until, self.end - MICROSECOND))


def offset_periods(zone: ZoneInfo, since: datetime, *, fixed: bool) -> Iterator[OffsetPeriod]:
    """The periods from the one that contains `since` (UTC) on, for 50 years, as a job at fixed times or a wildcard job sees
    them.
    """
    start = since - A_DAY
    offset = _utc_offset(zone, start)
    opening = start + offset
    for change in _offset_changes_after(zone, start):
        if change.instant > since:
            yield OffsetPeriod(start, change.instant, offset, opening.replace(tzinfo=None))
        start, offset = change.instant, change.offset_after
        opening = start + (change.offset_before if fixed and change.is_small else change.offset_after)


def offset_changes(zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[OffsetChange]:
    """The changes of a zone's UTC offset in (after, until], both aware."""
    for change in _offset_changes_after(zone, after.astimezone(UTC)):
        if change.instant > until:
            return
        if change.offset_before != change.offset_after:
            yield change


@lru_cache(maxsize=64)
def zone_fingerprint(zone: ZoneInfo) -> str:
    """A hash of a zone's offsets from 1970 on. It is equal for zones that are the same, such as UTC and Etc/UTC."""
    found = [
        change
        for year in range(1970, 2038)
        for change in _offset_changes_in_year(zone, year)
        if change.offset_before != change.offset_after
    ]
    return sha256(repr((_utc_offset(zone, datetime(1970, 1, 1, tzinfo=UTC)), found)).encode()).hexdigest()


def _offset_changes_after(zone: ZoneInfo, start: datetime) -> Iterator[OffsetChange]:
    for year in range(start.year, start.year + YEARS + 1):
        for change in _offset_changes_in_year(zone, year):
            if change.instant > start:
                yield change


@lru_cache(maxsize=1024)
def _offset_changes_in_year(zone: ZoneInfo, year: int) -> tuple[OffsetChange, ...]:
    """The changes of one year (UTC), found by comparing the offset day by day, because zoneinfo does not list them.

    The last one is the end of the year, which usually changes nothing. It is included so that a zone without changes has
    periods too.
    """
    found: list[OffsetChange] = []
    day = datetime(year, 1, 1, tzinfo=UTC)
    turn = datetime(year + 1, 1, 1, tzinfo=UTC)
    before = _utc_offset(zone, day)
    while day < turn:
        after = _utc_offset(zone, day + A_DAY)
        if before != after:
            found.append(OffsetChange(_find_change(zone, day, day + A_DAY), before, after))
        day, before = day + A_DAY, after
    return (*found, OffsetChange(turn, before, before))


def _find_change(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """The first second at which the offset differs from the offset at `low`."""
    before = _utc_offset(zone, low)
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        low, high = (middle, high) if _utc_offset(zone, middle) == before else (low, middle)
    return high


def _utc_offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None  # a ZoneInfo always has an offset
    return offset
