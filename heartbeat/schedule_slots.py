"""Timed slots: what a schedule names, seen through the times at which it is open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from heartbeat.hours import TWO_YEARS, OpenTimes
from heartbeat.interval_slots import SlotRange

_TICK = timedelta.resolution
_MAX_TRIES = 1000  # firings in a row that are closed; each of them costs an opening, so that these are years

Span = tuple[datetime, datetime]  # (after, until]


class AnySlotRange(Protocol):
    """Some firings in a row: the first, the latest, and how many, both ends included."""

    @property
    def first(self) -> datetime: ...
    @property
    def latest(self) -> datetime: ...
    @property
    def count(self) -> int: ...


class SlotSource(Protocol):
    """What names instants, whoever reads the schedule."""

    def next(self, after: datetime) -> datetime | None: ...
    def slots(self, after: datetime, until: datetime) -> AnySlotRange | None: ...


FindSlots = Callable[[datetime, datetime], AnySlotRange | None]


@dataclass(frozen=True, slots=True)
class ScheduleSlots:
    """Slots are the instants that `firings` names; one whose due time, `offset` later, lies outside `hours` is closed.

    All instants are aware and UTC.
    """

    source: SlotSource
    hours: OpenTimes
    offset: timedelta = timedelta()

    def next(self, after: datetime) -> datetime | None:
        """The first slot later than `after` that is open; None when a thousand in a row are closed, or none comes at all."""
        for _ in range(_MAX_TRIES):
            slot = self.source.next(after)
            if slot is None or self.hours.open_at(slot + self.offset):
                return slot
            opens = next((opens for opens, _ in self._shifted_openings(slot, slot + TWO_YEARS) if opens > slot), None)
            if opens is None:
                return None
            after = opens - _TICK
        return None

    def slots(self, after: datetime, until: datetime) -> SlotRange | None:
        """The slots in (after, until] that are open; None when there are none."""
        return combine_slots(self.open_spans(after, until), self.source.slots)

    def closed_slots(self, after: datetime, until: datetime) -> SlotRange | None:
        """The slots in (after, until] that are closed; None when there are none."""
        return combine_slots(self.closed_spans(after, until), self.source.slots)

    def open_spans(self, after: datetime, until: datetime) -> Iterator[Span]:
        """The parts of (after, until] in which it is open."""
        if self.hours.always:
            yield after, until
            return
        for opens, closes in self._shifted_openings(after, until):
            yield max(after, opens - _TICK), min(until, closes - _TICK)

    def closed_spans(self, after: datetime, until: datetime) -> Iterator[Span]:
        """The parts of (after, until] in which it is closed; some may be empty."""
        begin = after
        for opened, closed in self.open_spans(after, until):
            yield begin, opened
            begin = closed
        yield begin, until

    def _shifted_openings(self, after: datetime, until: datetime) -> Iterator[Span]:
        """When it is open, on the schedule's own clock, which is `offset` behind."""
        for opens, closes in self.hours.openings(after + self.offset, until + self.offset):
            yield opens - self.offset, closes - self.offset


def combine_slots(spans: Iterable[Span], *finders: FindSlots) -> SlotRange | None:
    """All that these find in these spans, as one; None when that is nothing."""
    parts = [part for after, until in spans if after < until for find in finders if (part := find(after, until))]
    if not parts:
        return None
    return SlotRange(min(part.first for part in parts), max(part.latest for part in parts), sum(part.count for part in parts))
