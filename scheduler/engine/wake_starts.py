"""Waking: what becomes of a wake when somebody asks for it, and of one that nobody could be told of in time."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter

from scheduler.engine import budget_reservations, incident_notices, planning
from scheduler.engine.inbox import Refused
from scheduler.engine.planning import NEAR_SLOT
from scheduler.engine.tick import Tick
from scheduler.model import entry_schedule
from scheduler.model.entry import Claim, Entry
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import FAILURES, AttemptResult, Failure, Kind, Reason, Skip, Trigger
from scheduler.model.wake import FLOOD, GAP, Wake
from scheduler.store import breakers, entries, outbox, runs, slot_records, wakes
from scheduler.store.transaction import Transaction

MAX_WAITING_WAKES = 1000  # wakes kept apart per agent
RESERVED_WAKES_PER_TOKEN = 10  # that each token may have even where others have taken all of them

TOO_MANY = "too_many_wakes"
LONG_OBSTACLES = (Skip.BUDGET, Skip.BREAKER_OPEN)

Start = tuple[datetime | None, str | None]


def request_run(tick: Tick, entry_row: EntryRow, wake: Wake, held_until: datetime | None = None) -> int:
    """Keep a wake, and settle when it starts a run; gives the id of the row that holds it.

    1. A program finds no room any more: Refused, and nothing is kept.
    2. The agent is paused, outside its hours or has a day off: the refusal has its row at once, and nothing is started.
    3. It starts a run now, or waits for the gap, for the end of a flood, or together with others that were refused.
    4. It is kept, or merged with the one that waits for the same sender.
    """
    if wake.kind is Kind.CRON:
        return wakes.keep_wake(tick.tx, entry_row, wake, tick.now)
    known = wakes.find_wake_of_sender(tick.tx, wake)
    if known is None and not _has_room_for_wake(tick.tx, wake):
        wakes.report_rejected_wake(tick.tx, wake, TOO_MANY)
        raise Refused(TOO_MANY, f"{MAX_WAITING_WAKES} wakes wait for agent {wake.name!r}; try again after its next run")
    if not wake.urgent:
        return wakes.keep_wake(tick.tx, entry_row, wake, None)
    entry = tick.plan.entries[entry_row.kind, entry_row.name]
    obstacle = _known_obstacle(tick.tx, entry_row, entry)
    if obstacle is not None:
        return _refuse_for_now(tick, entry_row, entry, wake, known, obstacle)
    due_at, waits_for = _start_time(tick, entry_row, entry, wake)
    return wakes.keep_wake(tick.tx, entry_row, wake, due_at, waits_for=waits_for, held_until=held_until)


def _has_room_for_wake(tx: Transaction, wake: Wake) -> bool:
    """Whether another row may wait. People and jobs always find room, for they have one row each.

    Where all is taken, a token that has few rows still gets its own: nobody is crowded out by another token.
    """
    if wake.source not in (Trigger.API, Trigger.WEBHOOK):
        return True
    taken = wakes.count_wakes_by_token(tx, wake.kind, wake.name)
    return sum(taken.values()) < MAX_WAITING_WAKES or taken.get(wake.token, 0) < RESERVED_WAKES_PER_TOKEN


def _known_obstacle(tx: Transaction, entry_row: EntryRow, entry: Entry) -> Skip | None:
    """What is known beforehand to stand in the way of a run now, in the order of the chain."""
    if entry_row.state != "active":
        return None  # its run is refused, and ends all that waits
    if entry_row.paused and (entry_row.pause_ends is None or entry_row.pause_ends > tx.now):
        return Skip.PAUSED
    if entry.is_day_off(tx.now):
        return Skip.CALENDAR
    return None if entry.is_open_at(tx.now) else Skip.ACTIVE_HOURS


def _refuse_for_now(tick: Tick, entry_row: EntryRow, entry: Entry, wake: Wake, known: Wake | None, obstacle: Skip) -> int:
    """A refusal has one row for each wake, however often its sender repeats it; the slots that passed before it have theirs."""
    row = None
    if known is None or known.waits_for != obstacle:
        if obstacle is not Skip.PAUSED:
            planning.replan_entry(tick.tx, entry_row, planning.record_passed_slots(tick, entry_row, Skip.MISSED))
            entry_row = entries.get_entry(tick.tx, entry_row.kind, entry_row.name)
        row = slot_records.record_skip(tick.tx, entry_row, Trigger(wake.source), obstacle, tick.now)
    others = wakes.find_wait_reason(tick.tx, entry_row.kind, entry_row.name, [obstacle])
    if obstacle is Skip.PAUSED:
        due_at = None
    elif others is not None and (others[1] is None or others[1] > tick.now):
        due_at = others[1]  # finding the next opening takes longer than all else, and a storm asks thousands of times
    else:
        due_at = start_when_open(tick, entry, entry_row)
    return wakes.keep_wake(tick.tx, entry_row, wake, due_at, waits_for=obstacle, refused_by=row)


def _start_time(tick: Tick, entry_row: EntryRow, entry: Entry, wake: Wake) -> Start:
    """When a wake may start a run (None: a slot tells it soon), and why not now.

    What a person asks for waits for the gap alone. A program waits for others that a budget or a provider has refused, as it
    would be too, and for the end of a flood.
    """
    key = (entry_row.kind, entry_row.name)
    gap = tick.limits.wake_gap
    start = tick.now if entry_row.last_woken_at is None else max(tick.now, entry_row.last_woken_at + gap)
    if wake.by_program:
        blocked = wakes.find_wait_reason(tick.tx, *key, LONG_OBSTACLES)
        until = refused_until(tick, entry) if blocked else None
        if blocked is not None and until is not None:
            return start_unless_slot(tick, entry_row, until), blocked[0]
        refused_at = runs.last_refused_program_start(tick.tx.db, *key, (tick.now - gap, tick.now))
        start = start if refused_at is None else max(start, refused_at + gap)
        flood = tick.limits.wake_flood
        began = runs.nth_last_program_start(tick.tx.db, *key, (tick.now - flood.within, tick.now), flood.count)
        if began is not None and began + flood.within > start:
            return began + flood.within, FLOOD
    return start, GAP if start > tick.now else None


def expire_wakes(tick: Tick) -> None:
    """End the wakes that have waited too long, and have those told of it who are told of an agent's failures."""
    expired = [wake for wake in wakes.expire_old_wakes(tick.tx, tick.limits.wake_keep) if wake.kind is Kind.HEARTBEAT]
    for name, together in groupby(sorted(expired, key=attrgetter("name")), key=attrgetter("name")):
        entry = tick.plan.entries.get((Kind.HEARTBEAT, name))
        if entry is not None and entry.on_failure.after:
            incident_notices.notify_expired_wakes(tick, entry, tuple(together))


# How a run ends that a provider did not want, be it in the midst of its attempts.
PROVIDER_REASONS = (Failure.AUTH, Failure.PAYMENT, Failure.NOT_FOUND, Reason.RATE_LIMITED, Skip.BREAKER_OPEN, Reason.NO_TIME_LEFT)

# What another config may do away with.
CONFIG_REASONS = (Skip.ACTIVE_HOURS, Skip.CALENDAR, Skip.BUDGET)

OPENING_PATIENCE = timedelta(minutes=10)  # which a wake waits for a slot once the agent's hours have begun

MAX_QUICK_RETRIES = 3  # after which the wakes of an agent with slots wait for the next one; without slots they go on


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
        return start_unless_slot(tick, entry_row, ends, timedelta() if has_failed else NEAR_SLOT)
    tries = 1 + max(wake.tries for wake in claim.wakes)
    if tries > MAX_QUICK_RETRIES and entry_row.schedule is not entry_schedule.NO_SCHEDULE:
        return None
    then = tick.now + outbox.retry_delay(tries)
    patience = timedelta() if has_failed else tick.limits.wake_keep
    return start_unless_slot(tick, entry_row, then if entry.is_open_at(then) else entry.opens_at(then), patience)


def start_when_open(tick: Tick, entry: Entry, entry_row: EntryRow) -> datetime | None:
    """When a wake starts a run that came outside the agent's hours, or on a day off; None: a slot tells it soon after."""
    return start_unless_slot(tick, entry_row, entry.opens_at(tick.now), OPENING_PATIENCE)


def start_unless_slot(tick: Tick, entry_row: EntryRow, then: datetime | None, patience: timedelta = NEAR_SLOT) -> datetime | None:
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
        tick.tx, (*PROVIDER_REASONS, *CONFIG_REASONS) if other_config else PROVIDER_REASONS
    ):
        entry = tick.plan.entries.get((entry_row.kind, entry_row.name))
        if entry is not None and not entry_row.paused and entry.is_open_at(tick.now):
            wakes.start_delayed_wakes_by(tick.tx, entry_row, refused_until(tick, entry) or tick.now, tick.limits.wake_gap)


def refused_until(tick: Tick, entry: Entry) -> datetime | None:
    """Until when a provider or a budget would refuse the next run too; None where neither would."""
    lacking = budget_reservations.find_shortage(tick, entry, first=True)
    ends = (breakers.next_probe_at(tick.tx, entry), lacking.ends_at if lacking else None)
    return max((end for end in ends if end is not None), default=None)


def hold_for_other_jobs(tick: Tick, agent: str) -> datetime | None:
    """Until when a job's wake of this agent waits for those of others; None when there are none to wait for."""
    return tick.now + tick.limits.wake_gap if _other_jobs_under_way(tick, agent) else None


def release_held_wakes(tick: Tick, entry: Entry) -> None:
    """A job has ended: the wakes of an agent for which it was the last to be waited for may start its beat."""
    for agent in entry.agents_to_wake:
        entry_row = entries.current_entry(tick.tx, Kind.HEARTBEAT, agent)
        if entry_row is not None and not _other_jobs_under_way(tick, agent):
            wakes.release_held_wakes(tick.tx, entry_row)


def _other_jobs_under_way(tick: Tick, agent: str) -> bool:
    """Whether a job that may wake the agent runs, waits for its next attempt, or is due."""
    return runs.any_open_or_due(tick.tx, Kind.CRON, tick.plan.wakers.get(agent, ()))
