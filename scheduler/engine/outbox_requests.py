"""What may be asked of a message in the outbox: to be sent again now, or to be dropped."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.engine.inbox import Refused
from scheduler.engine.tick import Tick
from scheduler.model.outcome import DeliveryState
from scheduler.store import outbox
from scheduler.store.outbox import OutboxMessage
from scheduler.store.transaction import Transaction

OVER = {
    DeliveryState.DELIVERED: "has been delivered",
    DeliveryState.DROPPED: "has been dropped",
    DeliveryState.SENDING: "is under way; once it is known how that went, it can be sent again or dropped",
}


@dataclass(frozen=True, slots=True)
class ResendMessage:
    """Send a message that waits, is held or was given up as soon as possible, under the key that it has. Answers its channel."""

    message_id: int

    def apply(self, tick: Tick) -> str:
        """One that is older than a day gets this one attempt."""
        message = _undelivered_message(tick.tx, self.message_id)
        outbox.resend_message(tick.tx, message)
        return message.channel


@dataclass(frozen=True, slots=True)
class DropMessage:
    """Give a message up for good: it ends as `dropped`. Answers its channel."""

    message_id: int

    def apply(self, tick: Tick) -> str:
        """Its text stays readable in its run, and the same text may be said again."""
        message = _undelivered_message(tick.tx, self.message_id)
        outbox.drop_message(tick.tx, message)
        return message.channel


def _undelivered_message(tx: Transaction, message_id: int) -> OutboxMessage:
    found = outbox.find_message(tx.db, message_id)
    if found is None:
        raise Refused("not_found", f"no message {message_id}; `heartbeatd outbox` lists them")
    message, state = found
    if state in OVER:
        why = f" ({message.error})" if state is DeliveryState.DROPPED and message.error else ""
        raise Refused(state, f"message {message_id} {OVER[state]}{why}")
    return message
