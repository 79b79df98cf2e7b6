"""Makes the entry rows agree with a new plan: adds, changes, disables and removes entries."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

from heartbeat.slots import first_anchor
from scheduler.engine import budget_reservations, job_failures, notices, observed_problems, planning, settle, wake_starts
from scheduler.engine.tick_items import Tick
from scheduler.model import entry_schedule
from scheduler.model.config_changes import ConfigEvent
from scheduler.model.entry import Entry
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import SettingsApplied
from scheduler.model.outcome import Key, Kind, Skip, Trigger
from scheduler.model.timestamps import MILLISECOND
from scheduler.model.wake import Wake
from scheduler.store import boots, breakers, config_history, entries, outbox, problems, runs, slot_records
from scheduler.store.transaction import Transaction
from scheduler.system.log import log_event
from scheduler.work.plan import Plan


def adopt_plan(tick: Tick, plan: Plan, event: ConfigEvent | None = None) -> None:
    """Apply a new, valid plan, and make the entry rows agree with it. `event` is the record of the reload."""
    before = tick.plan
    tick.adopt_plan(plan)
    tick.refusing.clear()
    follow_plan(tick, before.entries, event)
    boots.record_config(tick.tx)
    observed_problems.note_daemon(tick, observed_problems.CONFIG, None)
    tick.tx.report(SettingsApplied(plan.settings))


def follow_plan(tick: Tick, before: Mapping[Key, Entry], event: ConfigEvent | None, *, at_once: bool = False) -> None:
    """Record the plan of the tick, make the entry rows agree with it, and reconsider all that waits.

    `event` is the record of what has changed. The other arguments are those of `sync_entries`.
    """
    if tick.plan.stored_config:
        config_history.record_config_in_force(tick.tx, tick.plan.stored_config)
    if event:
        config_history.record_config_event(tick.tx, event)
    budget_reservations.record_budgets(tick.tx, tick.plan.settings)
    breakers.allow_probes_now(tick.tx)  # a new key may be the reason for the reload or the restart
    sync_entries(tick, before, at_once=at_once)
    wake_starts.retry_blocked_runs_and_wakes(tick, other_config=True)
    outbox.reconsider_hours(tick.tx)


def sync_entries(tick: Tick, before: Mapping[Key, Entry], *, at_once: bool = False) -> None:
    """Make the entry rows agree with the plan. Entries with an unchanged schedule are neither read nor written.

    `before` are the entries of the previous plan, so that a removed entry can still send its last message. `at_once` makes new
    entries due now instead of at their first slot.
    """
    problems.delete_problems_of_unused_channels(tick.tx, tick.plan.settings.channels)
    breakers.close_unused_breakers(tick.tx, tick.plan.entries.values())
    known = entries.states_and_schedules(tick.tx.db)
    add_entries(tick, [entry for key, entry in tick.plan.entries.items() if key not in known], at_once=at_once)
    for key, entry in tick.plan.entries.items():
        if key in known and known[key] != (_planned_state(entry), entry.schedule_text):
            _follow_change(tick, entry, entries.get_entry(tick.tx, *key))
            _note_one_time_job(tick.tx, entry)
    for key in known.keys() - tick.plan.entries.keys():
        if known[key][0] != "removed":
            _retire_entry(tick, before.get(key), entries.get_entry(tick.tx, *key), "removed", Skip.REMOVED)
    problems.delete_problems_of_unused_circuits(tick.tx, tick.plan.entries.values())


def _planned_state(entry: Entry) -> Literal["active", "disabled"]:
    return "active" if entry.enabled else "disabled"


def find_new_entries(db: sqlite3.Connection, plan: Plan) -> list[Entry]:
    """The entries of a plan that have no row."""
    known = entries.states_and_schedules(db)
    return [entry for key, entry in plan.entries.items() if key not in known]


def add_entries(tick: Tick, new: Sequence[Entry], *, at_once: bool) -> None:
    """Add new entries. A fixed interval starts when the entry is first seen, plus its stagger, on a whole second."""
    entries.add_entries(tick.tx, [_row_of_new_entry(tick, entry, at_once=at_once) for entry in new])
    for entry in (each for each in new if each.kind is Kind.CRON):
        _note_one_time_job(tick.tx, entry)
        if _starts_now(entry, at_once=at_once):
            wake = Wake(entry.name, source=Trigger.MANUAL, sender="once", kind=Kind.CRON)
            wake_starts.accept_wake(tick, entries.get_entry(tick.tx, *entry.key), wake)


def _starts_now(entry: Entry, *, at_once: bool) -> bool:
    """A job after another one starts when that has ended."""
    is_first = entry.after is None and entry_schedule.single_slot(entry.schedule_text) is None
    return at_once and entry.enabled and is_first


def _row_of_new_entry(tick: Tick, entry: Entry, *, at_once: bool) -> EntryRow:
    """The row of a new entry, which has no ID yet."""
    row = planned_row(entry, None, tick.now)
    runs_now = _starts_now(entry, at_once=at_once) and entry.kind is Kind.HEARTBEAT
    if runs_now and entry.is_open_at(tick.now):
        # This run replaces the first slot, because each run costs money. Outside the active hours the slot stays.
        interval = entry_schedule.schedule_parts(entry.schedule_text).get("interval", 0)
        row = row._replace(anchor=row.anchor + timedelta(seconds=interval))
    return row._replace(slot=tick.now, due_at=tick.now) if runs_now else planning.with_next_due(tick.tx, row)


def _note_one_time_job(tx: Transaction, entry: Entry) -> None:
    """Remember a one-time job. If its time has passed already, it is recorded as missed."""
    moment = entry_schedule.single_slot(entry.schedule_text) if entry.enabled else None
    if moment is None or not entries.record_one_time_job(tx, entry.name, entry.schedule_text):
        return
    entry_row = entries.get_entry(tx, *entry.key)
    if moment <= entry_row.settled_until:
        slot_records.record_skip(tx, entry_row, Trigger.AT, Skip.MISSED, moment)


def _follow_change(tick: Tick, entry: Entry, entry_row: EntryRow) -> None:
    if not entry.enabled:
        _retire_entry(tick, entry, entry_row, "disabled", Skip.DISABLED)
    elif entry_row.state != "active":
        # It keeps its anchor and history. Slots between are not recorded.
        planning.save_with_next_due(tick.tx, entry_row, planned_row(entry, entry_row, tick.now))
    else:
        _change_schedule(tick, entry, entry_row)


def _change_schedule(tick: Tick, entry: Entry, entry_row: EntryRow) -> None:
    """Change the schedule of an entry. Slots that passed under the old one are recorded first."""
    if _have_same_slots(entry_row.schedule_text, entry.schedule_text):
        after = planned_row(entry, entry_row, tick.now)
    else:
        recorded = _record_old_slots(tick, entry_row)
        after = planned_row(entry, recorded, tick.now)._replace(expected_at=None, expected_before=None)
    wake_starts.start_wakes_without_slot(tick, entry, entry_row, after)
    planning.save_with_next_due(tick.tx, entry_row, after)


def _record_old_slots(tick: Tick, entry_row: EntryRow) -> EntryRow:
    """Record the slots that passed under the old schedule, unless this version cannot read it any more."""
    try:
        return planning.record_passed_slots(tick, entry_row, Skip.MISSED)
    except ValueError as error:
        log_event(logging.ERROR, "old_pace_unreadable", kind=entry_row.kind, name=entry_row.name, problem=str(error))
        return entry_row


def _have_same_slots(old: str, new: str) -> bool:
    """Whether two schedules differ only in the offset between a slot and its start."""
    return entry_schedule.schedule_parts(old) | {"offset": 0} == entry_schedule.schedule_parts(new) | {"offset": 0}


def _retire_entry(
    tick: Tick, entry: Entry | None, entry_row: EntryRow, state: Literal["disabled", "removed"], reason: Skip
) -> None:
    """Disable or remove an entry. Due slots are recorded, a waiting run is closed, a run in progress may end.

    The end of that run forgets the problems of the entry. Until then they are known, and the run sends none of them again.
    """
    if entry_row.state == state:
        return
    retired = planning.record_passed_slots(tick, entry_row, reason)
    retired = retired._replace(state=state, **planning.NO_PAUSE)
    planning.save_with_next_due(tick.tx, entry_row, retired)
    run = runs.find_open_run(tick.tx.db, *entry_row.key)
    if run is not None and run.state == "waiting":
        settle.give_up_waiting(tick, entry, retired, run)
    wake_starts.end_wakes_of_entry(tick, retired)
    if run is None or run.state == "waiting":
        notices.forget_problems(tick, retired)
    if entry_row.kind is Kind.CRON:
        job_failures.forget_job(tick.tx, entry_row.name)
    current = entries.get_entry(tick.tx, *entry_row.key)
    planning.save_with_next_due(tick.tx, current, current)


def planned_row(entry: Entry, entry_row: EntryRow | None, now: datetime) -> EntryRow:
    """The row of an entry if the plan were adopted now, its present one if nothing changes. Without one, no slot is set yet."""
    state, schedule = _planned_state(entry), entry.schedule_text
    if entry_row is None:
        anchor, settled = _anchor_of_new_entry(now, schedule), _settled_at(now, schedule) - MILLISECOND
        return EntryRow(0, *entry.key, state, schedule, now, anchor, settled, slot=None, due_at=None)
    if (entry_row.state, entry_row.schedule_text) == (state, schedule):
        return entry_row
    changed = entry_row._replace(state=state, schedule_text=schedule, anchor=_anchor_of_new_schedule(entry, entry_row, now))
    if entry_row.state == state and _have_same_slots(entry_row.schedule_text, schedule):
        return changed
    settled = entry_row.settled_until
    if entry_row.state == "active":  # the slots that passed under the old schedule are recorded, or will be
        settled = max(settled, _settled_at(now, entry_row.schedule_text))
    # What the old schedule settled in the future does not count.
    return changed._replace(settled_until=max(_settled_at(now, schedule), min(settled, now)))


def _anchor_of_new_entry(first_seen: datetime, schedule_text: str) -> datetime:
    return first_anchor(first_seen, timedelta(seconds=entry_schedule.schedule_parts(schedule_text).get("stagger", 0)))


def _anchor_of_new_schedule(entry: Entry, entry_row: EntryRow, now: datetime) -> datetime:
    """The anchor under a new schedule. A changed interval counts from the last slot that ran.

    A last slot in the future ran before the clock was set back, and does not count.
    """
    old, new = entry_schedule.schedule_parts(entry_row.schedule_text), entry_schedule.schedule_parts(entry.schedule_text)
    if any(old.get(key) != new.get(key) for key in ("interval", "every")):
        last = entry_row.last_slot
        return last if last is not None and last <= now else _anchor_of_new_entry(entry_row.first_seen_at, entry.schedule_text)
    return entry_row.anchor + timedelta(seconds=new.get("stagger", 0) - old.get("stagger", 0))


def _settled_at(now: datetime, schedule_text: str) -> datetime:
    """The latest slot time that counts as past at `now`. A slot comes due later than its time, by its offset (stagger)."""
    return now - timedelta(seconds=entry_schedule.schedule_parts(schedule_text).get("offset", 0))
