"""A clock that was set back: whatever waits for a time must not wait until that time comes round again."""

from __future__ import annotations

from datetime import datetime, timedelta

from scheduler import paces
from scheduler.engine import planning
from scheduler.engine.closing import LONGEST_DELAY
from scheduler.tables import boots, breakers, changes, duequeue, holds, incidents, jumps, outages
from scheduler.tables.duequeue import Standing
from scheduler.tables.times import millis
from scheduler.turn import Turn

SECOND = timedelta(seconds=1)
LONGEST_ASYNC = timedelta(hours=24)  # no async_timeout is longer


def set_back(turn: Turn, by: timedelta) -> None:
    """Follow a clock that now shows `by` less than it should."""
    _pull_near(turn)
    for standing in duequeue.everything(turn.db):
        _move(turn, standing, by)


def catch_up(turn: Turn, ahead: timedelta) -> None:
    """Follow a clock that was set back while no daemon ran: entries were accounted for more than `ahead` later than now."""
    known = duequeue.ahead_of(turn.db, turn.now + ahead)
    if known:
        seen = (boots.last_seen(turn.db), *(standing.settled_until for standing in known))
        jumps.note(turn, turn.now - max(instant for instant in seen if instant is not None))
        _pull_near(turn)
    for standing in known:
        _move(turn, standing, standing.settled_until - turn.now)


def _pull_near(turn: Turn) -> None:
    """Nothing has ended or come in the future, and nobody waits for a time that was near when it was set."""
    now, soon = millis(turn.now), millis(turn.now + LONGEST_DELAY)
    turn.db.execute("update run set not_before = min(not_before, ?) where state = 'waiting'", (soon,))
    latest = millis(turn.now + LONGEST_ASYNC)
    turn.db.execute("update run set result_due_at = min(result_due_at, ?) where result_due_at is not null", (latest,))
    turn.db.execute("update entry set last_woken_at = min(last_woken_at, ?), last_ended_at = min(last_ended_at, ?)", (now, now))
    turn.db.execute(
        "update wake set due_at = min(due_at, ?), held_until = min(held_until, ?), updated_at = min(updated_at, ?)",
        (now, now, now),
    )
    turn.db.execute(
        "update outbox set not_before = min(not_before, ?), created_at = min(created_at, ?) where state in ('pending', 'held')",
        (now, now),
    )
    holds.pull_near(turn)
    breakers.pull_near(turn)
    incidents.pull_near(turn)
    outages.pull_near(turn)
    changes.pull_near(turn)
    for entry in turn.plan.entries.values():
        if entry.dedup_window:
            until = millis(turn.now + entry.dedup_window)
            turn.db.execute(
                "update digest set until_at = min(until_at, ?) where kind = ? and name = ?", (until, entry.kind, entry.name)
            )


def _move(turn: Turn, standing: Standing, by: timedelta) -> None:
    """A grid of elapsed time moves with the clock, so that the next beat comes no later than it would have.

    A schedule stays, for it means the clock on the wall; a slot that it names again has its row and does not run twice.
    """
    anchor, settled = standing.anchor, min(standing.settled_until, turn.now)
    if _period(standing):
        anchor = _free_anchor(turn, standing, anchor - _whole_seconds(by), settled)
    planning.replan(turn, standing, standing._replace(anchor=anchor, settled_until=settled))


def _period(standing: Standing) -> float:
    parts = paces.parts(standing.pace_text)
    return float(parts.get("interval") or parts.get("every") or 0)


def _whole_seconds(by: timedelta) -> timedelta:
    return -(-by // SECOND) * SECOND


def _free_anchor(turn: Turn, standing: Standing, anchor: datetime, settled: datetime) -> datetime:
    """The grid must not name slots that have run already, as it would after a step of whole intervals."""
    for _ in range(10):
        following = paces.pace(standing.pace_text, anchor).next(settled)
        if following is None or not duequeue.has_row(turn.db, standing, following):
            break
        anchor -= SECOND
    return anchor
