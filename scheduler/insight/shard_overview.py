"""Describes the daemons that share one config: the address, the agents and jobs, and the state of each shard."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from heartbeatd.answers import ShardStatus
from scheduler.model.outcome import Kind
from scheduler.model.shards import Shard
from scheduler.model.timestamps import from_millis
from scheduler.store import boots, entries, shard_tables
from scheduler.store.database import StoreError
from scheduler.store.locations import open_read_only_any_version

STALLED_AFTER = timedelta(minutes=2)  # a daemon writes the time of its latest tick at least every minute

State = Literal["running", "stopped", "silent", "new", "unknown"]
"""running, stopped in an orderly way, crashed or cut off, never started, or with a database that cannot be read from here"""


@dataclass(frozen=True, slots=True)
class ShardState:
    """One shard. `last_tick_at` is when its daemon last ticked, `failing` the number of its agents and jobs that fail.

    Both are None if its database cannot be read here. `is_own`: it is the shard of the daemon that answers.
    """

    index: int
    is_own: bool
    address: str | None
    agents: int
    jobs: int
    state: State
    last_tick_at: datetime | None
    failing: int | None

    def as_answer(self) -> ShardStatus:
        """As the status shows it."""
        return ShardStatus(
            index=self.index,
            own=self.is_own,
            address=self.address,
            agents=self.agents,
            jobs=self.jobs,
            state=self.state,
            last_tick_at=self.last_tick_at,
            failing=self.failing,
        )


def read_shards(shard: Shard | None, now: datetime) -> list[ShardState]:
    """The state of each shard; none without shards."""
    if shard is None:
        return []
    try:
        known = shard_tables.find_databases(shard.database)
    except StoreError:
        known = {}
    numbers = Counter((kind, index) for (kind, _), index in shard.shard_of.items())
    return [_read_shard(shard, index, known.get(index), numbers, now) for index in range(shard.of)]


def _read_shard(
    shard: Shard, index: int, database: Path | str | None, numbers: Counter[tuple[Kind, int]], now: datetime
) -> ShardState:
    state, last_tick_at, failing = _read_state(database, now)
    address = shard.addresses[index] if shard.addresses else None
    agents, jobs = numbers[Kind.HEARTBEAT, index], numbers[Kind.CRON, index]
    return ShardState(index, index == shard.index, address, agents, jobs, state, last_tick_at, failing)


def _read_state(database: Path | str | None, now: datetime) -> tuple[State, datetime | None, int | None]:
    if database is None:
        return "unknown", None, None
    try:
        with closing(open_read_only_any_version(database)) as db:
            boot, failing = boots.latest_boot(db), entries.count_failing(db)
            is_running = boots.is_running(db, now, STALLED_AFTER)
    except (StoreError, sqlite3.Error):
        return "unknown", None, None
    if boot is None:
        return "new", None, failing
    last_tick_at = from_millis(boot["last_tick_at"])
    if boot["ended_at"] is not None:
        return "stopped", last_tick_at, failing
    return "running" if is_running else "silent", last_tick_at, failing
