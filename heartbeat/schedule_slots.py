"""The slots of a schedule that lie within active hours and allowed days, and those that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from heartbeat.hours import TWO_YEARS, OpenTimes
from heartbeat.interval_slots import SlotRange

_MICROSECOND = timedelta.resolution
_MAX_TRIES = 1000  # closed slots in a row; each one skips a whole closed time, so this covers years

Span = tuple[datetime, datetime]  # (after, until]


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


def combine_slots(spans: Iterable[Span], *finders: FindSlots) -> SlotRange | None:
    """The slots that the finders return for these spans, as one range. None if there are none."""
    parts = [part for after, until in spans if after < until for find in finders if (part := find(after, until))]
    if not parts:
        return None
    return SlotRange(min(part.first for part in parts), max(part.latest for part in parts), sum(part.count for part in parts))
