"""The worst day: the most that each entry, and all of them together, can spend in one day, whatever is said and asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from cron.job_schedules import CronSchedule, parse_schedule
from heartbeat.hours import Window
from heartbeat.spec import Heartbeat
from scheduler.engine.startup import CRASHES
from scheduler.model import budget, local_days
from scheduler.model.budget import Allowance, AttemptUsage
from scheduler.model.local_days import A_DAY
from scheduler.model.outcome import Kind
from scheduler.model.settings import Settings, WakeRate

ONE_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class EntryMaximum:
    """What an entry can come to in a day of its zone: `runs` of a schedule and of wakes, `attempts` of them with all retries.

    `attempt` is the most that one of those takes in USD, None where nobody knows; `usd` the ceiling, None where there is none;
    `by` is what makes it: `budget`, or `runs` where their number does.
    """

    kind: Kind
    name: str
    zone: ZoneInfo
    runs: int
    attempts: int
    usd_per_attempt: float | None
    usd_per_day: float | None
    limited_by: str


@dataclass(frozen=True, slots=True)
class DailyMaximum:
    """The ceilings of all entries that ask an agent, and of a day of the top-level zone with all of them."""

    entries: tuple[EntryMaximum, ...]
    usd_per_day: float | None
    limited_by: str


@dataclass(frozen=True, slots=True)
class _PromptedEntry:
    """An entry that asks an agent: how many of its runs fall on one day, in how many attempts each, and what one takes."""

    kind: Kind
    name: str
    zone: ZoneInfo
    runs: int
    attempts: int
    attempt: AttemptUsage


def compute_daily_maximum(settings: Settings, now: datetime) -> DailyMaximum:
    """The worst day of the year from `now` on.

    What a budget bounds holds whatever happens. What only the number of runs bounds holds while nobody sets the clock, stops
    the daemon in the middle of runs or starts jobs by hand.
    """
    ceilings = tuple(
        _entry_maximum(settings, asker) for asker in (*_prompted_heartbeats(settings, now), *_prompted_jobs(settings, now))
    )
    shares = [_share_of_total(settings, ceiling) for ceiling in ceilings]
    known = [share for share in shares if share is not None]
    total = sum(known) if len(known) == len(shares) else None
    shared = settings.limits.budget.usd_per_day if settings.limits.budget else None
    if shared is not None and (total is None or shared < total):
        return DailyMaximum(ceilings, shared, "limits.budget")
    return DailyMaximum(ceilings, total, "entries")


def maximum_as_data(found: DailyMaximum) -> dict[str, Any]:
    """The same as JSON shows it."""
    entries = [
        {
            "kind": each.kind.value,
            "name": each.name,
            "zone": each.zone.key,
            "runs": each.runs,
            "attempts": each.attempts,
            "usd_per_attempt": each.usd_per_attempt,
            "usd_per_day": each.usd_per_day,
            "by": each.limited_by,
        }
        for each in found.entries
    ]
    return {"entries": entries, "usd_per_day": found.usd_per_day, "by": found.limited_by}


def _entry_maximum(settings: Settings, asker: _PromptedEntry) -> EntryMaximum:
    found = settings.allowances.get((asker.kind, asker.name))
    own = found.own if found else None
    runs = asker.runs if own is None or own.runs_per_day is None else min(asker.runs, own.runs_per_day)
    attempts = runs * asker.attempts
    most = _max_usd_per_attempt(asker.attempt, found)
    usd = attempts * most if most is not None else None
    bound = own.usd_per_day if own else None
    if bound is not None and (usd is None or bound < usd):
        return EntryMaximum(asker.kind, asker.name, asker.zone, runs, attempts, most, bound, "budget")
    return EntryMaximum(asker.kind, asker.name, asker.zone, runs, attempts, most, usd, "runs")


def _max_usd_per_attempt(attempt: AttemptUsage, found: Allowance | None) -> float | None:
    """The most that an attempt takes, by its allowance if it has one; None where nobody knows."""
    if not attempt.priced or (attempt.has_unknown_usage and attempt.usd_per_run is None):
        return None
    return found.max_usage.usd if found else attempt.max_usage.usd


def _share_of_total(settings: Settings, ceiling: EntryMaximum) -> float | None:
    """What an entry can add to one day of the top-level zone, which may meet two days of its own."""
    apart = ceiling.usd_per_day is not None and ceiling.zone.key != settings.zone.key
    return 2 * ceiling.usd_per_day if apart and ceiling.usd_per_day is not None else ceiling.usd_per_day


def _prompted_heartbeats(settings: Settings, now: datetime) -> Iterator[_PromptedEntry]:
    for beat in settings.heartbeats.values():
        if beat.enabled:
            day = longest_day(beat.zone, now)
            # One slot of the day before may start late.
            runs = max_slots_per_day(beat, day) + 1 + max_woken_runs(settings.limits.wake_flood, day)
            most = budget.heartbeat_usage(beat, settings.prices, _usd_per_run(settings, Kind.HEARTBEAT, beat.name))
            yield _PromptedEntry(Kind.HEARTBEAT, beat.name, beat.zone, runs, 1 + beat.retries + CRASHES, most)


def _prompted_jobs(settings: Settings, now: datetime) -> Iterator[_PromptedEntry]:
    for name, agent in settings.job_agents.items():
        job = settings.jobs[name]
        if job.enabled:
            day = longest_day(job.zone, now)
            runs = 1 + (max_firings_per_day(job.schedule, day) if job.schedule else -(-day // job.every) if job.every else 0)
            most = budget.agent_usage(agent, settings.prices, _usd_per_run(settings, Kind.CRON, name))
            yield _PromptedEntry(Kind.CRON, name, job.zone, runs, 1 + job.retries + job.rerun_after_crash * CRASHES, most)


def _usd_per_run(settings: Settings, kind: Kind, name: str) -> float | None:
    found = settings.allowances.get((kind, name))
    return found.usd_per_run if found else None


def max_slots_per_day(beat: Heartbeat, day: timedelta) -> int:
    """The most slots that a heartbeat can have on a day as long as this."""
    if beat.schedule is not None:
        return max_firings_per_day(parse_schedule(beat.schedule, beat.zone), day)
    if not beat.interval:
        return 0
    whole = -(-day // beat.interval)
    if beat.hours.always and beat.calendars.always:
        return whole
    whole += 1  # a point of the day before may have moved to its first opening
    if beat.hours.always:
        return whole
    return min(whole, sum(_max_slots_of_window(window, beat, day) for window in beat.hours.windows))


def _max_slots_of_window(window: Window, beat: Heartbeat, day: timedelta) -> int:
    """The most slots of one window on a day: one at least, and one more for each part into which the day may divide it."""
    assert beat.interval is not None
    hour_again = day - A_DAY  # a clock that goes back may lengthen any window, or open it twice
    lies_on_two_days = window.start > window.end or window.zone.key != beat.zone.key
    return -(-(timedelta(minutes=window.length_minutes) + hour_again) // beat.interval) + lies_on_two_days + bool(hour_again)


def max_firings_per_day(schedule: CronSchedule, day: timedelta) -> int:
    """The most firings that a schedule can have on such a day; those of a wildcard come again where the clock goes back."""
    readings = schedule.expression.times
    hours_again = -(-(day - A_DAY) // ONE_HOUR) if schedule.expression.wildcard else 0
    return len(readings) + hours_again * len(readings.minutes)


def max_woken_runs(flood: WakeRate, day: timedelta) -> int:
    """The most runs of an agent that wakes may start in a day, or another time, of this length."""
    return flood.count * (day // flood.within + 1)


@lru_cache(maxsize=256)
def longest_day(zone: ZoneInfo, now: datetime) -> timedelta:
    """How long the longest of the coming 366 days is in a zone."""
    today = now.astimezone(zone).date()
    coming = (local_days.whole_day(today + number * A_DAY, zone) for number in range(366))
    return max(A_DAY, *(day.ends - day.begins for day in coming))
