"""Housekeeping: what is to be done now and then, a little at a time, so that no lock is held for long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from scheduler.engine import planning, savepoints, wake_starts
from scheduler.engine.savepoints import EntryStep
from scheduler.engine.tick import Tick
from scheduler.model.events import Event, RunClosed
from scheduler.model.outcome import Kind
from scheduler.store import boots, clock_changes, entries, flapping, lane_holds, outbox, runs, sessions, spend

MAINTENANCE_INTERVAL = timedelta(minutes=1)
MAX_ROWS_REMOVED = 500  # rows
MAX_ENTRIES_TRIMMED = 100  # entries
SURPLUS_DIVISOR = 10  # of the rows that an entry may keep, it may have one in so many more for a while,
SMALLEST_SURPLUS = 5  # or a few

Key = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class MaintenanceState:
    """How far the work has come: when it was last done, and after which entry it goes on."""

    done_at: datetime | None = None
    last_trimmed_id: int = 0


class GrownHistories:
    """How many rows each entry has had since it was last trimmed: one that runs every second must not wait for its turn."""

    def __init__(self) -> None:
        self._rows: Counter[Key] = Counter()
        self.to_trim: list[Key] = []  # those to be trimmed

    def count_rows(self, events: Iterable[Event], kept: int) -> None:
        """Count the rows of a turn that is written down; `kept` is how many an entry may keep."""
        for happened in events:
            if isinstance(happened, RunClosed):
                key = (happened.kind, happened.name)
                self._rows[key] += 1
                if self._rows[key] >= max(kept // SURPLUS_DIVISOR, SMALLEST_SURPLUS):
                    del self._rows[key]
                    self.to_trim.append(key)

    def forget_trimmed(self) -> None:
        """What was to be trimmed has been, and that is written down."""
        self.to_trim = []


def trim_grown_histories(tick: Tick, grown: GrownHistories) -> None:
    """Remove the rows that are too many of the entries that had many since the last time."""
    for key in grown.to_trim:
        entry_row = entries.current_entry(tick.tx, *key)
        if entry_row is not None:
            runs.delete_surplus_runs(tick.tx, entry_row, tick.plan.settings.history.runs, MAX_ROWS_REMOVED)


def maintain_database(tick: Tick, state: MaintenanceState) -> MaintenanceState:
    """The sign of life in every turn; what is old goes once a minute, or in the next turn where there is more."""
    boots.refresh_last_tick(tick.tx)
    if state.done_at is not None and timedelta() <= tick.now - state.done_at < MAINTENANCE_INTERVAL:
        return state
    kept = tick.plan.settings.history
    room = MAX_ROWS_REMOVED - (0 if clock_changes.changed_recently(tick.tx) else _remove_old_rows(tick, kept.keep))
    trimmed = state.last_trimmed_id
    some = entries.entries_after(tick.tx.db, trimmed, MAX_ENTRIES_TRIMMED)
    for entry_row in some:
        savepoints.run_step(
            tick, EntryStep(entry_row.kind, entry_row.name, partial(planning.record_unplanned_slots, tick, entry_row))
        )
        if room <= 0:
            return MaintenanceState(None, trimmed)
        room -= runs.delete_surplus_runs(tick.tx, entry_row, kept.runs, room)
        trimmed = entry_row.id
    return MaintenanceState(tick.now, trimmed if some else 0)


def _remove_old_rows(tick: Tick, keep: timedelta) -> int:
    """Let go of what is old by the clock; gives how many rows of the history went.

    The history goes before messages are given up: that is still to be told, with the run that they came from.
    """
    wake_starts.expire_wakes(tick)
    removed = runs.delete_old_runs(tick.tx, keep, MAX_ROWS_REMOVED)
    lane_holds.delete_ended_holds(tick.tx)
    outbox.expire_held_messages(tick.tx)
    outbox.delete_old_texts(tick.tx)
    sessions.delete_old_messages(tick.tx, tick.plan.settings.history.keep)
    spend.delete_old_days(tick.tx)
    flapping.delete_old_changes(tick.tx)
    entries.delete_old_history(tick.tx, keep)
    clock_changes.delete_old_clock_changes(tick.tx, keep)
    boots.delete_old_stalls(tick.tx, keep)
    return removed
