"""Holds: lanes kept taken over HTTP, by gateways that cannot lock a file here; each has an id and a time at which it ends."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from typing import Any

from scheduler.engine.turn import Turn
from scheduler.model.timestamps import iso, millis, moment

MOST = 100  # per agent
LONGEST = timedelta(hours=24)


def put(turn: Turn, name: str, holder: str, until: datetime) -> bool:
    """Hold an agent's lane until then, in the place of what this holder asked before; False where too many hold it."""
    others = turn.db.execute(
        "select count(*) from hold where name = ? and holder <> ? and until_at > ?", (name, holder, millis(turn.now))
    ).fetchone()[0]
    if others >= MOST:
        return False
    turn.db.execute("insert or replace into hold (name, holder, until_at) values (?, ?, ?)", (name, holder, millis(until)))
    turn.held = None
    return True


def drop(turn: Turn, name: str, holder: str) -> None:
    """Let go of a lane; nothing to do for one who does not hold it."""
    turn.db.execute("delete from hold where name = ? and holder = ?", (name, holder))
    turn.held = None


def is_held(turn: Turn, name: str) -> bool:
    """Whether somebody holds the lane now. One question a turn answers it for all: most lanes are held by nobody."""
    if turn.held is None:
        rows = turn.db.execute("select distinct name from hold where until_at > ?", (millis(turn.now),))
        turn.held = {row[0] for row in rows}
    return name in turn.held


def pull_near(turn: Turn) -> None:
    """No hold lasts longer than one may, whatever the clock said when it was asked for."""
    turn.db.execute("update hold set until_at = min(until_at, ?)", (millis(turn.now + LONGEST),))


def forget(turn: Turn) -> None:
    """Remove the holds that have ended."""
    turn.db.execute("delete from hold where until_at <= ?", (millis(turn.now),))


def by_agent(db: sqlite3.Connection, now: datetime) -> dict[str, list[dict[str, Any]]]:
    """Who holds which agent's lane, and until when, as plain data."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in db.execute("select * from hold where until_at > ? order by name, until_at, holder", (millis(now),)):
        found.setdefault(row["name"], []).append({"id": row["holder"], "until": iso(moment(row["until_at"]))})
    return found
