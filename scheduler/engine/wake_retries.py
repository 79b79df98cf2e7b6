"""Again: when a wake starts a run that could not be told at first, because its run failed or something stood in the way."""

from __future__ import annotations

from datetime import datetime, timedelta

from scheduler.engine import budget_reservations, planning
from scheduler.engine.planning import SOON
from scheduler.engine.turn import Turn
from scheduler.model import schedule
from scheduler.model.entry import Claim, Entry
from scheduler.model.outcome import FAILURES, Ending, Failure, Reason, Skip
from scheduler.store import breakers, entries, outbox, wakes
from scheduler.store.entries import Standing

# How a run ends that a provider did not want, be it in the midst of its attempts.
AFTER_PROVIDERS = (Failure.AUTH, Failure.PAYMENT, Failure.NOT_FOUND, Reason.RATE_LIMITED, Skip.BREAKER_OPEN, Reason.NO_TIME_LEFT)

# What another config may do away with.
BY_CONFIG = (Skip.ACTIVE_HOURS, Skip.CALENDAR, Skip.BUDGET)

A_MOMENT = timedelta(minutes=10)  # which a wake waits for a slot once the agent's hours have begun

TRIES = 3  # after which the wakes of an agent with slots wait for the next one; without slots they go on


def at(turn: Turn, standing: Standing, claim: Claim, ending: Ending) -> datetime | None:
    """When the wakes of a run that did not tell them start another one; None: they wait for the next slot, or another wake.

    That is when what stood in the way is over, so far as that is known, else after 1, 5 and 30 minutes. A failure is not left to
    a slot that comes later than that; a refusal of which no end is known is, if the wakes do not expire before. `standing` is
    how the entry stands after that run. What a person has ended is not begun again, and the end of a pause reminds of what came
    during it.
    """
    entry = claim.entry
    if standing.paused or ending.reason is Reason.CANCELLED:
        return None
    if not entry.open_at(turn.now):
        return once_open(turn, entry, standing)
    has_failed = ending.outcome in FAILURES
    ends = refused_until(turn, entry)
    if ends is not None:
        return unless_a_slot(turn, standing, ends, timedelta() if has_failed else SOON)
    tries = 1 + max(wake.tries for wake in claim.wakes)
    if tries > TRIES and standing.pace is not schedule.NEVER:
        return None
    then = turn.now + outbox.ladder(tries)
    patience = timedelta() if has_failed else turn.limits.wake_keep
    return unless_a_slot(turn, standing, then if entry.open_at(then) else entry.opens(then), patience)


def once_open(turn: Turn, entry: Entry, standing: Standing) -> datetime | None:
    """When a wake starts a run that came outside the agent's hours, or on a day off; None: a slot tells it soon after."""
    return unless_a_slot(turn, standing, entry.opens(turn.now), A_MOMENT)


def unless_a_slot(turn: Turn, standing: Standing, then: datetime | None, patience: timedelta = SOON) -> datetime | None:
    """A time at which wakes could start a run; None where a slot comes by then, or within the patience after it."""
    return None if then is None or planning.slot_comes_by(turn, standing, then + patience) else then


def begin_anew(turn: Turn, *, other_config: bool = False) -> None:
    """What waits for a provider waits no longer than its trial is away now, which may be sooner than when it was refused.

    `other_config`: what waits for an opening or a budget may find others now.
    """
    for kind, name, run in entries.open_runs(turn.db):
        if run.reason == Skip.BREAKER_OPEN:
            planning.look_now(turn, entries.get(turn, kind, name), Skip.BREAKER_OPEN)
    for standing in wakes.put_off(turn, (*AFTER_PROVIDERS, *BY_CONFIG) if other_config else AFTER_PROVIDERS):
        entry = turn.plan.entries.get((standing.kind, standing.name))
        if entry is not None and not standing.paused and entry.open_at(turn.now):
            wakes.begin_by(turn, standing, refused_until(turn, entry) or turn.now)


def refused_until(turn: Turn, entry: Entry) -> datetime | None:
    """Until when a provider or a budget would refuse the next run too; None where neither would."""
    lacking = budget_reservations.shortage(turn, entry, first=True)
    ends = (breakers.next_probe(turn, entry), lacking.ends if lacking else None)
    return max((end for end in ends if end is not None), default=None)
