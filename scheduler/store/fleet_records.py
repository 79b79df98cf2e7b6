"""Reads what the cards of the status page show of an agent: the latest slots, the latest answer, and the cost of a day."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.model.outcome import ANSWERED, WOKEN, DeliveryState, Kind, Trigger
from scheduler.model.timestamps import from_optional_millis, to_millis
from scheduler.store import run_history
from scheduler.store.outbox import Delivery

LONGEST_RUN = timedelta(days=2)  # a run that ended on a day began at most so long before it

# The triggers of runs that no slot started.
WITHOUT_SLOT = json.dumps(sorted(WOKEN | {Trigger.REBOOT, Trigger.RESULT}))

# The newest records of the agent, found by the index on (kind, name, id).
SLOTS = """
select id, slots, state, outcome, reason, suppression, repeats from run
where kind = 'heartbeat' and name = ? and trigger not in (select value from json_each(?)) order by id desc limit ?
"""

ANSWER = """
select id, finished_at, substr(text, 1, ?) as text, length(text) as length from run
where kind = 'heartbeat' and name = ? and text is not null and state = 'closed' order by id desc limit 1
"""

COST = """
select sum(cost_usd) as cost_usd, coalesce(sum(outcome <> 'skipped' and trigger <> 'result'), 0) as runs,
  coalesce(sum(tokens is not null and cost_usd is null), 0) as unpriced
from run where kind = 'heartbeat' and name = ? and slot >= ? and state = 'closed' and finished_at >= ?
"""


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """A run record: `slots` consecutive slots and what happened to them, and to the messages of its run."""

    slots: int
    state: str
    outcome: str | None
    reason: str | None
    suppression: str | None
    delivery: DeliveryState


@dataclass(frozen=True, slots=True)
class LatestAnswer:
    """The beginning of the latest answer of an agent, the length of the whole, and its run."""

    run_id: int
    ended_at: datetime | None
    text: str
    is_cut: bool


@dataclass(frozen=True, slots=True)
class DayCost:
    """The runs of an agent on a day. `cost_usd` is None if no cost is known; `unpriced` is the number of runs without a price."""

    cost_usd: float | None
    runs: int
    unpriced: int


def latest_slots(db: sqlite3.Connection, name: str, limit: int) -> Sequence[SlotRecord]:
    """The newest records of an agent's slots, the newest first. Each stands for at least one slot."""
    rows = db.execute(SLOTS, (name, WITHOUT_SLOT, limit)).fetchall()
    deliveries = run_history.deliveries_of_runs(db, {row["id"]: row["repeats"] for row in rows if row["outcome"] in ANSWERED})
    return [_slot_record(row, deliveries.get(row["id"], ())) for row in rows]


def _slot_record(row: sqlite3.Row, deliveries: Sequence[Delivery]) -> SlotRecord:
    delivery = run_history.delivery_state(Kind.HEARTBEAT, row["outcome"], row["suppression"], deliveries)
    return SlotRecord(row["slots"], row["state"], row["outcome"], row["reason"], row["suppression"], delivery)


def latest_answer(db: sqlite3.Connection, name: str, length: int) -> LatestAnswer | None:
    """The first `length` characters of the latest answer of an agent; None without any."""
    row = db.execute(ANSWER, (length, name)).fetchone()
    return row and LatestAnswer(row["id"], from_optional_millis(row["finished_at"]), row["text"], row["length"] > length)


def cost_since(db: sqlite3.Connection, name: str, since: datetime) -> DayCost:
    """What the runs of an agent cost that ended at this time or later."""
    row = db.execute(COST, (name, to_millis(since - LONGEST_RUN), to_millis(since))).fetchone()
    return DayCost(row["cost_usd"], row["runs"], row["unpriced"])
