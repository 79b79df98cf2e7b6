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
A_DAY = timedelta(days=1)  # longer than any change that a fixed-time job rides over
YEARS = 50  # how far ahead to look; 29 February falls on a given weekday every 40 years at the latest
TICK = datetime.resolution


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The instant (UTC) at which the clock is set, and its distance from UTC until and from then."""

    instant: datetime
    offset_before: timedelta
    offset_after: timedelta

    @property
    def is_small(self) -> bool:
        return -THREE_HOURS <= self.offset_after - self.offset_before < THREE_HOURS


@dataclass(frozen=True, slots=True)
class OffsetPeriod:
    """The time from `start` to before `end` (aware, UTC), in which the clock runs undisturbed.

    `opening` is the first reading (naive) that counts in it. It lies before the clock's own at `start` where readings were left
    out but still happen, and after it where they come a second time and do not.
    """

    start: datetime
    end: datetime
    offset: timedelta
    first_wall_time: datetime

    def wall_time(self, instant: datetime) -> datetime:
        """What the clock shows, naive."""
        return (instant + self.offset).replace(tzinfo=None)

    def instant_of(self, reading: datetime) -> datetime:
        """When a reading of this stretch happens, UTC; what was left out happens at its start."""
        return max(self.start, reading.replace(tzinfo=UTC) - self.offset)

    def wall_time_floor(self, after: datetime) -> datetime:
        """The reading after which those begin that happen strictly after this instant."""
        opening = self.first_wall_time - TICK
        return opening if after < self.start else max(opening, self.wall_time(after))

    def wall_time_ceiling(self, until: datetime) -> datetime:
        """The last reading that may happen at or before this instant."""
        return self.wall_time(min(until, self.end - TICK))


def offset_periods(zone: ZoneInfo, since: datetime, *, fixed: bool) -> Iterator[OffsetPeriod]:
    """The stretches from the one that holds `since` (UTC) on, for 50 years, as a fixed-time or a wildcard job sees them."""
    start = since - A_DAY
    offset = _utc_offset(zone, start)
    opening = start + offset
    for change in _offset_changes_after(zone, start):
        if change.instant > since:
            yield OffsetPeriod(start, change.instant, offset, opening.replace(tzinfo=None))
        start, offset = change.instant, change.offset_after
        opening = start + (change.offset_before if fixed and change.is_small else change.offset_after)


def offset_changes(zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[OffsetChange]:
    """The changes of a zone's clock in (after, until], both aware."""
    for change in _offset_changes_after(zone, after.astimezone(UTC)):
        if change.instant > until:
            return
        if change.offset_before != change.offset_after:
            yield change


@lru_cache(maxsize=64)
def zone_fingerprint(zone: ZoneInfo) -> str:
    """What a zone's clock does from 1970 on, as a hash: equal for zones that are one and the same, as UTC and Etc/UTC are."""
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
    """The changes of one year (UTC), found by looking once a day, for zoneinfo does not tell them.

    The last is the turn of the year, which mostly changes nothing: it is there so that a zone without changes has stretches too.
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
    """The first second at which the offset is no longer what it was at `low`."""
    before = _utc_offset(zone, low)
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        low, high = (middle, high) if _utc_offset(zone, middle) == before else (low, middle)
    return high


def _utc_offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None  # a ZoneInfo always knows
    return offset
