"""The schedules of cron jobs: a cron expression or one date, each with its next slots."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from cron.dst_changes import A_DAY, OffsetPeriod, offset_periods, zone_fingerprint
from cron.expression import EVERY_DAY, CronExpression, is_reboot, parse_expression
from cron.field import ScheduleError

if TYPE_CHECKING:
    from croniter import croniter

__all__ = ["CronSchedule", "ScheduleError", "SlotRange", "is_reboot", "parse_schedule"]

SAMPLE_DAYS = 60  # to find the shortest gap between two days: more than a year of Fridays and 13ths
TWO_DAYS = timedelta(days=2)  # every UTC offset is shorter
LAST_YEAR = 9900  # leaves room before datetime's last year, because slots are searched years ahead
ADVICE = 'write at: "2030-12-24T18:00"'

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Several slots in a row, at least one. `first` and `latest` are aware, UTC, and equal if `count` is 1."""

    first: datetime
    latest: datetime
    count: int


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """A valid cron schedule: `text` as the user wrote it, in the time zone `zone`. Made by `parse_schedule`.

    All instants are aware, and results are in UTC. They must lie between the years 2 and 9900.
    """

    text: str
    zone: ZoneInfo
    expression: CronExpression

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each setting that is valid but probably a mistake."""
        return self.expression.warnings

    def key(self) -> str:
        """A text that decides the slots: two schedules with equal keys always fire together."""
        return f"{self.expression.key} {zone_fingerprint(self.zone)}"

    def next(self, after: datetime) -> datetime | None:
        """The first slot strictly after this instant. None if there is none within 50 years, which no valid text allows."""
        after = after.astimezone(UTC)
        for stretch in self._offset_periods(after):
            reading = self._wall_time_after(stretch.wall_time_floor(after))
            if reading is None:
                return None
            if (instant := stretch.instant_of(reading)) < stretch.end:
                return instant
        return None

    def slots(self, after: datetime, until: datetime) -> SlotRange | None:
        """The slots in (after, until], counted without visiting each one. None if there are none."""
        after, until = after.astimezone(UTC), until.astimezone(UTC)
        first = self.next(after)
        if first is None or first > until:
            return None
        latest, count = first, 0
        for stretch in self._offset_periods(after):
            if stretch.start > until:
                break
            number, last = self._count_in_period(stretch, after, until)
            count += number
            latest = stretch.instant_of(last) if last else latest
        return SlotRange(first, latest, count)

    def shortest_period(self) -> timedelta:
        """The shortest distance between two slots in a row, apart from clock changes. Cached, so only the first call is slow."""
        overnight = A_DAY - self.expression.times.span()
        within = self.expression.times.shortest_gap()
        if within and within <= overnight:
            return within
        overnight += _shortest_day_gap(self.expression.days) - A_DAY
        return min(within, overnight) if within else overnight

    def _offset_periods(self, after: datetime) -> Iterator[OffsetPeriod]:
        return offset_periods(self.zone, after, fixed=not self.expression.wildcard)

    def _wall_time_after(self, floor: datetime) -> datetime | None:
        """The first wall time of this schedule strictly after `floor`."""
        readings, today = self.expression.times, floor.date()
        passed = readings.count_until(floor.time())
        if passed < len(readings) and _first_day_from(self.expression.days, today) == today:
            return datetime.combine(today, readings[passed])
        day = _first_day_from(self.expression.days, today + A_DAY)
        return datetime.combine(day, readings[0]) if day else None

    def _count_in_period(self, stretch: OffsetPeriod, after: datetime, until: datetime) -> tuple[int, datetime | None]:
        """The number of slots in (after, until] within a period of constant offset, and the wall time of the last one."""
        floor, ceiling = stretch.wall_time_floor(after), stretch.wall_time_ceiling(until)
        number, last = self._count_wall_times(floor, ceiling)
        arrival = stretch.wall_time(stretch.start)
        if floor < arrival:  # skipped wall times run together as one
            number -= max(0, self._count_wall_times(floor, min(arrival, ceiling))[0] - 1)
        return number, last

    def _count_wall_times(self, floor: datetime, ceiling: datetime) -> tuple[int, datetime | None]:
        """The number of wall times of this schedule in (floor, ceiling], and the last one."""
        if ceiling <= floor:
            return 0, None
        readings = self.expression.times
        days = _matching_days(self.expression.days, floor.date(), ceiling.date())
        over = readings.count_until(floor.time()) if days and days[0] == floor.toordinal() else 0
        short = len(readings) - readings.count_until(ceiling.time()) if days and days[-1] == ceiling.toordinal() else 0
        count = len(days) * len(readings) - over - short
        if not count:
            return 0, None
        whole, part = divmod(over + count - 1, len(readings))
        return count, datetime.combine(date.fromordinal(days[whole]), readings[part])


@dataclass(frozen=True, slots=True)
class OneTimeSchedule:
    """One slot: the first time that the clock of `zone` shows `wall_time` (naive), by the rules for jobs at fixed times."""

    wall_time: datetime
    zone: ZoneInfo

    @property
    def instant(self) -> datetime | None:
        """The slot in UTC. A time that a small clock change skips comes right after the change. None if the zone skipped that
        whole day.
        """
        since = self.wall_time.replace(tzinfo=UTC) - TWO_DAYS
        for stretch in offset_periods(self.zone, since, fixed=True):
            if self.wall_time < stretch.first_wall_time:
                return None
            if (instant := stretch.instant_of(self.wall_time)) < stretch.end:
                return instant
        return None

    def next(self, after: datetime) -> datetime | None:
        """The slot, if it is strictly after this instant (aware)."""
        instant = self.instant
        return instant if instant and instant > after else None

    def slots(self, after: datetime, until: datetime) -> SlotRange | None:
        """The slot, if it is in (after, until]."""
        instant = self.next(after)
        return SlotRange(instant, instant, 1) if instant and instant <= until else None


def parse_schedule(text: str, zone: ZoneInfo) -> CronSchedule:
    """The schedule for a text in a time zone. Raises ScheduleError. `@reboot` is not a schedule (see `is_reboot`)."""
    return CronSchedule(text, zone, parse_expression(text))


def parse_one_time(text: str, zone: ZoneInfo) -> OneTimeSchedule:
    """The slot for a text such as `2026-12-24T18:00` in a time zone, or with its own UTC offset. Raises ScheduleError."""
    if not _MOMENT.fullmatch(text):
        raise ScheduleError(f"{text[:40]!r} is not a date with a time; {ADVICE}")
    try:
        parsed = datetime.fromisoformat(text)
        moment = (
            OneTimeSchedule(parsed, zone)
            if parsed.tzinfo is None
            else OneTimeSchedule(parsed.astimezone(UTC).replace(tzinfo=None), ZoneInfo("UTC"))
        )
        instant = moment.instant
    except (ValueError, OverflowError):
        raise ScheduleError(f"{text!r} is not a valid time; {ADVICE}") from None
    if instant and instant.year >= LAST_YEAR:
        raise ScheduleError(f"{text!r} is later than this calendar goes; {ADVICE}")
    if instant is None:
        raise ScheduleError(f"{text!r} does not exist in {zone}, because its clocks skipped that day; {ADVICE}")
    return moment


def _matching_days(days: str, first: date, last: date) -> Sequence[int]:
    """The days of a schedule from one date to another, both included, as ordinals."""
    if days == EVERY_DAY:
        return range(first.toordinal(), last.toordinal() + 1)
    found = []
    day = _first_day_from(days, first)
    while day and day <= last:
        found.append(day.toordinal())
        day = _first_day_from(days, day + A_DAY)
    return found


@lru_cache(maxsize=1024)
def _shortest_day_gap(days: str) -> timedelta:
    """The shortest distance between two days of a schedule in a row, among the first SAMPLE_DAYS of them."""
    if days == EVERY_DAY:
        return A_DAY
    walk = copy(_day_iterator(days))
    shortest = timedelta.max
    for earlier, later in pairwise(islice(walk.all_next(datetime), SAMPLE_DAYS)):
        shortest = min(shortest, later - earlier)
        if shortest == A_DAY:
            break
    return shortest


@lru_cache(maxsize=1024)
def _first_day_from(days: str, since: date) -> date | None:
    """The first day of a schedule at or after this one."""
    if days == EVERY_DAY:
        return since
    from croniter import CroniterBadDateError

    start = datetime.combine(since, time.min) - timedelta(minutes=1)
    try:
        found: datetime = copy(_day_iterator(days)).get_next(datetime, start)
    except CroniterBadDateError:
        return None
    return found.date()


@lru_cache(maxsize=256)
def _day_iterator(days: str) -> croniter:
    """The croniter over the midnights of a schedule's days. Copy it before use, because iterating changes it."""
    from croniter import croniter

    return croniter(f"0 0 {days}", datetime(2024, 1, 1), implement_cron_bug=True)  # noqa: DTZ001 -- naive on purpose
