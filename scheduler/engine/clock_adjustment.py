"""Adjusts slots, waiting times and fixed intervals after the system clock was changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from scheduler.engine import planning
from scheduler.model import entry_schedule
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import Kind
from scheduler.store import clock_changes, entries, recorded_times, slot_records
from scheduler.store.clock_changes import ClockSetBack
from scheduler.store.transaction import Transaction

SECOND = timedelta(seconds=1)
RESTART_TIME = timedelta(minutes=1)  # a stop of the daemon that is no longer is no hint of a clock change

NOT_SUSPENDED = timedelta()

SinceStart = Callable[[Kind, str], timedelta | None]
"""The elapsed time since an entry's last slot was started; None if unknown."""


def follow_clock_change(tx: Transaction, by: timedelta, since_start: SinceStart, *, slept: timedelta = NOT_SUSPENDED) -> None:
    """Adjust everything to a clock that was changed by `by`. `slept` is for how long of it the machine was suspended."""
    clock_changes.record_clock_change(tx, by, slept=slept)
    recorded_times.move_beginnings(tx, by - slept)
    if by < timedelta():
        _follow_set_back(tx, -by, since_start)
    else:
        _skip_to_former_time(tx)
        planning.excuse_slots(tx, tx.now - by, tx.now)


def follow_clock_while_down(tx: Transaction, last_seen: datetime | None, believable: timedelta) -> None:
    """Adjust everything to a clock change while the daemon was down. `last_seen` is its last tick; None on the first start.

    A command may have added entries since then.
    """
    seen = max((instant for instant in (last_seen, entries.newest_first_seen_at(tx.db)) if instant is not None), default=None)
    if seen is None:
        return
    by = tx.now - seen
    if by <= -believable:
        follow_clock_change(tx, by, _no_start_known)
    elif by > RESTART_TIME:
        clock_changes.record_clock_change(tx, by, down=True)
        _skip_to_former_time(tx)


def _no_start_known(kind: Kind, name: str) -> timedelta | None:  # noqa: ARG001
    """No entry was started since the daemon started."""
    return None


def _skip_to_former_time(tx: Transaction) -> None:
    """A clock that was behind is right again. All slots before its former time have records already, so they are settled."""
    behind = clock_changes.latest_return(tx.db)
    if behind is None:
        return
    for entry_row in entries.all_entries(tx.db):
        if entry_row.settled_until < behind.undone_to:
            back = entry_row._replace(anchor=_anchor_before_change(tx, entry_row, behind), settled_until=behind.undone_to)
            planning.save_with_next_due(tx, entry_row, back)


def _anchor_before_change(tx: Transaction, entry_row: EntryRow, behind: ClockSetBack) -> datetime:
    """The anchor of an entry before it was moved because the clock was set back."""
    before = entries.latest_past_state(tx.db, entry_row.kind, entry_row.name)
    moved = before is not None and (before.state, before.schedule_text, before.until) == (
        entry_row.state,
        entry_row.schedule_text,
        behind.at,
    )
    return before.anchor if before is not None and moved else entry_row.anchor


def _follow_set_back(tx: Transaction, by: timedelta, since_start: SinceStart) -> None:
    meaning = clock_changes.latest_set_back(tx.db)
    assert meaning is not None
    recorded_times.limit_future_times(tx, never_was=bool(meaning.undone))
    for entry_row in entries.all_entries(tx.db):
        after = _restore_skipped_slots(tx, entry_row, meaning) if meaning.undone else entry_row
        after = (
            _move_fixed_schedule(tx, after, by, since_start)
            if entry_schedule.grid_period(entry_row.schedule_text)
            else _keep_local_schedule(tx, after)
        )
        seen = min(entry_row.first_seen_at, tx.now)
        planning.save_with_next_due(tx, entry_row, after._replace(first_seen_at=seen, expected_at=None, expected_before=None))


def _restore_skipped_slots(tx: Transaction, entry_row: EntryRow, meaning: ClockSetBack) -> EntryRow:
    """Delete skips of slots that have not come yet by the corrected clock, so that these slots can run."""
    if entry_row.schedule is entry_schedule.NO_SCHEDULE:
        return entry_row
    since = meaning.never_been - entry_row.schedule.offset
    first = slot_records.delete_future_skips(tx, entry_row, entry_row.schedule, since)
    return entry_row if first is None else entry_row._replace(settled_until=min(first, entry_row.settled_until))


def _keep_local_schedule(tx: Transaction, entry_row: EntryRow) -> EntryRow:
    """A cron schedule follows local time. Slots of a repeated time do not run again if the entry existed before."""
    if tx.now >= entry_row.first_seen_at:
        return entry_row
    return entry_row._replace(settled_until=min(entry_row.settled_until, tx.now - entry_row.schedule.offset))


def _move_fixed_schedule(tx: Transaction, entry_row: EntryRow, by: timedelta, since_start: SinceStart) -> EntryRow:
    """A fixed interval keeps its anchor if its next slot is still in time; otherwise the anchor moves with the clock."""
    back = timedelta() if _next_slot_is_in_time(tx, entry_row, since_start) else _whole_seconds(by)
    settled = min(entry_row.settled_until - back, tx.now - entry_row.schedule.offset)
    return entry_row._replace(anchor=entry_row.anchor - back, settled_until=settled)


def _next_slot_is_in_time(tx: Transaction, entry_row: EntryRow, since_start: SinceStart) -> bool:
    """Whether an entry with its present anchor runs within one interval of elapsed time, or only later because of its hours."""
    period, now = entry_schedule.grid_period(entry_row.schedule_text), tx.now - entry_row.schedule.offset
    if period is None or entry_row.anchor > now:
        return False
    following = entry_row.schedule.next(now)
    if entry_row.state != "active" or following is None or following - now > period:
        return True
    since = since_start(entry_row.kind, entry_row.name)
    return since is not None and since + (following - now) <= period + SECOND


def _whole_seconds(by: timedelta) -> timedelta:
    return -(-by // SECOND) * SECOND
