"""Keeps agents locked over HTTP for gateways that cannot lock a file on this machine. Each hold ends by itself."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from heartbeat.words import format_count
from heartbeatd.answers import LockHolder
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store.rows import replace_row
from scheduler.store.transaction import Transaction, is_file, recall

MAX_HOLDS_PER_AGENT = 100
MAX_HOLD = timedelta(hours=24)
COMMAND = "heartbeatd busy"  # the names of the holders that are commands begin with it
COMMAND_HOLD = timedelta(minutes=2)


def save_hold(tx: Transaction, name: str, holder: str, until: datetime) -> bool:
    """Hold an agent's lock until then. Replaces an earlier hold of this holder; False if too many holders hold the lock."""
    others = tx.db.execute(
        "select count(*) from hold where name = ? and holder <> ? and until_at > ?", (name, holder, to_millis(tx.now))
    ).fetchone()[0]
    if others >= MAX_HOLDS_PER_AGENT:
        return False
    replace_row(tx.db, "hold", {"name": name, "holder": holder}, {"until_at": until})
    return True


SERVER_NOW = "(extract(epoch from clock_timestamp()) * 1000)::bigint"
# Commands hold a lock only if the database is on a server, and by its clock. The clocks of the hosts may differ.
_BY_COMMAND = f"holder like '{COMMAND}%'"
_IS_OVER = f"until_at <= case when {_BY_COMMAND} then {SERVER_NOW} else ? end"


def _is_over(db: sqlite3.Connection) -> str:
    """The condition for a hold that has ended. Its parameter is the time of the daemon."""
    return "until_at <= ?" if is_file(db) else _IS_OVER


def delete_hold(tx: Transaction, name: str, holder: str) -> None:
    """End a hold, if there is one."""
    tx.db.execute("delete from hold where name = ? and holder = ?", (name, holder))


def is_lane_held(tx: Transaction, name: str) -> bool:
    """Whether a lock is held now. Most locks are not held."""
    if name not in recall(tx.db, "select distinct name from hold", lambda rows: frozenset(row[0] for row in rows)):
        return False
    query = "select 1 from hold where name = ? and not " + _is_over(tx.db)  # noqa: S608 (literals of ours)
    return tx.db.execute(query, (name, to_millis(tx.now))).fetchone() is not None


def describe_holder(db: sqlite3.Connection, name: str, zone: ZoneInfo | None, now: datetime) -> str | None:
    """Who holds a lock over HTTP for the longest time, and until when in this zone; None if it is not held."""
    holders = holds_by_agent(db, now).get(name, [])
    if not holders:
        return None
    last, zone = holders[-1], zone or ZoneInfo("UTC")
    until = last.until.astimezone(zone)
    others = len(holders) - 1
    more = f", and {format_count(others, 'other')} for a shorter time" if others else ""
    return f"{last.id} holds it over HTTP until {until:%Y-%m-%d %H:%M:%S} {zone.key}{more}"


def delete_ended_holds(tx: Transaction) -> None:
    """Delete the holds that have ended."""
    tx.db.execute("delete from hold where " + _is_over(tx.db), (to_millis(tx.now),))  # noqa: S608 (literals of ours)


def holds_by_agent(db: sqlite3.Connection, now: datetime) -> dict[str, list[LockHolder]]:
    """Who holds the lock of each agent and until when."""
    found: dict[str, list[LockHolder]] = {}
    valid = "select * from hold where not " + _is_over(db) + " order by name, until_at, holder"  # noqa: S608 (literals of ours)
    for row in db.execute(valid, (to_millis(now),)):
        found.setdefault(row["name"], []).append(LockHolder(id=row["holder"], until=from_millis(row["until_at"])))
    return found
