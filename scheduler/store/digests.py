"""Digests: which texts a channel has had already, and until when they are no news."""

from __future__ import annotations

import sqlite3
from datetime import datetime

from scheduler.model.entry import Entry
from scheduler.model.outcome import DeliveryState, Kind
from scheduler.model.timestamps import MILLISECOND, millis, moment
from scheduler.store.targets import Target
from scheduler.store.transaction import Transaction


def not_told_yet(tx: Transaction, entry: Entry, message: str, told: tuple[Target, ...]) -> tuple[Target, ...]:
    """Of these targets those that have not had this message within the entry's window, and do not have it pending."""
    if not entry.dedup_window:
        return told
    digest = entry.digest(message)
    return tuple(target for target in told if not _heard(tx, entry, target, digest))


def _heard(tx: Transaction, entry: Entry, target: Target, digest: str) -> bool:
    row = tx.db.execute(
        "select until_at, (select state from outbox where outbox.id = outbox_id) as state from digest"
        " where kind = ? and name = ? and channel = ? and whom = ? and hash = ?",
        (entry.kind, entry.name, target.channel, target.whom, digest),
    ).fetchone()
    if row is None:
        return False
    pending = row["state"] in (DeliveryState.PENDING, DeliveryState.SENDING, DeliveryState.UNCERTAIN)
    return pending or moment(row["until_at"]) > tx.now


def last_message(tx: Transaction, entry: Entry, target: Target, message: str) -> int | None:
    """The message, known by its last part, by which a target was last to be told this text; None where that is not known."""
    if not entry.dedup_window:
        return None
    row = tx.db.execute(
        "select outbox_id from digest where kind = ? and name = ? and channel = ? and whom = ? and hash = ?",
        (entry.kind, entry.name, target.channel, target.whom, entry.digest(message)),
    ).fetchone()
    return row["outbox_id"] if row else None


def told_texts(db: sqlite3.Connection, kind: Kind, name: str, now: datetime) -> int:
    """How many texts of an entry would be no news now."""
    query = "select count(distinct hash) from digest where kind = ? and name = ? and until_at > ?"
    return int(db.execute(query, (kind, name, millis(now))).fetchone()[0])


def note(tx: Transaction, entry: Entry, target: Target, message: str, outbox_id: int) -> None:
    """A message is written for a target: within the entry's window, if it has one, its text is no news there."""
    if entry.dedup_window:
        tx.db.execute(
            "insert or replace into digest (kind, name, channel, whom, hash, outbox_id, until_at, window)"
            " values (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                entry.kind, entry.name, target.channel, target.whom, entry.digest(message), outbox_id,
                millis(tx.now + entry.dedup_window), entry.dedup_window // MILLISECOND,
            ),
        )  # fmt: skip


def delivered(tx: Transaction, channel: str, run_id: int, notice: str | None) -> None:
    """The window of a text counts from the delivery of its last part, also where that had been given up before."""
    tx.db.execute(
        "update digest set until_at = ? + window where outbox_id in (select max(id) from outbox where channel = ?"
        " and run_id = ? and notice is ? having sum(state in ('dead', 'dropped')) = 0)",
        (millis(tx.now), channel, run_id, notice),
    )


def unsay(tx: Transaction, channel: str, run_id: int, notice: str | None) -> None:
    """The channel has not had this text, and may be told it anew."""
    tx.db.execute(
        "update digest set until_at = 0 where outbox_id in"
        " (select id from outbox where channel = ? and run_id = ? and notice is ?)",
        (channel, run_id, notice),
    )


def forget(tx: Transaction) -> None:
    """Drop the digests whose window is over and whose message is neither on its way nor given up, and so may be sent again."""
    tx.db.execute(
        "delete from digest where until_at < ? and outbox_id not in"
        " (select id from outbox where state in ('pending', 'sending', 'uncertain', 'held'))"
        " and not (until_at = 0 and exists (select 1 from outbox where id = outbox_id))",
        (millis(tx.now),),
    )
