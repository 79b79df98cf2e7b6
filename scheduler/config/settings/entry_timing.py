"""Builds when an entry runs: schedule, minimum interval, stagger, grace and calendar days."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache, reduce
from operator import or_
from zoneinfo import ZoneInfo

from cron.job_schedules import CronSchedule
from heartbeat.calendars import ALL_DAYS, EMPTY_CALENDAR, AllowedDays, Calendar, make_calendar
from heartbeat.hours import Hours
from heartbeat.interval_slots import IntervalSlots, stagger_for
from heartbeat.words import format_count, format_duration
from scheduler.config.keys import models
from scheduler.config.keys.value_parsers import Share
from scheduler.config.settings.config_node import ConfigNode

NO_TIME = timedelta(0)
A_DAY = timedelta(days=1)
WEEKS = 4
SOME_MONDAY = datetime(2026, 1, 5, tzinfo=UTC)  # no clock changes in the four weeks from then on
SOME_WEEKS = (SOME_MONDAY - datetime.resolution, SOME_MONDAY + WEEKS * timedelta(days=7) - datetime.resolution)
GRID_STARTS = 12  # start times that are tried: an interval starts when its agent is first seen


def check_min_interval(interval: timedelta, node: ConfigNode, *inside: str) -> None:
    """Add an error for an interval below limits.min_interval."""
    if interval < node.context.min_interval:
        least = format_duration(node.context.min_interval)
        problem = f"{format_duration(interval)} is below limits.min_interval, which is {least}"
        node.add_error(f"{problem}; write {least} or more, or lower the limit", *inside)


def check_min_schedule_interval(schedule: CronSchedule, node: ConfigNode, *inside: str) -> None:
    """Add an error for a schedule with two times closer than limits.min_interval."""
    if schedule.shortest_period() < node.context.min_interval:
        period, least = format_duration(schedule.shortest_period()), format_duration(node.context.min_interval)
        node.add_error(
            f"its shortest interval is {period}, but limits.min_interval is {least}; space the times out, or lower the limit",
            *inside,
        )


def check_interval_fits_hours(interval: timedelta, hours: Hours, node: ConfigNode, *inside: str) -> None:
    """Warn of an interval that does not fit the active hours, with the number of runs a week that are left."""
    runs = _runs_per_week(interval, hours)
    if runs is None:
        return
    least, most = runs
    number = format_count(most, "run") if least == most else f"{least} to {format_count(most, 'run')}"
    when = "" if least == most else ", depending on when the agent is first seen"
    node.add_warning(
        f"{format_duration(interval)} does not fit the active hours, which allow {number} a week{when};"
        " change one of them, or write the times with schedule:",
        *inside,
    )


@lru_cache(maxsize=1024)  # many agents share their interval and their hours
def _runs_per_week(interval: timedelta, hours: Hours) -> tuple[int, int] | None:
    """The fewest and the most runs a week, depending on when the interval starts; None if interval and hours fit."""
    openings = [] if hours.always else list(hours.openings(*SOME_WEEKS))
    if not openings or interval > SOME_WEEKS[1] - SOME_WEEKS[0]:
        return None
    shortest = min(closes - opens for opens, closes in openings)
    if 3 * interval <= shortest:
        return None
    least, most = _slot_count_range(interval, hours)
    if interval < A_DAY:
        fits = interval <= shortest and most < 1.5 * least
    else:
        days = {opens.date() for opens, _ in openings}
        fits = least >= 0.9 * min((SOME_WEEKS[1] - SOME_WEEKS[0]) // interval, len(days))
    return None if fits else (round(least / WEEKS), round(most / WEEKS))


def _slot_count_range(interval: timedelta, hours: Hours) -> tuple[int, int]:
    """The fewest and the most slots in the sample weeks, for intervals that started at different times."""
    start = SOME_MONDAY - max(1, timedelta(days=14) // interval) * interval
    grids = (
        IntervalSlots(start + number * interval / GRID_STARTS, interval, timedelta(), hours) for number in range(GRID_STARTS)
    )
    counts = [found.count if (found := grid.slots(*SOME_WEEKS)) else 0 for grid in grids]
    return min(counts), max(counts)


def build_stagger(
    name: str, share: Share, period: timedelta | None, node: ConfigNode, *inside: str, period_noun: str = "period"
) -> timedelta:
    """The delay of an entry after each slot: by a hash of its name, and at most its `share` of the period."""
    if isinstance(share, float):
        return stagger_for(name, period * share) if period else NO_TIME
    if period and share > period:
        node.add_error(f"{format_duration(share)} is more than the {period_noun} of {format_duration(period)}", *inside)
    return stagger_for(name, share)


def build_grace(grace: timedelta | None, period: timedelta | None, longest: timedelta) -> timedelta:
    """How late a slot may start: as written, else half the period, but no longer than `longest`."""
    if grace is not None:
        return grace
    return min(period / 2, longest) if period else longest


def build_calendars(parts: Mapping[str, models.Calendar]) -> dict[str, Calendar]:
    """All declared calendars by name."""
    return {name: make_calendar(part.dates, frozenset().union(*part.days)) for name, part in parts.items()}


def build_days(part: models.Job | models.Heartbeat, zone: ZoneInfo, node: ConfigNode, *inside: str) -> AllowedDays:
    """The days of a time zone on which an entry may run. Undeclared calendars are reported at `node`."""
    if not (part.skip_on or part.only_on):
        return ALL_DAYS
    declared = node.context.calendars
    node.check_declared(part.skip_on, declared, "calendar", *inside, "skip_on")
    node.check_declared(part.only_on, declared, "calendar", *inside, "only_on")
    skip, only = (tuple(declared[name] for name in names if name in declared) for names in (part.skip_on, part.only_on))
    return _shared_days(zone, skip, only if part.only_on else None)


@lru_cache(maxsize=1024)
def _shared_days(zone: ZoneInfo, skip: tuple[Calendar, ...], only: tuple[Calendar, ...] | None) -> AllowedDays:
    return AllowedDays(zone, _union_of(skip), None if only is None else _union_of(only))


def _union_of(some: tuple[Calendar, ...]) -> Calendar:
    return reduce(or_, some, EMPTY_CALENDAR)
