"""How entries stood before: a row for each change of an entry's state, pace or anchor, with what it had been until then."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.model.outcome import Kind
from scheduler.model.timestamps import millis, moment
from scheduler.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Former:
    """What decided an entry's slots, and until when."""

    state: str
    pace_text: str
    anchor: datetime
    until: datetime


def note(tx: Transaction, kind: Kind, name: str, state: str, pace_text: str, anchor: datetime) -> None:
    """Remember how an entry has stood until now."""
    tx.db.execute(
        "insert into former (kind, name, state, pace, anchor, until_at) values (?, ?, ?, ?, ?, ?)",
        (kind, name, state, pace_text, millis(anchor), millis(tx.now)),
    )


def of(db: sqlite3.Connection, kind: Kind, name: str) -> list[Former]:
    """How an entry stood before, the oldest first."""
    rows = db.execute("select state, pace, anchor, until_at from former where kind = ? and name = ? order by id", (kind, name))
    return [Former(row["state"], row["pace"], moment(row["anchor"]), moment(row["until_at"])) for row in rows]


def latest(db: sqlite3.Connection, kind: Kind, name: str) -> Former | None:
    """How an entry stood before its last change."""
    found = of(db, kind, name)
    return found[-1] if found else None


def pull_near(tx: Transaction) -> None:
    """The clock was set back: nothing has changed in the future."""
    tx.db.execute("update former set until_at = min(until_at, ?)", (millis(tx.now),))


def forget(tx: Transaction, keep: timedelta) -> None:
    """It is remembered no longer than the history."""
    tx.db.execute("delete from former where until_at < ?", (millis(tx.now - keep),))
