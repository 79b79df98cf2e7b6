"""The standing rows follow the plan: what is new is added, what is gone is closed, what moved is planned anew."""

from __future__ import annotations

from datetime import datetime, timedelta

from heartbeat.cadence import first_anchor
from scheduler import duequeue, opening, paces, planning, wakes
from scheduler.duequeue import Standing
from scheduler.entry import Entry
from scheduler.outcome import Kind, Skip, Trigger
from scheduler.store import MILLISECOND
from scheduler.turn import Turn
from scheduler.wake import Wake


def sync(turn: Turn, *, at_once: bool = False) -> None:
    """Make the standing rows agree with the plan; entries whose pace is unchanged are not touched.

    `at_once` makes new entries due now instead of at their first slot.
    """
    known = {(standing.kind, standing.name): standing for standing in duequeue.everything(turn.db)}
    for key, entry in turn.plan.entries.items():
        standing = known.pop(key, None)
        if standing is None:
            _add(turn, entry, at_once=at_once)
        else:
            _follow(turn, entry, standing)
    for gone in known.values():
        _retire(turn, gone, "removed", Skip.REMOVED)


def _add(turn: Turn, entry: Entry, *, at_once: bool) -> None:
    """A new entry's grid begins when it is first seen, its stagger later, on a whole second."""
    state = "active" if entry.enabled else "disabled"
    anchor = turn.now if at_once else _first_anchor(turn.now, entry.pace_text)
    standing = duequeue.add(turn, entry.kind, entry.name, state, entry.pace_text, anchor, turn.now - MILLISECOND)
    if at_once and entry.kind is Kind.CRON and entry.enabled:
        wakes.ask(turn, standing, Wake(entry.name, source=Trigger.MANUAL, sender="once"))
    planning.replan(turn, standing)


def _first_anchor(first_seen: datetime, pace_text: str) -> datetime:
    return first_anchor(first_seen, timedelta(seconds=paces.parts(pace_text).get("stagger", 0)))


def _follow(turn: Turn, entry: Entry, standing: Standing) -> None:
    if not entry.enabled:
        _retire(turn, standing, "disabled", Skip.DISABLED)
    elif standing.state != "active":
        _revive(turn, entry, standing)
    elif standing.pace_text != entry.pace_text:
        _move(turn, entry, standing)


def _revive(turn: Turn, entry: Entry, standing: Standing) -> None:
    """Back after having been disabled or removed: same anchor and history, nothing to make up for."""
    columns = {"state": "active", "settled_until": max(turn.now, standing.settled_until)}
    duequeue.change(turn, standing, **columns, pace=entry.pace_text, anchor=_anchor(entry, standing))
    planning.replan(turn, standing)


def _move(turn: Turn, entry: Entry, standing: Standing) -> None:
    """The pace changed: what passed under the old one is booked, what comes is found by the new one."""
    _book_passed(turn, standing, Skip.MISSED)
    settled = max(turn.now, standing.settled_until)
    duequeue.change(turn, standing, pace=entry.pace_text, anchor=_anchor(entry, standing), settled_until=settled)
    planning.replan(turn, standing)


def _anchor(entry: Entry, standing: Standing) -> datetime:
    """Where the grid stands under the new pace: a changed interval counts from the last slot that ran."""
    old, new = paces.parts(standing.pace_text), paces.parts(entry.pace_text)
    if any(old.get(key) != new.get(key) for key in ("interval", "every")):
        return standing.last_slot or _first_anchor(standing.first_seen_at, entry.pace_text)
    return standing.anchor + timedelta(seconds=new.get("stagger", 0) - old.get("stagger", 0))


def _retire(turn: Turn, standing: Standing, state: str, reason: Skip) -> None:
    """No more slots. What was due is booked, what waited for another attempt ends, a run in progress ends by itself."""
    if standing.state == state:
        return
    if standing.state == "active":
        _book_passed(turn, standing, reason)
    run = duequeue.open_run(turn.db, standing.kind, standing.name)
    if run is not None and run.state == "waiting":
        opening.give_up(turn, standing, run)
    wakes.drop(turn, standing.kind, standing.name)
    duequeue.change(turn, standing, state=state, paused_until=None)
    planning.replan(turn, standing)


def _book_passed(turn: Turn, standing: Standing, reason: Skip) -> None:
    if standing.paused:
        planning.account_pause(turn, standing, turn.now)
        return
    running = duequeue.open_run(turn.db, standing.kind, standing.name) is not None
    planning.account(turn, standing, turn.now, Skip.ALREADY_RUNNING if running else reason)


def step_back(turn: Turn, standing: Standing, by: timedelta) -> None:
    """Move a grid of elapsed time back with the clock, so that the next beat comes no later than it would have."""
    parts = paces.parts(standing.pace_text)
    period = timedelta(seconds=parts.get("interval") or parts.get("every") or 0)
    if not period:
        return
    step = timedelta(seconds=-(-by // timedelta(seconds=1)))
    if not step % period:
        step += timedelta(seconds=1)  # else the slots would bear the names of those that have run already
    duequeue.change(turn, standing, anchor=standing.anchor - step, settled_until=min(standing.settled_until, turn.now))
    planning.replan(turn, standing)
