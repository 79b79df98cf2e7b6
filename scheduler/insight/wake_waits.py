"""Waits: what a waiting wake waits for and until when, read from the rows alone, so that it can be said with any config."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.insight.reason_texts import Cause
from scheduler.model.outcome import Kind, Outcome, Reason, Skip
from scheduler.model.timestamps import iso, optional
from scheduler.model.wake import FLOOD, GAP
from scheduler.store import entries, wakes
from scheduler.store.entries import Open, Standing

STARTING = "starting"
NEXT_SLOT = "next_slot"
ANOTHER_WAKE = "another_wake"
OTHER_JOBS = "other_jobs"


@dataclass(frozen=True, slots=True)
class Wait:
    """For what a wake waits: the reason of a skip or of a failed run, wake_gap, wake_flood, or one of the words above.

    `until` None: nobody knows, or somebody has to end it. `run`: the open run for which it waits. `taken`: that run tells it.
    """

    reason: str
    until: datetime | None = None
    run: int | None = None
    taken: bool = False

    @property
    def starts(self) -> bool:
        """Whether nothing is in its way: its run has begun, or begins at once."""
        return self.reason == STARTING

    @property
    def was_refused(self) -> bool:
        """Whether a run of it was refused, or would be."""
        return not self.taken and self.reason in tuple(Skip) and self.reason != Skip.ALREADY_RUNNING

    @property
    def words(self) -> str:
        """The same for people, without the time."""
        if self.reason in WORDS:
            return WORDS[self.reason]
        if self.reason in tuple(Skip):
            return Cause(self.reason).said_of_now
        return f"its run failed ({self.reason}), and it is tried again"

    def as_data(self) -> dict[str, Any]:
        """The same for programs."""
        return {"waits_for": self.reason, "until": iso(self.until)}


WORDS = {
    STARTING: "its run is starting",
    NEXT_SLOT: "it is told with the next slot",
    ANOTHER_WAKE: "no run is planned; another wake starts one",
    OTHER_JOBS: "other jobs that may wake the agent are still running",
    GAP: "the gap after the last woken run (limits.wake_gap)",
    FLOOD: "too many runs were started by wakes (limits.wake_flood)",
    Skip.PAUSED: "the agent is paused",
    Skip.ALREADY_RUNNING: "a run is in progress; another one follows it",
    Reason.CANCELLED: "its run was cancelled",
}


def of(db: sqlite3.Connection, wake_id: int, now: datetime) -> Wait | None:
    """What one wake waits for; None for one that has ended, or is not known."""
    row = wakes.one(db, wake_id)
    if row is None or row["state"] == "ended":
        return None
    return _of(db, row, entries.find(db, Kind(row["kind"]), row["name"]), now)


def next_of(db: sqlite3.Connection, kind: Kind, name: str, now: datetime) -> Wait | None:
    """What the waiting wake of an entry waits for that starts a run first; None where none waits."""
    row = wakes.next_of(db, kind, name)
    return _of(db, row, entries.find(db, kind, name), now) if row else None


def everywhere(db: sqlite3.Connection, now: datetime) -> list[dict[str, Any]]:
    """How many wakes wait for each agent, and for what, as plain data."""
    found = []
    for row in wakes.waiting(db):
        wait = next_of(db, Kind.HEARTBEAT, row["name"], now)
        found.append({"name": row["name"], "waiting": row["rows"], **(wait.as_data() if wait else {})})
    return found


def _of(db: sqlite3.Connection, row: sqlite3.Row, standing: Standing | None, now: datetime) -> Wait:
    reason = row["waits_for"]
    run = entries.open_run(db, Kind(row["kind"]), row["name"])
    if row["state"] == "taken":
        return _of_taken(run)
    if standing is not None and standing.paused and (standing.pause_ends is None or standing.pause_ends > now):
        return Wait(Skip.PAUSED, standing.pause_ends)
    start, held_until = optional(row["due_at"]), optional(row["held_until"])
    if start is None:
        return _of_slot(standing, reason)
    if run is not None and run.state == "running":
        return Wait(Skip.ALREADY_RUNNING, run=run.run_id)
    if held_until is not None and held_until > now and held_until > start:
        return Wait(OTHER_JOBS, held_until)
    if start <= now:
        return Wait(STARTING)
    return Wait(reason or GAP, min(start, _slot(standing) or start))


def _of_taken(run: Open | None) -> Wait:
    """A run tells it, which may still wait for its lane, for its provider or for its next attempt."""
    if run is None or run.state == "running":
        return Wait(STARTING, run=run.run_id if run else None, taken=True)
    reason = run.in_its_way.value if run.has_not_begun else (run.reason or Outcome.FAILED)
    return Wait(reason, run.not_before, run.run_id, taken=True)


def _of_slot(standing: Standing | None, reason: str | None) -> Wait:
    """It starts nothing by itself; the next slot tells it."""
    until = _slot(standing)
    if until is None:
        return Wait(reason or ANOTHER_WAKE)
    return Wait(reason or NEXT_SLOT, until)


def _slot(standing: Standing | None) -> datetime | None:
    if standing is None or standing.slot is None:
        return None
    return standing.slot + standing.pace.offset
