"""How often an agent beats: never more often than limits.min_interval, and how often its hours let it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from cron.job_schedules import CronSchedule
from heartbeat.hours import Hours
from heartbeat.interval_slots import IntervalSlots
from scheduler.config.build.config_node import Spot
from scheduler.config.file.message_parts import counted, written
from scheduler.config.file.remedies import Remedy, Wrong
from scheduler.config.keys.value_parsers import duration

A_DAY = timedelta(days=1)
WEEKS = 4
SOME_MONDAY = datetime(2026, 1, 5, tzinfo=UTC)  # no clock changes in the four weeks from then on
SOME_WEEKS = (SOME_MONDAY - datetime.resolution, SOME_MONDAY + WEEKS * timedelta(days=7) - datetime.resolution)
BEGINNINGS = 12  # grids that are tried: when an agent is first seen decides where its grid lies


def check_interval(interval: timedelta, spot: Spot, *inside: str) -> None:
    """Note an interval that is too short."""
    if interval < spot.frame.min_interval:
        least = written(spot.frame.min_interval)
        words = f"write {least} or more, or lower the limit"
        problem = f"{written(interval)} is below limits.min_interval, which is {least}"
        spot.fault(Wrong(problem, Remedy(least), words=words), *inside)
    else:
        narrow(spot, *inside)


def narrow(spot: Spot, *inside: str) -> None:
    """Of the intervals that are suggested, keep those that are long enough."""
    least = spot.frame.min_interval
    spot.narrow(lambda value: value == "none" or duration(value) >= least, written(least), *inside)


def check_schedule(schedule: CronSchedule, spot: Spot, *inside: str) -> None:
    """Note a schedule whose firings are too close to each other."""
    if schedule.shortest_period() < spot.frame.min_interval:
        period, least = written(schedule.shortest_period()), written(spot.frame.min_interval)
        spot.fault(
            f"it fires as often as every {period}, below limits.min_interval, which is {least}; space it out, or lower the limit",
            *inside,
        )


def check_fits(interval: timedelta, hours: Hours, spot: Spot, *inside: str) -> None:
    """Warn of an interval that the active hours shorten or lengthen, and say how many beats a week are left."""
    beats = _left_a_week(interval, hours)
    if beats is None:
        return
    least, most = beats
    number = counted(most, "beat") if least == most else f"{least} to {counted(most, 'beat')}"
    when = "" if least == most else ", depending on when the agent is first seen"
    spot.warn(
        f"{written(interval)} fits badly into the active hours, which leave {number} a week{when};"
        " change one of them, or name the times with schedule:",
        *inside,
    )


@lru_cache(maxsize=1024)  # many agents share their interval and their hours
def _left_a_week(interval: timedelta, hours: Hours) -> tuple[int, int] | None:
    """The fewest and the most beats a week, by where the grid lies; None where interval and hours fit."""
    openings = [] if hours.always else list(hours.openings(*SOME_WEEKS))
    if not openings or interval > SOME_WEEKS[1] - SOME_WEEKS[0]:
        return None
    shortest = min(closes - opens for opens, closes in openings)
    if 3 * interval <= shortest:
        return None
    least, most = _least_and_most(interval, hours)
    if interval < A_DAY:
        fits = interval <= shortest and most < 1.5 * least
    else:
        days = {opens.date() for opens, _ in openings}
        fits = least >= 0.9 * min((SOME_WEEKS[1] - SOME_WEEKS[0]) // interval, len(days))
    return None if fits else (round(least / WEEKS), round(most / WEEKS))


def _least_and_most(interval: timedelta, hours: Hours) -> tuple[int, int]:
    """How many slots the weeks have, with grids that began before them and lie differently."""
    begun = SOME_MONDAY - max(1, timedelta(days=14) // interval) * interval
    grids = (IntervalSlots(begun + number * interval / BEGINNINGS, interval, timedelta(), hours) for number in range(BEGINNINGS))
    counts = [found.count if (found := grid.slots(*SOME_WEEKS)) else 0 for grid in grids]
    return min(counts), max(counts)
