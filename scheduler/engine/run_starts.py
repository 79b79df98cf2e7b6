"""Starts due entries: claims a slot or a wake for a new run, or the next attempt of an open run."""

from __future__ import annotations

from datetime import datetime

from scheduler.engine import budget_reservations, claims, planning, run_ends, startup
from scheduler.engine.tick import Tick
from scheduler.model import entry_schedule
from scheduler.model.entry import Claim, Entry, OpenRun
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import AttemptStarted
from scheduler.model.outcome import WOKEN, Trigger
from scheduler.model.timestamps import MILLISECOND
from scheduler.model.wake import Wake
from scheduler.store import breakers, clock_changes, entries, runs, wakes
from scheduler.store.transaction import Transaction
from scheduler.work.executor import Interrupted


def start_due(tick: Tick, entry: Entry, before: EntryRow) -> Claim | None:
    """Start what is due of one entry. None, with its next due time saved, if nothing is to run now."""
    return start_due_with_run(tick, entry, before, runs.find_open_run(tick.tx.db, before.kind, before.name))


def start_due_with_run(tick: Tick, entry: Entry, before: EntryRow, run: OpenRun | None) -> Claim | None:
    """Like `start_due`, if the entry's open run (None: it has none) is known already."""
    return _start_new_run(tick, entry, before) if run is None else _start_next_attempt(tick, entry, before, run)


def _start_new_run(tick: Tick, entry: Entry, before: EntryRow) -> Claim | None:
    """Start a new run of an entry without an open one.

    1. A pause that is over ends. Its slots get one record.
    2. All slots that have passed get their records, except the one to run now.
    3. The slot is claimed, or a wake that may start a run now. All waiting wakes are taken along.
    4. The budget is reserved, and the circuit breakers are checked.
    5. The entry row is saved with its next due time; with a claim, it is not due before the run ends.
    6. A run that may be a repetition after a failover of the database counts as interrupted, and is recovered like one.
    """
    entry_row, slot = _slot_to_run(tick, entry, planning.end_pause_if_over(tick, before))
    if slot is not None:
        claim = _claim_slot(tick, entry, entry_row, slot)
    else:
        waker = wakes.find_starting_wake(tick.tx, entry_row.kind, entry_row.name)
        claim = _claim_wake(tick, entry, entry_row, waker) if waker else None
    if claim is None:
        entries.change_entry(tick.tx, before, planning.with_next_due(tick.tx, entry_row))
        return None
    last_slot = entry_row.last_slot if slot is None else slot
    entries.change_entry(tick.tx, before, planning.due_while_run_is_open(entry_row._replace(last_slot=last_slot), None))
    return None if _recover_repetition(tick, claim, may_repeat=_may_be_repetition(tick, claim)) else claim


def _recover_repetition(tick: Tick, claim: Claim, *, may_repeat: bool) -> bool:
    if may_repeat:
        startup.recover_lost_attempt(tick, claim, Interrupted("the database lost its last commits", was_stopped=False))
    return may_repeat


def _may_be_repetition(tick: Tick, claim: Claim) -> bool:
    """Whether the run may have been carried out before a failover of the database that has lost its record."""
    lost = tick.lost_commits
    if lost is None:
        return False
    if claim.run.trigger in WOKEN:
        return any(wake.id <= lost.wakes_until for wake in claim.facts.wakes)
    return claim.run.slot <= lost.slots_until


def _waited_before(tick: Tick, run: OpenRun) -> bool:
    """Whether the attempt for which this run waits may have been made before such a failover. A crashed run says so anyway."""
    lost = tick.lost_commits
    was_due = lost is not None and run.not_before is not None and run.not_before <= lost.slots_until
    return was_due and run.owner != tick.tx.owner and not run.crashes


def _slot_to_run(tick: Tick, entry: Entry, entry_row: EntryRow) -> tuple[EntryRow, datetime | None]:
    if entry_row.paused or entry_row.state != "active":
        return entry_row, None
    settled, slot = planning.slot_to_start(tick, entry, entry_row)
    # `run --once`: a new entry counts as due. Its first slot was set to the time at which it was first seen.
    return settled, entry_row.slot if slot is None and entry_row.runs_when_first_seen else slot


def _claim_slot(tick: Tick, entry: Entry, entry_row: EntryRow, slot: datetime) -> Claim | None:
    """Claim a slot by inserting its run record. None if the slot has a record already."""
    trigger = entry_row.schedule.trigger
    opened = runs.open_run(tick.tx, entry_row, slot, trigger, entry.model)
    while (
        opened is None and entry_schedule.grid_period(entry_row.schedule_text) and clock_changes.was_shown_before(tick.tx, slot)
    ):
        slot += MILLISECOND  # the clock was set back: this is a different slot with the same time
        opened = runs.open_run(tick.tx, entry_row, slot, trigger, entry.model)
    if opened is None:
        return None
    late = (tick.now - (slot + entry_row.schedule.offset)).total_seconds()
    return _report_start(tick.tx, claims.first_attempt(tick, entry, entry_row, opened, trigger, slot, None), late)


def _claim_wake(tick: Tick, entry: Entry, entry_row: EntryRow, waker: Wake) -> Claim:
    """Claim a run for a wake. Its slot is the current time, moved by a millisecond if another run has this slot."""
    slot, trigger = tick.now, Trigger(waker.source)
    while (opened := runs.open_run(tick.tx, entry_row, slot, trigger, entry.model, waker.sender)) is None:
        slot += MILLISECOND
    return _report_start(tick.tx, claims.first_attempt(tick, entry, entry_row, opened, trigger, slot, waker), None)


def _start_next_attempt(tick: Tick, entry: Entry, entry_row: EntryRow, run: OpenRun) -> Claim | None:
    """Start the next attempt of an open run.

    1. A waiting run without time or budget for another attempt is closed, and the entry may start a new run.
    2. The attempt is claimed. A run in progress needs no claim.
    3. The budget is reserved, and the circuit breakers are checked.
    """
    if run.state == "waiting":
        has_time, is_spent = _may_try_again(tick.tx, entry, entry_row, run), _is_budget_spent(tick, entry, run)
        if not has_time or is_spent:
            run_ends.give_up_waiting(tick, entry, entry_row, run, spent=has_time)
            return start_due(tick, entry, entries.get_entry(tick.tx, entry_row.kind, entry_row.name))
    again = runs.claim_next_attempt(tick.tx, run, entry.model) if run.state == "waiting" else None
    entries.change_entry(tick.tx, entry_row, planning.due_while_run_is_open(entry_row, None))
    if again is None:
        return None
    claim = claims.next_attempt(tick, entry, entry_row, again)
    claim = _report_start(tick.tx, claims.with_permissions(tick, claim, first=again.has_not_begun), None)
    return None if _recover_repetition(tick, claim, may_repeat=_waited_before(tick, run)) else claim


def _may_try_again(tx: Transaction, entry: Entry, entry_row: EntryRow, run: OpenRun) -> bool:
    """Whether a waiting run is in time for another attempt. A run that failed is not tried again while its breaker is open."""
    is_blocked = run.has_failed and breakers.has_open_breaker(tx, entry)
    return not is_blocked and planning.may_still_run(tx, entry, entry_row, run.slot)


def _is_budget_spent(tick: Tick, entry: Entry, run: OpenRun) -> bool:
    """Whether the budget has no room for a retry. A run without any attempt is claimed and then skipped for its budget."""
    return not run.has_not_begun and budget_reservations.find_shortage(tick, entry, first=False) is not None


def _report_start(tx: Transaction, claim: Claim, late: float | None) -> Claim:
    entry = claim.entry
    tx.report(AttemptStarted(claim.run.id, entry.kind, entry.name, claim.run.slot, claim.run.trigger, claim.run.attempt, late))
    return claim
