"""Forecasts which entries will run and when, and what another config would change: next runs, runs a week, and costs."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from cron.dst_changes import offset_changes
from cron.job import follow_chain
from heartbeat.words import format_duration
from heartbeatd import answers
from heartbeatd.questions import GetPlan
from scheduler.config.keys.time_zones import UTC_ZONE
from scheduler.config.settings.config_diff import ConfigComparison
from scheduler.engine import plan_sync
from scheduler.insight.daily_maximum import DailyMaximum, compute_daily_maximum, max_woken_runs
from scheduler.model import entry_schedule, local_days
from scheduler.model.entry import Entry
from scheduler.model.entry_row import EntryRow
from scheduler.model.entry_schedule import MICROSECOND, RunsOnDay, ScheduledEntry, due_times, due_times_by_day
from scheduler.model.outcome import Key, Kind
from scheduler.model.settings import Limits
from scheduler.model.timestamps import MILLISECOND
from scheduler.store import entries, wakes
from scheduler.work.plan import Plan, make_plan

MAX_SPAN = timedelta(days=400)
A_WEEK = timedelta(days=7)
ALLOWED_YEARS = range(1900, 9900)  # in which a forecast may begin; datetime ends soon after
STATES_WITHOUT_RUNS = {"active": "no run in this time", "paused": "paused", "done": "done", "disabled": "disabled"}
MAX_LISTED_FIRINGS = 4  # runs of an entry on one day that are listed one by one; more are only counted


def period_of(asked: GetPlan, now: datetime) -> tuple[datetime, datetime]:
    """The begin and the end of the time to forecast: by default the next day. Raises ValueError, with the key in its message."""
    begin, span = asked.from_ or now, asked.for_ or timedelta(days=1)
    if begin.year not in ALLOWED_YEARS:
        raise ValueError(f"from: write a time in the years {ALLOWED_YEARS[0]} to {ALLOWED_YEARS[-1]}")
    if span > MAX_SPAN:
        raise ValueError(f"for: write a time of at most {format_duration(MAX_SPAN)}")
    return begin, begin + span


ScheduleSource = Literal["database", "reload", "fresh start"]


class RunsChange(answers.ResponseBody):
    before: int
    after: int


class RunsOfKinds(answers.ResponseBody):
    agents: RunsChange
    jobs: RunsChange


class CostChange(answers.ResponseBody):
    before: float | None
    after: float | None


class ScheduleChange(answers.ResponseBody):
    """An entry whose schedule changes, as agent/NAME or cron/NAME: its next run, and its runs in a week and in `span_s`."""

    name: str
    before: answers.Time | None
    after: answers.Time | None
    runs_a_week: RunsChange
    runs: RunsChange | None = None


class ConfigForecast(answers.ResponseBody):
    """What other settings would change. `usd_a_day` is the highest possible cost of a day; null in it means no limit.

    `runs_a_week` are the scheduled runs of the next seven days, without wakes. `runs` are those of `span_s` seconds.
    """

    next: list[ScheduleChange]
    runs_a_week: RunsOfKinds
    usd_a_day: CostChange | None
    runs: RunsOfKinds | None = None
    span_s: float | None = None


@dataclass(frozen=True, slots=True)
class EntryForecast:
    """The future of an entry: its slots from now on, or from the end of its pause.

    `source` says where its schedule comes from: its row, its row after a reload of the changed config, or the config alone.
    `waking_jobs` are the jobs that will run and may wake it, within `limits`, each with the job whose times it has: itself, or
    the first of its chain. For a job after another one, it is this first job. `reminders` are those that wait.
    """

    course: ScheduledEntry
    state: str
    paused_until: datetime | None
    source: ScheduleSource
    waking_jobs: Mapping[str, EntryForecast] = field(default_factory=dict)
    reminders: tuple[answers.Reminder, ...] = ()
    limits: Limits | None = None

    @property
    def will_fire(self) -> bool:
        """Whether the entry will run by itself."""
        return self.state == "active" or (self.state == "paused" and self.paused_until is not None)

    def times(self, begin: datetime, end: datetime) -> Iterator[datetime]:
        """When it will run in [begin, end)."""
        return due_times(self.course, begin - MICROSECOND, end - MICROSECOND) if self.will_fire else iter(())

    def days(self, begin: datetime, end: datetime) -> Iterator[RunsOnDay]:
        """Its runs in [begin, end) by local day, counted."""
        return due_times_by_day(self.course, begin, end) if self.will_fire else iter(())

    def count(self, begin: datetime, end: datetime) -> int:
        """How often it will run in [begin, end)."""
        return sum(day.count for day in self.days(begin, end))


def forecast_entries(db: sqlite3.Connection, plan: Plan | None, now: datetime) -> list[EntryForecast]:
    """Every entry of the plan, combined with its row; without a plan, every entry of the database. Agents first."""
    known = {(each.kind, each.name): each for each in entries.all_entries(db)}
    if plan is None:
        seen = [
            _forecast_row(row, entry_schedule.schedule_zone(row.schedule_text) or UTC_ZONE, "database", now)
            for row in known.values()
            if row.state != "removed"
        ]
    else:
        planned = {key: _forecast_planned(entry, known.get(key), now) for key, entry in plan.entries.items()}
        seen = [_with_waking_jobs(foreseen, planned, plan) for foreseen in planned.values()]
    reminders = defaultdict(list)
    for reminder in wakes.list_reminders(db):
        reminders[Kind(reminder.kind), reminder.name].append(reminder)
    seen = [replace(each, reminders=tuple(reminders[each.course.kind, each.course.name])) for each in seen]
    return sorted(seen, key=lambda each: (each.course.kind is Kind.CRON, each.course.name))


def _forecast_planned(entry: Entry, entry_row: EntryRow | None, now: datetime) -> EntryForecast:
    row = plan_sync.planned_row(entry, entry_row, now)
    source: ScheduleSource = "database" if row is entry_row or not entry.enabled else "reload"
    return _forecast_row(row, entry.zone, "fresh start" if entry_row is None else source, now)


def _forecast_row(row: EntryRow, zone: ZoneInfo, source: ScheduleSource, now: datetime) -> EntryForecast:
    """The future of a row. It has no slot while it is paused, or is backing off after failures."""
    backs_off = row.backs_off_until
    until = max(filter(None, (row.settled_until, row.pause_ends, backs_off and backs_off - MILLISECOND)))
    state = "done" if row.done_at(now, is_open=False) else row.state_at(now)
    course = ScheduledEntry(*row.key, row.schedule, zone, until)
    return EntryForecast(course, state, row.pause_ends if state == "paused" else None, source)


def _with_waking_jobs(foreseen: EntryForecast, planned: Mapping[Key, EntryForecast], plan: Plan) -> EntryForecast:
    name, jobs = foreseen.course.name, plan.settings.jobs
    if not foreseen.will_fire:
        names: Sequence[str] = ()
    elif foreseen.course.kind is Kind.HEARTBEAT:
        names = plan.jobs_by_woken_agent.get(name, ())
    else:
        names = [name] if jobs[name].after else ()
    waking = {}
    for each in sorted(names):
        chain, _ = follow_chain(jobs, each)
        if all(planned[Kind.CRON, job].will_fire for job in (each, *chain)):
            waking[each if foreseen.course.kind is Kind.HEARTBEAT else chain[-1]] = planned[Kind.CRON, chain[-1]]
    return replace(foreseen, waking_jobs=waking, limits=plan.settings.limits)


def forecast_runs(seen: Iterable[EntryForecast], begin: datetime, end: datetime, *, each: bool = False) -> answers.PlanForecast:
    """What will run in [begin, end), by entry and local day. Runs are listed if they are few, or always with `each`.

    `clock_changes` are the DST changes of the zones in which something runs. In `days`, `beats` counts the runs of all agents and
    `runs` those of all jobs. `wakes_known` False: without a config it is unknown which jobs wake an agent.
    """
    seen = tuple(seen)
    wakers = {name: job for foreseen in seen for name, job in foreseen.waking_jobs.items()}
    fired = {name: job.count(begin, end) for name, job in wakers.items()}
    entries = [_plan_entry(foreseen, begin, end, fired, each=each) for foreseen in seen]
    zones = {ZoneInfo(entry.zone) for entry in entries if entry.total}
    return answers.PlanForecast(
        from_=begin,
        until=end,
        entries=entries,
        days=_totals_by_day(entries),
        wakes_known=all(foreseen.limits is not None for foreseen in seen),
        clock_changes=sorted(_clock_changes(zones, begin, end), key=lambda change: (change.at, change.zone)),
    )


def _plan_entry(
    foreseen: EntryForecast, begin: datetime, end: datetime, fired: Mapping[str, int], *, each: bool
) -> answers.PlannedEntry:
    course = foreseen.course
    days = list(foreseen.days(begin, end))
    return answers.PlannedEntry(
        kind=course.kind.value,
        name=course.name,
        zone=course.zone.key,
        reminders=[each for each in foreseen.reminders if begin <= each.at < end],
        state=foreseen.state,
        paused_until=foreseen.paused_until,
        source=foreseen.source,
        total=sum(day.count for day in days),
        days=[_plan_day(course, day, each=each) for day in days],
        wakes=_woken_runs(foreseen, fired, end - begin),
    )


def _woken_runs(foreseen: EntryForecast, fired: Mapping[str, int], span: timedelta) -> answers.WokenRuns | None:
    """The maximum number of runs that jobs may add by waking the agent, and the names of these jobs; None if there are none."""
    by, limits = [name for name in foreseen.waking_jobs if fired[name]], foreseen.limits
    if not by or limits is None:
        return None
    most = [sum(fired[name] for name in by)]
    if foreseen.course.kind is Kind.HEARTBEAT:
        most += [max_woken_runs(limits.wake_flood, span), *([span // limits.wake_gap + 1] if limits.wake_gap else [])]
    return answers.WokenRuns(at_most=min(most), by=by)


def _plan_day(course: ScheduledEntry, day: RunsOnDay, *, each: bool) -> answers.PlannedDay:
    """One day of an entry; `firings` is None if they are only counted."""
    few = due_times(course, day.first - MICROSECOND, day.latest) if each or day.count <= MAX_LISTED_FIRINGS else None
    firings = None if few is None else list(few)
    return answers.PlannedDay(day=day.day, count=day.count, first=day.first, last=day.latest, firings=firings)


def _totals_by_day(entries: list[answers.PlannedEntry]) -> list[answers.DayTotals]:
    agent_runs: Counter[date] = Counter()
    runs: Counter[date] = Counter()
    for entry in entries:
        sums = agent_runs if entry.kind == "heartbeat" else runs
        for day in entry.days:
            sums[day.day] += day.count
    return [answers.DayTotals(day=day, beats=agent_runs[day], runs=runs[day]) for day in sorted({*agent_runs, *runs})]


def _clock_changes(zones: Iterable[ZoneInfo], begin: datetime, end: datetime) -> Iterator[answers.ClockChange]:
    """The DST changes of the zones, with the local time that the clock would have shown and the one that it shows."""
    for zone in zones:
        for change in offset_changes(zone, begin, end):
            before, after = local_days.clock_before_and_after(change.instant, zone)
            yield answers.ClockChange(zone=zone.key, at=change.instant, before=before, after=after)


# --- what another config would change ---------------------------------------------------------------------------------


def foresee_changes(
    db: sqlite3.Connection, found: ConfigComparison, now: datetime, only: Key | None = None, span: timedelta = A_WEEK
) -> ConfigForecast:
    """What the new settings of a comparison would change. `only`: for this entry. Another `span` than a week is counted too."""
    plans = make_plan(found.old), make_plan(found.new)
    seen = [_forecasts(db, plan, now, only) for plan in plans]
    keys = sorted({*seen[0], *seen[1]})
    weeks = [_count_runs(side, now, A_WEEK) for side in seen]
    spans = [_count_runs(side, now, span) for side in seen] if span != A_WEEK else []
    costs = [_maximum(compute_daily_maximum(settings, now), only) for settings in (found.old, found.new)]
    moved = {
        key: [next(side[key].times(now, now + MAX_SPAN), None) if key in side else None for side in seen]
        for key in keys
        if _is_moved(plans, key)
    }
    foreseen = ConfigForecast(
        next=[
            ScheduleChange(
                name=Kind(key[0]).label_of(key[1]),
                before=before,
                after=after,
                runs_a_week=_runs_of(weeks, [key]),
                **({"runs": _runs_of(spans, [key])} if spans else {}),
            )
            for key, (before, after) in moved.items()
            if before or after
        ],
        runs_a_week=_runs_of_kinds(weeks, keys),
        usd_a_day=CostChange(before=costs[0][0], after=costs[1][0]) if costs[0][1] or costs[1][1] else None,
    )
    if spans:
        foreseen.runs, foreseen.span_s = _runs_of_kinds(spans, keys), span.total_seconds()
    return foreseen


def _forecasts(db: sqlite3.Connection, plan: Plan, now: datetime, only: Key | None) -> dict[Key, EntryForecast]:
    found = {(each.course.kind, each.course.name): each for each in forecast_entries(db, plan, now)}
    return {key: each for key, each in found.items() if only in (None, key)}


def _count_runs(seen: Mapping[Key, EntryForecast], now: datetime, span: timedelta) -> Counter[Key]:
    return Counter({key: each.count(now, now + span) for key, each in seen.items()})


def _runs_of(counts: Iterable[Counter[Key]], keys: Iterable[Key]) -> RunsChange:
    """The runs of these entries before and after."""
    before, after = (sum(side[key] for key in keys) for side in counts)
    return RunsChange(before=before, after=after)


def _runs_of_kinds(counts: Iterable[Counter[Key]], keys: Iterable[Key]) -> RunsOfKinds:
    agents, jobs = (_runs_of(counts, [key for key in keys if key[0] is kind]) for kind in (Kind.HEARTBEAT, Kind.CRON))
    return RunsOfKinds(agents=agents, jobs=jobs)


def _maximum(found: DailyMaximum, only: Key | None) -> tuple[float | None, bool]:
    """The highest possible cost of a day, of all entries or of this one, and whether any of them calls an agent."""
    if only is None:
        return found.usd_per_day, bool(found.entries)
    costs = [each.usd_per_day for each in found.entries if (each.kind, each.name) == only]
    return (None if None in costs else sum(cost or 0 for cost in costs)), bool(costs)


def _is_moved(plans: tuple[Plan, Plan], key: Key) -> bool:
    """Whether the entry has another schedule."""
    before, after = (each.entries.get(key) for each in plans)
    if before is None or after is None:
        return True
    return (before.schedule_text, before.enabled, before.zone) != (after.schedule_text, after.enabled, after.zone)
