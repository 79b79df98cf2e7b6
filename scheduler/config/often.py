"""How often a model may be asked: never more often than limits.min_interval."""

from __future__ import annotations

from datetime import timedelta

from cron.schedule import Schedule
from scheduler.config.frame import Spot
from scheduler.config.wording import written


def check_interval(interval: timedelta, spot: Spot, *inside: str) -> None:
    """Note an interval that is too short."""
    if interval < spot.frame.min_interval:
        least = written(spot.frame.min_interval)
        spot.fault(
            f"{written(interval)} is below limits.min_interval, which is {least}; write {least} or more, or lower the limit",
            *inside,
        )


def check_schedule(schedule: Schedule, spot: Spot, *inside: str) -> None:
    """Note a schedule whose firings are too close to each other."""
    if schedule.period() < spot.frame.min_interval:
        period, least = written(schedule.period()), written(spot.frame.min_interval)
        spot.fault(
            f"it fires as often as every {period}, below limits.min_interval, which is {least}; space it out, or lower the limit",
            *inside,
        )
