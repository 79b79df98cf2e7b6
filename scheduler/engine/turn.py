"""One turn of the engine: everything that is decided at one instant and committed together."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass, field
from datetime import datetime

from scheduler.model.circuit import Breaker, Circuit
from scheduler.model.events import Event
from scheduler.model.settings import Limits
from scheduler.work.plan import Plan


@dataclass(slots=True)
class Turn:
    """The transaction's connection, its one `now`, who writes, the plan in force, and what is to be told after the commit.

    `awake_since` is when this life of the daemon began, or the machine last came back from sleep. `full_since` is since when all
    places for runs have been taken; None: one is free.
    """

    db: sqlite3.Connection
    now: datetime
    owner: str
    plan: Plan
    awake_since: datetime
    chance: random.Random
    full_since: datetime | None = None
    events: list[Event] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)  # runs in progress, to be ended after the commit
    held: set[str] | None = None  # the agents whose lanes are held; None: nobody has looked yet
    waited_for: set[tuple[str, str]] | None = None  # the entries for which a wake may wait; None: nobody has looked yet
    breakers: dict[Circuit, Breaker] | None = None  # the open ones; None: nobody has looked yet
    unsteady: frozenset[Circuit] = frozenset()  # what flaps and works at present, as found with the breakers
    relived_until: datetime | None = None  # the latest time from which the clock was set back; None: nobody has looked yet

    @property
    def limits(self) -> Limits:
        """The limits in force."""
        return self.plan.settings.limits

    def look_anew(self) -> None:
        """Forget what one question has answered for the whole turn: rows are not as they were then."""
        self.held = self.waited_for = self.breakers = None

    def tell(self, event: Event) -> None:
        """Remember what happened; nobody hears of it unless the transaction commits."""
        self.events.append(event)
