"""Slots: which have passed, what becomes of each, and when an entry is looked at next."""

from __future__ import annotations

from datetime import datetime

from scheduler import duequeue, history, wakes
from scheduler.duequeue import Standing
from scheduler.entry import Entry
from scheduler.outcome import Kind, Skip
from scheduler.paces import Slots
from scheduler.turn import Turn


def account(turn: Turn, standing: Standing, until: datetime, reason: Skip) -> None:
    """Give every slot that came due up to `until` its row: outside the active hours that reason, else `reason`."""
    pace = standing.pace
    horizon = until - pace.offset
    _write(turn, standing, Skip.ACTIVE_HOURS, pace.closed(standing.settled_until, horizon))
    _write(turn, standing, reason, pace.slots(standing.settled_until, horizon))
    _settle(turn, standing, horizon)


def account_pause(turn: Turn, standing: Standing, until: datetime) -> None:
    """Give all slots of a pause one row, whatever else would have kept them from running."""
    pace = standing.pace
    horizon = until - pace.offset
    parts = [part for part in (pace.closed(standing.settled_until, horizon), pace.slots(standing.settled_until, horizon)) if part]
    if parts:
        first = min(part.first for part in parts)
        history.skip(turn, standing, pace.trigger, Skip.PAUSED, first, sum(part.count for part in parts))
    _settle(turn, standing, horizon)


def latest_due(turn: Turn, entry: Entry, standing: Standing) -> datetime | None:
    """The slot that is to run now, if one is; every other slot that has passed gets its row.

    Only the latest can run: with its next slot still to come, its window open, and no older than the grace.
    """
    pace = standing.pace
    horizon = turn.now - pace.offset
    _write(turn, standing, Skip.ACTIVE_HOURS, pace.closed(standing.settled_until, horizon))
    passed = pace.slots(standing.settled_until, horizon)
    _settle(turn, standing, horizon)
    if passed is None:
        return None
    if not _may_start_late(turn, entry, passed.latest + pace.offset):
        _write(turn, standing, Skip.MISSED, passed)
        return None
    if passed.count > 1:
        history.skip(turn, standing, pace.trigger, Skip.MISSED, passed.first, passed.count - 1)
    if _just_woken(turn, standing, passed.latest):
        history.skip(turn, standing, pace.trigger, Skip.SUPERSEDED, passed.latest)
        return None
    return passed.latest


def _may_start_late(turn: Turn, entry: Entry, due_at: datetime) -> bool:
    if turn.now - due_at > entry.grace or not entry.open_at(turn.now):
        return False
    return entry.catch_up or due_at >= turn.awake_since


def _just_woken(turn: Turn, standing: Standing, slot: datetime) -> bool:
    """A run that a wake started has just said what this slot would say."""
    if standing.kind is not Kind.HEARTBEAT or standing.last_woken_at is None:
        return False
    return slot < standing.last_woken_at + turn.limits.wake_gap


def _write(turn: Turn, standing: Standing, reason: Skip, slots: Slots | None) -> None:
    if slots is not None:
        history.skip(turn, standing, standing.pace.trigger, reason, slots.first, slots.count)


def _settle(turn: Turn, standing: Standing, horizon: datetime) -> None:
    if horizon > standing.settled_until:
        duequeue.change(turn, standing, settled_until=horizon)


def due_after(standing: Standing, slot: datetime) -> datetime | None:
    """When the first slot after both `slot` and everything accounted for comes due."""
    pace = standing.pace
    following = pace.next(max(slot, standing.settled_until))
    return following and following + pace.offset


def replan(turn: Turn, standing: Standing) -> None:
    """Set when the entry is looked at next: its slot, a wake that waits, or the end of its pause, whichever is first.

    While a run is open that is when its next attempt may start, or never.
    """
    standing = duequeue.again(turn.db, standing)
    pace = standing.pace
    idle = standing.paused or standing.state != "active"
    slot = None if idle else pace.next(standing.settled_until)
    run = duequeue.open_run(turn.db, standing.kind, standing.name)
    due_at = run.not_before if run else _next_look(turn, standing, slot and slot + pace.offset)
    duequeue.change(turn, standing, slot=slot, due_at=due_at)


def _next_look(turn: Turn, standing: Standing, slot_due_at: datetime | None) -> datetime | None:
    wishes = (slot_due_at, standing.pause_ends, wakes.next_start(turn.db, standing.kind, standing.name))
    return min((wish for wish in wishes if wish is not None), default=None)


def resume(turn: Turn, standing: Standing, at: datetime) -> Standing:
    """End a pause: its slots get their one row, and the entry goes on."""
    if standing.state == "active":
        account_pause(turn, standing, at)
    duequeue.change(turn, standing, paused_until=None)
    return duequeue.again(turn.db, standing)


def resume_if_over(turn: Turn, standing: Standing) -> Standing:
    """End a pause whose time is over."""
    if standing.pause_ends is None or standing.pause_ends > turn.now:
        return standing
    return resume(turn, standing, standing.pause_ends)


def book_passed(turn: Turn, standing: Standing, reason: Skip) -> None:
    """Give what has come due its rows before something changes for the entry: by its pause, its open run, or else `reason`."""
    if standing.state != "active":
        return
    if standing.paused:
        account_pause(turn, standing, turn.now)
        return
    running = duequeue.open_run(turn.db, standing.kind, standing.name) is not None
    account(turn, standing, turn.now, Skip.ALREADY_RUNNING if running else reason)


def still_in_time(turn: Turn, entry: Entry, standing: Standing, slot: datetime) -> bool:
    """Whether a run may be tried again now: it is not paused, its next slot has not come, and its window is open."""
    following = due_after(standing, slot)
    return not standing.paused and entry.open_at(turn.now) and (following is None or following > turn.now)
