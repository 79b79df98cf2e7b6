"""What may be asked of a message in the outbox: to be sent again now, or to be dropped."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.engine.inbox import Refused
from scheduler.engine.tick import Tick
from scheduler.model.outcome import Delivery
from scheduler.store import outbox
from scheduler.store.outbox import Letter
from scheduler.store.transaction import Transaction

OVER = {
    Delivery.DELIVERED: "has been delivered",
    Delivery.DROPPED: "has been dropped",
    Delivery.SENDING: "is under way; once it is known how that went, it can be sent again or dropped",
}


@dataclass(frozen=True, slots=True)
class SendAgain:
    """Send a message that waits, is held or was given up as soon as possible, under the key that it has. Answers its channel."""

    letter_id: int

    def apply(self, tick: Tick) -> str:
        """One that is older than a day gets this one attempt."""
        letter = _movable(tick.tx, self.letter_id)
        outbox.send_again(tick.tx, letter)
        return letter.channel


@dataclass(frozen=True, slots=True)
class Drop:
    """Give a message up for good: it ends as `dropped`. Answers its channel."""

    letter_id: int

    def apply(self, tick: Tick) -> str:
        """Its text stays readable in its run, and the same text may be said again."""
        letter = _movable(tick.tx, self.letter_id)
        outbox.drop(tick.tx, letter)
        return letter.channel


def _movable(tx: Transaction, letter_id: int) -> Letter:
    found = outbox.find(tx.db, letter_id)
    if found is None:
        raise Refused("not_found", f"no message {letter_id}; `heartbeatd outbox` lists them")
    letter, state = found
    if state in OVER:
        why = f" ({letter.error})" if state is Delivery.DROPPED and letter.error else ""
        raise Refused(state, f"message {letter_id} {OVER[state]}{why}")
    return letter
