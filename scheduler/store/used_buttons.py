"""Keeps which buttons of messages were used, because each can be used once."""

from __future__ import annotations

import sqlite3
from datetime import timedelta

from scheduler.model.timestamps import to_millis
from scheduler.store.transaction import Transaction


def is_used(db: sqlite3.Connection, outbox_id: int, action: str) -> bool:
    """Whether the button of a message for this action was used."""
    row = db.execute("select 1 from used_button where outbox_id = ? and action = ?", (outbox_id, action)).fetchone()
    return row is not None


def record_use(tx: Transaction, outbox_id: int, action: str) -> None:
    """Record that a button was used."""
    tx.db.execute(
        "insert into used_button (outbox_id, action, used_at) values (?, ?, ?) on conflict do nothing",
        (outbox_id, action, to_millis(tx.now)),
    )


def delete_old_uses(tx: Transaction, keep: timedelta) -> None:
    """Forget the uses of buttons that have expired since."""
    tx.db.execute("delete from used_button where used_at < ?", (to_millis(tx.now - keep),))
