"""What a finished attempt changes: its row, the next slot, the messages, the wakes, in one transaction."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from scheduler.engine import budget_reservations, calls, claims, gathering, incident_notices, planning, wake_retries, wake_starts
from scheduler.engine.turn import Turn
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

LONGEST_DELAY = timedelta(seconds=30)
SPENT = "its budget leaves no other attempt"


def finish(turn: Turn, claim: Claim, ending: Ending) -> None:
    """Book how an attempt ended: another one is planned, or its run is closed with everything that follows from it."""
    before = entries.get(turn, claim.entry.kind, claim.entry.name)
    calls.book(turn, claim, ending)
    if isinstance(ending.reason, Skip) and _is_only_for_now(turn, claim, ending.reason):
        _wait_to_begin(turn, before, claim, ending.reason)
        return
    ending, again_at = _next_attempt(turn, before, claim, ending)
    if again_at is not None:
        _wait(turn, before, claim, ending, again_at)
        return
    after = _close(turn, before, claim, ending)
    if after is None:
        return
    after = planning.resume_if_over(turn, after)
    if after.state == "active" and not after.paused:
        after = planning.account(turn, after, turn.now, Skip.ALREADY_RUNNING)
    entries.save(turn, before, planning.idle(turn, after))


def end(turn: Turn, entry: Entry | None, standing: Standing, run: Open, ending: Ending) -> None:
    """Close an open run that nobody works on any more; slots that came meanwhile are looked at as late ones."""
    after: Standing | None = standing
    if entry is None:
        runs.end_undeclared(turn, standing.kind, standing.name, run, ending)
        wakes.give_back(turn, run.run_id)
        _drop_wakes_of_the_retired(turn, standing)
    else:
        after = _close(turn, standing, claims.seize(turn, entry, standing, run), ending)
    entries.save(turn, standing, planning.idle(turn, after or standing))


def report(turn: Turn, entry: Entry, slot: datetime, ending: Ending) -> int | None:
    """Write the result of a run that answered later; gives its row's id, None when there is one already."""
    standing = entries.get(turn, entry.kind, entry.name)
    run = entries.begin_report(turn, entry.kind, entry.name, slot)
    if run is None:
        return None
    runs.wait_no_longer(turn, entry.kind, entry.name, slot)
    told = checklist_items.resumed(turn, entry.kind, entry.name, slot, ending)
    after = _close(turn, standing, claims.of(turn, entry, standing, run), told)
    planning.replan(turn, standing, after or standing)
    return run.run_id


def give_up(turn: Turn, entry: Entry | None, standing: Standing, run: Open, *, spent: bool = False) -> None:
    """Close a run that waits for an attempt that it will not get, with what its last one said, else with what was in its way.

    `spent`: it is its budget that leaves no other attempt, and not the time; the reason is then that of its last one.
    """
    if run.has_not_begun:
        end(turn, entry, standing, run, Ending(Outcome.SKIPPED, run.in_its_way))
        return
    failed = run.has_failed  # else it was cut short, and never came to an end of its own
    error = _said(run, spent=spent)
    message = f"{standing.name} {'failed' if failed else 'was cut short'}: {error}" if standing.kind is Kind.CRON else None
    outcome = Outcome.FAILED if failed else Outcome.ABANDONED
    reason = _last_failure(run) if spent else Reason.NO_TIME_LEFT
    end(turn, entry, standing, run, Ending(outcome, reason, text=run.text, error=error, message=message))


def _said(run: Open, *, spent: bool) -> str:
    if not spent:
        return run.error or "there was no time left to try it again"
    return f"{run.error}; {SPENT}" if run.error else SPENT


def _last_failure(run: Open) -> Failure | Reason:
    """The class of the error that the last attempt came to; one that was cut short has none of its own."""
    if not run.has_failed:
        return Failure.EXIT
    return Failure(run.reason) if run.reason in tuple(Failure) else Reason.NO_TIME_LEFT


def _next_attempt(turn: Turn, standing: Standing, claim: Claim, ending: Ending) -> tuple[Ending, datetime | None]:
    """When to try again, if that is right; else the ending that says why not."""
    used = claim.attempt - claim.crashes
    if ending.transient and ending.retry_after and ending.retry_after > LONGEST_RETRY_AFTER:
        return replace(ending, outcome=Outcome.FAILED, reason=Reason.RATE_LIMITED), None
    if not ending.transient or used > claim.entry.retries or breakers.is_open(turn, claim.entry):
        return ending, None
    if budget_reservations.shortage(turn, claim.entry, first=False) is not None:
        return replace(ending, error=f"{ending.error}; {SPENT}" if ending.error else SPENT), None
    at = turn.now + max(_delay(turn, used), ending.retry_after or timedelta())
    if standing.state != "active" or standing.paused or not _fits(claim.entry, standing, claim.slot, turn.now, at):
        return replace(ending, outcome=Outcome.FAILED, reason=Reason.NO_TIME_LEFT), None
    return ending, at


def _delay(turn: Turn, used: int) -> timedelta:
    """1 s, 2 s, 4 s, ... at most 30 s, each up to a quarter shorter or longer."""
    return min(LONGEST_DELAY, timedelta(seconds=2 ** min(used - 1, 10))) * turn.chance.uniform(0.75, 1.25)


def _fits(entry: Entry, standing: Standing, slot: datetime, now: datetime, at: datetime) -> bool:
    """A retry neither crosses into closed hours nor past the next slot."""
    following = planning.due_after(standing, slot)
    closes = entry.closes(now)
    return entry.open_at(now) and (closes is None or at < closes) and (following is None or at < following)


def _wait(turn: Turn, standing: Standing, claim: Claim, ending: Ending, again_at: datetime) -> None:
    entry = claim.entry
    if not runs.wait(turn, claim, ending, again_at):
        turn.tell(Stale(claim.run_id, entry.kind, entry.name))
        return
    entries.save(turn, standing, planning.busy_until(standing, again_at))
    turn.tell(Retried(claim.run_id, entry.kind, entry.name, claim.attempt, ending.reason, again_at, ending.error))


def _is_only_for_now(turn: Turn, claim: Claim, why: Skip) -> bool:
    """Whether a run need not be refused, for its agent's lane will be free, or another run is about to find its provider well."""
    return why is Skip.BUSY or (why is Skip.BREAKER_OPEN and breakers.may_answer_soon(turn, claim.entry))


def _wait_to_begin(turn: Turn, standing: Standing, claim: Claim, why: Skip) -> None:
    """Somebody else speaks to the agent, or tries its provider: the slot is kept, and ends as that when its time is over."""
    entry = claim.entry
    before = entries.open_run(turn.db, entry.kind, entry.name)
    is_free = why is Skip.BREAKER_OPEN and breakers.refusal(turn, entry) is None
    again_at = turn.now if is_free else planning.next_look(turn, entry, standing, claim.slot)
    if before is None or not runs.defer(turn, claim, why, again_at):
        turn.tell(Stale(claim.run_id, entry.kind, entry.name))
        return
    if why is Skip.BUSY and before.reason != why:
        turn.tell(LaneTaken(claim.run_id, entry.kind, entry.name, claim.slot, claim.trigger))
    if standing.state == "active" and planning.still_in_time(turn, entry, standing, claim.slot):
        entries.save(turn, standing, planning.busy_until(standing, again_at))
    else:
        has_begun = before.outcome and not before.has_not_begun
        give_up(turn, entry, standing, before if has_begun else replace(before, outcome=Outcome.SKIPPED, reason=why))


def _close(turn: Turn, standing: Standing, claim: Claim, ending: Ending) -> Standing | None:
    """Close the run with everything that follows from its end; None, and nothing done, when it is no longer the claim's."""
    entry = claim.entry
    if ending.outcome in FAILURES and (entry.on_failure.after or ending.reason is Reason.CANCELLED):
        ending = replace(ending, message=None)  # its notice tells it, and not every time anew; who cancelled it knows
    told = targets.of(turn, entry.deliver, entry.lane) if ending.message else ()
    fresh = digests.not_told_yet(turn, entry, ending.message, told) if ending.message else ()
    if told and not fresh:
        ending = replace(ending, suppression=Suppression.DUPLICATE)
    if not runs.close(turn, claim, ending):
        turn.tell(Stale(claim.run_id, entry.kind, entry.name))
        return None
    if ending.message:
        outbox.put(turn, claim, ending.message, fresh)
        _tell_of_nobody(turn, claim)
    if ending.selection and ending.selection.remarks:
        turn.tell(ChecklistRemarked(entry.name, ending.selection.remarks))
    sessions.remember(turn, claim, ending)
    if ending.outcome in ANSWERS:
        checklist_items.note(turn, claim, ending)
    if ending.outcome is Outcome.ASYNC:
        checklist_items.put_off(turn, claim, ending)
    noted = _noted(turn, standing, claim, ending, told=bool(fresh))
    _end_wakes(turn, noted, claim, ending)
    for wake in entry.wakes(claim, ending):
        _wake(turn, wake)
    gathering.release(turn, entry)
    return incident_notices.hear(turn, claim, ending, noted)


def _tell_of_nobody(turn: Turn, claim: Claim) -> None:
    if targets.leads_nowhere(turn, claim.entry.deliver, claim.entry.lane):
        turn.tell(NoTarget(claim.run_id, claim.entry.kind, claim.entry.name))


def _end_wakes(turn: Turn, standing: Standing, claim: Claim, ending: Ending) -> None:
    """A wake has been heard once a run that rendered it said so; a refusal or a failure leaves it waiting."""
    if claim.wakes and ending.reason is Skip.DISABLED:
        wakes.heard(turn, claim.run_id, WakeResult.REJECTED)
    elif claim.wakes and (ending.outcome in SUCCESSES or standing.kind is Kind.CRON):
        wakes.heard(turn, claim.run_id)
    elif claim.wakes:
        wakes.give_back(turn, claim.run_id, wake_retries.at(turn, standing, claim, ending), ending.reason or ending.outcome)
    wakes.space(turn, standing.kind, standing.name, turn.limits.wake_gap if standing.kind is Kind.HEARTBEAT else timedelta())
    _drop_wakes_of_the_retired(turn, standing)


def _drop_wakes_of_the_retired(turn: Turn, standing: Standing) -> None:
    if standing.state != "active":
        wakes.drop(turn, standing.kind, standing.name)


def _noted(turn: Turn, standing: Standing, claim: Claim, ending: Ending, *, told: bool) -> Standing:
    """What the standing row remembers of its runs; a slot that was skipped is no run."""
    if ending.outcome is Outcome.SKIPPED:
        return standing
    woken_at = turn.now if claim.trigger in WOKEN else standing.last_woken_at
    noted = standing._replace(last_ended_at=turn.now, last_woken_at=woken_at)
    if ending.outcome is Outcome.ASYNC or ending.reason is Reason.CANCELLED:
        return noted  # whether it went well is for its result to say; what a person ends says nothing of the agent
    if ending.outcome not in SUCCESSES:
        return noted._replace(failures=standing.failures + 1)
    if ending.outcome in ANSWERS and ending.precheck and ending.precheck.digest:
        noted = noted._replace(precheck=ending.precheck.digest)
    alerting = int(ending.outcome is Outcome.ALERT)
    return noted._replace(failures=0, last_success_at=turn.now, quiet=0 if told else standing.quiet + 1, alerting=alerting)


def _wake(turn: Turn, wake: Wake) -> None:
    """Waking is a row in the queue, never a call."""
    woken = entries.find(turn.db, Kind.HEARTBEAT, wake.name)
    if woken is None or (Kind.HEARTBEAT, wake.name) not in turn.plan.entries:
        wakes.reject(turn, wake)
        return
    wake_starts.ask(turn, woken, wake, gathering.held_until(turn, wake.name) if wake.urgent else None)
