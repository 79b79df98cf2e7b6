"""Stalls: when the daemon stood still although it was not down, because it was stopped or had no processor or disk."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.model.timestamps import millis, moment
from scheduler.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Stall:
    """A turn was to begin at `since` and began at `until`."""

    since: datetime
    until: datetime


def note(tx: Transaction, late: timedelta) -> None:
    """Remember that this turn began late."""
    tx.db.execute("insert into stall (since, until) values (?, ?)", (millis(tx.now - late), millis(tx.now)))


def between(db: sqlite3.Connection, begin: datetime, end: datetime) -> list[Stall]:
    """The stalls that touch a time."""
    rows = db.execute("select * from stall where until >= ? and since < ? order by id", (millis(begin), millis(end)))
    return [Stall(moment(row["since"]), moment(row["until"])) for row in rows]


def forget(tx: Transaction, keep: timedelta) -> None:
    """They are remembered no longer than the history."""
    tx.db.execute("delete from stall where until < ?", (millis(tx.now - keep),))
