"""What becomes of an entry whose time has come: a claim to carry out, or rows that say why not."""

from __future__ import annotations

from datetime import datetime

from scheduler.engine import budget_reservations, claims, closing, planning
from scheduler.engine.tick import Tick
from scheduler.model import entry_schedule
from scheduler.model.entry import Claim, Entry
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import AttemptStarted
from scheduler.model.outcome import Trigger
from scheduler.model.timestamps import MILLISECOND
from scheduler.model.wake import Wake
from scheduler.store import breakers, clock_changes, entries, runs, wakes
from scheduler.store.runs import OpenRun
from scheduler.store.transaction import Transaction


def start_due(tick: Tick, entry: Entry, before: EntryRow) -> Claim | None:
    """Claim what is due of one entry; None, with the next look planned, when nothing is to run now."""
    return start_or_continue(tick, entry, before, runs.find_open_run(tick.tx.db, before.kind, before.name))


def start_or_continue(tick: Tick, entry: Entry, before: EntryRow, run: OpenRun | None) -> Claim | None:
    """The same for one whose open run, or that it has none, is known already."""
    return _start_new_run(tick, entry, before) if run is None else _start_next_attempt(tick, entry, before, run)


def _start_new_run(tick: Tick, entry: Entry, before: EntryRow) -> Claim | None:
    """Claim the slot that is to run now, else what a wake starts."""
    entry_row, slot = _slot_to_run(tick, entry, planning.end_pause_if_over(tick, before))
    claim = _claim_slot_or_wake(tick, entry, entry_row, slot)
    if claim is None:
        entries.change_entry(tick.tx, before, planning.plan_next_look(tick.tx, entry_row))
        return None
    last_slot = entry_row.last_slot if slot is None else slot
    entries.change_entry(tick.tx, before, planning.wait_until(entry_row._replace(last_slot=last_slot), None))
    return claim


def _slot_to_run(tick: Tick, entry: Entry, entry_row: EntryRow) -> tuple[EntryRow, datetime | None]:
    if entry_row.paused or entry_row.state != "active":
        return entry_row, None
    settled, slot = planning.slot_to_start(tick, entry, entry_row)
    # In a single round a new entry counts as due: its first slot was set by hand to when it was first seen.
    return settled, entry_row.slot if slot is None and entry_row.runs_when_first_seen else slot


def _claim_slot_or_wake(tick: Tick, entry: Entry, entry_row: EntryRow, slot: datetime | None) -> Claim | None:
    if slot is not None:
        return _claim_slot(tick, entry, entry_row, slot)
    waker = wakes.find_starting_wake(tick.tx, entry_row.kind, entry_row.name)
    return _claim_wake(tick, entry, entry_row, waker) if waker else None


def _claim_slot(tick: Tick, entry: Entry, entry_row: EntryRow, slot: datetime) -> Claim | None:
    """Open the row of a slot; wakes that arrive with it ride along. None when that slot has its row already."""
    trigger = entry_row.schedule.trigger
    opened = runs.open_run(tick.tx, entry_row, slot, trigger, entry.model)
    while (
        opened is None and entry_schedule.grid_period(entry_row.schedule_text) and clock_changes.was_shown_before(tick.tx, slot)
    ):
        slot += MILLISECOND  # the clock was set back: this is another slot, which has the same time
        opened = runs.open_run(tick.tx, entry_row, slot, trigger, entry.model)
    if opened is None:
        return None
    late = (tick.now - (slot + entry_row.schedule.offset)).total_seconds()
    return _report_start(tick.tx, claims.first_attempt(tick, entry, entry_row, opened, trigger, slot, None), late)


def _claim_wake(tick: Tick, entry: Entry, entry_row: EntryRow, waker: Wake) -> Claim:
    """A wake's slot is only the instant at which it starts: where two would share one, the later moves by a millisecond."""
    slot, trigger = tick.now, Trigger(waker.source)
    while (opened := runs.open_run(tick.tx, entry_row, slot, trigger, entry.model)) is None:
        slot += MILLISECOND
    return _report_start(tick.tx, claims.first_attempt(tick, entry, entry_row, opened, trigger, slot, waker), None)


def _start_next_attempt(tick: Tick, entry: Entry, entry_row: EntryRow, run: OpenRun) -> Claim | None:
    """Claim the next attempt of a run that waits for it, unless its time is over."""
    if run.state == "waiting" and not _may_try_again(tick.tx, entry, entry_row, run):
        closing.give_up_waiting(tick, entry, entry_row, run)
        return start_due(tick, entry, entries.get_entry(tick.tx, entry_row.kind, entry_row.name))
    if _budget_is_spent(tick, entry, run):
        closing.give_up_waiting(tick, entry, entry_row, run, spent=True)
        return start_due(tick, entry, entries.get_entry(tick.tx, entry_row.kind, entry_row.name))
    again = runs.claim_next_attempt(tick.tx, run, entry.model) if run.state == "waiting" else None
    entries.change_entry(tick.tx, entry_row, planning.wait_until(entry_row, None))
    if again is None:
        return None
    claim = claims.next_attempt(tick, entry, entry_row, again)
    return _report_start(tick.tx, claims.with_permissions(tick, claim, first=again.has_not_begun), None)


def _may_try_again(tx: Transaction, entry: Entry, entry_row: EntryRow, run: OpenRun) -> bool:
    """A run that has asked already ends as a failure, and not as a skip, when its provider has been shut off meanwhile."""
    shut_off = run.has_failed and breakers.has_open_breaker(tx, entry)
    return not shut_off and planning.still_in_time(tx, entry, entry_row, run.slot)


def _budget_is_spent(tick: Tick, entry: Entry, run: OpenRun) -> bool:
    """A run that has asked already ends as what it came to, and not as a skip, when its budget has no other attempt left."""
    return (
        run.state == "waiting"
        and not run.has_not_begun
        and budget_reservations.find_shortage(tick, entry, first=False) is not None
    )


def _report_start(tx: Transaction, claim: Claim, late: float | None) -> Claim:
    entry = claim.entry
    tx.report(AttemptStarted(claim.run_id, entry.kind, entry.name, claim.slot, claim.trigger, claim.attempt, late))
    return claim
