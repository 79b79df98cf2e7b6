"""Records wakes that were rejected or expired: the agent, who sent them, and why. Repetitions within an hour share a record."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.model.outcome import Trigger
from scheduler.model.timestamps import to_millis
from scheduler.model.wake import RejectedBecause, Wake
from scheduler.store.rows import read_row
from scheduler.store.transaction import Transaction

ONE_RECORD = timedelta(hours=1)  # after it a repetition gets a record of its own


@dataclass(frozen=True, slots=True)
class RejectedWakes:
    """Wakes of one agent that were rejected for the same reason, from `first_at` until `at`.

    `sender` is the job if `source` is `cron`. Of programs it is the sender of the latest wake.
    """

    agent: str
    source: str
    sender: str
    why: RejectedBecause
    count: int
    first_at: datetime
    at: datetime


def record_rejected_wake(tx: Transaction, wake: Wake, why: RejectedBecause) -> None:
    """Record a rejected wake of an agent. Programs can send any number of wakes, so their senders share a record."""
    values = {
        "agent": wake.name, "source": wake.source, "sender": wake.sender, "why": why, "count": wake.count,
        "now": to_millis(tx.now), "since": to_millis(tx.now - ONE_RECORD), "job": int(wake.source == Trigger.CRON),
    }  # fmt: skip
    merged = tx.db.execute(
        "update rejected_wake set count = count + :count, sender = :sender, at = :now where id = (select id from rejected_wake"
        " where at >= :since and first_at > :since and agent = :agent and source = :source and why = :why"
        " and (sender = :sender or :job = 0) limit 1)",
        values,
    )
    if not merged.rowcount:
        tx.db.execute(
            "insert into rejected_wake (agent, source, sender, why, count, first_at, at)"
            " values (:agent, :source, :sender, :why, :count, :now, :now)",
            values,
        )


def rejected_wakes_between(db: sqlite3.Connection, begin: datetime, end: datetime) -> list[RejectedWakes]:
    """The wakes that were rejected in [begin, end), one item for each agent, source, sender and reason, the latest last."""
    rows = db.execute(
        "select agent, source, sender, why, sum(count) as count, min(first_at) as first_at, max(at) as at from rejected_wake"
        " where at >= ? and first_at < ? group by agent, source, sender, why order by max(at), max(id)",
        (to_millis(begin), to_millis(end)),
    )
    return [read_row(RejectedWakes, row) for row in rows]
