"""Cadence: the slots of a heartbeat, a fixed grid in elapsed time seen through its active hours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from heartbeat.hours import END, TWO_YEARS, Hours

_SECOND = timedelta(seconds=1)
_TICK = timedelta.resolution


@dataclass(frozen=True, slots=True)
class Slots:
    """Some slots in a row: the first, the latest and their number, 1 or more."""

    first: datetime
    latest: datetime
    count: int


@dataclass(frozen=True, slots=True)
class Cadence:
    """Slots are `anchor + k * interval`, k >= 0, that lie inside `hours`.

    A whole opening without one gets a slot of its own: `stagger` after it opens, and before its last second is over. Only
    openings that begin at or after the anchor do. `interval` is positive; all instants are aware and UTC.
    """

    anchor: datetime
    interval: timedelta
    stagger: timedelta
    hours: Hours

    def next(self, after: datetime) -> datetime | None:
        """The first slot later than `after`; None when no window opens within two years."""
        if self.hours.always:
            return self._grid_from(after + _TICK)
        openings = self.hours.openings(after, after + TWO_YEARS)
        return next((slots.first for slots in self._inside(openings, after, END - _TICK)), None)

    def slots(self, after: datetime, until: datetime) -> Slots | None:
        """The slots in (after, until]; None when there are none."""
        if self.hours.always:
            return self._grid(after + _TICK, until + _TICK)
        return _together(self._inside(self.hours.openings(after, until), after, until))

    def closed(self, after: datetime, until: datetime) -> Slots | None:
        """The points of the grid in (after, until] at which it is closed; None when there are none."""
        if self.hours.always:
            return None
        gaps = (self._grid(opens, closes) for opens, closes in self._gaps(after, until))
        return _together(gap for gap in gaps if gap)

    def _inside(self, openings: Iterable[tuple[datetime, datetime]], after: datetime, until: datetime) -> Iterator[Slots]:
        for opens, closes in openings:
            slots = self._grid(max(opens, after + _TICK), min(closes, until + _TICK)) or self._own(opens, closes)
            if slots and after < slots.first <= until:
                yield slots

    def _own(self, opens: datetime, closes: datetime) -> Slots | None:
        """The slot that an opening without a point of the grid gets."""
        if opens < self.anchor or self._grid(opens, closes):
            return None
        slot = min(opens + self.stagger, closes - _SECOND)
        return Slots(slot, slot, 1)

    def _gaps(self, after: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
        """The spans [begin, end) of (after, until] that no opening covers."""
        begin, end = after + _TICK, until + _TICK
        for opens, closes in self.hours.openings(after, until):
            yield begin, min(opens, end)
            begin = max(begin, closes)
        yield begin, end

    def _grid(self, begin: datetime, end: datetime) -> Slots | None:
        """The points of the grid in [begin, end)."""
        first, stop = self._index(begin), self._index(end)
        if first >= stop:
            return None
        return Slots(self._point(first), self._point(stop - 1), stop - first)

    def _grid_from(self, begin: datetime) -> datetime | None:
        """The first point of the grid at or after `begin`; None beyond the end of the calendar."""
        try:
            return self._point(self._index(begin))
        except OverflowError:
            return None

    def _index(self, instant: datetime) -> int:
        """The number of the first point at or after `instant`."""
        return max(0, -((self.anchor - instant) // self.interval))

    def _point(self, index: int) -> datetime:
        return self.anchor + index * self.interval


def stable_fraction(name: str) -> float:
    """A number in [0, 1) that is the same for the same name on every machine, from SHA-256."""
    return int.from_bytes(sha256(name.encode()).digest()[:6]) / 2**48


def stagger_of(name: str, share: timedelta) -> timedelta:
    """The stagger of a name: whole seconds, rounded up, from none to at most `share`."""
    seconds = math.ceil(stable_fraction(name) * share.total_seconds())
    return timedelta(seconds=min(seconds, share // _SECOND))


def first_anchor(first_seen: datetime, stagger: timedelta) -> datetime:
    """The anchor of an entry that is new: `stagger` after it was first seen, whole seconds, rounded up."""
    anchor = first_seen + stagger
    return anchor + timedelta(microseconds=-anchor.microsecond % 1_000_000)


def _together(parts: Iterable[Slots]) -> Slots | None:
    first = latest = None
    count = 0
    for part in parts:
        first, latest, count = first or part.first, part.latest, count + part.count
    return Slots(first, latest, count) if first and latest else None
