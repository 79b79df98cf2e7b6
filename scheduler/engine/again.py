"""Again: when a wake that was not heard starts a run by itself, for an agent that has no slots at which it would hear it."""

from __future__ import annotations

from datetime import datetime

from scheduler import paces
from scheduler.engine import budgets
from scheduler.outcome import Ending, Reason
from scheduler.tables import breakers, outbox
from scheduler.tables.duequeue import Standing
from scheduler.turn import Turn
from scheduler.work.entry import Claim


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
    return _refused_until(turn, claim) or turn.now + outbox.ladder(_tries(claim))


def _refused_until(turn: Turn, claim: Claim) -> datetime | None:
    """Until when a provider or a budget would refuse the next run too; None where neither would."""
    lacking = budgets.shortage(turn, claim.entry, first=True)
    ends = (breakers.next_probe(turn, claim.entry.providers), lacking.ends if lacking else None)
    return max((end for end in ends if end is not None), default=None)


def _tries(claim: Claim) -> int:
    """How many runs in a row were to tell these wakes, this one included."""
    return 1 + max(wake.tries for wake in claim.wakes)
