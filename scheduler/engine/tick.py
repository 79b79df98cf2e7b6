"""`Tick`: the values that the engine's rules read and write in one iteration of the main loop."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from scheduler.model.daemon_health import TickPart
from scheduler.model.settings import Limits
from scheduler.store.transaction import Transaction
from scheduler.work.plan import Plan


@dataclass(frozen=True, slots=True)
class LostCommits:
    """The database may have lost its last commits: which slots and wakes may already have been executed."""

    slots_until: datetime
    wakes_until: int


@dataclass(slots=True)
class Tick:
    """One iteration of the main loop: its transaction, the active plan, and the runs to cancel after the commit.

    `awake_since` is when this process started, or when the machine last resumed from suspend. `no_capacity_since`: since then
    `limits.concurrency` runs have been in progress (None: another one may start), and `no_capacity_why` names them. `chance`
    spreads retries. `lost_commits`: which runs may have been carried out already (None: none). `cancelled` are the ids of the
    runs to end after the commit. `internal_errors` counts the unexpected exceptions of all ticks, by part.
    """

    tx: Transaction
    plan: Plan
    awake_since: datetime
    chance: random.Random
    no_capacity_since: datetime | None = None
    no_capacity_why: str | None = None
    lost_commits: LostCommits | None = None
    cancelled: list[int] = field(default_factory=list)
    internal_errors: Counter[TickPart] = field(default_factory=Counter)

    @property
    def now(self) -> datetime:
        """The time of this iteration. It does not advance during the iteration."""
        return self.tx.now

    @property
    def limits(self) -> Limits:
        """The `limits` of the active plan."""
        return self.plan.settings.limits

    def adopt_plan(self, plan: Plan) -> None:
        """Use another plan from here on. Rows that are written afterwards have its hash."""
        self.plan = plan
        self.tx.config_hash = plan.settings.hash
