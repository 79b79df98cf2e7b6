"""Jumps of the wall clock: when it moved beside the steady one, and how far."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.tables.times import MILLISECOND, millis, moment
from scheduler.turn import Turn


@dataclass(frozen=True, slots=True)
class Jump:
    """`at` is what the clock showed right after it, `by` how far it had moved; back is negative.

    A machine that was suspended looks the same as a clock that was put forward.
    """

    at: datetime
    by: timedelta


def note(turn: Turn, by: timedelta) -> None:
    """Remember that the clock has just jumped."""
    turn.db.execute("insert into jump (at, by_ms) values (?, ?)", (millis(turn.now), by // MILLISECOND))


def between(db: sqlite3.Connection, since: datetime, until: datetime) -> list[Jump]:
    """The jumps that touch a time: that began, or ended, in it."""
    rows = db.execute(
        "select at, by_ms from jump where max(at, at - by_ms) >= ? and min(at, at - by_ms) < ? order by id",
        (millis(since), millis(until)),
    )
    return [Jump(moment(row["at"]), timedelta(milliseconds=row["by_ms"])) for row in rows]


def forget(turn: Turn, keep: timedelta) -> None:
    """They are remembered no longer than the history."""
    turn.db.execute("delete from jump where at < ?", (millis(turn.now - keep),))
