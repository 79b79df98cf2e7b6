"""Says which time is to be explained: a moment, a local day, or the time since a moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from scheduler.model import local_days
from scheduler.model.local_days import parse_day

EARLIEST_TIME = datetime(2000, 1, 1, tzinfo=UTC)
MAX_AHEAD = timedelta(days=400)
LONGEST_DAY = timedelta(hours=26)  # in Antarctica/Troll, whose clocks go back by two hours


@dataclass(frozen=True, slots=True)
class Period:
    """The time [begin, end) in the zone of the reader. `until` is `end`, or now if that is earlier.

    `day` is the local day that it is; None for another time. `is_moment`: only the time `begin` is meant.
    """

    begin: datetime
    end: datetime
    until: datetime
    zone: ZoneInfo
    day: date | None = None
    is_moment: bool = False

    @property
    def is_long(self) -> bool:
        """Whether it is longer than a day, so that a time of day does not say when something happened."""
        return self.end - self.begin > LONGEST_DAY

    @classmethod
    def of_day(cls, day: date, zone: ZoneInfo, now: datetime) -> Period:
        """A local day. Raises ValueError if it is out of range."""
        _check_range(datetime.combine(day, time.min, UTC), now)
        whole = local_days.whole_day(day, zone)
        return cls(whole.begins, whole.ends, min(whole.ends, now), zone, day)

    @classmethod
    def today(cls, zone: ZoneInfo, now: datetime) -> Period:
        """The present local day."""
        return cls.of_day(now.astimezone(zone).date(), zone, now)

    @classmethod
    def since(cls, begin: datetime, zone: ZoneInfo, now: datetime) -> Period:
        """The time from `begin` until now. Raises ValueError if it is out of range or not in the past."""
        if begin >= now:
            raise ValueError("write a time in the past")
        _check_range(begin, now)
        return cls(begin, now, now, zone)

    @classmethod
    def at(cls, instant: datetime, zone: ZoneInfo, now: datetime) -> Period:
        """A moment. Raises ValueError if it is out of range."""
        _check_range(instant, now)
        return cls(instant, instant, min(instant, now), zone, is_moment=True)


def _check_range(instant: datetime, now: datetime) -> None:
    """Raises ValueError. A time near the limits of the calendar has no local time in some zones."""
    if not EARLIEST_TIME <= instant <= now + MAX_AHEAD:
        raise ValueError(f"write a time from {EARLIEST_TIME.year} on that is at most {MAX_AHEAD.days} days ahead")


def parse_period(
    named: Mapping[str, Any], zone: ZoneInfo, now: datetime, parse_time: Callable[[Any], datetime], *, may_be_ahead: bool = True
) -> Period | None:
    """The time that the value of `at`, `on` or `since` names; None without any. Raises ValueError with the key in its message."""
    if len(named) > 1:
        raise ValueError(f"{' and '.join(named)} exclude each other")
    for key, text in named.items():
        try:
            if key == "on":
                found = Period.of_day(parse_day(text, now.astimezone(zone)), zone, now)
            else:
                found = (Period.since if key == "since" else Period.at)(parse_time(text), zone, now)
            if found.begin > now and not may_be_ahead:
                raise ValueError(f"{found.day} is to come; `heartbeatd plan` lists what will run")
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
        return found
    return None
