"""A job's one moment: a reading of a zone's clock, and the instant at which it comes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cron.dst_changes import offset_periods
from cron.field import ScheduleError
from cron.slots import SlotRange

TWO_DAYS = timedelta(days=2)  # no zone is farther than that from UTC
LAST_YEAR = 9900  # beyond it the calendar of this machine ends, within what must be looked ahead
ADVICE = 'write at: "2030-12-24T18:00"'

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class OneTimeSchedule:
    """One slot: when the clock of `zone` shows `reading` (naive) for the first time, by the rules for fixed times."""

    wall_time: datetime
    zone: ZoneInfo

    @property
    def instant(self) -> datetime | None:
        """When it comes, UTC: what a small change of the clock leaves out, right after that; None: the day never came."""
        since = self.wall_time.replace(tzinfo=UTC) - TWO_DAYS
        for stretch in offset_periods(self.zone, since, fixed=True):
            if self.wall_time < stretch.first_wall_time:
                return None
            if (instant := stretch.instant_of(self.wall_time)) < stretch.end:
                return instant
        return None

    def next(self, after: datetime) -> datetime | None:
        """The slot if it is strictly after this instant (aware)."""
        instant = self.instant
        return instant if instant and instant > after else None

    def slots(self, after: datetime, until: datetime) -> SlotRange | None:
        """The slot if it is in (after, until]."""
        instant = self.next(after)
        return SlotRange(instant, instant, 1) if instant and instant <= until else None


def parse_one_time(text: str, zone: ZoneInfo) -> OneTimeSchedule:
    """The moment that a text like `2026-12-24T18:00` means in a zone, or with an offset by itself. Raises ScheduleError."""
    if not _MOMENT.fullmatch(text):
        raise ScheduleError(f"{text[:40]!r} is not a date with a time; {ADVICE}")
    try:
        said = datetime.fromisoformat(text)
        moment = (
            OneTimeSchedule(said, zone)
            if said.tzinfo is None
            else OneTimeSchedule(said.astimezone(UTC).replace(tzinfo=None), ZoneInfo("UTC"))
        )
        instant = moment.instant
    except (ValueError, OverflowError):
        raise ScheduleError(f"{text!r} never comes; {ADVICE}") from None
    if instant and instant.year >= LAST_YEAR:
        raise ScheduleError(f"{text!r} is later than this calendar goes; {ADVICE}")
    if instant is None:
        raise ScheduleError(f"{text!r} never comes in {zone}, whose clock left that day out; {ADVICE}")
    return moment
