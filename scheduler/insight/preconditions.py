"""Checks every precondition of a hypothetical run, to explain what would happen if an entry came due now."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

from heartbeatd.answers import PreconditionResult, Preconditions
from scheduler.engine import claims, planning
from scheduler.engine.tick import Tick
from scheduler.insight import schedule_texts
from scheduler.model import entry_schedule
from scheduler.model.circuit import Breaker
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import Kind, Skip
from scheduler.store import breakers, lane_holds, runs
from scheduler.store.transaction import Transaction
from scheduler.system.lanes import Lanes
from scheduler.work.plan import Plan


def check_preconditions(
    db: sqlite3.Connection, plan: Plan | None, entry_row: EntryRow, lanes: Lanes, now: datetime
) -> Preconditions:
    """The result of every check, in the order of the checks. Nothing is written, started or locked.

    Without a config only the database is checked. `detail` says which budget, who holds the lane and until when, or which worker
    executes the run in progress.
    """
    entry = plan.entries.get((entry_row.kind, entry_row.name)) if plan else None
    if plan is None or entry is None:
        lane = entry_row.name if entry_row.kind is Kind.HEARTBEAT else None
        held = _lane_hold_detail(db, lanes, lane, entry_schedule.schedule_zone(entry_row.schedule_text), now)
        found = _check_recorded_entry(db, entry_row, lanes, now, gone=plan is not None)
        return _in_order(found | _check_open_run(db, entry_row), held | _worker_detail(db, entry_row), is_complete=False)
    tick = Tick(Transaction(db, now, ""), plan, now, random.Random())  # noqa: S311 (nothing is drawn)
    claim = claims.hypothetical_claim(tick, entry, entry_row)
    lane_taken = claim.busy or (entry.lane is not None and lanes.is_locked(entry.lane))
    answers = dict(entry.preconditions(replace(claim, busy=lane_taken)))
    details = _lane_hold_detail(db, lanes, entry.lane, entry.zone, now) | _worker_detail(db, entry_row)
    details |= {Skip.BUDGET: claim.over_budget} if claim.over_budget else {}
    days = entry_schedule.allowed_days(entry.schedule_text)
    excluded = days and schedule_texts.calendar_text(days, now.astimezone(days.zone).date(), plan.settings.calendars)
    details |= {Skip.CALENDAR: excluded} if excluded else {}
    shut_off = breakers.blocking_breaker(tick.tx, tick.plan.entries, entry)
    details |= {Skip.BREAKER_OPEN: _breaker_detail(shut_off, entry.zone, now)} if shut_off else {}
    return _in_order(answers | _check_open_run(db, entry_row), details, is_complete=True)


def _in_order(found: Mapping[Skip, bool | None], details: Mapping[Skip, str], *, is_complete: bool) -> Preconditions:
    """`found` has for each reason to skip a run whether it applies; None if only a real run can find out."""
    first = next((reason for reason in Skip if found.get(reason)), None)
    return Preconditions(
        would_run=first is None,
        reason=first,
        detail=details.get(first) if first else None,
        complete=is_complete,
        gates=[PreconditionResult(gate=gate, stands_in_the_way=found[gate]) for gate in Skip if gate in found],
    )


def _check_recorded_entry(
    db: sqlite3.Connection, entry_row: EntryRow, lanes: Lanes, now: datetime, *, gone: bool
) -> dict[Skip, bool | None]:
    """The checks that need only the database; `gone`: the config no longer declares the entry."""
    is_agent, days = entry_row.kind is Kind.HEARTBEAT, entry_schedule.allowed_days(entry_row.schedule_text)
    held = is_agent and (entry_row.name in lane_holds.holds_by_agent(db, now) or lanes.is_locked(entry_row.name))
    return {
        Skip.DISABLED: entry_row.state == "disabled",
        Skip.PAUSED: entry_row.paused,
        Skip.REMOVED: gone or entry_row.state == "removed",
        Skip.CALENDAR: not (days is None or days.open_at(now)),
        Skip.ACTIVE_HOURS: not entry_schedule.active_hours(entry_row.schedule_text).open_at(now),
        Skip.BUSY: held,
    }


def _lane_hold_detail(
    db: sqlite3.Connection, lanes: Lanes, lane: str | None, zone: ZoneInfo | None, now: datetime
) -> dict[Skip, str]:
    """Who holds a lane: over HTTP, or the process that has locked its file."""
    holder = lane_holds.describe_holder(db, lane, zone, now) if lane else None
    if holder is None and lane is not None:
        holder = lanes.find_holder(lane)
    return {Skip.BUSY: holder} if holder else {}


def _worker_detail(db: sqlite3.Connection, entry_row: EntryRow) -> dict[Skip, str]:
    """Which worker executes the run in progress."""
    run = runs.find_open_run(db, entry_row.kind, entry_row.name)
    return {Skip.ALREADY_RUNNING: f"run {run.run_id} on {run.worker}"} if run and run.state == "running" and run.worker else {}


def _breaker_detail(breaker: Breaker, zone: ZoneInfo, now: datetime) -> str:
    """Which circuit breaker is open, the error of the provider, and when it will be probed."""
    at = f"{breaker.probe_at.astimezone(zone):%Y-%m-%d %H:%M:%S} {zone.key}"
    return f"{breaker}; {f'next probe at {at}' if breaker.probe_at > now else 'another entry will probe it first'}"


def _check_open_run(db: sqlite3.Connection, entry_row: EntryRow) -> dict[Skip, bool | None]:
    """Whether a run of the entry is in progress. A run that waits for its lane only shows that the lane is locked."""
    run = runs.find_open_run(db, entry_row.kind, entry_row.name)
    in_the_way = planning.reason_of_open_run(run) if run else None
    answers: dict[Skip, bool | None] = {Skip.ALREADY_RUNNING: in_the_way is Skip.ALREADY_RUNNING}
    return answers | {Skip.BUSY: True} if in_the_way is Skip.BUSY else answers
