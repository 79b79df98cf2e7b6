"""Jumps of the clock: what they undo of what was written, what waits for a time, and where grids of elapsed time stand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from scheduler.engine import planning
from scheduler.engine.closing import LONGEST_DELAY
from scheduler.engine.tick import Tick
from scheduler.model import schedule
from scheduler.model.outcome import Kind
from scheduler.model.timestamps import millis
from scheduler.store import boots, breakers, changes, clock_changes, entries, entry_history, incidents, lane_holds, outages, runs
from scheduler.store.clock_changes import SetBack
from scheduler.store.entries import Standing
from scheduler.store.transaction import Transaction

SECOND = timedelta(seconds=1)
LONGEST_ASYNC = timedelta(hours=24)  # no async_timeout is longer
A_RESTART = timedelta(minutes=1)  # a stop that is no longer says nothing of the clock

SinceStart = Callable[[Kind, str], timedelta | None]
"""How long ago an entry's last slot was started, in elapsed time; None where nobody knows."""


def follow(tick: Tick, by: timedelta, since_start: SinceStart) -> None:
    """Follow a clock that has just jumped by so much."""
    clock_changes.note(tick.tx, by)
    if by < timedelta():
        _set_back(tick, -by, since_start)
    else:
        _return(tick.tx)


def catch_up(tick: Tick, last_seen: datetime | None, believable: timedelta) -> None:
    """Follow what the clock has done while no daemon ran; `last_seen` is when one was last seen, None if none has ever run.

    A command may have seen new entries since.
    """
    seen = max((instant for instant in (last_seen, entries.newest(tick.tx.db)) if instant is not None), default=None)
    if seen is None:
        return
    by = tick.now - seen
    if by <= -believable:
        follow(tick, by, _nobody_knows)
    elif by > A_RESTART:
        clock_changes.note(tick.tx, by, down=True)
        _return(tick.tx)


def _nobody_knows(kind: Kind, name: str) -> timedelta | None:  # noqa: ARG001
    """No entry was started in this life yet."""
    return None


def _return(tx: Transaction) -> None:
    """A clock that was behind goes on where it had been: up to there all slots have had their end."""
    behind = clock_changes.latest_return(tx.db)
    if behind is None:
        return
    for standing in entries.everything(tx.db):
        if standing.settled_until < behind.undone_to:
            back = standing._replace(anchor=_former_anchor(tx, standing, behind), settled_until=behind.undone_to)
            planning.replan(tx, standing, back)


def _former_anchor(tx: Transaction, standing: Standing, behind: SetBack) -> datetime:
    """Where the grid of an entry stood before it was moved because of a clock that went behind."""
    before = entry_history.latest(tx.db, standing.kind, standing.name)
    moved = before is not None and (before.state, before.pace_text, before.until) == (
        standing.state,
        standing.pace_text,
        behind.at,
    )
    return before.anchor if before is not None and moved else standing.anchor


def _set_back(tick: Tick, by: timedelta, since_start: SinceStart) -> None:
    meaning = clock_changes.latest_set_back(tick.tx.db)
    assert meaning is not None
    _pull_near(tick)
    if meaning.undone:
        boots.pull_near(tick.tx)
    for standing in entries.everything(tick.tx.db):
        after = _taken_back(tick.tx, standing, meaning) if meaning.undone else standing
        after = _moved(tick.tx, after, by, since_start) if schedule.period(standing.pace_text) else _kept(tick.tx, after)
        seen = min(standing.first_seen_at, tick.now)
        planning.replan(tick.tx, standing, after._replace(first_seen_at=seen))


def _pull_near(tick: Tick) -> None:
    """Nothing has begun, ended or come in the future, and nobody waits for a time that was near when it was set."""
    now, soon = millis(tick.now), millis(tick.now + LONGEST_DELAY)
    tick.tx.db.execute("update run set not_before = min(not_before, ?) where state = 'waiting'", (soon,))
    latest = millis(tick.now + LONGEST_ASYNC)
    tick.tx.db.execute("update run set result_due_at = min(result_due_at, ?) where result_due_at is not null", (latest,))
    tick.tx.db.execute("update run set started_at = min(started_at, ?) where state in ('running', 'waiting')", (now,))
    tick.tx.db.execute(
        "update entry set last_woken_at = min(last_woken_at, :now), last_ended_at = min(last_ended_at, :now),"
        " last_success_at = min(last_success_at, :now)",
        {"now": now},
    )
    tick.tx.db.execute(
        "update wake set due_at = min(due_at, ?), held_until = min(held_until, ?), updated_at = min(updated_at, ?)",
        (now, now, now),
    )
    tick.tx.db.execute(
        "update outbox set not_before = min(not_before, :now), created_at = min(created_at, :now)"
        " where state in ('pending', 'sending', 'uncertain', 'held')",
        {"now": now},
    )
    lane_holds.pull_near(tick.tx)
    breakers.pull_near(tick.tx)
    incidents.pull_near(tick.tx)
    outages.pull_near(tick.tx)
    changes.pull_near(tick.tx)
    entry_history.pull_near(tick.tx)
    for entry in tick.plan.entries.values():
        if entry.dedup_window:
            until = millis(tick.now + entry.dedup_window)
            tick.tx.db.execute(
                "update digest set until_at = min(until_at, ?) where kind = ? and name = ?", (until, entry.kind, entry.name)
            )


def _taken_back(tx: Transaction, standing: Standing, meaning: SetBack) -> Standing:
    """Slots that were skipped under a clock that was ahead, and have not really come yet, are still to come."""
    if standing.pace is schedule.NEVER:
        return standing
    since = meaning.never_been - standing.pace.offset
    first = runs.take_back(tx, standing, standing.pace, since)
    return standing if first is None else standing._replace(settled_until=min(first, standing.settled_until))


def _kept(tx: Transaction, standing: Standing) -> Standing:
    """A schedule means the clock on the wall: times that it shows again have had their end, if the entry was there then."""
    if tx.now >= standing.first_seen_at:
        return standing
    return standing._replace(settled_until=min(standing.settled_until, tx.now - standing.pace.offset))


def _moved(tx: Transaction, standing: Standing, by: timedelta, since_start: SinceStart) -> Standing:
    """A grid of elapsed time stays where it is if the next beat is in time all the same; else it moves with the clock."""
    back = timedelta() if _is_in_time(tx, standing, since_start) else _whole_seconds(by)
    settled = min(standing.settled_until - back, tx.now - standing.pace.offset)
    return standing._replace(anchor=standing.anchor - back, settled_until=settled)


def _is_in_time(tx: Transaction, standing: Standing, since_start: SinceStart) -> bool:
    """Whether an entry starts again within one interval of elapsed time if its grid stays, or only later because of its hours."""
    period, now = schedule.period(standing.pace_text), tx.now - standing.pace.offset
    if period is None or standing.anchor > now:
        return False
    following = standing.pace.next(now)
    if standing.state != "active" or following is None or following - now > period:
        return True
    since = since_start(standing.kind, standing.name)
    return since is not None and since + (following - now) <= period + SECOND


def _whole_seconds(by: timedelta) -> timedelta:
    return -(-by // SECOND) * SECOND
