"""Finds settings that are valid but no longer useful: a time in the past, or calendars that leave no day."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from cron.job import CalendarDays, Job
from heartbeat.hours import ALL_DAYS, TWO_YEARS
from heartbeat.spec import Heartbeat
from scheduler.config.settings.config_node import Fault
from scheduler.model import entry_schedule
from scheduler.model.local_days import A_DAY
from scheduler.model.settings import Settings

Entry = TypeVar("Entry", Heartbeat, Job)

PASSED = "this time is in the past, and the daemon never saw this job; write a future time, or remove the job"
NEVER = "the calendars leave no time to run within two years; change skip_on, only_on or the calendars"


@dataclass(frozen=True, slots=True)
class TimeCheck:
    """The time at which a config is read (aware, UTC), and how strictly it is checked.

    `was_seen` returns whether the database, at a path or on a server, knows a one-time job, by its name and the text of its
    schedule.
    If not `strict`, the findings are warnings: a daemon must be able to start again with a config that was valid before.
    """

    now: datetime
    was_seen: Callable[[Path | str, str, str], bool]
    strict: bool = True


def find_time_errors(settings: Settings, today: TimeCheck) -> Iterator[Fault]:
    """The settings that are in the past or leave no day to run on."""
    judged: dict[object, bool] = {}  # thousands of agents share a few schedules
    for name, beat in settings.heartbeats.items():
        if not beat.enabled or beat.calendars.always:
            continue
        way = (beat.interval, beat.schedule, beat.schedule and beat.stagger, beat.zone, beat.hours, beat.calendars)
        if way not in judged:
            # Without a `schedule`, it is taken to run at least once a day.
            daily = replace(beat, interval=None if beat.schedule else min(beat.interval or A_DAY, A_DAY))
            judged[way] = _never_runs(daily, entry_schedule.heartbeat_schedule_text, today.now)
        if judged[way]:
            yield "agents", name, ("heartbeat", _calendar_key(beat.calendars)), NEVER
    for name, job in settings.jobs.items():
        if job.enabled and job.at and _has_passed(entry_schedule.job_schedule_text(job), name, settings.database, today):
            yield "cron", name, ("at",), PASSED
        elif job.enabled and not job.calendars.always:
            often = replace(job, every=min(job.every or A_DAY, A_DAY) if job.every or job.reboot else None)
            if _never_runs(often, entry_schedule.job_schedule_text, today.now):
                yield "cron", name, (_calendar_key(job.calendars),), NEVER


def _has_passed(text: str, name: str, database: Path | str, today: TimeCheck) -> bool:
    moment = entry_schedule.single_slot(text)
    return moment is not None and moment <= today.now and not today.was_seen(database, name, text)


def _never_runs(entry: Entry, schedule_text: Callable[[Entry], str], now: datetime) -> bool:
    """Whether its calendars leave an entry no run within two years."""
    without_calendars = entry_schedule.parse_schedule(schedule_text(replace(entry, calendars=ALL_DAYS)), now).next(now)
    if without_calendars is None:
        return False
    left = entry_schedule.parse_schedule(schedule_text(entry), now).next(now)
    return left is None or left - without_calendars > TWO_YEARS


def _calendar_key(days: CalendarDays) -> str:
    return "skip_on" if days.only is None else "only_on"
