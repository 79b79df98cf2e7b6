"""Slots: which have passed, what becomes of each, and when an entry is looked at next."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice

from heartbeat.schedule_slots import AnySlotRange
from scheduler.engine.tick import Tick
from scheduler.model import schedule, trigger_times
from scheduler.model.entry import Entry
from scheduler.model.events import Unstarted
from scheduler.model.outcome import Kind, Skip
from scheduler.model.timestamps import MILLISECOND
from scheduler.store import clock_changes, entries, runs, wakes
from scheduler.store.entries import Open, Standing
from scheduler.store.transaction import Transaction

MEASURED = 100  # slots of a row whose lateness is measured: no entry waits for a place as long as that
NEXT_LOOK = timedelta(seconds=30)
A_DAY = timedelta(days=1)
SOON = timedelta(hours=1)  # a slot that comes within it tells what has been refused; for one that is further off nobody waits
IN_TIME = timedelta(minutes=1)


def account(tick: Tick, standing: Standing, until: datetime, reason: Skip) -> Standing:
    """Give every slot that came due up to `until` its row: by its calendars or hours where they close it, else `reason`."""
    pace = standing.pace
    horizon = until - pace.offset
    for after, before in _without_rows(tick.tx, standing, horizon):
        _write_closed(tick, standing, after, before)
        _write(tick, standing, reason, pace.slots(after, before))
    return _settled(standing, horizon)


def account_pause(tx: Transaction, standing: Standing, until: datetime) -> Standing:
    """Give all slots of a pause one row, whatever else would have kept them from running."""
    pace = standing.pace
    horizon = until - pace.offset
    for after, before in _without_rows(tx, standing, horizon):
        closed = [slots for _, slots in pace.closed(after, before)]
        parts = [part for part in (*closed, pace.slots(after, before)) if part]
        if parts:
            first = min(part.first for part in parts)
            runs.skip(tx, standing, pace.trigger, Skip.PAUSED, first, sum(part.count for part in parts))
    return _settled(standing, horizon)


def latest_due(tick: Tick, entry: Entry, standing: Standing) -> tuple[Standing, datetime | None]:
    """The slot that is to run now, if one is; every other slot that has passed gets its row.

    Only the latest can run: with its next slot still to come, its window open, and no older than the grace.
    """
    standing = _account_backoff(tick, standing)
    pace = standing.pace
    horizon = tick.now - pace.offset
    *earlier, (after, before) = _without_rows(tick.tx, standing, horizon)
    for begin, end in earlier:
        _write_closed(tick, standing, begin, end)
        _write(tick, standing, Skip.MISSED, pace.slots(begin, end))
    _write_closed(tick, standing, after, before)
    passed = pace.slots(after, before)
    slot = _runnable(tick, entry, standing, passed) if passed else _beat_again(tick.tx, standing, horizon)
    return _settled(standing, horizon), slot


def _without_rows(tx: Transaction, standing: Standing, horizon: datetime) -> list[tuple[datetime, datetime]]:
    """The stretches of (settled, horizon] whose slots have no rows yet: all of it, unless the clock shows it once more."""
    after = standing.settled_until
    if not clock_changes.is_relived(tx, after):
        return [(after, horizon)]
    stretches = []
    for first, last in runs.accounted(tx, standing, standing.pace, after, horizon):
        if after < first - MILLISECOND:
            stretches.append((after, first - MILLISECOND))
        after = max(after, last)
    return [*stretches, (after, max(after, horizon))]


def _beat_again(tx: Transaction, standing: Standing, horizon: datetime) -> datetime | None:
    """The slot of a grid of elapsed time that comes due now for the second time, because the clock was set back over it.

    One that was only jumped over is not run again.
    """
    if not schedule.period(standing.pace_text) or not clock_changes.is_relived(tx, standing.settled_until):
        return None
    passed = standing.pace.slots(max(standing.settled_until, horizon - IN_TIME), horizon)
    return passed.latest if passed else None


def _account_backoff(tick: Tick, standing: Standing) -> Standing:
    """After a failure the longer interval counts: the slots of the grid that it passes over are superseded by it."""
    held = standing.backs_off_until
    if held is None or held <= standing.settled_until:
        return standing
    return account(tick, standing, min(tick.now, held - MILLISECOND), Skip.SUPERSEDED)


def _runnable(tick: Tick, entry: Entry, standing: Standing, passed: AnySlotRange) -> datetime | None:
    """The latest of these slots if it may run; the others, and it too if it may not, get their rows."""
    pace = standing.pace
    if not _may_start_late(tick, entry, passed.latest + pace.offset):
        _write(tick, standing, Skip.MISSED, passed)
        return None
    if passed.count > 1:
        _tell_unstarted(tick, standing, passed.first, passed.count - 1)
        runs.skip(tick.tx, standing, pace.trigger, Skip.MISSED, passed.first, passed.count - 1)
    if _just_woken(tick, standing, passed.latest):
        runs.skip(tick.tx, standing, pace.trigger, Skip.SUPERSEDED, passed.latest)
        return None
    return passed.latest


def _may_start_late(tick: Tick, entry: Entry, due_at: datetime) -> bool:
    """Within its grace; the time for which all places were taken does not count."""
    waits_since = tick.now if tick.full_since is None else tick.full_since
    if waits_since - due_at > entry.grace or not entry.open_at(tick.now):
        return False
    return entry.catch_up or due_at >= tick.awake_since


def _just_woken(tick: Tick, standing: Standing, slot: datetime) -> bool:
    """A run that a wake started has just said what this slot would say."""
    if standing.kind is not Kind.HEARTBEAT or standing.last_woken_at is None:
        return False
    return slot < standing.last_woken_at + tick.limits.wake_gap


def _write_closed(tick: Tick, standing: Standing, after: datetime, until: datetime) -> None:
    for reason, slots in standing.pace.closed(after, until):
        _write(tick, standing, reason, slots)


def _write(tick: Tick, standing: Standing, reason: Skip, slots: AnySlotRange | None) -> None:
    if slots is None:
        return
    if reason is Skip.MISSED:
        _tell_unstarted(tick, standing, slots.first, slots.count)
    runs.skip(tick.tx, standing, standing.pace.trigger, reason, slots.first, slots.count)


def _tell_unstarted(tick: Tick, standing: Standing, first: datetime, count: int) -> None:
    """Tell how late slots are that came due while the daemon was there, and could not start."""
    offset = standing.pace.offset
    if first + offset < tick.awake_since:
        return
    missed = islice(trigger_times.slots(standing.pace, first - trigger_times.TICK, tick.now - offset), min(count, MEASURED))
    late = tuple((tick.now - slot - offset).total_seconds() for slot in missed)
    tick.tx.report(Unstarted(standing.kind, standing.name, late))


def _settled(standing: Standing, horizon: datetime) -> Standing:
    return standing._replace(settled_until=max(horizon, standing.settled_until))


def due_after(standing: Standing, slot: datetime) -> datetime | None:
    """When the first slot after both `slot` and everything accounted for comes due."""
    pace = standing.pace
    following = pace.next(max(slot, standing.settled_until))
    return following and following + pace.offset


def busy_until(standing: Standing, due_at: datetime | None) -> Standing:
    """An entry whose run is open: it is looked at when the next attempt may start, or (None) not before the run ends."""
    return standing._replace(slot=_next_slot(standing), due_at=due_at)


def idle(tx: Transaction, standing: Standing) -> Standing:
    """An entry without an open run is looked at next at its slot, a waiting wake's time or the end of its pause."""
    slot = _next_slot(standing)
    slot_due_at = slot and slot + standing.pace.offset
    wishes = (slot_due_at, standing.pause_ends, wakes.next_start(tx, standing.kind, standing.name))
    return standing._replace(slot=slot, due_at=min((wish for wish in wishes if wish is not None), default=None))


def replan(tx: Transaction, before: Standing, after: Standing) -> None:
    """Write what has become of an entry, with its next look, whether or not a run of it is open."""
    run = entries.open_run(tx.db, after.kind, after.name)
    entries.save(tx, before, busy_until(after, run.not_before) if run else idle(tx, after))


def _next_slot(standing: Standing) -> datetime | None:
    if standing.paused or standing.state != "active":
        return None
    after, held = standing.settled_until, standing.backs_off_until
    return standing.pace.next(max(after, held - MILLISECOND) if held else after)


def resume(tick: Tick, standing: Standing, at: datetime) -> Standing:
    """End a pause: its slots get their one row, and the entry goes on."""
    if standing.state == "active":
        standing = account_pause(tick.tx, standing, at)
    resumed = standing._replace(paused_until=None)
    if not slot_comes_by(tick, resumed, tick.now + SOON):
        wakes.remind(tick.tx, standing.kind, standing.name, refused_only=standing.pace is not schedule.NEVER)
    return resumed


def slot_comes_by(tick: Tick, standing: Standing, by: datetime) -> bool:
    """Whether a slot will start a run by then. One so close to a woken run that it is superseded does not."""
    after = max(standing.settled_until, tick.now + tick.limits.wake_gap - MILLISECOND)
    held = standing.backs_off_until
    slot = standing.pace.next(max(after, held - MILLISECOND) if held else after)
    return slot is not None and slot + standing.pace.offset <= by


def resume_if_over(tick: Tick, standing: Standing) -> Standing:
    """End a pause whose time is over."""
    if standing.pause_ends is None or standing.pause_ends > tick.now:
        return standing
    return resume(tick, standing, standing.pause_ends)


def book_passed(tick: Tick, standing: Standing, reason: Skip) -> Standing:
    """Give what has come due its rows before something changes for the entry: by its pause, its open run, or else `reason`."""
    if standing.state != "active":
        return standing
    if standing.paused:
        return account_pause(tick.tx, standing, tick.now)
    run = entries.open_run(tick.tx.db, standing.kind, standing.name)
    if run is not None:
        return account(tick, standing, tick.now, in_the_way(run))
    return account(tick, _account_backoff(tick, standing), tick.now, reason)


def book_unlooked(tick: Tick, standing: Standing) -> None:
    """Once a day, give slots their rows for which no look is planned, because calendars close all that are to come."""
    is_looked_at = standing.due_at is not None or standing.slot is not None or standing.paused or standing.state != "active"
    if is_looked_at or tick.now - standing.settled_until < A_DAY or schedule.good_days(standing.pace_text) is None:
        return
    replan(tick.tx, standing, book_passed(tick, standing, Skip.MISSED))


def in_the_way(run: Open) -> Skip:
    """A run that has not begun, for its agent's lane is taken, is not what keeps the next slot from running."""
    return run.in_its_way if run.has_not_begun and run.state == "waiting" else Skip.ALREADY_RUNNING


def look_now(tx: Transaction, standing: Standing, reason: Skip) -> None:
    """Have a run that waits to begin tried at once, if it is this that was in its way."""
    if entries.look_now(tx, standing, reason):
        replan(tx, standing, standing)


def next_look(tx: Transaction, entry: Entry, standing: Standing, slot: datetime) -> datetime:
    """When to see again whether a run may begin: soon, and no later than the slot's time is over."""
    ends = (tx.now + NEXT_LOOK, due_after(standing, slot), entry.closes(tx.now))
    return min(end for end in ends if end is not None)


def still_in_time(tx: Transaction, entry: Entry, standing: Standing, slot: datetime) -> bool:
    """Whether a run may be tried again now: it is not paused, its next slot has not come, and its window is open."""
    following = due_after(standing, slot)
    return not standing.paused and entry.open_at(tx.now) and (following is None or following > tx.now)
