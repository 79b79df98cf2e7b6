"""Changes: when something that people are notified of began to fail or worked again, so that flapping can be seen."""

from __future__ import annotations

from datetime import datetime, timedelta

from scheduler.engine.turn import Turn
from scheduler.model.timestamps import millis, optional

WITHIN = timedelta(hours=24)
FLAPS = 3  # changes within that time
STABLE = timedelta(hours=1)  # without a change, and what flapped does so no longer


def note(turn: Turn, kind: str, name: str) -> bool:
    """Note that it changes now, between failing and working; whether it flaps by that."""
    turn.db.execute("insert into change (kind, name, at) values (?, ?, ?)", (kind, name, millis(turn.now)))
    query = "select count(*) from change where kind = ? and name = ? and at > ?"
    return int(turn.db.execute(query, (kind, name, millis(turn.now - WITHIN))).fetchone()[0]) >= FLAPS


def is_stable(turn: Turn, kind: str, name: str) -> bool:
    """Whether it has not changed for an hour."""
    query = "select max(at) from change where kind = ? and name = ?"
    last: datetime | None = optional(turn.db.execute(query, (kind, name)).fetchone()[0])
    return last is None or turn.now - last >= STABLE


def drop(turn: Turn, kind: str, name: str) -> None:
    """Forget the changes of what is gone, or is stable again."""
    turn.db.execute("delete from change where kind = ? and name = ?", (kind, name))


def forget(turn: Turn) -> None:
    """Forget what is too old to count."""
    turn.db.execute("delete from change where at <= ?", (millis(turn.now - WITHIN),))


def pull_near(turn: Turn) -> None:
    """The clock was set back: nothing changed in the future."""
    turn.db.execute("update change set at = min(at, ?)", (millis(turn.now),))
