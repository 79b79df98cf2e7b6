"""Computes when an agent or a job is due: the slots of an interval, and the slots of any schedule within its opening times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Protocol

from heartbeat.hours import TWO_YEARS, OpenTimes

_SECOND = timedelta(seconds=1)
_MICROSECOND = timedelta.resolution
_MAX_TRIES = 1000  # closed slots in a row; each one skips a whole closed time, so this covers years

Span = tuple[datetime, datetime]  # (after, until]


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Several slots in a row: the first, the latest and their number, 1 or more."""

    first: datetime
    latest: datetime
    count: int


class AnySlotRange(Protocol):
    """Several slots in a row: the first, the latest, and their number, both ends included."""

    @property
    def first(self) -> datetime: ...
    @property
    def latest(self) -> datetime: ...
    @property
    def count(self) -> int: ...


class SlotSource(Protocol):
    """A schedule of any kind."""

    def next(self, after: datetime) -> datetime | None: ...
    def slots(self, after: datetime, until: datetime) -> AnySlotRange | None: ...


FindSlots = Callable[[datetime, datetime], AnySlotRange | None]


@dataclass(frozen=True, slots=True)
class IntervalSlots:
    """The slots of the grid `anchor + k * interval`, k >= 0. Each grid point gives at most one slot.

    A point inside `hours` is a slot. The points in closed time are moved to the next opening and give one slot together,
    `stagger` after it opens but before its last second is over. They give no slot if that opening contains a grid point.
    `interval` is positive. All instants are aware and UTC.
    """

    anchor: datetime
    interval: timedelta
    stagger: timedelta
    hours: OpenTimes

    def next(self, after: datetime) -> datetime | None:
        """The first slot later than `after`. None if there is no opening within two years."""
        begin = after + _MICROSECOND
        if self.hours.always:
            return self._first_point_from(begin)
        number = self._point_number(begin)
        moved = self._moved_slot(number - 1) if number else None
        if moved is not None and moved > after:
            return moved
        point = self._first_point_from(begin)
        return point if point is None or self.hours.open_at(point) else self._first_of_next_opening(point)

    def slots(self, after: datetime, until: datetime) -> SlotRange | None:
        """The slots in (after, until]. None if there are none."""
        if self.hours.always:
            return self._grid_points(after + _MICROSECOND, until + _MICROSECOND)
        first, end = self._point_number(after + _MICROSECOND), self._point_number(until + _MICROSECOND)
        if end - first > 1 or (end > first and not self.hours.open_at(self._grid_point(first))):
            return merge_ranges(self._slots_by_opening(after, until))
        # Usually there is one point, or none, and no closed time. Only the last point before can move into this span.
        moved = self._moved_slot(first - 1) if first else None
        found = [moved] if moved is not None and after < moved <= until else []
        found += [self._grid_point(first)] if end > first else []
        return SlotRange(found[0], found[-1], len(found)) if found else None

    def closed_slots(self, after: datetime, until: datetime) -> SlotRange | None:
        """The grid points in (after, until] that give no slot because they are in closed time. None if there are none.

        Of the points that move to the same opening, the last one becomes its slot and is not included.
        """
        points = None if self.hours.always else self._grid_points(after + _MICROSECOND, until + _MICROSECOND)
        if points is None or (points.count == 1 and self.hours.open_at(points.first)):
            return None
        return merge_ranges(self._points_without_slot(after, until))

    def _slots_by_opening(self, after: datetime, until: datetime) -> Iterator[SlotRange]:
        closed_since: datetime | None = None
        for opens, closes in self.hours.openings(after, until):
            inside = self._grid_points(max(opens, after + _MICROSECOND), min(closes, until + _MICROSECOND))
            moved = None if inside else self._slot_moved_to(opens, closes, closed_since)
            if moved is not None and after < moved <= until:
                inside = SlotRange(moved, moved, 1)
            if inside is not None:
                yield inside
            closed_since = closes

    def _points_without_slot(self, after: datetime, until: datetime) -> Iterator[SlotRange]:
        begin, end = after + _MICROSECOND, until + _MICROSECOND
        for opens, closes in self.hours.openings(after, until):
            closed = self._grid_points(begin, opens)
            yield from self._without_last(closed) if closed and self._has_no_point(opens, closes) else _if_any(closed)
            begin = max(begin, closes)
        closed = self._grid_points(begin, end)
        opening = self._opening_after(closed.latest) if closed else None
        moves = opening is not None and self._has_no_point(*opening) and self._point_number(opening[0]) == self._point_number(end)
        yield from self._without_last(closed) if closed and moves else _if_any(closed)

    def _without_last(self, points: SlotRange) -> Iterator[SlotRange]:
        if points.count > 1:
            yield SlotRange(points.first, points.latest - self.interval, points.count - 1)

    def _slot_moved_to(self, opens: datetime, closes: datetime, closed_since: datetime | None) -> datetime | None:
        """The slot that an opening gets from the closed time before it. None if the opening contains a grid point, or if no
        point moves to it.

        `closed_since` is the end of the opening before it, None if that is unknown.
        """
        number = self._point_number(opens)
        if number == 0 or not self._has_no_point(opens, closes):
            return None
        if closed_since is not None:
            return self._slot_at_opening(opens, closes) if self._point_number(closed_since) < number else None
        moved = self._moved_slot(number - 1)
        return moved if moved is not None and moved >= opens else None

    def _moved_slot(self, number: int) -> datetime | None:
        """The slot to which a grid point in closed time moves. None if the point is in open time, or gives no slot of its own."""
        point = self._grid_point(number)
        opening = None if self.hours.open_at(point) else self._opening_after(point)
        return self._slot_at_opening(*opening) if opening and self._has_no_point(*opening) else None

    def _first_of_next_opening(self, point: datetime) -> datetime | None:
        """The first slot of the opening after a point in closed time."""
        opening = self._opening_after(point)
        if opening is None:
            return None
        return (
            self._slot_at_opening(*opening) if self._has_no_point(*opening) else self._grid_point(self._point_number(opening[0]))
        )

    def _opening_after(self, closed: datetime) -> tuple[datetime, datetime] | None:
        return next(self.hours.openings(closed, closed + TWO_YEARS), None)

    def _slot_at_opening(self, opens: datetime, closes: datetime) -> datetime:
        return min(opens + self.stagger, closes - _SECOND)

    def _has_no_point(self, opens: datetime, closes: datetime) -> bool:
        """Whether an opening contains no grid point."""
        return self._point_number(opens) == self._point_number(closes)

    def _grid_points(self, begin: datetime, end: datetime) -> SlotRange | None:
        """The grid points in [begin, end)."""
        first, stop = self._point_number(begin), self._point_number(end)
        if first >= stop:
            return None
        earliest = self._grid_point(first)
        return SlotRange(earliest, earliest + (stop - 1 - first) * self.interval, stop - first)

    def _first_point_from(self, begin: datetime) -> datetime | None:
        """The first grid point at or after `begin`. None past the last year of datetime."""
        try:
            return self.anchor + self._point_number(begin) * self.interval
        except OverflowError:
            return None

    def _point_number(self, instant: datetime) -> int:
        """The number of the first grid point at or after `instant`."""
        return max(0, -((self.anchor - instant) // self.interval))

    def _grid_point(self, index: int) -> datetime:
        return self.anchor + index * self.interval


@dataclass(frozen=True, slots=True)
class ScheduleSlots:
    """The slots of `source`. A slot is closed if its due time, which is `offset` later, is outside `hours`.

    All instants are aware and UTC.
    """

    source: SlotSource
    hours: OpenTimes
    offset: timedelta = timedelta()

    def next(self, after: datetime) -> datetime | None:
        """The first open slot later than `after`. None if there are no more slots, or if a thousand in a row are closed."""
        for _ in range(_MAX_TRIES):
            slot = self.source.next(after)
            if slot is None or self.hours.open_at(slot + self.offset):
                return slot
            opens = next((opens for opens, _ in self._shifted_openings(slot, slot + TWO_YEARS) if opens > slot), None)
            if opens is None:
                return None
            after = opens - _MICROSECOND
        return None

    def slots(self, after: datetime, until: datetime) -> SlotRange | None:
        """The open slots in (after, until]. None if there are none."""
        return combine_slots(self.open_spans(after, until), self.source.slots)

    def closed_slots(self, after: datetime, until: datetime) -> SlotRange | None:
        """The closed slots in (after, until]. None if there are none."""
        return combine_slots(self.closed_spans(after, until), self.source.slots)

    def open_spans(self, after: datetime, until: datetime) -> Iterator[Span]:
        """The open parts of (after, until]."""
        if self.hours.always:
            yield after, until
            return
        for opens, closes in self._shifted_openings(after, until):
            yield max(after, opens - _MICROSECOND), min(until, closes - _MICROSECOND)

    def closed_spans(self, after: datetime, until: datetime) -> Iterator[Span]:
        """The closed parts of (after, until]. Some may be empty."""
        begin = after
        for opened, closed in self.open_spans(after, until):
            yield begin, opened
            begin = closed
        yield begin, until

    def _shifted_openings(self, after: datetime, until: datetime) -> Iterator[Span]:
        """The openings, moved back by `offset`, so that they can be compared with slots."""
        for opens, closes in self.hours.openings(after + self.offset, until + self.offset):
            yield opens - self.offset, closes - self.offset


def stable_fraction(name: str) -> float:
    """A number in [0, 1) from the SHA-256 of the name: the same on every machine."""
    return int.from_bytes(sha256(name.encode()).digest()[:6]) / 2**48


def stagger_for(name: str, share: timedelta) -> timedelta:
    """The stagger for a name: whole seconds, rounded up, from 0 to `share`."""
    seconds = math.ceil(stable_fraction(name) * share.total_seconds())
    return timedelta(seconds=min(seconds, share // _SECOND))


def first_anchor(first_seen: datetime, stagger: timedelta) -> datetime:
    """The anchor of a new entry: `stagger` after it was first seen, in whole seconds, rounded up."""
    anchor = first_seen + stagger
    return anchor + timedelta(microseconds=-anchor.microsecond % 1_000_000)


def _if_any(points: SlotRange | None) -> Iterator[SlotRange]:
    if points is not None:
        yield points


def combine_slots(spans: Iterable[Span], *finders: FindSlots) -> SlotRange | None:
    """The slots that the finders return for these spans, as one range. None if there are none."""
    found = (find(after, until) for after, until in spans if after < until for find in finders)
    return merge_ranges(part for part in found if part)


def merge_ranges(ranges: Iterable[AnySlotRange]) -> SlotRange | None:
    """One range with all slots of these. None if there are none."""
    parts = list(ranges)
    if not parts:
        return None
    return SlotRange(min(part.first for part in parts), max(part.latest for part in parts), sum(part.count for part in parts))
