"""One iteration of the main loop: its transaction, the plan in force, and what is done after the commit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime

from scheduler.model.settings import Limits
from scheduler.store.transaction import Transaction
from scheduler.work.plan import Plan


@dataclass(slots=True)
class Tick:
    """What the rules of the engine read and write in one iteration.

    `awake_since` is when this process started, or when the machine last resumed from suspend. `full_since` is since when all
    `limits.concurrency` places have been taken (None: one is free). `cancelled` collects the runs to end after the commit.
    """

    tx: Transaction
    plan: Plan
    awake_since: datetime
    chance: random.Random
    full_since: datetime | None = None
    cancelled: list[int] = field(default_factory=list)

    @property
    def now(self) -> datetime:
        """The instant at which everything in this iteration happens."""
        return self.tx.now

    @property
    def limits(self) -> Limits:
        """The limits in force."""
        return self.plan.settings.limits

    def adopt_plan(self, plan: Plan) -> None:
        """Use another plan from here on; rows written from here on carry its hash."""
        self.plan = plan
        self.tx.config_hash = plan.settings.hash
