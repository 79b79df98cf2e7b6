"""Records skipped slots, and finds which slots of an entry have a run record."""

from __future__ import annotations

import sqlite3
from datetime import datetime

from scheduler.model.entry_row import EntryRow
from scheduler.model.entry_schedule import EntrySchedule
from scheduler.model.events import RunClosed, SkipsRevoked
from scheduler.model.outcome import LOST_SKIPS, SCHEDULE_SKIPS, AttemptResult, Outcome, Skip, Trigger
from scheduler.model.timestamps import MILLISECOND, from_millis, to_millis
from scheduler.store import clock_changes
from scheduler.store.rows import insert_new
from scheduler.store.transaction import Transaction

UNLESS_RECORDED = "on conflict (kind, name, trigger, slot) do nothing"  # each slot has one record


def record_skip(
    tx: Transaction,
    entry_row: EntryRow,
    trigger: Trigger,
    reason: Skip,
    first: datetime,
    count: int = 1,
    detail: str | None = None,
) -> int | None:
    """Insert the record of `count` slots, from `first` on, that were skipped, and why; returns its id.

    `detail` says more about the reason, for example who paused the entry.

    A slot that has a record keeps it: None is returned and nothing is counted twice. If several slots are skipped, only the first
    has a record, and the clock was set back since, then the new record is moved by a millisecond.
    """
    run_id = _insert_skip(tx, entry_row, trigger, reason, first, count, detail)
    while run_id is None and count > 1 and clock_changes.was_shown_before(tx, first):
        first += MILLISECOND
        run_id = _insert_skip(tx, entry_row, trigger, reason, first, count, detail)
    if run_id is None:
        return None
    if reason in LOST_SKIPS:
        lost = count - (_count_suspended(tx, entry_row, first, count) if reason is Skip.MISSED else 0)
        tx.db.count_slots(entry_row.id, bad=lost)
    result = AttemptResult(Outcome.SKIPPED, reason, error=detail)
    tx.report(RunClosed(run_id, *entry_row.key, first, trigger, result, tx.now, slots=count))
    return run_id


def _insert_skip(
    tx: Transaction, entry_row: EntryRow, trigger: Trigger, reason: Skip, first: datetime, count: int, detail: str | None
) -> int | None:
    record = {
        "kind": entry_row.kind, "name": entry_row.name, "slot": first, "slots": count, "trigger": trigger, "state": "closed",
        "outcome": Outcome.SKIPPED, "reason": reason, "error": detail, "finished_at": tx.now, "config_hash": tx.config_hash,
    }  # fmt: skip
    return insert_new(tx.db, "run", record, UNLESS_RECORDED)


def _count_suspended(tx: Transaction, entry_row: EntryRow, first: datetime, count: int) -> int:
    """How many of `count` slots, from `first` on, came due while the machine was suspended, or the clock jumped over them.

    Nobody expected these slots to run, so they use up no error budget.
    """
    schedule, found = entry_row.schedule, 0
    for change in clock_changes.clock_changes_between(tx.db, first, tx.now + MILLISECOND):
        began, ended = change.at - change.by - schedule.offset, change.at - schedule.offset
        if began < ended:
            earlier = schedule.slots(first - MILLISECOND, max(began, first - MILLISECOND))
            inside = schedule.slots(max(began, first - MILLISECOND), ended)
            left = count - (earlier.count if earlier else 0)
            found += max(0, min(left, inside.count if inside else 0))
    return found


def delete_future_skips(tx: Transaction, entry_row: EntryRow, schedule: EntrySchedule, since: datetime) -> datetime | None:
    """Delete what was recorded of skipped slots later than `since`; returns the first of these slots, None if there was nothing.

    The slots are those of `schedule`. Runs that were claimed stay, whatever their outcome: they have been tried.
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
        tx.report(SkipsRevoked(*entry_row.key, row["reason"], row["slots"] - kept))
        first = first or max(from_millis(row["slot"]) - MILLISECOND, since)
    return first


def _count_passed_slots(schedule: EntrySchedule, row: sqlite3.Row, until: datetime) -> int:
    """How many of the slots of a skip record have come by then."""
    after = from_millis(row["slot"]) - MILLISECOND
    if after >= until:
        return 0
    closed = {str(reason): slots.count for reason, slots in schedule.closed_slots(after, until)}
    may_run = schedule.slots(after, until)
    if row["reason"] == Skip.PAUSED:
        return sum(closed.values()) + (may_run.count if may_run else 0)
    if row["reason"] in SCHEDULE_SKIPS:
        return closed.get(row["reason"], 0)
    return may_run.count if may_run else 0


def recorded_stretches(
    tx: Transaction, entry_row: EntryRow, schedule: EntrySchedule, after: datetime, until: datetime
) -> list[tuple[datetime, datetime]]:
    """The stretches of slots that have records in (after, until], each from its first to its last slot, in order.

    They may overlap.
    """
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
    """The last slot of a record, or `until` if that comes first."""
    first = from_millis(row["slot"])
    if row["slots"] == 1:
        return first
    if _count_passed_slots(schedule, row, until) <= row["slots"]:
        return until
    low, high = to_millis(first), to_millis(until)
    while low < high:  # the earliest time by which all slots have come
        middle = (low + high) // 2
        low, high = (
            (middle + 1, high) if _count_passed_slots(schedule, row, from_millis(middle)) < row["slots"] else (low, middle)
        )
    return from_millis(low)
