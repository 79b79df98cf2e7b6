"""Forecasts what another config would change: next runs, runs a week, and the highest possible cost of a day."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from heartbeatd.answers import ConfigForecast, CostChange, DailyMaximum, RunsChange, RunsOfKinds, ScheduleChange
from scheduler.config.settings.config_diff import ConfigComparison
from scheduler.insight import forecast
from scheduler.insight.daily_maximum import compute_daily_maximum
from scheduler.insight.forecast import EntryForecast
from scheduler.model.entry import Key
from scheduler.model.outcome import Kind
from scheduler.work import plan
from scheduler.work.plan import Plan

A_WEEK = timedelta(days=7)


def foresee_changes(
    db: sqlite3.Connection, found: ConfigComparison, now: datetime, only: Key | None = None, span: timedelta = A_WEEK
) -> ConfigForecast:
    """What the new settings of a comparison would change. `only`: for this entry. Another `span` than a week is counted too."""
    plans = plan.make_plan(found.old), plan.make_plan(found.new)
    before, after = (_forecasts(db, each, now) for each in plans)
    moved = [key for key in sorted({*before, *after}) if only in (None, key) and _is_moved(plans, key)]
    seen = [[(key, each) for key, each in side.items() if only in (None, key)] for side in (before, after)]
    counts = {length: [{key: each.count(now, now + length) for key, each in side} for side in seen] for length in {A_WEEK, span}}
    weeks, spans = counts[A_WEEK], counts[span]
    costs = [_maximum(compute_daily_maximum(settings, now), only) for settings in (found.old, found.new)]
    changes = []
    for key in moved:
        change = ScheduleChange(
            name=Kind(key[0]).label_of(key[1]),
            before=_next_run(before.get(key), now),
            after=_next_run(after.get(key), now),
            runs_a_week=RunsChange(before=weeks[0].get(key, 0), after=weeks[1].get(key, 0)),
        )
        if span != A_WEEK:
            change.runs = RunsChange(before=spans[0].get(key, 0), after=spans[1].get(key, 0))
        changes.append(change)
    has_costs = costs[0][1] or costs[1][1]
    forecasted = ConfigForecast(
        next=changes,
        runs_a_week=_totals(weeks),
        usd_a_day=CostChange(before=costs[0][0], after=costs[1][0]) if has_costs else None,
    )
    if span != A_WEEK:
        forecasted.runs, forecasted.span_s = _totals(spans), span.total_seconds()
    return forecasted


def _totals(counts: Sequence[Mapping[Key, int]]) -> RunsOfKinds:
    """The runs of all agents and of all jobs, before and after."""
    agents, jobs = (
        RunsChange(before=_sum_of_kind(counts[0], kind), after=_sum_of_kind(counts[1], kind))
        for kind in (Kind.HEARTBEAT, Kind.CRON)
    )
    return RunsOfKinds(agents=agents, jobs=jobs)


def _maximum(found: DailyMaximum, only: Key | None) -> tuple[float | None, bool]:
    """The highest possible cost of a day, of all entries or of this one, and whether any of them calls an agent."""
    if only is None:
        return found.usd_per_day, bool(found.entries)
    costs = [each.usd_per_day for each in found.entries if (each.kind, each.name) == only]
    return (None if None in costs else sum(cost or 0 for cost in costs)), bool(costs)


def _forecasts(db: sqlite3.Connection, of: Plan, now: datetime) -> dict[Key, EntryForecast]:
    return {(each.course.kind, each.course.name): each for each in forecast.forecast_entries(db, of, now)}


def _is_moved(plans: tuple[Plan, Plan], key: Key) -> bool:
    """Whether the entry has another schedule."""
    before, after = (each.entries.get(key) for each in plans)
    if before is None or after is None:
        return True
    return (before.schedule_text, before.enabled, before.zone) != (after.schedule_text, after.enabled, after.zone)


def _next_run(foreseen: EntryForecast | None, now: datetime) -> datetime | None:
    return next(foreseen.times(now, now + forecast.MAX_SPAN), None) if foreseen else None


def _sum_of_kind(counts: Mapping[Key, int], kind: Kind) -> int:
    return sum(count for (other, _), count in counts.items() if other is kind)
