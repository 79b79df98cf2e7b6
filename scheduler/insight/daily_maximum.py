"""Computes the maximum number of runs and the maximum cost per day, for each entry and for all together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cron.job import follow_chain
from cron.job_schedules import CronSchedule, parse_schedule
from heartbeat.hours import Window
from heartbeat.spec import Agent, Heartbeat
from heartbeatd.answers import EntryName, ResponseBody, Shared
from scheduler.engine.recovery import MAX_CRASHES
from scheduler.model import budget, local_days
from scheduler.model.budget import Allowance, AttemptUsage, Budget
from scheduler.model.local_days import A_DAY
from scheduler.model.outcome import Key, Kind
from scheduler.model.settings import Settings, WakeRate

ONE_HOUR = timedelta(hours=1)
DAYS_OF_MONTH = 31


class EntryMaximum(EntryName):
    """The upper limits of one entry for one local day: scheduled and woken `runs`, and `tries` including all retries.

    `usd_per_try` is null if it is unknown, `usd_per_day` and `usd_per_month` if there is no limit. `by` is `budget`, or
    `runs` if the number of runs is what limits the cost of a day.
    """

    zone: str
    runs: int
    tries: int
    usd_per_try: float | None
    usd_per_day: float | None
    usd_per_month: float | None
    by: str


class DailyMaximum(ResponseBody):
    """The limits of all entries that prompt an agent, and of all together for one day, and one month, of the top-level zone."""

    entries: Shared[list[EntryMaximum]]
    usd_per_day: float | None
    usd_per_month: float | None
    by: str


def compute_daily_maximum(settings: Settings, now: datetime) -> DailyMaximum:
    """The limits for the most expensive day of the year from `now` on.

    A limit by budget always holds. A limit by the number of runs holds as long as no user changes the system clock, stops the
    daemon during runs or starts jobs by hand.
    """
    maximums = [*_maximums_of_agents(settings, now), *_maximums_of_jobs(settings, now)]
    shares = [_share_of_total(settings, maximum, maximum.usd_per_day) for maximum in maximums]
    total = _sum_known(shares)
    months = [_share_of_total(settings, maximum, maximum.usd_per_month) for maximum in maximums]
    shared = settings.limits.budget
    by_budget = _least(shared.usd_per_day, shared.usd_per_month, _usd_of_shared_runs(shared, maximums)) if shared else None
    is_shared = by_budget is not None and (total is None or by_budget < total)
    usd = by_budget if is_shared else total
    return DailyMaximum(
        entries=maximums,
        usd_per_day=usd,
        usd_per_month=_least(_of_month(usd), shared.usd_per_month if shared else None, _sum_known(months)),
        by="limits.budget" if is_shared else "entries",
    )


def _least(*limits: float | None) -> float | None:
    """The lowest of the limits that are set; None if none is."""
    return min((limit for limit in limits if limit is not None), default=None)


def _of_month(usd_per_day: float | None) -> float | None:
    return None if usd_per_day is None else usd_per_day * DAYS_OF_MONTH


def _sum_known(amounts: list[float | None]) -> float | None:
    """The sum; None if any amount is unknown."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def _usd_of_shared_runs(shared: Budget, maximums: list[EntryMaximum]) -> float | None:
    """The cost of as many of the most expensive runs as all entries together may start in a day; None if it is unknown."""
    of_runs = [None if each.usd_per_try is None else each.usd_per_try * each.tries / each.runs for each in maximums]
    if shared.runs_per_day is None or _sum_known(of_runs) is None:
        return None
    return shared.runs_per_day * max(filter(None, of_runs), default=0.0)


def _entry_maximum(settings: Settings, key: Key, agent: Agent, zone: ZoneInfo, runs: int, attempts: int) -> EntryMaximum:
    """The limits of an entry that prompts an agent in so many `runs` a day at most, each with so many `attempts`."""
    found = settings.allowances.get(key)
    own, shared = found.own if found else None, settings.limits.budget
    most_runs = [runs]
    if own and own.runs_per_day:
        most_runs.append(own.runs_per_day)
    if shared and shared.runs_per_day:  # a day in another zone overlaps two days of the shared budget
        most_runs.append(shared.runs_per_day * (1 if zone.key == settings.zone.key else 2))
    runs = min(most_runs)
    tries = runs * attempts
    most = _max_usd_per_attempt(_attempt_usage(settings, key, agent), found)
    usd = tries * most if most is not None else None
    bound = _least(own.usd_per_day, own.usd_per_month) if own else None
    is_bound = bound is not None and (usd is None or bound < usd)
    of_day = bound if is_bound else usd
    return EntryMaximum(
        kind=key[0].value,
        name=key[1],
        zone=zone.key,
        runs=runs,
        tries=tries,
        usd_per_try=most,
        usd_per_day=of_day,
        usd_per_month=_least(_of_month(of_day), own.usd_per_month if own else None),
        by="budget" if is_bound else "runs",
    )


def _max_usd_per_attempt(attempt: AttemptUsage, found: Allowance | None) -> float | None:
    """The maximum cost of an attempt, by its allowance if it has one; None if unknown."""
    if not attempt.priced or (attempt.has_unknown_usage and attempt.usd_per_try is None):
        return None
    return found.max_usage.usd if found else attempt.max_usage.usd


def _share_of_total(settings: Settings, maximum: EntryMaximum, usd: float | None) -> float | None:
    """What an entry with this maximum can add to one day, or month, of the top-level zone.

    It may overlap two of them in the entry's own zone.
    """
    return usd if usd is None or maximum.zone == settings.zone.key else 2 * usd


def _maximums_of_agents(settings: Settings, now: datetime) -> Iterator[EntryMaximum]:
    for beat in settings.heartbeats.values():
        if beat.enabled:
            day = longest_day(beat.zone, now)
            # One slot of the previous day may start late.
            runs = max_slots_per_day(beat, day) + 1 + max_woken_runs(settings.limits.wake_flood, day)
            yield _entry_maximum(settings, (Kind.HEARTBEAT, beat.name), beat, beat.zone, runs, 1 + beat.retries + MAX_CRASHES)


def _attempt_usage(settings: Settings, key: Key, agent: Agent) -> AttemptUsage:
    """The maximum usage of one attempt.

    Without a budget, no reservation limits the further calls of the agent's model for an incomplete answer. Nor does one keep a
    fallback from being called after calls that failed and cost something.
    """
    found = settings.allowances.get(key)
    if found:
        return budget.attempt_usage(agent, settings.prices, found.usd_per_try, found.tokens_per_try)
    attempt = budget.attempt_usage(agent, settings.prices, None, None)
    if not attempt.model_calls and not any(attempt.fallbacks):
        return attempt
    *before, last = attempt.model_calls or (None,)
    models = [last, *(calls[-1] for calls in attempt.fallbacks if calls)]
    calls = (replace(each, turns=each.turns * (1 + agent.ask_again)) for each in models if each is not None)
    return replace(attempt, model_calls=(*filter(None, before), *calls), fallbacks=())


def _maximums_of_jobs(settings: Settings, now: datetime) -> Iterator[EntryMaximum]:
    for name, agent in settings.job_agents.items():
        job = settings.jobs[name]
        if job.enabled:
            day = longest_day(job.zone, now)
            first = settings.jobs[follow_chain(settings.jobs, name)[0][-1]]  # of a chain of jobs
            runs = 1 + (
                max_firings_per_day(first.schedule, day) if first.schedule else -(-day // first.every) if first.every else 0
            )
            attempts = 1 + job.retries + job.rerun_after_crash * MAX_CRASHES
            yield _entry_maximum(settings, (Kind.CRON, name), agent, job.zone, runs, attempts)


def max_slots_per_day(beat: Heartbeat, day: timedelta) -> int:
    """The maximum number of slots of a heartbeat on a day of this length."""
    if beat.schedule is not None:
        return max_firings_per_day(parse_schedule(beat.schedule, beat.zone), day)
    if not beat.interval:
        return 0
    whole = -(-day // beat.interval)
    if beat.hours.always and beat.calendars.always:
        return whole
    whole += 1  # a slot of the previous day may have moved to the first opening of this one
    if beat.hours.always:
        return whole
    return min(whole, sum(_max_slots_of_window(window, beat, day) for window in beat.hours.windows))


def _max_slots_of_window(window: Window, beat: Heartbeat, day: timedelta) -> int:
    """The maximum number of slots of one window on a day: at least one, and one more for each part cut off at midnight."""
    assert beat.interval is not None
    hour_again = day - A_DAY  # when clocks go back, any window may be longer, or open twice
    lies_on_two_days = window.start > window.end or window.zone.key != beat.zone.key
    return -(-(timedelta(minutes=window.length_minutes) + hour_again) // beat.interval) + lies_on_two_days + bool(hour_again)


def max_firings_per_day(schedule: CronSchedule, day: timedelta) -> int:
    """The maximum number of runs of a cron schedule on such a day. Wildcard schedules repeat when clocks go back."""
    readings = schedule.expression.times
    hours_again = -(-(day - A_DAY) // ONE_HOUR) if schedule.expression.wildcard else 0
    return len(readings) + hours_again * len(readings.minutes)


def max_woken_runs(flood: WakeRate, day: timedelta) -> int:
    """The maximum number of runs of an agent that wakes may start in a period of this length."""
    return flood.count * (day // flood.within + 1)


@lru_cache(maxsize=256)
def longest_day(zone: ZoneInfo, now: datetime) -> timedelta:
    """The length of the longest of the next 366 days in a zone."""
    today = now.astimezone(zone).date()
    coming = (local_days.whole_day(today + number * A_DAY, zone) for number in range(366))
    return max(A_DAY, *(day.ends - day.begins for day in coming))
