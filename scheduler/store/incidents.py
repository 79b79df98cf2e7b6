"""Records which entries and channels are failing: since when, with which error, and whether a notification was sent."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.model.circuit import Circuit
from scheduler.model.settings import Target
from scheduler.model.timestamps import MILLISECOND, from_millis, from_optional_millis, to_millis, to_optional_millis
from scheduler.store.transaction import Transaction

CHANNEL = "channel"  # the kind of incidents of channels; other incidents have the kind of their entry


@dataclass(frozen=True, slots=True)
class Incident:
    """The present failure of an entry or a channel.

    `faults` are the different failures so far, each by its hash. `reason` is that of the last failed run, else of the last
    skipped one. `notified_at` None: no notification was sent yet. `circuit` is the provider or model at fault, None if the fault
    is the entry's own. `flapping_at` is when flapping was detected; while it flaps, the incident stays open even if the entry
    works.
    """

    since: datetime
    faults: tuple[str, ...] = ()
    reason: str | None = None
    notified_at: datetime | None = None
    circuit: Circuit | None = None
    flapping_at: datetime | None = None


def find_incident(db: sqlite3.Connection, kind: str, name: str) -> Incident | None:
    """The open incident of an entry or a channel; None if there is none."""
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
    """Open or update an incident. `recipient` is set for a channel whose URL leaves the recipient open."""
    tx.db.execute(
        "insert into incident (kind, name, whom, since, faults, reason, told_at, provider, model, flapping_at)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (kind, name, whom) do update set since = excluded.since,"
        " faults = excluded.faults, reason = excluded.reason, told_at = excluded.told_at, provider = excluded.provider,"
        " model = excluded.model, flapping_at = excluded.flapping_at",
        (
            kind, name, recipient, to_millis(incident.since), json.dumps(incident.faults), incident.reason,
            to_optional_millis(incident.notified_at),
            *(incident.circuit or (None, None)), to_optional_millis(incident.flapping_at),
        ),
    )  # fmt: skip


def close_incident(tx: Transaction, kind: str, name: str) -> None:
    """Delete an incident, if there is one."""
    tx.db.execute("delete from incident where kind = ? and name = ?", (kind, name))


def move_beginnings(tx: Transaction, by: timedelta) -> None:
    """After the system clock was changed: what fails has failed for as long as before."""
    tx.db.execute("update incident set since = since + ?", (by // MILLISECOND,))


def clamp_future_times(tx: Transaction) -> None:
    """After the system clock was set back: nothing failed or was notified in the future."""
    tx.db.execute(
        "update incident set since = min(since, :now), told_at = min(told_at, :now), flapping_at = min(flapping_at, :now)",
        {"now": to_millis(tx.now)},
    )


def close_target_incident(tx: Transaction, outbox_id: int) -> None:
    """Delete the incident of the target that this message went to, if there is one."""
    tx.db.execute(
        "delete from incident where kind = ? and (name, whom) = (select channel, whom from outbox where id = ?)",
        (CHANNEL, outbox_id),
    )


def dead_targets(db: sqlite3.Connection) -> frozenset[Target]:
    """The targets for which a message was given up and none delivered since.

    One dead recipient does not make its channel dead for others.
    """
    return frozenset(Target(*row) for row in db.execute("select name, whom from incident where kind = ?", (CHANNEL,)))


def close_undeclared_channels(tx: Transaction, declared: Iterable[str]) -> None:
    """Delete the incidents of channels that the config no longer declares."""
    tx.db.execute(
        "delete from incident where kind = ? and name not in (select value from json_each(?))",
        (CHANNEL, json.dumps(list(declared))),
    )
