"""What a finished attempt changes: its row, the next slot, the messages, the wakes, in one transaction."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from scheduler.engine import budget_reservations, call_usage, claims, incident_notices, notices, planning, wake_starts
from scheduler.engine.tick import Tick
from scheduler.model.entry import Claim, Entry
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import ChecklistRemarked, LaneBusy, RetryPlanned, StaleResultDropped, TargetUnknown
from scheduler.model.outcome import (
    ANSWERED,
    FAILURES,
    LONGEST_RETRY_AFTER,
    SUCCESSES,
    WOKEN,
    AttemptResult,
    Failure,
    Kind,
    Outcome,
    Reason,
    Skip,
    Suppression,
    WakeResult,
)
from scheduler.model.wake import Wake
from scheduler.store import breakers, checklist_items, entries, outbox, runs, sessions, wakes
from scheduler.store.runs import OpenRun
from scheduler.store.transaction import Transaction

LONGEST_RETRY_DELAY = timedelta(seconds=30)
BUDGET_SPENT_TEXT = "its budget does not allow another attempt"


def finish_attempt(tick: Tick, claim: Claim, result: AttemptResult) -> None:
    """Book how an attempt ended: another one is planned, or its run is closed with everything that follows from it."""
    before = entries.get_entry(tick.tx, claim.entry.kind, claim.entry.name)
    call_usage.record_calls(tick, claim, result)
    if isinstance(result.reason, Skip) and _is_temporary_refusal(tick, claim, result.reason):
        _wait_to_start(tick, before, claim, result.reason)
        return
    result, again_at = _plan_retry(tick, before, claim, result)
    if again_at is not None:
        _wait_for_retry(tick.tx, before, claim, result, again_at)
        return
    after = _close_run(tick, before, claim, result)
    if after is None:
        return
    after = planning.end_pause_if_over(tick, after)
    if after.state == "active" and not after.paused:
        after = planning.skip_passed_slots(tick, after, tick.now, Skip.ALREADY_RUNNING)
    entries.change_entry(tick.tx, before, planning.plan_next_look(tick.tx, after))


def close_abandoned(tick: Tick, entry: Entry | None, entry_row: EntryRow, run: OpenRun, result: AttemptResult) -> None:
    """Close an open run that nobody works on any more; slots that came meanwhile are looked at as late ones."""
    after: EntryRow | None = entry_row
    if entry is None:
        runs.close_undeclared_run(tick.tx, entry_row.kind, entry_row.name, run, result)
        wakes.return_wakes(tick.tx, run.run_id)
        _drop_wakes_if_inactive(tick.tx, entry_row)
    else:
        after = _close_run(tick, entry_row, claims.seize_claim(tick, entry, entry_row, run), result)
    entries.change_entry(tick.tx, entry_row, planning.plan_next_look(tick.tx, after or entry_row))


def record_late_result(tick: Tick, entry: Entry, slot: datetime, result: AttemptResult) -> int | None:
    """Write the result of a run that answered later; gives its row's id, None when there is one already."""
    entry_row = entries.get_entry(tick.tx, entry.kind, entry.name)
    run = runs.open_result_run(tick.tx, entry.kind, entry.name, slot)
    if run is None:
        return None
    runs.stop_awaiting_result(tick.tx, entry.kind, entry.name, slot)
    told = checklist_items.restore_pending_items(tick.tx, entry.kind, entry.name, slot, result)
    after = _close_run(tick, entry_row, claims.claim_of_run(tick, entry, entry_row, run), told)
    planning.replan_entry(tick.tx, entry_row, after or entry_row)
    return run.run_id


def give_up_waiting(tick: Tick, entry: Entry | None, entry_row: EntryRow, run: OpenRun, *, spent: bool = False) -> None:
    """Close a run that waits for an attempt that it will not get, with what its last one said, else with what was in its way.

    `spent`: it is its budget that leaves no other attempt, and not the time; the reason is then that of its last one.
    """
    if run.has_not_begun:
        close_abandoned(tick, entry, entry_row, run, AttemptResult(Outcome.SKIPPED, run.waits_for))
        return
    failed = run.has_failed  # else it was cut short, and never came to an end of its own
    error = _error_text(run, spent=spent)
    message = f"{entry_row.name} {'failed' if failed else 'was interrupted'}: {error}" if entry_row.kind is Kind.CRON else None
    outcome = Outcome.FAILED if failed else Outcome.ABANDONED
    reason = _reason_of_last_attempt(run) if spent else Reason.NO_TIME_LEFT
    close_abandoned(tick, entry, entry_row, run, AttemptResult(outcome, reason, text=run.text, error=error, message=message))


def _error_text(run: OpenRun, *, spent: bool) -> str:
    if not spent:
        return run.error or "no time was left for another attempt"
    return f"{run.error}; {BUDGET_SPENT_TEXT}" if run.error else BUDGET_SPENT_TEXT


def _reason_of_last_attempt(run: OpenRun) -> Failure | Reason:
    """The class of the error that the last attempt came to; one that was cut short has none of its own."""
    if not run.has_failed:
        return Failure.EXIT
    return Failure(run.reason) if run.reason in tuple(Failure) else Reason.NO_TIME_LEFT


def _plan_retry(tick: Tick, entry_row: EntryRow, claim: Claim, result: AttemptResult) -> tuple[AttemptResult, datetime | None]:
    """When to try again, if that is right; else the ending that says why not."""
    used = claim.attempt - claim.crashes
    if result.transient and result.retry_after and result.retry_after > LONGEST_RETRY_AFTER:
        return replace(result, outcome=Outcome.FAILED, reason=Reason.RATE_LIMITED), None
    if not result.transient or used > claim.entry.retries or breakers.has_open_breaker(tick.tx, claim.entry):
        return result, None
    if budget_reservations.find_shortage(tick, claim.entry, first=False) is not None:
        return replace(result, error=f"{result.error}; {BUDGET_SPENT_TEXT}" if result.error else BUDGET_SPENT_TEXT), None
    at = tick.now + max(_retry_delay(tick, used), result.retry_after or timedelta())
    if entry_row.state != "active" or entry_row.paused or not _retry_fits(claim.entry, entry_row, claim.slot, tick.now, at):
        return replace(result, outcome=Outcome.FAILED, reason=Reason.NO_TIME_LEFT), None
    return result, at


def _retry_delay(tick: Tick, used: int) -> timedelta:
    """1 s, 2 s, 4 s, ... at most 30 s, each up to a quarter shorter or longer."""
    return min(LONGEST_RETRY_DELAY, timedelta(seconds=2 ** min(used - 1, 10))) * tick.chance.uniform(0.75, 1.25)


def _retry_fits(entry: Entry, entry_row: EntryRow, slot: datetime, now: datetime, at: datetime) -> bool:
    """A retry neither crosses into closed hours nor past the next slot."""
    following = planning.next_due_after(entry_row, slot)
    closes = entry.closes_at(now)
    return entry.is_open_at(now) and (closes is None or at < closes) and (following is None or at < following)


def _wait_for_retry(tx: Transaction, entry_row: EntryRow, claim: Claim, result: AttemptResult, again_at: datetime) -> None:
    entry = claim.entry
    if not runs.keep_run_for_retry(tx, claim, result, again_at):
        tx.report(StaleResultDropped(claim.run_id, entry.kind, entry.name))
        return
    entries.change_entry(tx, entry_row, planning.wait_until(entry_row, again_at))
    tx.report(RetryPlanned(claim.run_id, entry.kind, entry.name, claim.attempt, result.reason, again_at, result.error))


def _is_temporary_refusal(tick: Tick, claim: Claim, why: Skip) -> bool:
    """Whether a run need not be refused, for its agent's lane will be free, or another run is about to find its provider well."""
    return why is Skip.BUSY or (why is Skip.BREAKER_OPEN and breakers.may_close_soon(tick.tx, tick.plan.entries, claim.entry))


def _wait_to_start(tick: Tick, entry_row: EntryRow, claim: Claim, why: Skip) -> None:
    """Somebody else speaks to the agent, or tries its provider: the slot is kept, and ends as that when its time is over."""
    entry = claim.entry
    before = runs.find_open_run(tick.tx.db, entry.kind, entry.name)
    is_free = why is Skip.BREAKER_OPEN and breakers.blocking_breaker(tick.tx, tick.plan.entries, entry) is None
    again_at = tick.now if is_free else planning.next_look_at_waiting_run(tick.tx, entry, entry_row, claim.slot)
    if before is None or not runs.defer_run(tick.tx, claim, why, again_at):
        tick.tx.report(StaleResultDropped(claim.run_id, entry.kind, entry.name))
        return
    if why is Skip.BUSY and before.reason != why:
        tick.tx.report(LaneBusy(claim.run_id, entry.kind, entry.name, claim.slot, claim.trigger))
    if entry_row.state == "active" and planning.still_in_time(tick.tx, entry, entry_row, claim.slot):
        entries.change_entry(tick.tx, entry_row, planning.wait_until(entry_row, again_at))
    else:
        has_begun = before.outcome and not before.has_not_begun
        give_up_waiting(tick, entry, entry_row, before if has_begun else replace(before, outcome=Outcome.SKIPPED, reason=why))


def _close_run(tick: Tick, entry_row: EntryRow, claim: Claim, result: AttemptResult) -> EntryRow | None:
    """Close the run with everything that follows from its end; None, and nothing done, when it is no longer the claim's."""
    entry = claim.entry
    if result.outcome in FAILURES and (entry.on_failure.after or result.reason is Reason.CANCELLED):
        result = replace(result, message=None)  # its notice tells it, and not every time anew; who cancelled it knows
    told = notices.resolve_targets(tick, entry.deliver, entry.lane) if result.message else ()
    fresh = outbox.targets_without_text(tick.tx, entry, result.message, told) if result.message else ()
    if told and not fresh:
        result = replace(result, suppression=Suppression.DUPLICATE)
    if not runs.close_run(tick.tx, claim, result):
        tick.tx.report(StaleResultDropped(claim.run_id, entry.kind, entry.name))
        return None
    if result.message:
        outbox.queue_run_message(tick.tx, tick.plan.settings.channels, claim, result.message, fresh)
        _report_missing_target(tick, claim)
    if result.selection and result.selection.remarks:
        tick.tx.report(ChecklistRemarked(entry.name, result.selection.remarks))
    sessions.save_alert(tick.tx, claim, result)
    if result.outcome in ANSWERED:
        checklist_items.record_checked_items(tick.tx, claim, result)
    if result.outcome is Outcome.ASYNC:
        checklist_items.save_pending_items(tick.tx, claim, result)
    noted = _record_outcome(tick.tx, entry_row, claim, result, told=bool(fresh))
    _settle_wakes(tick, noted, claim, result)
    for wake in entry.wakes_caused_by(claim, result):
        _request_wake(tick, wake)
    wake_starts.release_held_wakes(tick, entry)
    return incident_notices.update_incident(tick, claim, result, noted)


def _report_missing_target(tick: Tick, claim: Claim) -> None:
    if notices.is_last_target_unknown(tick, claim.entry.deliver, claim.entry.lane):
        tick.tx.report(TargetUnknown(claim.run_id, claim.entry.kind, claim.entry.name))


def _settle_wakes(tick: Tick, entry_row: EntryRow, claim: Claim, result: AttemptResult) -> None:
    """A wake has been heard once a run that rendered it said so; a refusal or a failure leaves it waiting."""
    if claim.wakes and result.reason is Skip.DISABLED:
        wakes.end_delivered_wakes(tick.tx, claim.run_id, WakeResult.REJECTED)
    elif claim.wakes and (result.outcome in SUCCESSES or entry_row.kind is Kind.CRON):
        wakes.end_delivered_wakes(tick.tx, claim.run_id)
    elif claim.wakes:
        wakes.return_wakes(
            tick.tx, claim.run_id, wake_starts.retry_time(tick, entry_row, claim, result), result.reason or result.outcome
        )
    wakes.delay_waiting_wakes(
        tick.tx, entry_row.kind, entry_row.name, tick.limits.wake_gap if entry_row.kind is Kind.HEARTBEAT else timedelta()
    )
    _drop_wakes_if_inactive(tick.tx, entry_row)


def _drop_wakes_if_inactive(tx: Transaction, entry_row: EntryRow) -> None:
    if entry_row.state != "active":
        wakes.expire_wakes_of_entry(tx, entry_row.kind, entry_row.name)


def _record_outcome(tx: Transaction, entry_row: EntryRow, claim: Claim, result: AttemptResult, *, told: bool) -> EntryRow:
    """What the standing row remembers of its runs; a slot that was skipped is no run."""
    if result.outcome is Outcome.SKIPPED:
        return entry_row
    woken_at = tx.now if claim.trigger in WOKEN else entry_row.last_woken_at
    noted = entry_row._replace(last_ended_at=tx.now, last_woken_at=woken_at)
    if result.outcome is Outcome.ASYNC or result.reason is Reason.CANCELLED:
        return noted  # whether it went well is for its result to say; what a person ends says nothing of the agent
    if result.outcome not in SUCCESSES:
        return noted._replace(failures=entry_row.failures + 1)
    if result.outcome in ANSWERED and result.precheck and result.precheck.digest:
        noted = noted._replace(precheck=result.precheck.digest)
    alerting = int(result.outcome is Outcome.ALERT)
    return noted._replace(failures=0, last_success_at=tx.now, quiet=0 if told else entry_row.quiet + 1, alerting=alerting)


def _request_wake(tick: Tick, wake: Wake) -> None:
    """Waking is a row in the queue, never a call."""
    woken = entries.current_entry(tick.tx, Kind.HEARTBEAT, wake.name)
    if woken is None or (Kind.HEARTBEAT, wake.name) not in tick.plan.entries:
        wakes.report_rejected_wake(tick.tx, wake)
        return
    wake_starts.request_run(tick, woken, wake, wake_starts.hold_for_other_jobs(tick, wake.name) if wake.urgent else None)
