"""New."""

from __future__ import annotations

import sqlite3
from datetime import datetime

from scheduler.model.entry_schedule import EntrySchedule
from scheduler.model.events import SkipsRevoked
from scheduler.model.outcome import AttemptResult, Outcome, Skip, Trigger
from scheduler.model.timestamps import MILLISECOND, from_millis, to_millis
from scheduler.store import clock_changes, runs
from scheduler.store.entries import EntryRow
from scheduler.store.transaction import Transaction


def record_skip(
    tx: Transaction, entry_row: EntryRow, trigger: Trigger, reason: Skip, first: datetime, count: int = 1
) -> int | None:
    """Write the row of `count` slots, from `first` on, that did not run, and why; gives its id.

    A slot that has a row already keeps it: nothing is counted twice, and None is given. For several slots, of which only the
    first has one, from a time that a clock which was set back shows again, the row moves by a millisecond.
    """
    row = _insert_skip(tx, entry_row, trigger, reason, first, count)
    while row is None and count > 1 and clock_changes.was_shown_before(tx, first):
        first += MILLISECOND
        row = _insert_skip(tx, entry_row, trigger, reason, first, count)
    if row is None:
        return None
    result = AttemptResult(Outcome.SKIPPED, reason)
    tx.report(runs.closed_event(tx, row["id"], entry_row.kind, entry_row.name, first, trigger, result, slots=count))
    return int(row["id"])


def _insert_skip(
    tx: Transaction, entry_row: EntryRow, trigger: Trigger, reason: Skip, first: datetime, count: int
) -> sqlite3.Row | None:
    row: sqlite3.Row | None = tx.db.execute(
        "insert into run (kind, name, slot, slots, trigger, state, outcome, reason, finished_at, config_hash)"
        " values (?, ?, ?, ?, ?, 'closed', 'skipped', ?, ?, ?) on conflict (kind, name, trigger, slot) do nothing returning id",
        (entry_row.kind, entry_row.name, to_millis(first), count, trigger, reason, to_millis(tx.now), tx.config_hash),
    ).fetchone()
    return row


def delete_future_skips(tx: Transaction, entry_row: EntryRow, schedule: EntrySchedule, since: datetime) -> datetime | None:
    """Remove what was written of skipped slots later than `since`, which are still to come; gives from when on they are.

    `pace` is what named them. What was claimed stays, however it ended: it has been tried. None: there was nothing to remove.
    """
    rows = tx.db.execute(
        "select id, slot, slots, reason from run where kind = :kind and name = :name and trigger = :trigger and state = 'closed'"
        " and outcome = 'skipped' and fence = 0 and (slot > :since or (slots > 1 and finished_at > :since)) order by slot",
        {"kind": entry_row.kind, "name": entry_row.name, "trigger": schedule.trigger, "since": to_millis(since)},
    ).fetchall()
    first = None
    for row in rows:
        kept = _count_passed_slots(schedule, row, since)
        if kept >= row["slots"]:
            continue
        if kept:
            tx.db.execute("update run set slots = ? where id = ?", (kept, row["id"]))
        else:
            tx.db.execute("delete from run where id = ?", (row["id"],))
        tx.report(SkipsRevoked(entry_row.kind, entry_row.name, row["reason"], row["slots"] - kept))
        first = first or max(from_millis(row["slot"]) - MILLISECOND, since)
    return first


def _count_passed_slots(schedule: EntrySchedule, row: sqlite3.Row, until: datetime) -> int:
    """How many of the slots that a row of skipped ones stands for have come by then."""
    after = from_millis(row["slot"]) - MILLISECOND
    if after >= until:
        return 0
    closed = {str(reason): slots.count for reason, slots in schedule.closed_slots(after, until)}
    may_run = schedule.slots(after, until)
    if row["reason"] == Skip.PAUSED:
        return sum(closed.values()) + (may_run.count if may_run else 0)
    if row["reason"] in (Skip.ACTIVE_HOURS, Skip.CALENDAR):
        return closed.get(row["reason"], 0)
    return may_run.count if may_run else 0


def recorded_stretches(
    tx: Transaction, entry_row: EntryRow, schedule: EntrySchedule, after: datetime, until: datetime
) -> list[tuple[datetime, datetime]]:
    """The stretches, each from its first to its last slot, that have rows in (after, until]; in order, and they may overlap."""
    rows = tx.db.execute(
        "select slot, slots, reason from run where kind = :kind and name = :name and trigger = :trigger"
        " and (slot > :after or (slots > 1 and finished_at > :after)) and slot <= :until order by slot",
        {
            "kind": entry_row.kind, "name": entry_row.name, "trigger": schedule.trigger,
            "after": to_millis(after), "until": to_millis(until),
        },
    ).fetchall()  # fmt: skip
    stretches = [(from_millis(row["slot"]), _last_slot_of(schedule, row, until)) for row in rows]
    return [(first, last) for first, last in stretches if last > after]


def _last_slot_of(schedule: EntrySchedule, row: sqlite3.Row, until: datetime) -> datetime:
    """The last of the slots that a row stands for, or `until` if that comes first."""
    first = from_millis(row["slot"])
    if row["slots"] == 1:
        return first
    if _count_passed_slots(schedule, row, until) <= row["slots"]:
        return until
    low, high = to_millis(first), to_millis(until)
    while low < high:  # the earliest time by which all of them have come
        middle = (low + high) // 2
        low, high = (
            (middle + 1, high) if _count_passed_slots(schedule, row, from_millis(middle)) < row["slots"] else (low, middle)
        )
    return from_millis(low)


def has_run_record(db: sqlite3.Connection, entry_row: EntryRow, slot: datetime) -> bool:
    """Whether a slot of the entry's own pace has its row."""
    key = (entry_row.kind, entry_row.name, entry_row.schedule.trigger, to_millis(slot))
    return db.execute("select 1 from run where kind = ? and name = ? and trigger = ? and slot = ?", key).fetchone() is not None
