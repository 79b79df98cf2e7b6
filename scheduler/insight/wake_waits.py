"""Waits: what a waiting wake waits for and until when, read from the rows alone, so that it can be said with any config."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.insight.reason_texts import SlotCause
from scheduler.model.outcome import Kind, Outcome, Reason, Skip
from scheduler.model.timestamps import from_optional_millis, iso_utc
from scheduler.model.wake import FLOOD, GAP
from scheduler.store import entries, runs, wakes
from scheduler.store.entries import EntryRow
from scheduler.store.runs import OpenRun

STARTING = "starting"
NEXT_SLOT = "next_slot"
ANOTHER_WAKE = "another_wake"
OTHER_JOBS = "other_jobs"


@dataclass(frozen=True, slots=True)
class WakeWait:
    """For what a wake waits: the reason of a skip or of a failed run, wake_gap, wake_flood, or one of the words above.

    `until` None: nobody knows, or somebody has to end it. `run`: the open run for which it waits. `taken`: that run tells it.
    """

    reason: str
    until: datetime | None = None
    run_id: int | None = None
    is_taken: bool = False

    @property
    def is_starting(self) -> bool:
        """Whether nothing is in its way: its run has begun, or begins at once."""
        return self.reason == STARTING

    @property
    def was_refused(self) -> bool:
        """Whether a run of it was refused, or would be."""
        return not self.is_taken and self.reason in tuple(Skip) and self.reason != Skip.ALREADY_RUNNING

    @property
    def text(self) -> str:
        """The same for people, without the time."""
        if self.reason in WAIT_TEXTS:
            return WAIT_TEXTS[self.reason]
        if self.reason in tuple(Skip):
            return SlotCause(self.reason).text_for_now
        return f"its run failed ({self.reason}), and it is tried again"

    def as_data(self) -> dict[str, Any]:
        """The same for programs."""
        return {"waits_for": self.reason, "until": iso_utc(self.until)}


WAIT_TEXTS = {
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


def wait_of_wake(db: sqlite3.Connection, wake_id: int, now: datetime) -> WakeWait | None:
    """What one wake waits for; None for one that has ended, or is not known."""
    row = wakes.find_wake(db, wake_id)
    if row is None or row["state"] == "ended":
        return None
    return _wait_of_row(db, row, entries.find_entry(db, Kind(row["kind"]), row["name"]), now)


def next_wait(db: sqlite3.Connection, kind: Kind, name: str, now: datetime) -> WakeWait | None:
    """What the waiting wake of an entry waits for that starts a run first; None where none waits."""
    row = wakes.next_waiting_wake(db, kind, name)
    return _wait_of_row(db, row, entries.find_entry(db, kind, name), now) if row else None


def waits_by_agent(db: sqlite3.Connection, now: datetime) -> list[dict[str, Any]]:
    """How many wakes wait for each agent, and for what, as plain data."""
    found = []
    for row in wakes.count_waiting_by_agent(db):
        wait = next_wait(db, Kind.HEARTBEAT, row["name"], now)
        found.append({"name": row["name"], "waiting": row["rows"], **(wait.as_data() if wait else {})})
    return found


def _wait_of_row(db: sqlite3.Connection, row: sqlite3.Row, entry_row: EntryRow | None, now: datetime) -> WakeWait:
    reason = row["waits_for"]
    run = runs.find_open_run(db, Kind(row["kind"]), row["name"])
    if row["state"] == "taken":
        return _wait_of_taken_wake(run)
    if entry_row is not None and entry_row.paused and (entry_row.pause_ends is None or entry_row.pause_ends > now):
        return WakeWait(Skip.PAUSED, entry_row.pause_ends)
    start, held_until = from_optional_millis(row["due_at"]), from_optional_millis(row["held_until"])
    if start is None:
        return _wait_for_slot(entry_row, reason)
    if run is not None and run.state == "running":
        return WakeWait(Skip.ALREADY_RUNNING, run_id=run.run_id)
    if held_until is not None and held_until > now and held_until > start:
        return WakeWait(OTHER_JOBS, held_until)
    if start <= now:
        return WakeWait(STARTING)
    return WakeWait(reason or GAP, min(start, _next_due_time(entry_row) or start))


def _wait_of_taken_wake(run: OpenRun | None) -> WakeWait:
    """A run tells it, which may still wait for its lane, for its provider or for its next attempt."""
    if run is None or run.state == "running":
        return WakeWait(STARTING, run_id=run.run_id if run else None, is_taken=True)
    reason = run.waits_for.value if run.has_not_begun else (run.reason or Outcome.FAILED)
    return WakeWait(reason, run.not_before, run.run_id, is_taken=True)


def _wait_for_slot(entry_row: EntryRow | None, reason: str | None) -> WakeWait:
    """It starts nothing by itself; the next slot tells it."""
    until = _next_due_time(entry_row)
    if until is None:
        return WakeWait(reason or ANOTHER_WAKE)
    return WakeWait(reason or NEXT_SLOT, until)


def _next_due_time(entry_row: EntryRow | None) -> datetime | None:
    if entry_row is None or entry_row.slot is None:
        return None
    return entry_row.slot + entry_row.schedule.offset
