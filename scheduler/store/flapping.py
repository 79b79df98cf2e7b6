"""Counts how often something failed and recovered within a day, to detect flapping."""

from __future__ import annotations

from datetime import datetime, timedelta

from scheduler.model.timestamps import from_optional_millis, to_millis
from scheduler.store.transaction import Transaction

WITHIN = timedelta(hours=24)
FLAPS = 3  # changes within WITHIN
STABLE = timedelta(hours=1)  # without a change: then it no longer flaps


def record_change(tx: Transaction, kind: str, name: str) -> bool:
    """Record that it has just failed or recovered; returns whether it flaps by now."""
    tx.db.execute("insert into change (kind, name, at) values (?, ?, ?)", (kind, name, to_millis(tx.now)))
    query = "select count(*) from change where kind = ? and name = ? and at > ?"
    return int(tx.db.execute(query, (kind, name, to_millis(tx.now - WITHIN))).fetchone()[0]) >= FLAPS


def is_stable(tx: Transaction, kind: str, name: str) -> bool:
    """Whether it has not changed for an hour."""
    query = "select max(at) from change where kind = ? and name = ?"
    last: datetime | None = from_optional_millis(tx.db.execute(query, (kind, name)).fetchone()[0])
    return last is None or tx.now - last >= STABLE


def delete_changes(tx: Transaction, kind: str, name: str) -> None:
    """Delete the changes of something that is gone, or is stable again."""
    tx.db.execute("delete from change where kind = ? and name = ?", (kind, name))


def delete_old_changes(tx: Transaction) -> None:
    """Delete changes that are too old to count."""
    tx.db.execute("delete from change where at <= ?", (to_millis(tx.now - WITHIN),))


def clamp_future_times(tx: Transaction) -> None:
    """After the system clock was set back: nothing changed in the future."""
    tx.db.execute("update change set at = min(at, ?)", (to_millis(tx.now),))
