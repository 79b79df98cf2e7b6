"""Again: when a wake that was not heard starts a run by itself, for an agent that has no slots at which it would hear it."""

from __future__ import annotations

from datetime import datetime

from scheduler import paces
from scheduler.engine import budgets, planning
from scheduler.outcome import Ending, Reason, Skip
from scheduler.tables import breakers, duequeue, outbox, wakes
from scheduler.tables.duequeue import Standing
from scheduler.turn import Turn
from scheduler.work.entry import Claim, Entry

# How a run ends that a provider did not want, be it in the midst of its attempts.
AFTER_PROVIDERS = (*breakers.OPENS_ONE, Skip.BREAKER_OPEN, Reason.NO_TIME_LEFT)


def at(turn: Turn, standing: Standing, claim: Claim, ending: Ending) -> datetime | None:
    """When what stood in the way is over, so far as that is known, else by a ladder; None: the wake waits for another.

    What a person has ended is not begun again, and the end of a pause reminds of what came during it.
    """
    if standing.pace is not paces.NEVER:
        return None
    if not claim.entry.open_at(turn.now):
        return claim.entry.opens(turn.now)
    if standing.paused or ending.reason is Reason.CANCELLED:
        return None
    return _refused_until(turn, claim.entry) or turn.now + outbox.ladder(_tries(claim))


def begin_anew(turn: Turn) -> None:
    """What waits for a provider waits no longer than its trial is away now, which may be sooner than when it was refused."""
    for kind, name, run in duequeue.open_runs(turn.db):
        if run.reason == Skip.BREAKER_OPEN:
            planning.look_now(turn, duequeue.get(turn, kind, name), Skip.BREAKER_OPEN)
    for standing in wakes.put_off(turn, AFTER_PROVIDERS):
        entry = turn.plan.entries.get((standing.kind, standing.name))
        if entry is not None and standing.pace is paces.NEVER and not standing.paused and entry.open_at(turn.now):
            wakes.begin_by(turn, standing, _refused_until(turn, entry) or turn.now)


def _refused_until(turn: Turn, entry: Entry) -> datetime | None:
    """Until when a provider or a budget would refuse the next run too; None where neither would."""
    lacking = budgets.shortage(turn, entry, first=True)
    ends = (breakers.next_probe(turn, entry.providers), lacking.ends if lacking else None)
    return max((end for end in ends if end is not None), default=None)


def _tries(claim: Claim) -> int:
    """How many runs in a row were to tell these wakes, this one included."""
    return 1 + max(wake.tries for wake in claim.wakes)
