"""What a finished attempt changes: its row, the next slot, the messages, the wakes, in one transaction."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from scheduler.engine import budget_reservations, calls, claims, gathering, incident_notices, planning, wake_retries, wake_starts
from scheduler.engine.tick import Tick
from scheduler.model.entry import Claim, Entry
from scheduler.model.events import ChecklistRemarked, LaneTaken, NoTarget, Retried, Stale
from scheduler.model.outcome import (
    ANSWERS,
    FAILURES,
    LONGEST_RETRY_AFTER,
    SUCCESSES,
    WOKEN,
    Ending,
    Failure,
    Kind,
    Outcome,
    Reason,
    Skip,
    Suppression,
    WakeResult,
)
from scheduler.model.wake import Wake
from scheduler.store import breakers, checklist_items, digests, entries, outbox, runs, sessions, targets, wakes
from scheduler.store.entries import Open, Standing
from scheduler.store.transaction import Transaction

LONGEST_DELAY = timedelta(seconds=30)
SPENT = "its budget leaves no other attempt"


def finish(tick: Tick, claim: Claim, ending: Ending) -> None:
    """Book how an attempt ended: another one is planned, or its run is closed with everything that follows from it."""
    before = entries.get(tick.tx, claim.entry.kind, claim.entry.name)
    calls.book(tick, claim, ending)
    if isinstance(ending.reason, Skip) and _is_only_for_now(tick, claim, ending.reason):
        _wait_to_begin(tick, before, claim, ending.reason)
        return
    ending, again_at = _next_attempt(tick, before, claim, ending)
    if again_at is not None:
        _wait(tick.tx, before, claim, ending, again_at)
        return
    after = _close(tick, before, claim, ending)
    if after is None:
        return
    after = planning.resume_if_over(tick, after)
    if after.state == "active" and not after.paused:
        after = planning.account(tick, after, tick.now, Skip.ALREADY_RUNNING)
    entries.save(tick.tx, before, planning.idle(tick.tx, after))


def end(tick: Tick, entry: Entry | None, standing: Standing, run: Open, ending: Ending) -> None:
    """Close an open run that nobody works on any more; slots that came meanwhile are looked at as late ones."""
    after: Standing | None = standing
    if entry is None:
        runs.end_undeclared(tick.tx, standing.kind, standing.name, run, ending)
        wakes.give_back(tick.tx, run.run_id)
        _drop_wakes_of_the_retired(tick.tx, standing)
    else:
        after = _close(tick, standing, claims.seize(tick, entry, standing, run), ending)
    entries.save(tick.tx, standing, planning.idle(tick.tx, after or standing))


def report(tick: Tick, entry: Entry, slot: datetime, ending: Ending) -> int | None:
    """Write the result of a run that answered later; gives its row's id, None when there is one already."""
    standing = entries.get(tick.tx, entry.kind, entry.name)
    run = entries.begin_report(tick.tx, entry.kind, entry.name, slot)
    if run is None:
        return None
    runs.wait_no_longer(tick.tx, entry.kind, entry.name, slot)
    told = checklist_items.resumed(tick.tx, entry.kind, entry.name, slot, ending)
    after = _close(tick, standing, claims.of(tick, entry, standing, run), told)
    planning.replan(tick.tx, standing, after or standing)
    return run.run_id


def give_up(tick: Tick, entry: Entry | None, standing: Standing, run: Open, *, spent: bool = False) -> None:
    """Close a run that waits for an attempt that it will not get, with what its last one said, else with what was in its way.

    `spent`: it is its budget that leaves no other attempt, and not the time; the reason is then that of its last one.
    """
    if run.has_not_begun:
        end(tick, entry, standing, run, Ending(Outcome.SKIPPED, run.in_its_way))
        return
    failed = run.has_failed  # else it was cut short, and never came to an end of its own
    error = _said(run, spent=spent)
    message = f"{standing.name} {'failed' if failed else 'was cut short'}: {error}" if standing.kind is Kind.CRON else None
    outcome = Outcome.FAILED if failed else Outcome.ABANDONED
    reason = _last_failure(run) if spent else Reason.NO_TIME_LEFT
    end(tick, entry, standing, run, Ending(outcome, reason, text=run.text, error=error, message=message))


def _said(run: Open, *, spent: bool) -> str:
    if not spent:
        return run.error or "there was no time left to try it again"
    return f"{run.error}; {SPENT}" if run.error else SPENT


def _last_failure(run: Open) -> Failure | Reason:
    """The class of the error that the last attempt came to; one that was cut short has none of its own."""
    if not run.has_failed:
        return Failure.EXIT
    return Failure(run.reason) if run.reason in tuple(Failure) else Reason.NO_TIME_LEFT


def _next_attempt(tick: Tick, standing: Standing, claim: Claim, ending: Ending) -> tuple[Ending, datetime | None]:
    """When to try again, if that is right; else the ending that says why not."""
    used = claim.attempt - claim.crashes
    if ending.transient and ending.retry_after and ending.retry_after > LONGEST_RETRY_AFTER:
        return replace(ending, outcome=Outcome.FAILED, reason=Reason.RATE_LIMITED), None
    if not ending.transient or used > claim.entry.retries or breakers.is_open(tick.tx, claim.entry):
        return ending, None
    if budget_reservations.shortage(tick, claim.entry, first=False) is not None:
        return replace(ending, error=f"{ending.error}; {SPENT}" if ending.error else SPENT), None
    at = tick.now + max(_delay(tick, used), ending.retry_after or timedelta())
    if standing.state != "active" or standing.paused or not _fits(claim.entry, standing, claim.slot, tick.now, at):
        return replace(ending, outcome=Outcome.FAILED, reason=Reason.NO_TIME_LEFT), None
    return ending, at


def _delay(tick: Tick, used: int) -> timedelta:
    """1 s, 2 s, 4 s, ... at most 30 s, each up to a quarter shorter or longer."""
    return min(LONGEST_DELAY, timedelta(seconds=2 ** min(used - 1, 10))) * tick.chance.uniform(0.75, 1.25)


def _fits(entry: Entry, standing: Standing, slot: datetime, now: datetime, at: datetime) -> bool:
    """A retry neither crosses into closed hours nor past the next slot."""
    following = planning.due_after(standing, slot)
    closes = entry.closes(now)
    return entry.open_at(now) and (closes is None or at < closes) and (following is None or at < following)


def _wait(tx: Transaction, standing: Standing, claim: Claim, ending: Ending, again_at: datetime) -> None:
    entry = claim.entry
    if not runs.wait(tx, claim, ending, again_at):
        tx.report(Stale(claim.run_id, entry.kind, entry.name))
        return
    entries.save(tx, standing, planning.busy_until(standing, again_at))
    tx.report(Retried(claim.run_id, entry.kind, entry.name, claim.attempt, ending.reason, again_at, ending.error))


def _is_only_for_now(tick: Tick, claim: Claim, why: Skip) -> bool:
    """Whether a run need not be refused, for its agent's lane will be free, or another run is about to find its provider well."""
    return why is Skip.BUSY or (why is Skip.BREAKER_OPEN and breakers.may_answer_soon(tick.tx, tick.plan.entries, claim.entry))


def _wait_to_begin(tick: Tick, standing: Standing, claim: Claim, why: Skip) -> None:
    """Somebody else speaks to the agent, or tries its provider: the slot is kept, and ends as that when its time is over."""
    entry = claim.entry
    before = entries.open_run(tick.tx.db, entry.kind, entry.name)
    is_free = why is Skip.BREAKER_OPEN and breakers.refusal(tick.tx, tick.plan.entries, entry) is None
    again_at = tick.now if is_free else planning.next_look(tick.tx, entry, standing, claim.slot)
    if before is None or not runs.defer(tick.tx, claim, why, again_at):
        tick.tx.report(Stale(claim.run_id, entry.kind, entry.name))
        return
    if why is Skip.BUSY and before.reason != why:
        tick.tx.report(LaneTaken(claim.run_id, entry.kind, entry.name, claim.slot, claim.trigger))
    if standing.state == "active" and planning.still_in_time(tick.tx, entry, standing, claim.slot):
        entries.save(tick.tx, standing, planning.busy_until(standing, again_at))
    else:
        has_begun = before.outcome and not before.has_not_begun
        give_up(tick, entry, standing, before if has_begun else replace(before, outcome=Outcome.SKIPPED, reason=why))


def _close(tick: Tick, standing: Standing, claim: Claim, ending: Ending) -> Standing | None:
    """Close the run with everything that follows from its end; None, and nothing done, when it is no longer the claim's."""
    entry = claim.entry
    if ending.outcome in FAILURES and (entry.on_failure.after or ending.reason is Reason.CANCELLED):
        ending = replace(ending, message=None)  # its notice tells it, and not every time anew; who cancelled it knows
    told = targets.of(tick.tx, tick.plan.settings.channels, entry.deliver, entry.lane) if ending.message else ()
    fresh = digests.not_told_yet(tick.tx, entry, ending.message, told) if ending.message else ()
    if told and not fresh:
        ending = replace(ending, suppression=Suppression.DUPLICATE)
    if not runs.close(tick.tx, claim, ending):
        tick.tx.report(Stale(claim.run_id, entry.kind, entry.name))
        return None
    if ending.message:
        outbox.put(tick.tx, tick.plan.settings.channels, claim, ending.message, fresh)
        _tell_of_nobody(tick, claim)
    if ending.selection and ending.selection.remarks:
        tick.tx.report(ChecklistRemarked(entry.name, ending.selection.remarks))
    sessions.remember(tick.tx, claim, ending)
    if ending.outcome in ANSWERS:
        checklist_items.note(tick.tx, claim, ending)
    if ending.outcome is Outcome.ASYNC:
        checklist_items.put_off(tick.tx, claim, ending)
    noted = _noted(tick.tx, standing, claim, ending, told=bool(fresh))
    _end_wakes(tick, noted, claim, ending)
    for wake in entry.wakes(claim, ending):
        _wake(tick, wake)
    gathering.release(tick, entry)
    return incident_notices.hear(tick, claim, ending, noted)


def _tell_of_nobody(tick: Tick, claim: Claim) -> None:
    if targets.leads_nowhere(tick.tx, tick.plan.settings.channels, claim.entry.deliver, claim.entry.lane):
        tick.tx.report(NoTarget(claim.run_id, claim.entry.kind, claim.entry.name))


def _end_wakes(tick: Tick, standing: Standing, claim: Claim, ending: Ending) -> None:
    """A wake has been heard once a run that rendered it said so; a refusal or a failure leaves it waiting."""
    if claim.wakes and ending.reason is Skip.DISABLED:
        wakes.heard(tick.tx, claim.run_id, WakeResult.REJECTED)
    elif claim.wakes and (ending.outcome in SUCCESSES or standing.kind is Kind.CRON):
        wakes.heard(tick.tx, claim.run_id)
    elif claim.wakes:
        wakes.give_back(tick.tx, claim.run_id, wake_retries.at(tick, standing, claim, ending), ending.reason or ending.outcome)
    wakes.space(tick.tx, standing.kind, standing.name, tick.limits.wake_gap if standing.kind is Kind.HEARTBEAT else timedelta())
    _drop_wakes_of_the_retired(tick.tx, standing)


def _drop_wakes_of_the_retired(tx: Transaction, standing: Standing) -> None:
    if standing.state != "active":
        wakes.drop(tx, standing.kind, standing.name)


def _noted(tx: Transaction, standing: Standing, claim: Claim, ending: Ending, *, told: bool) -> Standing:
    """What the standing row remembers of its runs; a slot that was skipped is no run."""
    if ending.outcome is Outcome.SKIPPED:
        return standing
    woken_at = tx.now if claim.trigger in WOKEN else standing.last_woken_at
    noted = standing._replace(last_ended_at=tx.now, last_woken_at=woken_at)
    if ending.outcome is Outcome.ASYNC or ending.reason is Reason.CANCELLED:
        return noted  # whether it went well is for its result to say; what a person ends says nothing of the agent
    if ending.outcome not in SUCCESSES:
        return noted._replace(failures=standing.failures + 1)
    if ending.outcome in ANSWERS and ending.precheck and ending.precheck.digest:
        noted = noted._replace(precheck=ending.precheck.digest)
    alerting = int(ending.outcome is Outcome.ALERT)
    return noted._replace(failures=0, last_success_at=tx.now, quiet=0 if told else standing.quiet + 1, alerting=alerting)


def _wake(tick: Tick, wake: Wake) -> None:
    """Waking is a row in the queue, never a call."""
    woken = entries.find(tick.tx.db, Kind.HEARTBEAT, wake.name)
    if woken is None or (Kind.HEARTBEAT, wake.name) not in tick.plan.entries:
        wakes.reject(tick.tx, wake)
        return
    wake_starts.ask(tick, woken, wake, gathering.held_until(tick, wake.name) if wake.urgent else None)
