"""Paces: what decides an entry's slots, as canonical text for its row and as the thing that says when."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from cron import job_schedules as cron_schedule
from cron.job import Job
from cron.job_schedules import IntervalSchedule, OneTimeSchedule
from heartbeat import calendars
from heartbeat.hours import Hours, Window
from heartbeat.interval_slots import IntervalSlots
from heartbeat.schedule_slots import AnySlotRange, ScheduleSlots, combine_slots
from heartbeat.spec import Heartbeat
from scheduler.model.outcome import Skip, Trigger

LONGEST_BACKOFF = 8  # intervals


def nothing(after: datetime, until: datetime) -> None:
    """No slot lies there."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When slots come, and under which trigger they run.

    `slots` are those that may run, `by_hours` those outside the active hours and `by_days` those of days that calendars leave
    out, all in (after, until]; each slot is in one of them. Of an interval, the points of its grid that give no slot are in
    the last two. `offset` is added to a slot to get its due time.
    """

    trigger: Trigger
    next: Callable[[datetime], datetime | None]
    slots: Callable[[datetime, datetime], AnySlotRange | None]
    by_hours: Callable[[datetime, datetime], AnySlotRange | None] = nothing
    by_days: Callable[[datetime, datetime], AnySlotRange | None] = nothing
    offset: timedelta = timedelta()

    def closed(self, after: datetime, until: datetime) -> Iterator[tuple[Skip, AnySlotRange]]:
        """The slots in (after, until] that may not run, by their reasons."""
        for reason, find in ((Skip.CALENDAR, self.by_days), (Skip.ACTIVE_HOURS, self.by_hours)):
            if found := find(after, until):
                yield reason, found


def never(after: datetime) -> None:
    """There is no slot after any time."""


NEVER = Pace(Trigger.MANUAL, next=never, slots=nothing)


def of_heartbeat(beat: Heartbeat) -> str:
    """The text of a heartbeat's pace: two agents with equal texts and anchors have equal slots."""
    hours = [[window.start, window.end, sorted(window.days), window.zone.key] for window in beat.hours.windows]
    days = {} if beat.calendars.always else {"days": beat.calendars.key()}
    if beat.schedule is not None:
        return _text(schedule=beat.schedule, zone=beat.zone.key, offset=_seconds(beat.stagger), hours=hours, **days)
    if beat.interval is None:
        return "{}"
    backoff = {"backoff": True} if beat.backoff_on_failure else {}
    return _text(interval=_seconds(beat.interval), stagger=_seconds(beat.stagger), hours=hours, **backoff, **days)


def of_job(job: Job) -> str:
    """The text of a job's pace."""
    days = {} if job.calendars.always else {"days": job.calendars.key()}
    if job.schedule is not None:
        return _text(schedule=job.schedule.text, zone=job.schedule.zone.key, offset=_seconds(job.stagger), **days)
    if job.every is not None:
        return _text(every=_seconds(job.every), offset=_seconds(job.stagger), **days)
    if job.at is not None:
        return _text(at=job.at.wall_time.isoformat(), zone=job.at.zone.key, offset=_seconds(job.stagger), **days)
    return "{}"


def once(text: str) -> datetime | None:
    """The one instant at which a pace text names a slot; None where it names more, or none."""
    return _once(text).instant if "at" in _parts(text) else None


def done(text: str, settled_until: datetime) -> datetime | None:
    """When it was, for a pace with one slot that has its end, as all slots up to `settled_until` have. None for every other."""
    moment = once(text)
    return moment if moment and moment <= settled_until else None


def _text(**parts: Any) -> str:
    return json.dumps(parts, separators=(",", ":"))


def _seconds(duration: timedelta) -> float:
    return duration.total_seconds()


def parts(text: str) -> dict[str, Any]:
    """What a pace text says, by name: interval, stagger and hours, or every, or schedule or at with zone; and days."""
    return dict(_parts(text))


def period(text: str) -> timedelta | None:
    """How far the points of a pace's grid of elapsed time lie apart; None for a pace that the clock on the wall decides."""
    said = _parts(text)
    seconds = said.get("interval") or said.get("every")
    return timedelta(seconds=seconds) if seconds else None


def hours(text: str) -> Hours:
    """The active hours of a pace; always for one that has none."""
    return _hours(text)


def good_days(text: str) -> calendars.AllowedDays | None:
    """The days that calendars leave to a pace; None for one that every day is good for."""
    said = _parts(text).get("days")
    return calendars.read_days(said) if said else None


def wider(text: str) -> Iterator[str]:
    """The same pace without its calendars, and without its active hours either."""
    said = {name: part for name, part in _parts(text).items() if name != "days"}
    if "days" in _parts(text):
        yield _text(**said)
    if said.get("hours"):
        yield _text(**said | {"hours": []})


def zone(text: str) -> ZoneInfo | None:
    """The zone that a pace names: its schedule's, else its windows' one zone; None where it names none, or several."""
    said = _parts(text)
    named = {said["zone"]} if "zone" in said else {zone for *_, zone in said.get("hours", [])}
    return ZoneInfo(named.pop()) if len(named) == 1 else None


def stretched(text: str, failures: int) -> timedelta | None:
    """How long to keep quiet after that many failures in a row: the interval doubled by each, at most 8 times as long.

    None where nothing failed, and for a pace that does not back off.
    """
    said = _parts(text)
    if not failures or "backoff" not in said:
        return None
    return timedelta(seconds=float(said["interval"])) * min(1 << min(failures, 8), LONGEST_BACKOFF)


@lru_cache(maxsize=1024)  # an entry is asked for its pace several times in a row
def pace(text: str, anchor: datetime) -> Pace:
    """The pace that a text of ours names, on a grid that stands at `anchor`."""
    days = good_days(text)
    if "interval" in _parts(text):
        return _of_grid(text, anchor, days)
    found = _pace(text, anchor)
    return _on_days(found, days) if days else found


def _of_grid(text: str, anchor: datetime, days: calendars.AllowedDays | None) -> Pace:
    """The pace of an interval, whose points move to where hours and calendars are both open."""
    said, hours = _parts(text), _hours(text)
    open_times = calendars.HoursAndDays(hours, days) if days else hours
    cadence = IntervalSlots(anchor, timedelta(seconds=said["interval"]), timedelta(seconds=said["stagger"]), open_times)
    found = Pace(Trigger.INTERVAL, cadence.next, cadence.slots, cadence.closed_slots)
    if days is None:
        return found
    seen = ScheduleSlots(found, days)
    return replace(
        found,
        by_hours=lambda after, until: combine_slots(seen.open_spans(after, until), cadence.closed_slots),
        by_days=lambda after, until: combine_slots(seen.closed_spans(after, until), cadence.closed_slots),
    )


def _pace(text: str, anchor: datetime) -> Pace:
    said = _parts(text)
    offset = timedelta(seconds=said.get("offset", 0))
    if "every" in said:
        every = IntervalSchedule(timedelta(seconds=said["every"]), anchor)
        return Pace(Trigger.EVERY, every.next, every.slots, offset=offset)
    if "at" in said:
        moment = _once(text)
        return Pace(Trigger.AT, moment.next, moment.slots, offset=offset)
    if "schedule" in said:
        schedule = _schedule(said["schedule"], said["zone"])
        if not said.get("hours"):
            return Pace(Trigger.SCHEDULE, schedule.next, schedule.slots, offset=offset)
        timed = ScheduleSlots(schedule, _hours(text), offset)
        return Pace(Trigger.SCHEDULE, timed.next, timed.slots, timed.closed_slots, offset=offset)
    return NEVER


def _on_days(pace: Pace, days: calendars.AllowedDays) -> Pace:
    """The pace through calendars, which are asked before the hours."""
    seen = ScheduleSlots(pace, days, pace.offset)
    return replace(
        pace,
        next=seen.next,
        slots=seen.slots,
        by_hours=lambda after, until: combine_slots(seen.open_spans(after, until), pace.by_hours),
        by_days=lambda after, until: combine_slots(seen.closed_spans(after, until), pace.slots, pace.by_hours),
    )


@lru_cache(maxsize=4096)
def _parts(text: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(text)
    return read


@lru_cache(maxsize=4096)
def _hours(text: str) -> Hours:
    windows = _parts(text).get("hours", [])
    return Hours(tuple(Window(start, end, frozenset(days), ZoneInfo(zone)) for start, end, days, zone in windows))


def _once(text: str) -> OneTimeSchedule:
    said = _parts(text)
    return OneTimeSchedule(datetime.fromisoformat(said["at"]), ZoneInfo(said["zone"]))


@lru_cache(maxsize=4096)
def _schedule(text: str, zone: str) -> cron_schedule.CronSchedule:
    return cron_schedule.parse_schedule(text, ZoneInfo(zone))
