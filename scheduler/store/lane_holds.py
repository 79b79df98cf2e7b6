"""Holds: lanes kept taken over HTTP, by gateways that cannot lock a file here; each has an id and a time at which it ends."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from typing import Any

from scheduler.model.timestamps import from_millis, iso_utc, to_millis
from scheduler.store.transaction import Transaction

MOST = 100  # per agent
LONGEST = timedelta(hours=24)


def save_hold(tx: Transaction, name: str, holder: str, until: datetime) -> bool:
    """Hold an agent's lane until then, in the place of what this holder asked before; False where too many hold it."""
    others = tx.db.execute(
        "select count(*) from hold where name = ? and holder <> ? and until_at > ?", (name, holder, to_millis(tx.now))
    ).fetchone()[0]
    if others >= MOST:
        return False
    tx.db.execute("insert or replace into hold (name, holder, until_at) values (?, ?, ?)", (name, holder, to_millis(until)))
    tx.held_lanes = None
    return True


def delete_hold(tx: Transaction, name: str, holder: str) -> None:
    """Let go of a lane; nothing to do for one who does not hold it."""
    tx.db.execute("delete from hold where name = ? and holder = ?", (name, holder))
    tx.held_lanes = None


def is_lane_held(tx: Transaction, name: str) -> bool:
    """Whether somebody holds the lane now. One question a turn answers it for all: most lanes are held by nobody."""
    if tx.held_lanes is None:
        rows = tx.db.execute("select distinct name from hold where until_at > ?", (to_millis(tx.now),))
        tx.held_lanes = {row[0] for row in rows}
    return name in tx.held_lanes


def clamp_future_times(tx: Transaction) -> None:
    """No hold lasts longer than one may, whatever the clock said when it was asked for."""
    tx.db.execute("update hold set until_at = min(until_at, ?)", (to_millis(tx.now + LONGEST),))


def delete_ended_holds(tx: Transaction) -> None:
    """Remove the holds that have ended."""
    tx.db.execute("delete from hold where until_at <= ?", (to_millis(tx.now),))


def holds_by_agent(db: sqlite3.Connection, now: datetime) -> dict[str, list[dict[str, Any]]]:
    """Who holds which agent's lane, and until when, as plain data."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in db.execute("select * from hold where until_at > ? order by name, until_at, holder", (to_millis(now),)):
        found.setdefault(row["name"], []).append({"id": row["holder"], "until": iso_utc(from_millis(row["until_at"]))})
    return found
