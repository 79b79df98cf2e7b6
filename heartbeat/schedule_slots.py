"""Timed slots: what a schedule names, seen through the times at which it is open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from heartbeat.hours import TWO_YEARS, Open
from heartbeat.interval_slots import Slots

_TICK = timedelta.resolution
_TRIES = 1000  # firings in a row that are closed; each of them costs an opening, so that these are years

Span = tuple[datetime, datetime]  # (after, until]


class Several(Protocol):
    """Some firings in a row: the first, the latest, and how many, both ends included."""

    @property
    def first(self) -> datetime: ...
    @property
    def latest(self) -> datetime: ...
    @property
    def count(self) -> int: ...


class Firings(Protocol):
    """What names instants, whoever reads the schedule."""

    def next(self, after: datetime) -> datetime | None: ...
    def slots(self, after: datetime, until: datetime) -> Several | None: ...


Finder = Callable[[datetime, datetime], Several | None]


@dataclass(frozen=True, slots=True)
class Timed:
    """Slots are the instants that `firings` names; one whose due time, `offset` later, lies outside `hours` is closed.

    All instants are aware and UTC.
    """

    firings: Firings
    hours: Open
    offset: timedelta = timedelta()

    def next(self, after: datetime) -> datetime | None:
        """The first slot later than `after` that is open; None when a thousand in a row are closed, or none comes at all."""
        for _ in range(_TRIES):
            slot = self.firings.next(after)
            if slot is None or self.hours.open_at(slot + self.offset):
                return slot
            opens = next((opens for opens, _ in self._openings(slot, slot + TWO_YEARS) if opens > slot), None)
            if opens is None:
                return None
            after = opens - _TICK
        return None

    def slots(self, after: datetime, until: datetime) -> Slots | None:
        """The slots in (after, until] that are open; None when there are none."""
        return together(self.inside(after, until), self.firings.slots)

    def closed(self, after: datetime, until: datetime) -> Slots | None:
        """The slots in (after, until] that are closed; None when there are none."""
        return together(self.outside(after, until), self.firings.slots)

    def inside(self, after: datetime, until: datetime) -> Iterator[Span]:
        """The parts of (after, until] in which it is open."""
        if self.hours.always:
            yield after, until
            return
        for opens, closes in self._openings(after, until):
            yield max(after, opens - _TICK), min(until, closes - _TICK)

    def outside(self, after: datetime, until: datetime) -> Iterator[Span]:
        """The parts of (after, until] in which it is closed; some may be empty."""
        begin = after
        for opened, closed in self.inside(after, until):
            yield begin, opened
            begin = closed
        yield begin, until

    def _openings(self, after: datetime, until: datetime) -> Iterator[Span]:
        """When it is open, on the schedule's own clock, which is `offset` behind."""
        for opens, closes in self.hours.openings(after + self.offset, until + self.offset):
            yield opens - self.offset, closes - self.offset


def together(spans: Iterable[Span], *finders: Finder) -> Slots | None:
    """All that these find in these spans, as one; None when that is nothing."""
    parts = [part for after, until in spans if after < until for find in finders if (part := find(after, until))]
    if not parts:
        return None
    return Slots(min(part.first for part in parts), max(part.latest for part in parts), sum(part.count for part in parts))
