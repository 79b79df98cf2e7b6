"""Says what holds an entry back now: the checks that would skip a run, and why runs would send nothing.

The command, the page, the API and the overview of all entries say it with these functions.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Literal

from heartbeat.findings import Severity
from heartbeat.spec import Agent
from heartbeat.words import shorten
from heartbeatd.answers import PreconditionResult, Preconditions, QuietReason
from scheduler.engine import planning
from scheduler.engine.claim import hypothetical_claim
from scheduler.engine.problem_rules import remind_interval
from scheduler.engine.tick_items import Tick
from scheduler.insight import schedule_texts
from scheduler.insight.entry_states import active_mute
from scheduler.insight.reason_texts import SlotCause
from scheduler.insight.schedule_texts import TimeFormat
from scheduler.model import entry_schedule
from scheduler.model.entry import Entry
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import Kind, Skip
from scheduler.model.problem import FALLBACK, Problem, State, Subject, Told
from scheduler.store import breakers, lane_holds, problems, run_history, runs
from scheduler.store.transaction import Transaction
from scheduler.system.lanes import Lanes
from scheduler.work.claimed_attempt import preconditions
from scheduler.work.plan import Plan

MAX_PROBLEMS = 3  # problems that a reason names; the list of problems has all of them
WORKER_IS_KNOWN = timedelta(seconds=15)  # after this time, the database has the worker of a run that one executes
MAX_KEY = 40  # characters that are shown of a key


def check_preconditions(
    db: sqlite3.Connection, plan: Plan | None, entry_row: EntryRow, lanes: Lanes, now: datetime
) -> Preconditions:
    """Whether the entry would run if it came due now, with the result of every check. Nothing is written, started or locked.

    Without a config only the database is checked. `detail` says which budget, who holds the lock and until when, or which worker
    executes the run in progress.
    """
    entry = plan.entries.get(entry_row.key) if plan else None
    found, details = (
        _check_planned_entry(db, plan, entry, entry_row, lanes, now)
        if plan and entry
        else (_check_recorded_entry(db, entry_row, lanes, now, gone=plan is not None), {})
    )
    lane = entry.lane if entry else entry_row.name if entry_row.kind is Kind.HEARTBEAT else None
    zone = entry.zone if entry else entry_schedule.schedule_zone(entry_row.schedule_text)
    if lane and (holder := lane_holds.describe_holder(db, lane, zone, now) or lanes.find_holder(lane)):
        details[Skip.BUSY] = holder  # over HTTP, or the process that has locked the file of the agent
    open_run = runs.find_open_run(db, *entry_row.key)
    in_the_way = planning.reason_of_open_run(open_run) if open_run else None
    found[Skip.ALREADY_RUNNING] = in_the_way is Skip.ALREADY_RUNNING
    if in_the_way is Skip.BUSY:  # the run waits for its lock, which only shows that the agent is locked
        found[Skip.BUSY] = True
    if open_run and open_run.state == "running":
        if open_run.worker:
            details[Skip.ALREADY_RUNNING] = f"run {open_run.id} on {open_run.worker}"
        elif entry and plan and plan.settings.remote and now - open_run.started_at >= WORKER_IS_KNOWN:
            details[Skip.ALREADY_RUNNING] = f"run {open_run.id} waits for a worker of queue {entry.queue}"
    first = next((reason for reason in Skip if found.get(reason)), None)
    detail = details.get(first) if first else None
    is_done = entry_row.done_at(now, is_open=open_run is not None) is not None
    says = "nothing blocks it" if first is None else f"it would not run: {SlotCause(first, detail).text_for_now}"
    return Preconditions(
        would_run=first is None and not is_done,
        why=first,
        detail=detail,
        says="done: a one-time job that has already run" if is_done else says,
        complete=entry is not None,
        gates=[PreconditionResult(gate=gate, stands_in_the_way=found[gate]) for gate in Skip if gate in found],
    )


def _check_planned_entry(
    db: sqlite3.Connection, plan: Plan, entry: Entry, entry_row: EntryRow, lanes: Lanes, now: datetime
) -> tuple[dict[Skip, bool | None], dict[Skip, str]]:
    """For each reason to skip a run whether it applies (None: only a real run can find out), and details of some."""
    tick = Tick(Transaction.for_reading(db, now), plan, now, random.Random())  # noqa: S311 (nothing is drawn)
    claim = hypothetical_claim(tick, entry, entry_row)
    if entry.lane is not None and lanes.is_locked(entry.lane):
        claim = claim.blocked_by(Skip.BUSY, None)
    details: dict[Skip, str] = {}
    if exceeded := claim.facts.blocked.get(Skip.BUDGET):
        details[Skip.BUDGET] = exceeded
    if excluded := schedule_texts.excluding_calendar(entry.schedule_text, now, plan.settings.calendars):
        details[Skip.CALENDAR] = excluded
    if breaker := breakers.blocking_breaker(tick.tx, plan.entries, entry):
        at = breakers.probe_time(breaker, entry)
        trial = f"next trial call at {at.astimezone(entry.zone):%Y-%m-%d %H:%M:%S} {entry.zone.key}"
        details[Skip.BREAKER_OPEN] = f"{breaker}; {trial if at > now else 'another agent or job makes the next trial call'}"
    return dict(preconditions(claim)), details


def _check_recorded_entry(
    db: sqlite3.Connection, entry_row: EntryRow, lanes: Lanes, now: datetime, *, gone: bool
) -> dict[Skip, bool | None]:
    """The checks that need only the database; `gone`: the config no longer declares the entry."""
    is_agent, days = entry_row.kind is Kind.HEARTBEAT, entry_schedule.allowed_days(entry_row.schedule_text)
    held = is_agent and (entry_row.name in lane_holds.holds_by_agent(db, now) or lanes.is_locked(entry_row.name))
    return {
        Skip.DISABLED: entry_row.state == "disabled",
        Skip.PAUSED: entry_row.is_paused_at(now),
        Skip.REMOVED: gone or entry_row.state == "removed",
        Skip.CALENDAR: not (days is None or days.open_at(now)),
        Skip.ACTIVE_HOURS: not entry_schedule.active_hours(entry_row.schedule_text).open_at(now),
        Skip.BUSY: held,
    }


def quiet_reasons(
    db: sqlite3.Connection, row: EntryRow, spec: Agent | None, now: datetime, times: TimeFormat
) -> list[QuietReason]:
    """Why an entry is quiet now, the strongest reason first. Without its `spec` the times of reminders are not known."""
    found: list[QuietReason] = []
    if mute := active_mute(row, now, times):
        found.append(QuietReason(code="muted", says=mute.says, count=1))
    count = run_history.count_awaited_results(db, *row.key)
    if count:
        says = "1 run waits for its result" if count == 1 else f"{count:,} runs wait for their result"
        found.append(QuietReason(code="awaits_results", says=says, count=count))
    own = problems.problems_of(db, Subject(*row.key))
    for used in (each for each in own if each.key == FALLBACK and each.over_at is None):
        says = f"fallback in use since {times.at(used.since)}: {used.found.text}"
        found.append(QuietReason(code=FALLBACK, says=says, count=used.count))
    known = [*own, *problems.open_reports_of(db, row.name, row.kind)]
    shown = [each for each in known if each.is_open and (each.is_reported or each.state(now) is State.ACKNOWLEDGED)]
    return [*found, *_problem_reasons(shown, spec, now, times)]


def _problem_reasons(known: list[Problem], spec: Agent | None, now: datetime, times: TimeFormat) -> Iterator[QuietReason]:
    """The acknowledged problems, and those of which all recipients know."""
    texts: dict[Literal["acknowledged", "known"], list[str]] = {"acknowledged": [], "known": []}
    for each in known:
        if each.acknowledgement is not None and each.state(now) is State.ACKNOWLEDGED:
            texts["acknowledged"].append(f"{shorten(each.label, MAX_KEY)}: acknowledged by {each.acknowledgement.by}")
        elif _is_known(each):
            texts["known"].append(f"{shorten(each.label, MAX_KEY)}: {_known_text(each, spec, now, times)}")
    for code, found in texts.items():
        more = [f"and {len(found) - MAX_PROBLEMS} more"] if len(found) > MAX_PROBLEMS else []
        if found:
            yield QuietReason(code=code, says="; ".join([*found[:MAX_PROBLEMS], *more]), count=len(found))


def _is_known(problem: Problem) -> bool:
    notices = problem.notices.values()
    return bool(notices) and all(not each.is_end and each.delivered_at is not None for each in notices)


def _known_text(problem: Problem, spec: Agent | None, now: datetime, times: TimeFormat) -> str:
    since = f"known since {times.at(problem.since)}"
    stable = [each for each in problem.notices.values() if each.kind is Told.OPEN]
    reminder = (
        min((each.at + remind_interval(problem.found, spec.problems_remind) for each in stable), default=None) if spec else None
    )
    if reminder is None or problem.found.severity is Severity.INFO:
        return since
    return f"{since}, next reminder {times.at(reminder) if reminder > now else 'with the next answer that mentions it'}"
