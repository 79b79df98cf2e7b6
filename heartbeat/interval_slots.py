"""Cadence: the slots of a heartbeat, at most one for each point of a fixed grid in elapsed time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from heartbeat.hours import TWO_YEARS, Open

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
    """The slots of the grid `anchor + k * interval`, k >= 0: each of its points gives at most one.

    A point inside `hours` is a slot. The points of a closed time move to the next opening and give one slot together, `stagger`
    after it opens and before its last second is over; none where that opening holds a point of the grid. `interval` is
    positive; all instants are aware and UTC.
    """

    anchor: datetime
    interval: timedelta
    stagger: timedelta
    hours: Open

    def next(self, after: datetime) -> datetime | None:
        """The first slot later than `after`; None when no window opens within two years."""
        begin = after + _TICK
        if self.hours.always:
            return self._grid_from(begin)
        number = self._index(begin)
        moved = self._moved(number - 1) if number else None
        if moved is not None and moved > after:
            return moved
        point = self._grid_from(begin)
        return point if point is None or self.hours.open_at(point) else self._first_of_next_opening(point)

    def slots(self, after: datetime, until: datetime) -> Slots | None:
        """The slots in (after, until]; None when there are none."""
        if self.hours.always:
            return self._grid(after + _TICK, until + _TICK)
        return _together(self._by_opening(after, until))

    def closed(self, after: datetime, until: datetime) -> Slots | None:
        """The points of the grid in (after, until] that give no slot, because it is closed; None when there are none.

        Of the points that move to the same opening, the last one is its slot and is not among them.
        """
        points = None if self.hours.always else self._grid(after + _TICK, until + _TICK)
        if points is None or (points.count == 1 and self.hours.open_at(points.first)):
            return None
        return _together(self._without_slot(after, until))

    def _by_opening(self, after: datetime, until: datetime) -> Iterator[Slots]:
        closed_since: datetime | None = None
        for opens, closes in self.hours.openings(after, until):
            inside = self._grid(max(opens, after + _TICK), min(closes, until + _TICK))
            moved = None if inside else self._moved_to(opens, closes, closed_since)
            if moved is not None and after < moved <= until:
                inside = Slots(moved, moved, 1)
            if inside is not None:
                yield inside
            closed_since = closes

    def _without_slot(self, after: datetime, until: datetime) -> Iterator[Slots]:
        begin, end = after + _TICK, until + _TICK
        for opens, closes in self.hours.openings(after, until):
            closed = self._grid(begin, opens)
            yield from self._without_last(closed) if closed and self._is_empty(opens, closes) else _some(closed)
            begin = max(begin, closes)
        closed = self._grid(begin, end)
        opening = self._opening_after(closed.latest) if closed else None
        moves = opening is not None and self._is_empty(*opening) and self._index(opening[0]) == self._index(end)
        yield from self._without_last(closed) if closed and moves else _some(closed)

    def _without_last(self, points: Slots) -> Iterator[Slots]:
        if points.count > 1:
            yield Slots(points.first, points.latest - self.interval, points.count - 1)

    def _moved_to(self, opens: datetime, closes: datetime, closed_since: datetime | None) -> datetime | None:
        """The slot that an opening gets from the closed time before it; None when it holds a point, or none comes from there.

        `closed_since` is when the opening before it ended; None: that is not known.
        """
        number = self._index(opens)
        if number == 0 or not self._is_empty(opens, closes):
            return None
        if closed_since is not None:
            return self._at_opening(opens, closes) if self._index(closed_since) < number else None
        moved = self._moved(number - 1)
        return moved if moved is not None and moved >= opens else None

    def _moved(self, number: int) -> datetime | None:
        """Where a point of the grid that lies in closed time moves; None for one that is open, or gives no slot of its own."""
        point = self._point(number)
        opening = None if self.hours.open_at(point) else self._opening_after(point)
        return self._at_opening(*opening) if opening and self._is_empty(*opening) else None

    def _first_of_next_opening(self, point: datetime) -> datetime | None:
        """The first slot of the opening after a point in closed time."""
        opening = self._opening_after(point)
        if opening is None:
            return None
        return self._at_opening(*opening) if self._is_empty(*opening) else self._point(self._index(opening[0]))

    def _opening_after(self, closed: datetime) -> tuple[datetime, datetime] | None:
        return next(self.hours.openings(closed, closed + TWO_YEARS), None)

    def _at_opening(self, opens: datetime, closes: datetime) -> datetime:
        return min(opens + self.stagger, closes - _SECOND)

    def _is_empty(self, opens: datetime, closes: datetime) -> bool:
        """Whether no point of the grid lies in an opening."""
        return self._index(opens) == self._index(closes)

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


def _some(points: Slots | None) -> Iterator[Slots]:
    if points is not None:
        yield points


def _together(parts: Iterable[Slots]) -> Slots | None:
    first = latest = None
    count = 0
    for part in parts:
        first, latest, count = first or part.first, part.latest, count + part.count
    return Slots(first, latest, count) if first and latest else None
