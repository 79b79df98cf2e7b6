"""Again: when a wake starts a run that could not be told at first, because its run failed or something stood in the way."""

from __future__ import annotations

from datetime import datetime, timedelta

from scheduler.engine import budget_reservations, planning
from scheduler.engine.planning import SOON
from scheduler.engine.tick import Tick
from scheduler.model import entry_schedule
from scheduler.model.entry import Claim, Entry
from scheduler.model.outcome import FAILURES, AttemptResult, Failure, Reason, Skip
from scheduler.store import breakers, entries, outbox, runs, wakes
from scheduler.store.entries import EntryRow

# How a run ends that a provider did not want, be it in the midst of its attempts.
AFTER_PROVIDERS = (Failure.AUTH, Failure.PAYMENT, Failure.NOT_FOUND, Reason.RATE_LIMITED, Skip.BREAKER_OPEN, Reason.NO_TIME_LEFT)

# What another config may do away with.
BY_CONFIG = (Skip.ACTIVE_HOURS, Skip.CALENDAR, Skip.BUDGET)

A_MOMENT = timedelta(minutes=10)  # which a wake waits for a slot once the agent's hours have begun

TRIES = 3  # after which the wakes of an agent with slots wait for the next one; without slots they go on


def retry_time(tick: Tick, entry_row: EntryRow, claim: Claim, result: AttemptResult) -> datetime | None:
    """When the wakes of a run that did not tell them start another one; None: they wait for the next slot, or another wake.

    That is when what stood in the way is over, so far as that is known, else after 1, 5 and 30 minutes. A failure is not left to
    a slot that comes later than that; a refusal of which no end is known is, if the wakes do not expire before. `standing` is
    how the entry stands after that run. What a person has ended is not begun again, and the end of a pause reminds of what came
    during it.
    """
    entry = claim.entry
    if entry_row.paused or result.reason is Reason.CANCELLED:
        return None
    if not entry.is_open_at(tick.now):
        return start_when_open(tick, entry, entry_row)
    has_failed = result.outcome in FAILURES
    ends = refused_until(tick, entry)
    if ends is not None:
        return start_unless_slot(tick, entry_row, ends, timedelta() if has_failed else SOON)
    tries = 1 + max(wake.tries for wake in claim.wakes)
    if tries > TRIES and entry_row.schedule is not entry_schedule.NO_SCHEDULE:
        return None
    then = tick.now + outbox.retry_delay(tries)
    patience = timedelta() if has_failed else tick.limits.wake_keep
    return start_unless_slot(tick, entry_row, then if entry.is_open_at(then) else entry.opens_at(then), patience)


def start_when_open(tick: Tick, entry: Entry, entry_row: EntryRow) -> datetime | None:
    """When a wake starts a run that came outside the agent's hours, or on a day off; None: a slot tells it soon after."""
    return start_unless_slot(tick, entry_row, entry.opens_at(tick.now), A_MOMENT)


def start_unless_slot(tick: Tick, entry_row: EntryRow, then: datetime | None, patience: timedelta = SOON) -> datetime | None:
    """A time at which wakes could start a run; None where a slot comes by then, or within the patience after it."""
    return None if then is None or planning.slot_comes_by(tick, entry_row, then + patience) else then


def reconsider_waiting(tick: Tick, *, other_config: bool = False) -> None:
    """What waits for a provider waits no longer than its trial is away now, which may be sooner than when it was refused.

    `other_config`: what waits for an opening or a budget may find others now.
    """
    for kind, name, run in runs.all_open_runs(tick.tx.db):
        if run.reason == Skip.BREAKER_OPEN:
            planning.retry_waiting_run(tick.tx, entries.get_entry(tick.tx, kind, name), Skip.BREAKER_OPEN)
    for entry_row in wakes.entries_with_delayed_wakes(
        tick.tx, (*AFTER_PROVIDERS, *BY_CONFIG) if other_config else AFTER_PROVIDERS
    ):
        entry = tick.plan.entries.get((entry_row.kind, entry_row.name))
        if entry is not None and not entry_row.paused and entry.is_open_at(tick.now):
            wakes.start_delayed_wakes_by(tick.tx, entry_row, refused_until(tick, entry) or tick.now, tick.limits.wake_gap)


def refused_until(tick: Tick, entry: Entry) -> datetime | None:
    """Until when a provider or a budget would refuse the next run too; None where neither would."""
    lacking = budget_reservations.find_shortage(tick, entry, first=True)
    ends = (breakers.next_probe_at(tick.tx, entry), lacking.ends if lacking else None)
    return max((end for end in ends if end is not None), default=None)
