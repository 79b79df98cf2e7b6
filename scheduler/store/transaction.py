"""One write transaction on the database: its connection, its time, its owner, and the events to publish after the commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from scheduler.model.budget import Amount
from scheduler.model.circuit import Breaker, Circuit
from scheduler.model.events import Event
from scheduler.store.unit_of_work import UnitOfWork


@dataclass(slots=True)
class Transaction:
    """Everything that a function of the store needs in order to write.

    Rows carry `now`, the daemon process that writes them (`owner`, its instance id) and the active config (`config_hash`).
    The other fields cache rare conditions, so that each is queried once for all entries: None means not queried yet.
    """

    db: UnitOfWork
    now: datetime
    owner: str
    config_hash: str = ""
    events: list[Event] = field(default_factory=list)
    held_lanes: set[str] | None = None  # agents whose lane is held over HTTP
    entries_with_wakes: set[tuple[str, str]] | None = None  # entries for which a wake may be waiting
    open_breakers: dict[Circuit, Breaker] | None = None
    failing_circuits: frozenset[Circuit] = frozenset()  # with a problem that is not settled; with `open_breakers`
    unknown_usd: dict[tuple[str, str, str], tuple[Amount, float]] = field(default_factory=dict)  # by day; see spend.unknown_usd
    clock_was_ahead_until: datetime | None = None  # the latest time that a system clock change has set back

    @classmethod
    def for_reading(cls, db: sqlite3.Connection, now: datetime) -> Transaction:
        """For functions that read the same as in a tick, from a connection outside of any transaction."""
        return cls(UnitOfWork(db), now, "")

    def report(self, event: Event) -> None:
        """Record an event. It is published only if the transaction commits."""
        self.events.append(event)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part of the transaction that is undone if it raises: its rows and its events.

        After an error of SQLite nothing is undone here, because the whole transaction will be rolled back.
        """
        reported, pending = len(self.events), self.db.open_savepoint()
        try:
            yield
        except sqlite3.Error:
            raise
        except Exception:
            self.db.undo_savepoint(pending)
            del self.events[reported:]
            self.held_lanes = self.entries_with_wakes = self.open_breakers = None  # their rows may have changed back
            raise
        self.db.close_savepoint()
