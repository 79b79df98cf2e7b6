"""Keeps lanes locked over HTTP for gateways that cannot lock a file on this machine. Each hold ends by itself."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from scheduler.model.timestamps import from_millis, iso_utc, to_millis
from scheduler.store.transaction import Transaction

MAX_HOLDS_PER_AGENT = 100  # per agent
MAX_HOLD = timedelta(hours=24)


def save_hold(tx: Transaction, name: str, holder: str, until: datetime) -> bool:
    """Hold an agent's lane until then. Replaces an earlier hold of this holder; False if too many holders hold the lane."""
    others = tx.db.execute(
        "select count(*) from hold where name = ? and holder <> ? and until_at > ?", (name, holder, to_millis(tx.now))
    ).fetchone()[0]
    if others >= MAX_HOLDS_PER_AGENT:
        return False
    tx.db.execute(
        "insert into hold (name, holder, until_at) values (?, ?, ?)"
        " on conflict (name, holder) do update set until_at = excluded.until_at",
        (name, holder, to_millis(until)),
    )
    tx.held_lanes = None
    return True


def delete_hold(tx: Transaction, name: str, holder: str) -> None:
    """End a hold, if there is one."""
    tx.db.execute("delete from hold where name = ? and holder = ?", (name, holder))
    tx.held_lanes = None


def is_lane_held(tx: Transaction, name: str) -> bool:
    """Whether a lane is held now. Queried once per transaction for all agents: most lanes are not held."""
    if tx.held_lanes is None:
        rows = tx.db.execute("select distinct name from hold where until_at > ?", (to_millis(tx.now),))
        tx.held_lanes = {row[0] for row in rows}
    return name in tx.held_lanes


def describe_holder(db: sqlite3.Connection, name: str, zone: ZoneInfo | None, now: datetime) -> str | None:
    """Who holds a lane over HTTP for the longest time, and until when in this zone; None if it is not held."""
    holders = holds_by_agent(db, now).get(name, [])
    if not holders:
        return None
    last, zone = holders[-1], zone or ZoneInfo("UTC")
    until = datetime.fromisoformat(last["until"]).astimezone(zone)
    others = len(holders) - 1
    more = f", and {others} {'other' if others == 1 else 'others'} for a shorter time" if others else ""
    return f"{last['id']} holds it over HTTP until {until:%Y-%m-%d %H:%M:%S} {zone.key}{more}"


def clamp_future_times(tx: Transaction) -> None:
    """After the system clock was set back: no hold lasts longer than a hold may."""
    tx.db.execute("update hold set until_at = min(until_at, ?)", (to_millis(tx.now + MAX_HOLD),))


def delete_ended_holds(tx: Transaction) -> None:
    """Delete the holds that have ended."""
    tx.db.execute("delete from hold where until_at <= ?", (to_millis(tx.now),))


def holds_by_agent(db: sqlite3.Connection, now: datetime) -> dict[str, list[dict[str, Any]]]:
    """Who holds the lane of each agent and until when, as plain data."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in db.execute("select * from hold where until_at > ? order by name, until_at, holder", (to_millis(now),)):
        found.setdefault(row["name"], []).append({"id": row["holder"], "until": iso_utc(from_millis(row["until_at"]))})
    return found
