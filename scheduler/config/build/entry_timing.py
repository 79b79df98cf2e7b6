"""How often an agent beats: never more often than limits.min_interval, and how often its hours let it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from cron.job_schedules import CronSchedule
from heartbeat.hours import Hours
from heartbeat.interval_slots import IntervalSlots
from scheduler.config.build.config_node import ConfigNode
from scheduler.config.file.message_parts import format_count, format_duration
from scheduler.config.file.remedies import InvalidValue, Remedy
from scheduler.config.keys.value_parsers import parse_duration

A_DAY = timedelta(days=1)
WEEKS = 4
SOME_MONDAY = datetime(2026, 1, 5, tzinfo=UTC)  # no clock changes in the four weeks from then on
SOME_WEEKS = (SOME_MONDAY - datetime.resolution, SOME_MONDAY + WEEKS * timedelta(days=7) - datetime.resolution)
GRID_STARTS = 12  # grids that are tried: when an agent is first seen decides where its grid lies


def check_min_interval(interval: timedelta, node: ConfigNode, *inside: str) -> None:
    """Note an interval that is too short."""
    if interval < node.context.min_interval:
        least = format_duration(node.context.min_interval)
        words = f"write {least} or more, or lower the limit"
        problem = f"{format_duration(interval)} is below limits.min_interval, which is {least}"
        node.add_error(InvalidValue(problem, Remedy(least), advice=words), *inside)
    else:
        narrow_intervals(node, *inside)


def narrow_intervals(node: ConfigNode, *inside: str) -> None:
    """Of the intervals that are suggested, keep those that are long enough."""
    least = node.context.min_interval
    node.narrow_suggestions(lambda value: value == "none" or parse_duration(value) >= least, format_duration(least), *inside)


def check_min_schedule_interval(schedule: CronSchedule, node: ConfigNode, *inside: str) -> None:
    """Note a schedule whose firings are too close to each other."""
    if schedule.shortest_period() < node.context.min_interval:
        period, least = format_duration(schedule.shortest_period()), format_duration(node.context.min_interval)
        node.add_error(
            f"it fires as often as every {period}, below limits.min_interval, which is {least}; space it out, or lower the limit",
            *inside,
        )


def check_interval_fits_hours(interval: timedelta, hours: Hours, node: ConfigNode, *inside: str) -> None:
    """Warn of an interval that the active hours shorten or lengthen, and say how many beats a week are left."""
    beats = _runs_per_week(interval, hours)
    if beats is None:
        return
    least, most = beats
    number = format_count(most, "beat") if least == most else f"{least} to {format_count(most, 'beat')}"
    when = "" if least == most else ", depending on when the agent is first seen"
    node.add_warning(
        f"{format_duration(interval)} fits badly into the active hours, which leave {number} a week{when};"
        " change one of them, or name the times with schedule:",
        *inside,
    )


@lru_cache(maxsize=1024)  # many agents share their interval and their hours
def _runs_per_week(interval: timedelta, hours: Hours) -> tuple[int, int] | None:
    """The fewest and the most beats a week, by where the grid lies; None where interval and hours fit."""
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
    """How many slots the weeks have, with grids that began before them and lie differently."""
    begun = SOME_MONDAY - max(1, timedelta(days=14) // interval) * interval
    grids = (
        IntervalSlots(begun + number * interval / GRID_STARTS, interval, timedelta(), hours) for number in range(GRID_STARTS)
    )
    counts = [found.count if (found := grid.slots(*SOME_WEEKS)) else 0 for grid in grids]
    return min(counts), max(counts)
