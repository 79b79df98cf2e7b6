"""Firings: what a pace names between two instants, one by one or counted by local day."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from zoneinfo import ZoneInfo

from scheduler.model import local_days
from scheduler.model.outcome import Kind
from scheduler.model.schedule import Pace

TICK = datetime.resolution


@dataclass(frozen=True, slots=True)
class Course:
    """An entry on its way: it fires at the slots of `pace` that lie after `after`, and its days are those of `zone`."""

    kind: Kind
    name: str
    pace: Pace
    zone: ZoneInfo
    after: datetime


@dataclass(frozen=True, slots=True)
class Beats:
    """The firings of one entry on one local day: the first and the latest (due times, UTC), and their number, 1 or more."""

    day: date
    first: datetime
    latest: datetime
    count: int


def slots(pace: Pace, after: datetime, until: datetime) -> Iterator[datetime]:
    """The slots of a pace in (after, until], in order."""
    slot = pace.next(after)
    while slot is not None and slot <= until:
        yield slot
        slot = pace.next(slot)


def firings(course: Course, after: datetime, until: datetime) -> Iterator[datetime]:
    """When an entry comes due in (after, until], in order: its slots, each with its offset."""
    offset = course.pace.offset
    for slot in slots(course.pace, max(after - offset, course.after), until - offset):
        yield slot + offset


def by_day(course: Course, begin: datetime, end: datetime) -> Iterator[Beats]:
    """The same in [begin, end), counted by local day without walking them; days without a firing are left out."""
    offset = course.pace.offset
    for day in local_days.between(course.zone, begin, end):
        after, until = max(day.begins - TICK - offset, course.after), day.ends - TICK - offset
        found = course.pace.slots(after, until) if after < until else None
        if found is not None:
            yield Beats(day.date, found.first + offset, found.latest + offset, found.count)
