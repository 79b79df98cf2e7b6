"""A job's steady interval: slots on a grid of elapsed time, which no clock on the wall moves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from cron.slots import Slots


@dataclass(frozen=True, slots=True)
class Every:
    """Slots at `anchor + k * period` for k from 1 on. `period` is positive; `anchor` is aware, UTC."""

    period: timedelta
    anchor: datetime

    def next(self, after: datetime) -> datetime:
        """The first slot strictly after this instant (aware), UTC."""
        return self._slot(self._reached(after) + 1)

    def slots(self, after: datetime, until: datetime) -> Slots | None:
        """The slots in (after, until]; None if there are none."""
        first, latest = self._reached(after) + 1, self._reached(until)
        if latest < first:
            return None
        return Slots(self._slot(first), self._slot(latest), latest - first + 1)

    def _reached(self, instant: datetime) -> int:
        """How many slots there have been up to and including this instant."""
        return max(0, (instant - self.anchor) // self.period)

    def _slot(self, number: int) -> datetime:
        return self.anchor + number * self.period
