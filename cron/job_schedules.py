"""When a cron job fires: an expression read in a zone, as instants.

croniter walks naive local days over the rewritten day fields; given aware datetimes it is wrong at a quarter of the clock
changes. The clock of each day is ours, and so is the way from a reading to an instant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from croniter import CroniterBadDateError, croniter

from cron.dst_changes import OffsetPeriod, offset_periods, zone_fingerprint
from cron.expression import EVERY_DAY, CronExpression, is_reboot, parse_expression
from cron.field import ScheduleError
from cron.slots import SlotRange

__all__ = ["CronSchedule", "ScheduleError", "SlotRange", "is_reboot", "parse_schedule"]

A_DAY = timedelta(days=1)
SAMPLE_DAYS = (
    60  # days of a schedule that are looked at for the shortest distance between two: more than a year of Fridays and 13ths
)


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """A valid schedule: `text` as the user wrote it, read in `zone`. Made by `parse`.

    Instants are aware, those that come out in UTC; they may lie between the years 2 and 9900.
    """

    text: str
    zone: ZoneInfo
    expression: CronExpression

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is legal but hardly meant, one line each."""
        return self.expression.warnings

    def key(self) -> str:
        """What decides the instants: two schedules with equal keys fire together, for ever."""
        return f"{self.expression.key} {zone_fingerprint(self.zone)}"

    def next(self, after: datetime) -> datetime | None:
        """The first firing strictly after this instant; None if none comes within 50 years, as no valid text allows."""
        after = after.astimezone(UTC)
        for stretch in self._offset_periods(after):
            reading = self._wall_time_after(stretch.wall_time_floor(after))
            if reading is None:
                return None
            if (instant := stretch.instant_of(reading)) < stretch.end:
                return instant
        return None

    def slots(self, after: datetime, until: datetime) -> SlotRange | None:
        """The firings in (after, until], counted without walking them; None if there are none."""
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
        """The shortest distance between two firings in a row while nobody changes the clock; cheap after the first call."""
        overnight = A_DAY - self.expression.times.span()
        within = self.expression.times.shortest_gap()
        if within and within <= overnight:
            return within
        overnight += _shortest_day_gap(self.expression.days) - A_DAY
        return min(within, overnight) if within else overnight

    def _offset_periods(self, after: datetime) -> Iterator[OffsetPeriod]:
        return offset_periods(self.zone, after, fixed=not self.expression.wildcard)

    def _wall_time_after(self, floor: datetime) -> datetime | None:
        """The first wall time of this schedule strictly after another."""
        readings, today = self.expression.times, floor.date()
        passed = readings.count_until(floor.time())
        if passed < len(readings) and _first_day_from(self.expression.days, today) == today:
            return datetime.combine(today, readings[passed])
        day = _first_day_from(self.expression.days, today + A_DAY)
        return datetime.combine(day, readings[0]) if day else None

    def _count_in_period(self, stretch: OffsetPeriod, after: datetime, until: datetime) -> tuple[int, datetime | None]:
        """How many firings of (after, until] a stretch holds, and the reading of the last."""
        floor, ceiling = stretch.wall_time_floor(after), stretch.wall_time_ceiling(until)
        number, last = self._count_wall_times(floor, ceiling)
        arrival = stretch.wall_time(stretch.start)
        if floor < arrival:  # readings that the clock left out fall together into one
            number -= max(0, self._count_wall_times(floor, min(arrival, ceiling))[0] - 1)
        return number, last

    def _count_wall_times(self, floor: datetime, ceiling: datetime) -> tuple[int, datetime | None]:
        """How many wall times of this schedule lie in (floor, ceiling], and the last of them."""
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


def parse_schedule(text: str, zone: ZoneInfo) -> CronSchedule:
    """The schedule that a text means in a zone. Raises ScheduleError; `@reboot` is none (see `is_reboot`)."""
    return CronSchedule(text, zone, parse_expression(text))


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
    """The shortest distance between two days of a schedule in a row, among a sample of them."""
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
    start = datetime.combine(since, time.min) - timedelta(minutes=1)
    try:
        found: datetime = copy(_day_iterator(days)).get_next(datetime, start)
    except CroniterBadDateError:
        return None
    return found.date()


@lru_cache(maxsize=256)
def _day_iterator(days: str) -> croniter:
    """The walker over the midnights of a schedule's days, to be copied before each walk since walking moves it."""
    return croniter(f"0 0 {days}", datetime(2024, 1, 1), implement_cron_bug=True)  # noqa: DTZ001 -- naive on purpose
