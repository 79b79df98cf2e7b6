"""Records which providers and models are failing, and which targets were notified."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.model.circuit import Circuit
from scheduler.model.entry import Entry, Key
from scheduler.model.settings import Target
from scheduler.model.timestamps import MILLISECOND, from_millis, from_optional_millis, to_millis, to_optional_millis
from scheduler.store.entries import save_changed_entries
from scheduler.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Outage:
    """The present failure of a circuit. The row stays while the circuit fails, and while it flaps.

    `since` is when it began to fail, or to work again if it is not `failing`. `reason` is the class of its last failure, `error`
    what the provider said then. `reported`: notifications of this failure are sent. `flapping_at` is when flapping was detected.
    """

    circuit: Circuit
    since: datetime
    reason: str
    error: str
    failing: bool = True
    reported: bool = False
    flapping_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class OutageNotification:
    """When a target was last notified of an outage, and of which classes of failure."""

    at: datetime
    faults: tuple[str, ...]


def find_outage(db: sqlite3.Connection, circuit: Circuit) -> Outage | None:
    """The outage of a circuit; None if there is none."""
    row = db.execute("select * from outage where provider = ? and model = ?", circuit).fetchone()
    return _outage_from_row(row) if row else None


def all_outages(db: sqlite3.Connection) -> list[tuple[Outage, datetime | None]]:
    """Every outage with the time at which its last notification was delivered, sorted by provider and model."""
    rows = db.execute("select * from outage order by provider, model").fetchall()
    return [(found, _last_delivery_of(db, found)) for found in map(_outage_from_row, rows)]


def _last_delivery_of(db: sqlite3.Connection, outage: Outage) -> datetime | None:
    notified = db.execute("select min(told_at) from outage_notice where provider = ? and model = ?", outage.circuit).fetchone()[0]
    if notified is None:
        return None
    begin = min(notified, to_millis(min(outage.since, outage.flapping_at or outage.since)))
    row = db.execute(
        "select max(finished_at) from outbox where title = ? and notice is not null and state = 'delivered' and created_at >= ?",
        (str(outage.circuit), begin),
    ).fetchone()
    return from_optional_millis(row[0])


def save_outage(tx: Transaction, outage: Outage) -> None:
    """Insert or update an outage."""
    tx.db.execute(
        "insert into outage (provider, model, since, reason, error, failing, reported, flapping_at)"
        " values (?, ?, ?, ?, ?, ?, ?, ?) on conflict (provider, model) do update set since = excluded.since,"
        " reason = excluded.reason, error = excluded.error, failing = excluded.failing, reported = excluded.reported,"
        " flapping_at = excluded.flapping_at",
        (
            *outage.circuit, to_millis(outage.since), outage.reason, outage.error, int(outage.failing), int(outage.reported),
            to_optional_millis(outage.flapping_at),
        ),
    )  # fmt: skip
    tx.open_breakers = None


def delete_outage(tx: Transaction, circuit: Circuit) -> None:
    """Delete an outage and the record of its notifications."""
    tx.db.execute("delete from outage where provider = ? and model = ?", circuit)
    tx.db.execute("delete from outage_notice where provider = ? and model = ?", circuit)
    tx.open_breakers = None


def outage_notifications(tx: Transaction, circuit: Circuit) -> dict[Target, OutageNotification]:
    """The targets that were notified of an outage, each with its last notification."""
    rows = tx.db.execute("select * from outage_notice where provider = ? and model = ? order by channel, whom", circuit)
    return {
        Target(row["channel"], row["whom"]): OutageNotification(from_millis(row["told_at"]), tuple(json.loads(row["faults"])))
        for row in rows
    }


def record_notification(tx: Transaction, circuit: Circuit, target: Target, faults: tuple[str, ...]) -> None:
    """Record that a target is being notified now."""
    tx.db.execute(
        "insert into outage_notice (provider, model, channel, whom, told_at, faults) values (?, ?, ?, ?, ?, ?)"
        " on conflict (provider, model, channel, whom) do update set told_at = excluded.told_at, faults = excluded.faults",
        (*circuit, target.channel, target.recipient, to_millis(tx.now), json.dumps(faults)),
    )


def affected_entries(db: sqlite3.Connection, circuit: Circuit) -> list[tuple[str, str]]:
    """Kind and name of each entry whose incident is caused by this circuit."""
    query = "select kind, name from incident where provider = ? and model = ? order by kind desc, name"
    return [(row["kind"], row["name"]) for row in db.execute(query, circuit)]


def release_affected_entries(tx: Transaction, circuit: Circuit, keep: Key) -> None:
    """Close the incidents of the entries that a breaker kept from running, except that of `keep`, which is updated anyway."""
    query = (
        "delete from incident where provider = ? and model = ? and told_at is null and flapping_at is null"
        " and not (kind = ? and name = ?) returning kind, name"
    )
    released = [tuple(row) for row in tx.db.execute(query, (*circuit, *keep)).fetchall()]
    save_changed_entries(tx)
    tx.db.executemany("update entry set troubles = 0 where kind = ? and name = ?", released)


def delete_unused_outages(tx: Transaction, planned: Iterable[Entry]) -> None:
    """Delete the outages of circuits that no entry uses, unless an affected entry has yet to show that it works."""
    for outage, _ in all_outages(tx.db):
        is_used = any(entry.enabled and outage.circuit in entry.circuits for entry in planned)
        if not is_used and not affected_entries(tx.db, outage.circuit):
            delete_outage(tx, outage.circuit)


def move_beginnings(tx: Transaction, by: timedelta) -> None:
    """After the system clock was changed: what fails has failed for as long as before."""
    tx.db.execute("update outage set since = since + ?", (by // MILLISECOND,))


def clamp_future_times(tx: Transaction) -> None:
    """After the system clock was set back: nothing failed or was notified in the future."""
    now = to_millis(tx.now)
    tx.db.execute("update outage set since = min(since, :now), flapping_at = min(flapping_at, :now)", {"now": now})
    tx.db.execute("update outage_notice set told_at = min(told_at, ?)", (now,))


def _outage_from_row(row: sqlite3.Row) -> Outage:
    return Outage(
        circuit=Circuit(row["provider"], row["model"]),
        since=from_millis(row["since"]),
        reason=row["reason"],
        error=row["error"],
        failing=bool(row["failing"]),
        reported=bool(row["reported"]),
        flapping_at=from_optional_millis(row["flapping_at"]),
    )
