"""Places times on the horizontal axis of a picture, and labels full hours of the local clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

ONE_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Label:
    """A full hour of the local clock. Narrow screens leave minor labels out."""

    x: float
    local: datetime
    is_minor: bool

    @property
    def is_midnight(self) -> bool:
        """Whether a day begins here."""
        return self.local.hour == 0


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """The time [begin, end) in a zone. Places and widths are in percent of the axis."""

    begin: datetime
    end: datetime
    zone: ZoneInfo

    def place(self, instant: datetime) -> float:
        """Where a time is; the nearest end for a time outside."""
        return self.width(self.begin, min(max(instant, self.begin), self.end))

    def width(self, first: datetime, last: datetime) -> float:
        """How wide a time is. The whole axis is empty on a day that the zone skipped."""
        span = self.end - self.begin
        return round(100 * ((last - first) / span), 2) if span else 0.0

    def labels(self, every: int) -> Iterator[Label]:
        """The hours that are multiples of `every`, and each second one is minor. The distances differ at a clock change."""
        hour = self.begin.astimezone(self.zone).replace(minute=0, second=0, microsecond=0).astimezone(UTC)
        while hour < self.end:
            local = hour.astimezone(self.zone)
            if hour >= self.begin and local.hour % every == 0 and local.minute == 0 and not local.fold:
                yield Label(self.place(hour), local, is_minor=local.hour % (2 * every) != 0)
            hour += ONE_HOUR
