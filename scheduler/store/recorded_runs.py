"""Reads closed runs and wakes of the past as they went, to play them again."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from scheduler.model.outcome import Key, Kind, Outcome, Trigger
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store.rows import read_row
from scheduler.store.run_history import RECORDS


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A closed run, or `slots` slots from `slot` on that were skipped for one reason, the last of them by `finished_at`.

    `findings` has what the agent reported, with its effect. `usage` has the calls, the tokens by kind and the cost of each model.
    `precheck_output` is None if no precheck was made; only its beginning is recorded.
    """

    id: int
    kind: Kind
    name: str
    slot: datetime
    slots: int
    trigger: Trigger
    outcome: Outcome
    why: str | None
    suppression: str | None
    started_at: datetime | None
    finished_at: datetime
    text: str | None
    error: str | None
    exit_code: int | None
    truncated: bool
    precheck_exit: int | None
    precheck_output: str | None
    precheck_error: str | None
    cost_usd: float | None
    fallback: str | None
    fallback_why: str | None
    findings: tuple[Mapping[str, Any], ...]
    usage: Mapping[str, Mapping[str, Any]]

    @property
    def key(self) -> Key:
        return self.kind, self.name

    @property
    def took(self) -> timedelta:
        """How long its last attempt took."""
        return max(self.finished_at - (self.started_at or self.finished_at), timedelta())

    @property
    def calls(self) -> int:
        """The calls of models with recorded usage. Other agents are called once."""
        return sum(used["calls"] for used in self.usage.values()) or int(self.outcome is not Outcome.SKIPPED)


@dataclass(frozen=True, slots=True)
class RecordedWake:
    """A wake of a person or a program, or a reminder, which came at the time `at`. Wakes of jobs are no such wakes."""

    kind: Kind
    name: str
    source: Trigger
    sender: str
    token: str
    text: str
    at: datetime


def read_runs(db: sqlite3.Connection, since: datetime) -> list[RecordedRun]:
    """The runs that were closed from `since` on, and the records of skipped slots that reach into that time; by their slots."""
    query = f"{RECORDS} where state = 'closed' and finished_at >= :since order by slot, id"
    return [
        read_row(
            RecordedRun,
            row,
            findings=tuple(json.loads(row["findings"] or "[]")),
            usage=json.loads(row["model_usage"] or "{}"),
        )
        for row in db.execute(query, {"since": to_millis(since)})
    ]


def read_wakes(db: sqlite3.Connection, since: datetime) -> list[RecordedWake]:
    """The wakes of people and programs, and the reminders that have come, from `since` on. Rejected ones are only counted."""
    query = (
        "select *, case source when 'reminder' then coalesce(due_at, updated_at) else created_at end as came_at from wake"
        " where source in ('manual', 'api', 'webhook', 'reminder') and state <> 'planned' order by came_at, id"
    )
    found = (read_row(RecordedWake, row, at=from_millis(row["came_at"])) for row in db.execute(query))
    return [wake for wake in found if wake.at >= since]


def read_messages(db: sqlite3.Connection, since: datetime) -> dict[int, int]:
    """How many messages were queued about each run from `since` on; the parts of a long one count as one."""
    query = "select run_id, count(distinct key || ' ' || channel) from outbox where created_at >= ? and part = 1 group by run_id"
    return dict(db.execute(query, (to_millis(since),)).fetchall())
