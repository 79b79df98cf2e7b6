"""What a finished attempt changes: its row, the next slot, the messages, the wakes, in one transaction."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from scheduler import duequeue, history, outbox, planning, wakes
from scheduler.duequeue import Standing
from scheduler.entry import Claim, Entry
from scheduler.events import Retried, Stale
from scheduler.outcome import SUCCESSES, WOKEN, Ending, Kind, Outcome, Reason, Skip, Suppression
from scheduler.turn import Turn
from scheduler.wake import Wake

LONGEST_DELAY = timedelta(seconds=30)
LONGEST_RETRY_AFTER = timedelta(minutes=15)


def finish(turn: Turn, claim: Claim, ending: Ending) -> None:
    """Book how an attempt ended: another one is planned, or its run is closed with everything that follows from it."""
    standing = duequeue.find(turn.db, claim.entry.kind, claim.entry.name)
    assert standing is not None
    ending, again_at = _next_attempt(turn, standing, claim, ending)
    if again_at is not None:
        _wait(turn, claim, ending, again_at)
    else:
        _close(turn, standing, claim, ending)
    planning.replan(turn, standing)


def _next_attempt(turn: Turn, standing: Standing, claim: Claim, ending: Ending) -> tuple[Ending, datetime | None]:
    """When to try again, if that is right; else the ending that says why not."""
    used = claim.attempt - claim.crashes
    if not ending.transient or used > claim.entry.retries:
        return ending, None
    if ending.retry_after and ending.retry_after > LONGEST_RETRY_AFTER:
        return replace(ending, outcome=Outcome.FAILED, reason=Reason.RATE_LIMITED), None
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


def _wait(turn: Turn, claim: Claim, ending: Ending, again_at: datetime) -> None:
    entry = claim.entry
    if not history.wait(turn, claim, ending, again_at):
        turn.tell(Stale(claim.run_id, entry.kind, entry.name))
        return
    turn.tell(Retried(claim.run_id, entry.kind, entry.name, claim.attempt, ending.reason, again_at, ending.error))


def _close(turn: Turn, standing: Standing, claim: Claim, ending: Ending) -> None:
    entry = claim.entry
    channels = outbox.not_told_yet(turn, entry, ending.message) if ending.message else ()
    if ending.message and entry.deliver and not channels:
        ending = replace(ending, suppression=Suppression.DUPLICATE)
    if not history.close(turn, claim, ending):
        turn.tell(Stale(claim.run_id, entry.kind, entry.name))
        return
    if ending.message:
        outbox.put(turn, claim, ending.message, channels)
    _end_wakes(turn, standing, claim, ending)
    _note(turn, standing, claim, ending)
    if standing.state == "active" and not standing.paused and claim.owner == turn.owner:
        # Slots that came while no daemon lived are not the run's fault: those are looked at as late ones.
        planning.account(turn, standing, turn.now, Skip.ALREADY_RUNNING)
    for wake in entry.wakes(claim, ending):
        _wake(turn, wake)


def _end_wakes(turn: Turn, standing: Standing, claim: Claim, ending: Ending) -> None:
    """A wake has been heard once a run that rendered it said so; a refusal or a failure leaves it waiting."""
    heard = ending.outcome in SUCCESSES or ending.reason is Skip.DISABLED or standing.kind is Kind.CRON
    (wakes.heard if heard else wakes.give_back)(turn, claim.run_id)
    wakes.space(turn, standing.kind, standing.name, turn.limits.wake_gap if standing.kind is Kind.HEARTBEAT else timedelta())


def _note(turn: Turn, standing: Standing, claim: Claim, ending: Ending) -> None:
    """What the standing row remembers of its runs; a slot that was skipped is no run."""
    if ending.outcome is Outcome.SKIPPED:
        return
    good = ending.outcome in SUCCESSES
    said = ending.outcome is Outcome.ALERT
    columns: dict[str, object] = {"last_ended_at": turn.now, "failures": 0 if good else standing.failures + 1}
    if good:
        columns |= {"last_success_at": turn.now, "quiet": 0 if said else standing.quiet + 1, "alerting": int(said)}
    if claim.trigger in WOKEN:
        columns["last_woken_at"] = turn.now
    duequeue.change(turn, standing, **columns)


def _wake(turn: Turn, wake: Wake) -> None:
    """Waking is a row in the queue, never a call."""
    woken = duequeue.find(turn.db, Kind.HEARTBEAT, wake.name)
    if woken is None or (Kind.HEARTBEAT, wake.name) not in turn.plan.entries:
        wakes.reject(turn, wake)
        return
    wakes.ask(turn, woken, wake)
