"""Deletes old rows from the database, a limited number per tick, so that no transaction takes long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from scheduler.engine import notices, planning, wake_starts
from scheduler.engine.delivery import button_listener
from scheduler.engine.tick_items import Tick, run_for_entry
from scheduler.model.events import Event, RunClosed
from scheduler.model.local_days import A_DAY
from scheduler.model.outcome import ANSWERED, Key, Kind
from scheduler.model.problem import PAUSED, Subject
from scheduler.store import clock_changes, entries, lane_holds, outbox, problems, retention, runs
from scheduler.store.runs import NeededRuns

MAINTENANCE_INTERVAL = timedelta(minutes=1)
MAX_ROWS_REMOVED = 500  # rows per tick
MAX_ENTRIES_TRIMMED = 100  # entries per tick
SURPLUS_DIVISOR = 10  # an entry may temporarily exceed its number of kept runs by a tenth,
SMALLEST_SURPLUS = 5  # or by this many


@dataclass(frozen=True, slots=True)
class MaintenanceState:
    """When maintenance was last completed, and the last entry whose history was trimmed."""

    done_at: datetime | None = None
    last_trimmed_id: int = 0

    def is_due(self, now: datetime) -> bool:
        """Whether old rows are to be deleted: a minute is over, or some were left. The clock may have been set back."""
        return self.done_at is None or not timedelta() <= now - self.done_at < MAINTENANCE_INTERVAL


class GrownHistories:
    """Counts the runs of each entry since its history was last trimmed. An entry that runs every second is trimmed early."""

    def __init__(self) -> None:
        self._rows: Counter[Key] = Counter()
        self.to_trim: list[Key] = []  # to be trimmed in the next tick

    def follow(self, events: Iterable[Event], kept: int) -> None:
        """Follow a committed tick: it has trimmed `to_trim`, and closed runs. `kept` is `history.runs`."""
        self.to_trim = []
        for happened in events:
            if isinstance(happened, RunClosed):
                key = (happened.kind, happened.name)
                self._rows[key] += 1
                if self._rows[key] >= max(kept // SURPLUS_DIVISOR, SMALLEST_SURPLUS):
                    del self._rows[key]
                    self.to_trim.append(key)


def maintain_database(tick: Tick, state: MaintenanceState, grown: GrownHistories) -> MaintenanceState:
    """Trim the histories that have grown. Once a minute, delete old rows; if there are many, continue in the next tick."""
    kept, is_due = tick.plan.settings.history, state.is_due(tick.now)
    needed = _needed_runs(tick) if is_due or grown.to_trim else NeededRuns()
    for key in grown.to_trim:
        runs.delete_surplus_runs(tick.tx, *key, kept.runs, MAX_ROWS_REMOVED, needed)
    if not is_due:
        return state
    room = MAX_ROWS_REMOVED - (0 if clock_changes.changed_recently(tick.tx) else _remove_old_rows(tick, kept.keep, needed))
    trimmed = state.last_trimmed_id
    last = entries.last_id_of_part(tick.tx.db, trimmed, MAX_ENTRIES_TRIMMED)
    if last is None:
        return MaintenanceState(tick.now)
    for row in entries.unplanned_entries(tick.tx.db, trimmed, last, tick.now - A_DAY):
        run_for_entry(tick, *row.key, partial(planning.record_unplanned_slots, tick, row))
    for row in entries.entries_paused_by_failures(tick.tx.db, trimmed, last):
        if not row.is_muted(tick.now):
            run_for_entry(tick, *row.key, partial(_remind_of_pause, tick, *row.key))
    for entry_id, kind, name in runs.entries_with_surplus_runs(tick.tx.db, trimmed, last, kept.runs):
        if room > 0:
            room -= runs.delete_surplus_runs(tick.tx, kind, name, kept.runs, room, needed)
            trimmed = entry_id
    return MaintenanceState(tick.now, last) if room > 0 else MaintenanceState(None, trimmed)


def _needed_runs(tick: Tick) -> NeededRuns:
    """The runs whose records are needed, however old they are, and however many runs came after them.

    A job gets the last outputs of the jobs that it names (`previous`), and the limits of an account and of wakes count the runs
    of a time.
    """
    last = (runs.last_output(tick.tx.db, job, ANSWERED) for job in tick.plan.named_jobs)
    found = [each.run for each in last if each is not None]
    for account, limits in tick.plan.account_limits.items():
        longest = max(within for _, within in limits)
        found += [run_id for run_id, _ in runs.starts_with_account(tick.tx, account, longest)]
    return NeededRuns(found, tick.limits.wake_flood.within)


def _remind_of_pause(tick: Tick, kind: Kind, name: str) -> None:
    """Send what is news about an entry that is paused after failures: no run of it does that."""
    entry, problem = tick.plan.entries.get((kind, name)), problems.find_problem(tick.tx.db, Subject(kind, name), PAUSED)
    if entry is not None and problem is not None and problem.is_open:
        notices.send_news_of_entry(tick, entry, problem)


def _remove_old_rows(tick: Tick, keep: timedelta, needed: NeededRuns) -> int:
    """Delete rows that are older than their retention. Returns the number of deleted runs.

    Runs are deleted before messages are given up, because the message about an undelivered one refers to its run.
    """
    wake_starts.expire_wakes(tick)
    removed = runs.delete_old_runs(tick.tx, keep, MAX_ROWS_REMOVED, needed)
    lane_holds.delete_ended_holds(tick.tx)
    outbox.expire_held_messages(tick.tx)
    if (listener := button_listener(tick.plan.settings.channels)) is not None:
        listener.delete_old_uses(tick.tx)
    problems.delete_old_problems(tick.tx, keep)
    problems.delete_problems_of_unused_channels(tick.tx, tick.plan.settings.channels)
    retention.delete_old_rows(tick.tx, keep)
    return removed
