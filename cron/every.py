"""A job's steady interval: slots on a grid of elapsed time, which no clock on the wall moves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from cron.slots import SlotRange


@dataclass(frozen=True, slots=True)
class IntervalSchedule:
    """Slots at `anchor + k * period` for k from 1 on. `period` is positive; `anchor` is aware, UTC."""

    period: timedelta
    anchor: datetime

    def next(self, after: datetime) -> datetime:
        """The first slot strictly after this instant (aware), UTC."""
        return self._nth_slot(self._slots_until(after) + 1)

    def slots(self, after: datetime, until: datetime) -> SlotRange | None:
        """The slots in (after, until]; None if there are none."""
        first, latest = self._slots_until(after) + 1, self._slots_until(until)
        if latest < first:
            return None
        return SlotRange(self._nth_slot(first), self._nth_slot(latest), latest - first + 1)

    def _slots_until(self, instant: datetime) -> int:
        """How many slots there have been up to and including this instant."""
        return max(0, (instant - self.anchor) // self.period)

    def _nth_slot(self, number: int) -> datetime:
        return self.anchor + number * self.period
