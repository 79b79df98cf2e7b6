"""Finds what a waiting wake waits for and until when. It reads only the database, so it works with any config."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime

from heartbeat.words import format_count
from heartbeatd.answers import WaitingWakes
from scheduler.insight.reason_texts import Clock, SlotCause
from scheduler.model.entry import OpenRun
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import Key, Outcome, Reason, Skip
from scheduler.model.wake import LONG_OBSTACLES, WAITS_FOR_FLOOD, WAITS_FOR_GAP
from scheduler.store import entries, runs, wakes
from scheduler.store.wakes import WakeState

STARTING = "starting"
NEXT_RUN = "next_run"
ANOTHER_WAKE = "another_wake"
OTHER_JOBS = "other_jobs"
REMINDER = "reminder"


@dataclass(frozen=True, slots=True)
class WakeWait:
    """What a wake waits for: the reason of a skip or of a failed run, wake_gap, wake_flood, or one of the words above.

    `until` None: the time is unknown, or a person must end it. `is_taken`: the wake is, or will be, in the prompt of an open run.
    """

    reason: str
    until: datetime | None = None
    is_taken: bool = False

    @property
    def is_starting(self) -> bool:
        """Whether nothing blocks the wake: its run has begun, or begins at once."""
        return self.reason == STARTING

    @property
    def was_refused(self) -> bool:
        """Whether its run was skipped, or would be."""
        return not self.is_taken and self.reason in tuple(Skip) and self.reason != Skip.ALREADY_RUNNING

    @property
    def text(self) -> str:
        """A short text for people, without the time."""
        if self.reason in WAIT_TEXTS:
            return WAIT_TEXTS[self.reason]
        if self.reason in tuple(Skip):
            return SlotCause(self.reason).text_for_now
        return f"its run failed ({self.reason}) and will be retried"

    def describe(self, at: Clock, count: int = 1) -> str:
        """A sentence for people without its subject, which is one wake or `count` wakes."""
        until = f" until {at(self.until)}" if self.until else ""
        return f"{'waits' if count == 1 else 'wait'}{until}: {self.text}"


WAIT_TEXTS = {
    STARTING: "its run is due",
    NEXT_RUN: "it is delivered with the next scheduled run",
    ANOTHER_WAKE: "no run is planned; another wake starts one",
    REMINDER: "it is a reminder",
    OTHER_JOBS: "other jobs that may wake the agent are still running",
    WAITS_FOR_GAP: "the minimum time after the last woken run (limits.wake_gap)",
    WAITS_FOR_FLOOD: "wakes have started too many runs (limits.wake_flood)",
    Skip.PAUSED: "the agent is paused",
    Skip.ALREADY_RUNNING: "a run is in progress; another one will follow",
    Reason.CANCELLED: "its run was cancelled",
}


def wait_of_wake(db: sqlite3.Connection, wake: WakeState | None, now: datetime) -> WakeWait | None:
    """What a wake waits for; None if it has ended or does not exist."""
    if wake is None or wake.state == "ended":
        return None
    entry_row, run = entries.find_entry(db, wake.kind, wake.name), runs.find_open_run(db, wake.kind, wake.name)
    if wake.state == "taken":
        return _wait_of_taken_wake(run)
    if wake.state == "planned":
        return WakeWait(REMINDER, wake.due_at)
    if entry_row is not None and entry_row.is_paused_at(now):
        return WakeWait(Skip.PAUSED, entry_row.pause_ends)
    if wake.due_at is None:
        return _wait_for_slot(entry_row, wake.waits_for)
    if run is not None and run.state == "waiting" and run.has_not_begun:
        return _wait_of_taken_wake(run)  # it gets the wake when it begins
    if run is not None:
        return WakeWait(Skip.ALREADY_RUNNING)
    if wake.held_until is not None and wake.held_until > max(now, wake.due_at):
        return WakeWait(OTHER_JOBS, wake.held_until)
    if wake.due_at <= now:
        return WakeWait(STARTING)
    reason = wake.waits_for or WAITS_FOR_GAP
    is_slot_skipped = reason in (WAITS_FOR_GAP, *LONG_OBSTACLES)  # if it comes before the wake's own time
    slot_due_at = entry_row.slot_due_at if entry_row and not is_slot_skipped else None
    return WakeWait(reason, min(wake.due_at, slot_due_at or wake.due_at))


def add_wait(says: str, wait: WakeWait | None, at: Clock) -> str:
    """The sentence about a new wake, with what the wake waits for unless its run starts at once."""
    return says if wait is None or wait.is_starting else f"{says}; it {wait.describe(at)}"


def explain_waiting(db: sqlite3.Connection, key: Key, number: int, now: datetime, at: Clock) -> WaitingWakes:
    """What the `number` waiting wakes of an entry wait for."""
    wait, wakes_wait = wait_of_wake(db, wakes.next_waiting_wake(db, *key), now), format_count(number, "wake")
    return WaitingWakes(
        kind=key[0].value,
        name=key[1],
        waiting=number,
        waits_for=wait.reason if wait else None,
        until=wait.until if wait else None,
        says=f"{wakes_wait} {wait.describe(at, number)}" if wait else f"{wakes_wait} taken",
    )


def _wait_of_taken_wake(run: OpenRun | None) -> WakeWait:
    """The wake belongs to an open run, which may wait for its lock, its provider or its next attempt."""
    if run is None or run.state == "running":
        return WakeWait(STARTING, is_taken=True)
    reason = run.waits_for.value if run.has_not_begun else (run.reason or Outcome.FAILED)
    return WakeWait(reason, run.not_before, is_taken=True)


def _wait_for_slot(entry_row: EntryRow | None, reason: str | None) -> WakeWait:
    """The wake starts no run by itself; the next slot delivers it."""
    if reason in LONG_OBSTACLES:
        return WakeWait(reason)
    until = entry_row and entry_row.slot_due_at
    if until is None:
        return WakeWait(ANOTHER_WAKE if reason in (None, Reason.CANCELLED) else reason)
    return WakeWait(reason or NEXT_RUN, until)
