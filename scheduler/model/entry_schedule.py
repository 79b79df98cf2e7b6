"""Turns the schedule of an agent or a job into canonical text for its row, and that text into slots and due times."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from cron import job_schedules as cron_schedule
from cron.job import Job
from cron.job_schedules import OneTimeSchedule
from heartbeat.hours import AllowedDays, Hours, HoursAndDays, Window, read_days
from heartbeat.slots import AnySlotRange, IntervalSlots, ScheduleSlots, combine_slots
from heartbeat.spec import Heartbeat
from scheduler.model import local_days
from scheduler.model.outcome import Kind, Skip, Trigger

LONGEST_BACKOFF = 8  # intervals


def no_slots(*_: datetime) -> None:
    """Stands for a rule that gives no slots."""


@dataclass(frozen=True, slots=True)
class EntrySchedule:
    """When slots come, and with which trigger they run.

    `slots` gives the slots in (after, until] that may run, `closed_by_hours` those outside the active hours, and `closed_by_days`
    those on days that calendars exclude; each slot is in one of them. The two latter also contain the points of an interval's
    grid that give no slot. A slot's due time is the slot plus `offset`.
    """

    trigger: Trigger
    next: Callable[[datetime], datetime | None]
    slots: Callable[[datetime, datetime], AnySlotRange | None]
    closed_by_hours: Callable[[datetime, datetime], AnySlotRange | None] = no_slots
    closed_by_days: Callable[[datetime, datetime], AnySlotRange | None] = no_slots
    offset: timedelta = timedelta()

    def closed_slots(self, after: datetime, until: datetime) -> Iterator[tuple[Skip, AnySlotRange]]:
        """The slots in (after, until] that may not run, by the reason why."""
        for reason, find in ((Skip.CALENDAR, self.closed_by_days), (Skip.ACTIVE_HOURS, self.closed_by_hours)):
            if find is not no_slots and (found := find(after, until)):
                yield reason, found


NO_SCHEDULE = EntrySchedule(Trigger.MANUAL, next=no_slots, slots=no_slots)


def heartbeat_schedule_text(beat: Heartbeat) -> str:
    """The schedule text of a heartbeat. Two agents with equal texts and anchors have equal slots."""
    hours = [[window.start, window.end, sorted(window.days), window.zone.key] for window in beat.hours.windows]
    days = {} if beat.calendars.always else {"days": beat.calendars.key()}
    if beat.schedule is not None:
        return _to_text(schedule=beat.schedule, zone=beat.zone.key, offset=beat.stagger.total_seconds(), hours=hours, **days)
    if beat.interval is None:
        return "{}"
    backoff = {"backoff": True} if beat.backoff_on_failure else {}
    return _to_text(interval=beat.interval.total_seconds(), stagger=beat.stagger.total_seconds(), hours=hours, **backoff, **days)


def job_schedule_text(job: Job) -> str:
    """The schedule text of a job."""
    days = {} if job.calendars.always else {"days": job.calendars.key()}
    if job.schedule is not None:
        return _to_text(schedule=job.schedule.text, zone=job.schedule.zone.key, offset=job.stagger.total_seconds(), **days)
    if job.every is not None:
        backoff = {"backoff": True} if job.backoff_on_failure else {}
        return _to_text(every=job.every.total_seconds(), offset=job.stagger.total_seconds(), **backoff, **days)
    if job.at is not None:
        return _to_text(at=job.at.wall_time.isoformat(), zone=job.at.zone.key, offset=job.stagger.total_seconds(), **days)
    if job.after is not None:
        return _to_text(after=job.after.job, on=job.after.on)
    return "{}"


def single_slot(text: str) -> datetime | None:
    """The only slot of a one-time schedule; None for any other schedule."""
    return _parse_once(text).instant if "at" in _parse_text(text) else None


def done_at(state: str, text: str, settled_until: datetime, *, is_open: bool = False) -> datetime | None:
    """The slot of an entry that ran once and is done; None for any other entry.

    It is not done while it is paused, disabled or removed (`state`), or while its run is open.
    """
    moment = single_slot(text) if state == "active" and not is_open else None
    return moment if moment and moment <= settled_until else None


def _to_text(**parts: object) -> str:
    return json.dumps(parts, separators=(",", ":"))


def schedule_parts(text: str) -> dict[str, Any]:
    """The parts of a schedule text by name: interval, stagger and hours; or every; or schedule or at with zone; and days."""
    return dict(_parse_text(text))


def grid_period(text: str) -> timedelta | None:
    """The distance of the points of an interval's grid, in elapsed time; None for a schedule in local time."""
    parts = _parse_text(text)
    seconds = parts.get("interval") or parts.get("every")
    return timedelta(seconds=seconds) if seconds else None


@lru_cache(maxsize=4096)
def active_hours(text: str) -> Hours:
    """The active hours of a schedule; always open if it has none."""
    windows = _parse_text(text).get("hours", [])
    return Hours(tuple(Window(start, end, frozenset(days), ZoneInfo(zone)) for start, end, days, zone in windows))


def allowed_days(text: str) -> AllowedDays | None:
    """The days that calendars allow; None if all days are allowed."""
    days = _parse_text(text).get("days")
    return read_days(days) if days else None


def less_restricted(text: str) -> Iterator[str]:
    """The same schedule without its calendars, and without its active hours either."""
    parts = {name: part for name, part in _parse_text(text).items() if name != "days"}
    if "days" in _parse_text(text):
        yield _to_text(**parts)
    if parts.get("hours"):
        yield _to_text(**parts | {"hours": []})


def schedule_zone(text: str) -> ZoneInfo | None:
    """The time zone of a schedule, or that of all its active hours; None if there is none, or more than one."""
    parts = _parse_text(text)
    named = {parts["zone"]} if "zone" in parts else {zone for *_, zone in parts.get("hours", [])}
    return ZoneInfo(named.pop()) if len(named) == 1 else None


def backoff_pause(text: str, failures: int) -> timedelta | None:
    """How long not to run after that many failures in a row: the interval doubled by each, at most 8 times as long.

    None for a schedule that does not back off.
    """
    period = grid_period(text)
    if period is None or "backoff" not in _parse_text(text):
        return None
    return period * min(1 << min(failures, 8), LONGEST_BACKOFF)


@lru_cache(maxsize=1024)  # the schedule of a row is needed several times in a row
def parse_schedule(text: str, anchor: datetime) -> EntrySchedule:
    """The schedule of a schedule text. The grid of an interval contains `anchor`."""
    days = allowed_days(text)
    if "interval" in _parse_text(text):
        return _interval_schedule(text, anchor, days)
    found = _plain_schedule(text, anchor)
    return _restrict_to_days(found, days) if days else found


def _interval_schedule(text: str, anchor: datetime, days: AllowedDays | None) -> EntrySchedule:
    """An interval. The points of its grid move to where active hours and calendars are both open."""
    parts, hours = _parse_text(text), active_hours(text)
    open_times = HoursAndDays(hours, days) if days else hours
    cadence = IntervalSlots(anchor, timedelta(seconds=parts["interval"]), timedelta(seconds=parts["stagger"]), open_times)
    found = EntrySchedule(Trigger.INTERVAL, cadence.next, cadence.slots, cadence.closed_slots)
    if days is None:
        return found
    seen = ScheduleSlots(found, days)
    return replace(
        found,
        closed_by_hours=lambda after, until: combine_slots(seen.open_spans(after, until), cadence.closed_slots),
        closed_by_days=lambda after, until: combine_slots(seen.closed_spans(after, until), cadence.closed_slots),
    )


def _plain_schedule(text: str, anchor: datetime) -> EntrySchedule:
    parts = _parse_text(text)
    offset = timedelta(seconds=parts.get("offset", 0))
    if "every" in parts:
        period = timedelta(seconds=parts["every"])
        every = IntervalSlots(anchor + period, period, timedelta(0), Hours())
        return EntrySchedule(Trigger.EVERY, every.next, every.slots, offset=offset)
    if "at" in parts:
        moment = _parse_once(text)
        return EntrySchedule(Trigger.AT, moment.next, moment.slots, offset=offset)
    if "schedule" in parts:
        schedule = _parse_cron(parts["schedule"], parts["zone"])
        if not parts.get("hours"):
            return EntrySchedule(Trigger.SCHEDULE, schedule.next, schedule.slots, offset=offset)
        timed = ScheduleSlots(schedule, active_hours(text), offset)
        return EntrySchedule(Trigger.SCHEDULE, timed.next, timed.slots, timed.closed_slots, offset=offset)
    return NO_SCHEDULE


def _restrict_to_days(schedule: EntrySchedule, days: AllowedDays) -> EntrySchedule:
    """The schedule restricted by calendars. They are checked before the hours."""
    seen = ScheduleSlots(schedule, days, schedule.offset)
    return replace(
        schedule,
        next=seen.next,
        slots=seen.slots,
        closed_by_hours=lambda after, until: combine_slots(seen.open_spans(after, until), schedule.closed_by_hours),
        closed_by_days=lambda after, until: combine_slots(
            seen.closed_spans(after, until), schedule.slots, schedule.closed_by_hours
        ),
    )


@lru_cache(maxsize=4096)
def _parse_text(text: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(text)
    return read


def _parse_once(text: str) -> OneTimeSchedule:
    parts = _parse_text(text)
    return OneTimeSchedule(datetime.fromisoformat(parts["at"]), ZoneInfo(parts["zone"]))


@lru_cache(maxsize=4096)
def _parse_cron(text: str, zone: str) -> cron_schedule.CronSchedule:
    return cron_schedule.parse_schedule(text, ZoneInfo(zone))


MICROSECOND = datetime.resolution


@dataclass(frozen=True, slots=True)
class ScheduledEntry:
    """An entry whose slots after `after` are to be listed. Its days are those of `zone`."""

    kind: Kind
    name: str
    schedule: EntrySchedule
    zone: ZoneInfo
    after: datetime


@dataclass(frozen=True, slots=True)
class RunsOnDay:
    """The runs of one entry on one local day: the first and the latest due time (UTC), and their number, 1 or more."""

    day: date
    first: datetime
    latest: datetime
    count: int


def slots_between(schedule: EntrySchedule, after: datetime, until: datetime) -> Iterator[datetime]:
    """The slots of a schedule in (after, until], in order."""
    slot = schedule.next(after)
    while slot is not None and slot <= until:
        yield slot
        slot = schedule.next(slot)


def due_times(course: ScheduledEntry, after: datetime, until: datetime) -> Iterator[datetime]:
    """When an entry comes due in (after, until], in order: its slots, each plus its offset."""
    offset = course.schedule.offset
    for slot in slots_between(course.schedule, max(after - offset, course.after), until - offset):
        yield slot + offset


def due_times_by_day(course: ScheduledEntry, begin: datetime, end: datetime) -> Iterator[RunsOnDay]:
    """The due times in [begin, end), counted per local day without listing them. Days without any are left out."""
    offset = course.schedule.offset
    for day in local_days.days_between(course.zone, begin, end):
        after, until = max(day.begins - MICROSECOND - offset, course.after), day.ends - MICROSECOND - offset
        found = course.schedule.slots(after, until) if after < until else None
        if found is not None:
            yield RunsOnDay(day.date, found.first + offset, found.latest + offset, found.count)
