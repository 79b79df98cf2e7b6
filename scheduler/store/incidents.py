"""Incidents: what goes wrong at present, since when, in which ways, and whether somebody has been told."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from scheduler.model.circuit import Circuit
from scheduler.model.settings import Target
from scheduler.model.timestamps import from_millis, from_optional_millis, to_millis, to_optional_millis
from scheduler.store.transaction import Transaction

CHANNEL = "channel"  # the kind of incidents that are about a channel; the others are about entries


@dataclass(frozen=True, slots=True)
class Incident:
    """What goes wrong with an entry or a channel.

    `faults` are the ways in which it went wrong so far, each by its hash; `reason` is that of the last failure, else of the
    last skip. `told_at` None: nobody has been told yet. `circuit` is the provider or model that is at fault, None where it is the
    entry's own trouble. `flapping_at` is when it was found to flap; while it does, this stays though the entry may work.
    """

    since: datetime
    faults: tuple[str, ...] = ()
    reason: str | None = None
    notified_at: datetime | None = None
    circuit: Circuit | None = None
    flapping_at: datetime | None = None


def find_incident(db: sqlite3.Connection, kind: str, name: str) -> Incident | None:
    """The open incident of an entry."""
    row = db.execute("select * from incident where kind = ? and name = ?", (kind, name)).fetchone()
    if row is None:
        return None
    circuit = None if row["provider"] is None else Circuit(row["provider"], row["model"])
    return Incident(
        since=from_millis(row["since"]),
        faults=tuple(json.loads(row["faults"])),
        reason=row["reason"],
        notified_at=from_optional_millis(row["told_at"]),
        circuit=circuit,
        flapping_at=from_optional_millis(row["flapping_at"]),
    )


def save_incident(tx: Transaction, kind: str, name: str, incident: Incident, recipient: str = "") -> None:
    """Open an incident, or write how it goes on; `whom` is for a channel that leaves open whom it tells."""
    tx.db.execute(
        "insert or replace into incident (kind, name, whom, since, faults, reason, told_at, provider, model, flapping_at)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            kind, name, recipient, to_millis(incident.since), json.dumps(incident.faults), incident.reason,
            to_optional_millis(incident.notified_at),
            *(incident.circuit or (None, None)), to_optional_millis(incident.flapping_at),
        ),
    )  # fmt: skip


def close_incident(tx: Transaction, kind: str, name: str) -> None:
    """Close an incident; there may be none."""
    tx.db.execute("delete from incident where kind = ? and name = ?", (kind, name))


def clamp_future_times(tx: Transaction) -> None:
    """The clock was set back: nothing went wrong, or was told, in the future."""
    tx.db.execute(
        "update incident set since = min(since, :now), told_at = min(told_at, :now), flapping_at = min(flapping_at, :now)",
        {"now": to_millis(tx.now)},
    )


def close_target_incident(tx: Transaction, outbox_id: int) -> None:
    """Close the incident of where this message went; there may be none."""
    tx.db.execute(
        "delete from incident where kind = ? and (name, whom) = (select channel, whom from outbox where id = ?)",
        (CHANNEL, outbox_id),
    )


def dead_targets(db: sqlite3.Connection) -> frozenset[Target]:
    """Where a message was given up and none has been taken since: a person who refuses us makes no channel dead for others."""
    return frozenset(Target(*row) for row in db.execute("select name, whom from incident where kind = ?", (CHANNEL,)))


def close_undeclared_channels(tx: Transaction, declared: Iterable[str]) -> None:
    """Forget what was wrong with channels that are no longer declared."""
    tx.db.execute(
        "delete from incident where kind = ? and name not in (select value from json_each(?))",
        (CHANNEL, json.dumps(list(declared))),
    )
