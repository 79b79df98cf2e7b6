"""Foresees what another config would change: next runs, runs a week, and the highest possible cost of a day."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from scheduler.config.build.config_diff import ConfigComparison
from scheduler.insight import forecast
from scheduler.insight.daily_maximum import compute_daily_maximum
from scheduler.insight.forecast import EntryForecast
from scheduler.model.config_changes import ConfigDiff
from scheduler.model.entry import Key
from scheduler.model.entry_schedule import TICK, due_times, due_times_by_day
from scheduler.model.outcome import Kind
from scheduler.model.timestamps import iso_utc
from scheduler.work import plan
from scheduler.work.plan import Plan

A_WEEK = timedelta(days=7)


def foresee_changes(db: sqlite3.Connection | None, found: ConfigComparison, now: datetime) -> dict[str, Any]:
    """What the new settings of a comparison would change, as JSON data: before and after.

    `next` are the entries whose schedule changes, with the time of their next run and their runs a week. `runs_a_week` are the
    scheduled runs of the next seven days, without wakes. `usd_a_day` is the highest possible cost of a day; null: no limit.
    """
    plans = plan.make_plan(found.old), plan.make_plan(found.new)
    before, after = (_forecasts(db, each, now) for each in plans)
    names = {_key_of(new): _key_of(old) for old, new in found.diff.renamed}
    moved = [key for key in sorted({*before, *after}) if _is_moved(plans, names.get(key, key), key, found.diff)]
    weeks = [{key: _runs_a_week(each, now) for key, each in seen.items()} for seen in (before, after)]
    costs = [compute_daily_maximum(settings, now) for settings in (found.old, found.new)]
    return {
        "next": [
            {
                "name": _label(key),
                "before": iso_utc(_next_run(before.get(names.get(key, key)), now)),
                "after": iso_utc(_next_run(after.get(key), now)),
                "runs_a_week": {"before": weeks[0].get(names.get(key, key), 0), "after": weeks[1].get(key, 0)},
            }
            for key in moved
        ],
        "runs_a_week": {
            word: {"before": _sum_of_kind(weeks[0], kind), "after": _sum_of_kind(weeks[1], kind)}
            for word, kind in (("agents", Kind.HEARTBEAT), ("jobs", Kind.CRON))
        },
        "usd_a_day": {"before": costs[0].usd_per_day, "after": costs[1].usd_per_day}
        if costs[0].entries or costs[1].entries
        else None,
    }


def _forecasts(db: sqlite3.Connection | None, of: Plan, now: datetime) -> dict[Key, EntryForecast]:
    return {(each.course.kind, each.course.name): each for each in forecast.forecast_entries(db, of, now)}


def _is_moved(plans: tuple[Plan, Plan], old: Key, new: Key, diff: ConfigDiff) -> bool:
    """Whether the entry has another schedule. The old name of a renamed entry does not count as an entry of its own."""
    if any(_key_of(was) == new for was, _ in diff.renamed):
        return False
    before, after = plans[0].entries.get(old), plans[1].entries.get(new)
    if before is None or after is None:
        return True
    return (before.schedule_text, before.enabled, before.zone) != (after.schedule_text, after.enabled, after.zone)


def _next_run(foreseen: EntryForecast | None, now: datetime) -> datetime | None:
    if foreseen is None or not foreseen.will_fire:
        return None
    return next(due_times(foreseen.course, now - TICK, now + forecast.MAX_SPAN), None)


def _runs_a_week(foreseen: EntryForecast, now: datetime) -> int:
    return sum(day.count for day in due_times_by_day(foreseen.course, now, now + A_WEEK)) if foreseen.will_fire else 0


def _sum_of_kind(counts: Mapping[Key, int], kind: Kind) -> int:
    return sum(count for (other, _), count in counts.items() if other is kind)


def _label(key: Key) -> str:
    kind, name = key
    return Kind(kind).label_of(name)


def _key_of(label: str) -> Key:
    word, _, name = label.partition("/")
    return (Kind.CRON if word == "cron" else Kind.HEARTBEAT), name
