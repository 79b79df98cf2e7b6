"""Forecast: what fires in the time to come, by the rows where there are any, else as a fresh start would have it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo

from cron.dst_changes import offset_changes
from scheduler.engine import plan_sync
from scheduler.insight.daily_maximum import max_woken_runs
from scheduler.model import schedule
from scheduler.model.entry import Entry, Key
from scheduler.model.outcome import Kind
from scheduler.model.settings import Limits
from scheduler.model.timestamps import MILLISECOND, iso
from scheduler.model.trigger_times import TICK, Beats, Course, by_day, firings
from scheduler.store import entries
from scheduler.store.entries import Standing
from scheduler.work.plan import Plan

MAX_SPAN = timedelta(days=400)
ALLOWED_YEARS = range(1900, 9900)  # those in which it may begin: beyond them the calendar of this machine ends
MAX_LISTED_FIRINGS = 4  # firings of an entry on one day; more are told as one

ScheduleSource = Literal["database", "reload", "fresh start"]


@dataclass(frozen=True, slots=True)
class EntryForecast:
    """An entry as it will be: on its course if it is active, or from the end of its pause on.

    `source` says where its grid comes from: its row, its row once a changed config is taken up, or the config alone. `wakers` are
    the courses of the jobs that may wake it at once, within `limits`.
    """

    course: Course
    state: str
    paused_until: datetime | None
    source: ScheduleSource
    waking_jobs: tuple[Course, ...] = ()
    limits: Limits | None = None

    @property
    def will_fire(self) -> bool:
        """Whether anything of it will fire by itself."""
        return self.state == "active" or (self.state == "paused" and self.paused_until is not None)


def forecast_entries(db: sqlite3.Connection | None, plan: Plan | None, now: datetime) -> list[EntryForecast]:
    """Every entry of the plan with what the database knows of it; without a plan, every entry of the database. Agents first."""
    known = {(each.kind, each.name): each for each in entries.everything(db)} if db else {}
    if plan is None:
        seen = [_forecast_recorded(standing) for standing in known.values() if standing.state != "removed"]
    else:
        planned = {key: _forecast_planned(entry, known.get(key), now) for key, entry in plan.entries.items()}
        seen = [_with_waking_jobs(foreseen, planned, plan) for foreseen in planned.values()]
    return sorted(seen, key=lambda each: (each.course.kind is Kind.CRON, each.course.name))


def _forecast_planned(entry: Entry, standing: Standing | None, now: datetime) -> EntryForecast:
    anchor, settled = plan_sync.foreseen(entry, standing, now)
    same = standing is not None and (standing.state, standing.pace_text) == ("active", entry.pace_text)
    paused = entry.enabled and standing is not None and standing.paused
    course = Course(entry.kind, entry.name, schedule.pace(entry.pace_text, anchor), entry.zone, _no_slot_until(settled, standing))
    over = schedule.done(entry.pace_text, settled)
    state = "disabled" if not entry.enabled else "paused" if paused else "done" if over else "active"
    source: ScheduleSource = "fresh start" if standing is None else "database" if same or not entry.enabled else "reload"
    return EntryForecast(course, state, standing.pause_ends if standing and paused else None, source)


def _with_waking_jobs(foreseen: EntryForecast, planned: Mapping[Key, EntryForecast], plan: Plan) -> EntryForecast:
    names = plan.wakers.get(foreseen.course.name, ()) if foreseen.course.kind is Kind.HEARTBEAT and foreseen.will_fire else ()
    jobs = [planned[Kind.CRON, name] for name in sorted(names)]
    return replace(foreseen, waking_jobs=tuple(job.course for job in jobs if job.will_fire), limits=plan.settings.limits)


def _forecast_recorded(standing: Standing) -> EntryForecast:
    zone = schedule.zone(standing.pace_text) or ZoneInfo("UTC")
    course = Course(standing.kind, standing.name, standing.pace, zone, _no_slot_until(standing.settled_until, standing))
    over = standing.state == "active" and schedule.done(standing.pace_text, standing.settled_until)
    state = "paused" if standing.state == "active" and standing.paused else "done" if over else standing.state
    return EntryForecast(course, state, standing.pause_ends, "database")


def _no_slot_until(settled: datetime, standing: Standing | None) -> datetime:
    """The instant after which its next slot may lie: it may be paused until then, or rest after failures."""
    if standing is None:
        return settled
    held = standing.backs_off_until
    return max(wish for wish in (settled, standing.pause_ends, held and held - MILLISECOND) if wish is not None)


def forecast_data(seen: Iterable[EntryForecast], begin: datetime, end: datetime, *, each: bool = False) -> dict[str, Any]:
    """What fires in [begin, end) as plain data, by entry and local day; one by one where they are few, or with `each`.

    `clock_changes` are those of the zones in which something fires; `beats` are those of all agents, `runs` those of all jobs.
    `wakes_known` False: without a config nobody knows whom jobs wake.
    """
    seen = tuple(seen)
    wakers = {job.name: job for foreseen in seen for job in foreseen.waking_jobs}
    fired = {name: sum(beats.count for beats in by_day(job, begin, end)) for name, job in wakers.items()}
    entries = [
        _entry_data(foreseen, begin, end, each=each) | {"wakes": _woken_runs_data(foreseen, fired, end - begin)}
        for foreseen in seen
    ]
    zones = {ZoneInfo(entry["zone"]) for entry in entries if entry["total"]}
    return {
        "from": iso(begin),
        "until": iso(end),
        "entries": entries,
        "days": _totals_by_day(entries),
        "wakes_known": all(foreseen.limits is not None for foreseen in seen),
        "clock_changes": sorted(_clock_changes(zones, begin, end), key=lambda change: (change["at"], change["zone"])),
    }


def _entry_data(foreseen: EntryForecast, begin: datetime, end: datetime, *, each: bool) -> dict[str, Any]:
    course = foreseen.course
    days = list(by_day(course, begin, end)) if foreseen.will_fire else []
    return {
        "kind": course.kind.value,
        "name": course.name,
        "zone": course.zone.key,
        "state": foreseen.state,
        "paused_until": iso(foreseen.paused_until),
        "source": foreseen.source,
        "total": sum(beats.count for beats in days),
        "days": [_day_data(course, beats, each=each) for beats in days],
    }


def _woken_runs_data(foreseen: EntryForecast, fired: Mapping[str, int], span: timedelta) -> dict[str, Any] | None:
    """The most beats that jobs may add by waking, and which jobs: as often as they fire and limits let it. None if none does."""
    by = [job.name for job in foreseen.waking_jobs if fired[job.name]]
    if not by or foreseen.limits is None:
        return None
    return {"at_most": min(sum(fired[name] for name in by), _max_allowed_wakes(foreseen.limits, span)), "by": by}


def _max_allowed_wakes(limits: Limits, span: timedelta) -> int:
    flood = max_woken_runs(limits.wake_flood, span)
    return min(flood, span // limits.wake_gap + 1) if limits.wake_gap else flood


def _day_data(course: Course, beats: Beats, *, each: bool) -> dict[str, Any]:
    """One day of an entry; its `firings` are None where they are folded."""
    few = firings(course, beats.first - TICK, beats.latest) if each or beats.count <= MAX_LISTED_FIRINGS else None
    return {
        "day": beats.day.isoformat(),
        "count": beats.count,
        "first": iso(beats.first),
        "last": iso(beats.latest),
        "firings": None if few is None else [iso(instant) for instant in few],
    }


def _totals_by_day(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    beats: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    for entry in entries:
        sums = beats if entry["kind"] == Kind.HEARTBEAT else runs
        for day in entry["days"]:
            sums[day["day"]] += day["count"]
    return [{"day": day, "beats": beats[day], "runs": runs[day]} for day in sorted({*beats, *runs})]


def _clock_changes(zones: Iterable[ZoneInfo], begin: datetime, end: datetime) -> Iterator[dict[str, Any]]:
    """Each change with the reading that the clock would have had, and the one that it has."""
    for zone in zones:
        for change in offset_changes(zone, begin, end):
            before, after = (change.instant - TICK).astimezone(zone), change.instant.astimezone(zone)
            yield {
                "zone": zone.key,
                "at": iso(change.instant),
                "before": f"{before + TICK:%H:%M} {before:%Z}",
                "after": f"{after:%H:%M %Z}",
            }
