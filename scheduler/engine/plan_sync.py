"""The standing rows follow the plan: what is new is added, what is gone is closed, what moved is planned anew."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta

from heartbeat.interval_slots import first_anchor
from scheduler.engine import closing, planning, wake_starts
from scheduler.engine.tick import Tick
from scheduler.model import schedule
from scheduler.model.entry import Entry, Key
from scheduler.model.outcome import Kind, Skip, Trigger
from scheduler.model.timestamps import MILLISECOND
from scheduler.model.wake import Wake
from scheduler.store import breakers, changes, entries, incidents, one_time_jobs, outages, runs, wakes
from scheduler.store.entries import Standing
from scheduler.store.transaction import Transaction
from scheduler.system.log import event


def sync(tick: Tick, before: Mapping[Key, Entry], *, at_once: bool = False) -> None:
    """Make the standing rows agree with the plan; entries whose pace is unchanged are not touched, nor read.

    `before` holds the entries of the plan that was in force, so that one that goes can still tell its own people of its end.
    `at_once` makes new entries due now instead of at their first slot.
    """
    incidents.keep_channels(tick.tx, tick.plan.settings.channels)
    breakers.forget_unasked(tick.tx, tick.plan.entries.values())
    known = entries.texts(tick.tx.db)
    for key, entry in tick.plan.entries.items():
        if key not in known:
            _add(tick, entry, at_once=at_once)
            _note_moment(tick.tx, entry)
        elif known[key] != (_state(entry), entry.pace_text):
            _follow(tick, entry, entries.get(tick.tx, *key))
            _note_moment(tick.tx, entry)
    for key in known.keys() - tick.plan.entries.keys():
        if known[key][0] != "removed":
            _retire(tick, before.get(key), entries.get(tick.tx, *key), "removed", Skip.REMOVED)
    outages.forget_unasked(tick.tx, tick.plan.entries.values())


def foreseen(entry: Entry, standing: Standing | None, now: datetime) -> tuple[datetime, datetime]:
    """Where an entry's grid would stand, and up to when it would be accounted for, if the rows followed the plan now."""
    if standing is None:
        return _first_anchor(now, entry.pace_text), _due_from(now, entry.pace_text) - MILLISECOND
    if (standing.state, standing.pace_text) == (_state(entry), entry.pace_text):
        return standing.anchor, standing.settled_until
    return _anchor(entry, standing, now), _settled(entry, standing, now)


def _state(entry: Entry) -> str:
    return "active" if entry.enabled else "disabled"


def _add(tick: Tick, entry: Entry, *, at_once: bool) -> None:
    """A new entry's grid begins when it is first seen, its stagger later, on a whole second."""
    by_hand = at_once and entry.enabled and schedule.once(entry.pace_text) is None
    beats_now = by_hand and entry.kind is Kind.HEARTBEAT
    anchor = _first_anchor(tick.now, entry.pace_text)
    if beats_now and entry.open_at(tick.now):
        # The beat is made in place of the grid's first point, for each is paid. In closed time the point stays, and moves.
        anchor += timedelta(seconds=schedule.parts(entry.pace_text).get("interval", 0))
    settled = _due_from(tick.now, entry.pace_text) - MILLISECOND
    standing = entries.add(tick.tx, entry.kind, entry.name, _state(entry), entry.pace_text, anchor, settled)
    if beats_now:
        entries.save(tick.tx, standing, standing._replace(slot=tick.now, due_at=tick.now))
        return
    entries.save(tick.tx, standing, planning.idle(tick.tx, standing))
    if by_hand:
        wake_starts.ask(
            tick,
            entries.get(tick.tx, entry.kind, entry.name),
            Wake(entry.name, source=Trigger.MANUAL, sender="once", kind=Kind.CRON),
        )


def _note_moment(tx: Transaction, entry: Entry) -> None:
    """A job that runs once is known from now on; one whose moment had passed by then has missed it."""
    moment = schedule.once(entry.pace_text) if entry.enabled else None
    if moment is None or not one_time_jobs.see(tx, entry.name, entry.pace_text):
        return
    standing = entries.get(tx, entry.kind, entry.name)
    if moment <= standing.settled_until:
        runs.skip(tx, standing, Trigger.AT, Skip.MISSED, moment)


def _first_anchor(first_seen: datetime, pace_text: str) -> datetime:
    return first_anchor(first_seen, timedelta(seconds=schedule.parts(pace_text).get("stagger", 0)))


def _due_from(now: datetime, pace_text: str) -> datetime:
    """The time after which slots come due from `now` on: by its stagger, a slot that has a name already may still be to come."""
    return now - timedelta(seconds=schedule.parts(pace_text).get("offset", 0))


def _settled(entry: Entry, standing: Standing, now: datetime) -> datetime:
    """Up to when an entry is accounted for under a new pace: what an old one had accounted for ahead, it had only for itself."""
    return max(_due_from(now, entry.pace_text), min(standing.settled_until, now))


def _follow(tick: Tick, entry: Entry, standing: Standing) -> None:
    if not entry.enabled:
        _retire(tick, entry, standing, "disabled", Skip.DISABLED)
    elif standing.state != "active":
        _revive(tick.tx, entry, standing)
    else:
        _move(tick, entry, standing)


def _revive(tx: Transaction, entry: Entry, standing: Standing) -> None:
    """Back after having been disabled or removed: same anchor and history, nothing to make up for."""
    settled, anchor = _settled(entry, standing, tx.now), _anchor(entry, standing, tx.now)
    planning.replan(
        tx, standing, standing._replace(state="active", settled_until=settled, pace_text=entry.pace_text, anchor=anchor)
    )


def _move(tick: Tick, entry: Entry, standing: Standing) -> None:
    """The pace changed: what passed under the old one is booked, what comes is found by the new one."""
    after = standing
    if not _same_slots(standing.pace_text, entry.pace_text):
        after = _booked_old(tick, standing)
        after = after._replace(settled_until=_settled(entry, after, tick.now))
    planning.replan(tick.tx, standing, after._replace(pace_text=entry.pace_text, anchor=_anchor(entry, standing, tick.now)))


def _same_slots(old: str, new: str) -> bool:
    """Whether only the time between a slot and its start differs."""
    return schedule.parts(old) | {"offset": 0} == schedule.parts(new) | {"offset": 0}


def _booked_old(tick: Tick, standing: Standing) -> Standing:
    """Book what passed under the old pace, unless its text means nothing to this version any more."""
    try:
        return planning.book_passed(tick, standing, Skip.MISSED)
    except ValueError as error:
        event(logging.ERROR, "old_pace_unreadable", kind=standing.kind, name=standing.name, problem=str(error))
        return standing


def _anchor(entry: Entry, standing: Standing, now: datetime) -> datetime:
    """Where the grid stands under the new pace: a changed interval counts from the last slot that ran.

    One that lies ahead ran under a clock that has been set back since.
    """
    old, new = schedule.parts(standing.pace_text), schedule.parts(entry.pace_text)
    if any(old.get(key) != new.get(key) for key in ("interval", "every")):
        last = standing.last_slot
        return last if last is not None and last <= now else _first_anchor(standing.first_seen_at, entry.pace_text)
    return standing.anchor + timedelta(seconds=new.get("stagger", 0) - old.get("stagger", 0))


def _retire(tick: Tick, entry: Entry | None, standing: Standing, state: str, reason: Skip) -> None:
    """No more slots. What was due is booked, what waited for another attempt ends, a run in progress ends by itself."""
    if standing.state == state:
        return
    retired = planning.book_passed(tick, standing, reason)._replace(state=state, paused_until=None)
    planning.replan(tick.tx, standing, retired)
    run = entries.open_run(tick.tx.db, standing.kind, standing.name)
    if run is not None and run.state == "waiting":
        closing.give_up(tick, entry, retired, run)
    wakes.drop(tick.tx, standing.kind, standing.name)
    incidents.drop(tick.tx, standing.kind, standing.name)
    changes.drop(tick.tx, standing.kind, standing.name)
    gone = entries.get(tick.tx, standing.kind, standing.name)
    planning.replan(tick.tx, gone, gone._replace(troubles=0, flapping=0))
