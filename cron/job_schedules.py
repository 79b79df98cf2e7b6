"""The schedules of cron jobs: a cron expression, a fixed interval or one date, each with its next slots."""

from __future__ import annotations

import re
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

__all__ = ["CronSchedule", "ScheduleError", "SlotRange", "is_reboot", "parse_schedule"]

A_DAY = timedelta(days=1)
SAMPLE_DAYS = (
    60  # days of a schedule that are looked at for the shortest distance between two: more than a year of Fridays and 13ths
)
TWO_DAYS = timedelta(days=2)  # no zone is farther than that from UTC
LAST_YEAR = 9900  # beyond it the calendar of this machine ends, within what must be looked ahead
ADVICE = 'write at: "2030-12-24T18:00"'

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class SlotRange:
    """At least one firing; `first` and `latest` are aware, UTC, and equal if `count` is 1."""

    first: datetime
    latest: datetime
    count: int


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


def parse_schedule(text: str, zone: ZoneInfo) -> CronSchedule:
    """The schedule that a text means in a zone. Raises ScheduleError; `@reboot` is none (see `is_reboot`)."""
    return CronSchedule(text, zone, parse_expression(text))


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
