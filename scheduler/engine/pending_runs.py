"""Handles asynchronous runs, whose results are reported later or given up, and requests to cancel a run."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from heartbeat.findings import Report
from heartbeat.runners import Answer
from heartbeat.runners.agent_json import answer_from_report, with_text
from heartbeatd.answers import RunRecord
from scheduler.engine import settle
from scheduler.engine.tick_items import Refused, Tick, run_for_entry
from scheduler.model.entry import Entry
from scheduler.model.outcome import AttemptResult, Failure, Kind, Outcome, Reason, Trigger, storable_result
from scheduler.store import clock_changes, entries, run_history, runs
from scheduler.store.runs import AwaitedResult
from scheduler.store.transaction import Transaction
from scheduler.work.claimed_attempt import classify_answer

MAX_GIVEN_UP_PER_TICK = 100  # results that are given up in one tick
GRACE_AFTER_START = timedelta(minutes=5)  # no result is given up earlier: while the daemon was down, none could be reported


def _next_result_deadline(tx: Transaction, awake_since: datetime) -> datetime | None:
    """When the next awaited result is given up; None if none is awaited."""
    due_at = runs.next_overdue_at(tx.db)
    if due_at is None:
        return None
    settles_at = clock_changes.settles_at(tx) or due_at
    if awake_since > tx.now:  # the clock was set back since
        return max(due_at, settles_at)
    return max(due_at, settles_at, awake_since + GRACE_AFTER_START)


def give_up_overdue(tick: Tick) -> datetime | None:
    """Record asynchronous runs as failed whose result was not reported by their `async_timeout`.

    Returns when the next awaited result is given up; None if none is awaited.
    """
    due_at = _next_result_deadline(tick.tx, tick.awake_since)
    if due_at is None or due_at > tick.now:
        return due_at
    for each in runs.overdue_results(tick.tx.db, tick.now, MAX_GIVEN_UP_PER_TICK):
        postpone = partial(runs.postpone_awaited_result, tick.tx, each.run_id)
        run_for_entry(tick, *each.key, partial(_give_up_result, tick, each), postpone=postpone)
    return _next_result_deadline(tick.tx, tick.awake_since)


def _give_up_result(tick: Tick, awaited: AwaitedResult) -> None:
    runs.stop_awaiting_result(tick.tx, *awaited.key, awaited.slot)
    entry = tick.plan.entries.get(awaited.key)
    error = f"no result was reported for run {awaited.run_id} by {awaited.due_at:%Y-%m-%d %H:%M:%S} UTC"
    message = f"{awaited.name} failed: {error}" if awaited.kind is Kind.CRON else None
    result = AttemptResult(Outcome.FAILED, Reason.NO_RESULT, error=error, message=message)
    if entry is not None:
        settle.record_late_result(tick, entry, awaited.slot, result)
        return
    run = runs.open_run(tick.tx, awaited.key, awaited.slot, Trigger.RESULT)
    if run is not None:
        runs.close_undeclared_run(tick.tx, *awaited.key, run, result)


def record_result(tick: Tick, run_id: int, text: str | None, error: str | None, *, truncated: bool, report: Report | None) -> int:
    """Record the result of an asynchronous run as another run of the same slot, and return its id.

    The result is a text, findings (`report`, which includes the text) or an error. `truncated`: the answer was cut at a token
    limit. Raises Refused if it is too late, or reported twice.
    """
    found = runs.find_awaited_result(tick.tx.db, run_id)
    if found is None and runs.is_run_open(tick.tx.db, run_id):
        raise Refused("not_yet", f"run {run_id} does not wait for a result yet; try again in a moment")
    if found is None:
        raise Refused("not_found", f"run {run_id} does not wait for a result")
    entry = tick.plan.entries.get(found.key)
    if found.given_up:
        raise Refused("too_late", f"run {run_id} has failed: no result was reported within its async_timeout")
    if entry is None:
        raise Refused("too_late", f"run {run_id} no longer waits for a result: {found.name} was removed from the config")
    if report is not None:
        result = _classify(entry, answer_from_report(Answer(truncated=truncated), report))
    elif text is not None:
        result = _classify(entry, with_text(Answer(truncated=truncated), text))
    else:
        result = AttemptResult(Outcome.FAILED, Failure.EXIT, error=error)
    recorded = settle.record_late_result(tick, entry, found.slot, storable_result(result)) if found.due_at else None
    if recorded is None:
        raise Refused("already_reported", f"run {run_id} already has its result")
    return recorded


def cancel_run(tick: Tick, run_id: int) -> bool:
    """Cancel a run that is in progress, waits for its next attempt, or awaits its result. Returns whether it has ended.

    A run in progress ends within seconds. It ends `abandoned` with the reason `cancelled`, without a retry. Its wakes wait for
    another run. The executor ends it only after the commit. If the daemon crashes before, the run is not started again.
    """
    found = runs.find_open_run_by_id(tick.tx.db, run_id)
    if found is None:
        _cancel_awaited_result(tick, run_id)
        return True
    kind, name, run = found
    if run.state == "running":
        runs.mark_run_cancelled(tick.tx, run_id)
        tick.cancelled.append(run_id)
        return False
    entry_row = entries.get_entry(tick.tx, kind, name)
    settle.close_abandoned(
        tick, tick.plan.entries.get((kind, name)), entry_row, run, _cancelled_result("was cancelled before its next try")
    )
    return True


def _cancel_awaited_result(tick: Tick, run_id: int) -> None:
    """Record a cancelled result, so that no result is accepted any more."""
    found = runs.find_awaited_result(tick.tx.db, run_id)
    entry = tick.plan.entries.get(found.key) if found else None
    if found is None or entry is None or found.given_up:
        raise Refused("closed", f"run {run_id} has already ended: {recorded_run(tick, run_id).result}")
    result = _cancelled_result("was cancelled before its result was reported")
    if not found.due_at or settle.record_late_result(tick, entry, found.slot, result) is None:
        raise Refused("closed", f"run {run_id} already has its result")


def recorded_run(tick: Tick, run_id: int) -> RunRecord:
    """The record of a run. Raises Refused if there is none."""
    found = run_history.get_run(tick.tx.db, run_id)
    if found is None:
        raise Refused("not_found", f"no run {run_id}; `heartbeatd runs` lists them")
    return found


def _cancelled_result(error: str) -> AttemptResult:
    return AttemptResult(Outcome.ABANDONED, Reason.CANCELLED, error=error)


def _classify(entry: Entry, answer: Answer) -> AttemptResult:
    """Classify an answer like an immediate one. It is a failure if it is too large."""
    if answer.failure is not None:
        return AttemptResult(Outcome.FAILED, answer.failure, error=answer.error)
    return classify_answer(entry, answer)
