"""The calendars of the file, and the days that they leave to an entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache, reduce
from operator import or_
from zoneinfo import ZoneInfo

from heartbeat.calendars import ALL_DAYS, EMPTY_CALENDAR, AllowedDays, Calendar, make_calendar
from scheduler.config.build.config_node import ConfigNode
from scheduler.config.keys import models


def build_calendars(parts: Mapping[str, models.Calendar], names: Iterable[str]) -> dict[str, Calendar | None]:
    """Every calendar that is declared, by name; None for one with faults."""
    found = {name: make_calendar(part.dates, part.days) for name, part in parts.items()}
    return {name: found.get(name) for name in names}


def build_days(part: models.Job | models.Heartbeat, zone: ZoneInfo, node: ConfigNode, *inside: str) -> AllowedDays:
    """The days of a zone on which an entry may run; names that no calendar bears are noted at `node`."""
    if not (part.skip_on or part.only_on):
        return ALL_DAYS
    declared = node.context.calendars
    node.check_declared(part.skip_on, declared, "calendar", *inside, "skip_on")
    node.check_declared(part.only_on, declared, "calendar", *inside, "only_on")
    skip, only = (tuple(filter(None, map(declared.get, names))) for names in (part.skip_on, part.only_on))
    return _shared_days(zone, skip, only if part.only_on else None)


@lru_cache(maxsize=1024)
def _shared_days(zone: ZoneInfo, skip: tuple[Calendar, ...], only: tuple[Calendar, ...] | None) -> AllowedDays:
    return AllowedDays(zone, _union_of(skip), None if only is None else _union_of(only))


def _union_of(some: tuple[Calendar, ...]) -> Calendar:
    return reduce(or_, some, EMPTY_CALENDAR)
