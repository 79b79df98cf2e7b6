"""The clock readings at which a job fires on a day that is its own: each of its hours with each of its minutes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from datetime import time, timedelta
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class TimesOfDay:
    """In the order of the clock, numbered from 0, without being written out. `hours` and `minutes` ascend."""

    hours: tuple[int, ...]
    minutes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.hours) * len(self.minutes)

    def __getitem__(self, number: int) -> time:
        if not 0 <= number < len(self):
            raise IndexError(number)
        hour, minute = divmod(number, len(self.minutes))
        return time(self.hours[hour], self.minutes[minute])

    def __str__(self) -> str:
        return f"{','.join(map(str, self.minutes))} {','.join(map(str, self.hours))}"

    def count_until(self, clock: time) -> int:
        """How many are at or before this reading."""
        whole = bisect_left(self.hours, clock.hour)
        if self.hours[whole : whole + 1] != (clock.hour,):
            return whole * len(self.minutes)
        return whole * len(self.minutes) + bisect_right(self.minutes, clock.minute)

    def shortest_gap(self) -> timedelta | None:
        """The shortest distance between two of them; None if there is only one."""
        over_the_hour = self.minutes[0] - self.minutes[-1]
        gaps = [b - a for a, b in pairwise(self.minutes)] + [60 * (b - a) + over_the_hour for a, b in pairwise(self.hours)]
        return timedelta(minutes=min(gaps)) if gaps else None

    def span(self) -> timedelta:
        """From the first of the day to the last."""
        return timedelta(hours=self.hours[-1] - self.hours[0], minutes=self.minutes[-1] - self.minutes[0])
