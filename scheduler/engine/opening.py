"""What becomes of an entry whose time has come: a claim to carry out, or rows that say why not."""

from __future__ import annotations

from datetime import datetime

from scheduler.engine import budget_reservations, claims, closing, planning
from scheduler.engine.tick import Tick
from scheduler.model import schedule
from scheduler.model.entry import Claim, Entry
from scheduler.model.events import Started
from scheduler.model.outcome import Trigger
from scheduler.model.timestamps import MILLISECOND
from scheduler.model.wake import Wake
from scheduler.store import breakers, clock_changes, entries, wakes
from scheduler.store.entries import Open, Standing
from scheduler.store.transaction import Transaction


def start(tick: Tick, entry: Entry, before: Standing) -> Claim | None:
    """Claim what is due of one entry; None, with the next look planned, when nothing is to run now."""
    return go_on(tick, entry, before, entries.open_run(tick.tx.db, before.kind, before.name))


def go_on(tick: Tick, entry: Entry, before: Standing, run: Open | None) -> Claim | None:
    """The same for one whose open run, or that it has none, is known already."""
    return _start_anew(tick, entry, before) if run is None else _start_again(tick, entry, before, run)


def _start_anew(tick: Tick, entry: Entry, before: Standing) -> Claim | None:
    """Claim the slot that is to run now, else what a wake starts."""
    standing, slot = _slot_to_run(tick, entry, planning.resume_if_over(tick, before))
    claim = _claim(tick, entry, standing, slot)
    if claim is None:
        entries.save(tick.tx, before, planning.idle(tick.tx, standing))
        return None
    last_slot = standing.last_slot if slot is None else slot
    entries.save(tick.tx, before, planning.busy_until(standing._replace(last_slot=last_slot), None))
    return claim


def _slot_to_run(tick: Tick, entry: Entry, standing: Standing) -> tuple[Standing, datetime | None]:
    if standing.paused or standing.state != "active":
        return standing, None
    settled, slot = planning.latest_due(tick, entry, standing)
    # In a single round a new entry counts as due: its first slot was set by hand to when it was first seen.
    return settled, standing.slot if slot is None and standing.is_due_by_hand else slot


def _claim(tick: Tick, entry: Entry, standing: Standing, slot: datetime | None) -> Claim | None:
    if slot is not None:
        return _claim_slot(tick, entry, standing, slot)
    waker = wakes.starter(tick.tx, standing.kind, standing.name)
    return _claim_wake(tick, entry, standing, waker) if waker else None


def _claim_slot(tick: Tick, entry: Entry, standing: Standing, slot: datetime) -> Claim | None:
    """Open the row of a slot; wakes that arrive with it ride along. None when that slot has its row already."""
    trigger = standing.pace.trigger
    opened = entries.begin(tick.tx, standing, slot, trigger, entry.model)
    while opened is None and schedule.period(standing.pace_text) and clock_changes.is_relived(tick.tx, slot):
        slot += MILLISECOND  # the clock was set back: this is another slot, which has the same time
        opened = entries.begin(tick.tx, standing, slot, trigger, entry.model)
    if opened is None:
        return None
    late = (tick.now - (slot + standing.pace.offset)).total_seconds()
    return _tell(tick.tx, claims.first(tick, entry, standing, opened, trigger, slot, None), late)


def _claim_wake(tick: Tick, entry: Entry, standing: Standing, waker: Wake) -> Claim:
    """A wake's slot is only the instant at which it starts: where two would share one, the later moves by a millisecond."""
    slot, trigger = tick.now, Trigger(waker.source)
    while (opened := entries.begin(tick.tx, standing, slot, trigger, entry.model)) is None:
        slot += MILLISECOND
    return _tell(tick.tx, claims.first(tick, entry, standing, opened, trigger, slot, waker), None)


def _start_again(tick: Tick, entry: Entry, standing: Standing, run: Open) -> Claim | None:
    """Claim the next attempt of a run that waits for it, unless its time is over."""
    if run.state == "waiting" and not _may_go_on(tick.tx, entry, standing, run):
        closing.give_up(tick, entry, standing, run)
        return start(tick, entry, entries.get(tick.tx, standing.kind, standing.name))
    if _is_spent(tick, entry, run):
        closing.give_up(tick, entry, standing, run, spent=True)
        return start(tick, entry, entries.get(tick.tx, standing.kind, standing.name))
    again = entries.begin_again(tick.tx, run, entry.model) if run.state == "waiting" else None
    entries.save(tick.tx, standing, planning.busy_until(standing, None))
    if again is None:
        return None
    claim = claims.tried_again(tick, entry, standing, again)
    return _tell(tick.tx, claims.admitted(tick, claim, first=again.has_not_begun), None)


def _may_go_on(tx: Transaction, entry: Entry, standing: Standing, run: Open) -> bool:
    """A run that has asked already ends as a failure, and not as a skip, when its provider has been shut off meanwhile."""
    shut_off = run.has_failed and breakers.is_open(tx, entry)
    return not shut_off and planning.still_in_time(tx, entry, standing, run.slot)


def _is_spent(tick: Tick, entry: Entry, run: Open) -> bool:
    """A run that has asked already ends as what it came to, and not as a skip, when its budget has no other attempt left."""
    return run.state == "waiting" and not run.has_not_begun and budget_reservations.shortage(tick, entry, first=False) is not None


def _tell(tx: Transaction, claim: Claim, late: float | None) -> Claim:
    entry = claim.entry
    tx.report(Started(claim.run_id, entry.kind, entry.name, claim.slot, claim.trigger, claim.attempt, late))
    return claim
