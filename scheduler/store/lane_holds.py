"""Keeps lanes locked over HTTP for gateways that cannot lock a file on this machine. Each hold ends by itself."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from scheduler.model.timestamps import from_millis, iso_utc, to_millis
from scheduler.store.transaction import Transaction

MAX_HOLDS_PER_AGENT = 100  # per agent
MAX_HOLD = timedelta(hours=24)
COMMAND = "heartbeatd busy"  # the names of the holders that are commands begin with it
COMMAND_HOLD = timedelta(minutes=2)  # longer than the daemon takes to write its latest tick (`boot.last_tick_at`)


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


def wait_for_lane(db: sqlite3.Connection, name: str, jobs: Sequence[str], holder: str) -> str | None:
    """Hold a lane for a command on any host, if the database is on a server. Returns what the command must wait for.

    None: the command has the lane, as long as it calls this again within `COMMAND_HOLD`. `jobs` are the jobs in this lane. The
    row of the leader is locked, so that no run begins at the same time. The clock of the server decides. The leader compares
    with its own clock, which may be ahead, so the hold is counted from the later of the two.
    """
    db.execute("begin")
    try:
        row = db.execute(
            "select until_at > clock_timestamp() as leads, (extract(epoch from clock_timestamp()) * 1000)::bigint as now"
            " from _leader for update"
        ).fetchone()
        last_tick = db.execute("select max(last_tick_at) as at from boot where ended_at is null").fetchone()["at"]
        now = max(row["now"], last_tick or 0)
        other = db.execute(
            "select holder from hold where name = ? and holder <> ? and holder like ? and until_at > ? limit 1",
            (name, holder, f"{COMMAND}%", now),
        ).fetchone()
        if other is None:
            db.execute(
                "insert into hold (name, holder, until_at) values (?, ?, ?)"
                " on conflict (name, holder) do update set until_at = excluded.until_at",
                (name, holder, now + COMMAND_HOLD // timedelta(milliseconds=1)),
            )
        running = db.execute(
            "select id from run where state = 'running' and (kind = 'heartbeat' and name = ? or kind = 'cron' and name in"
            " (select value from json_each(?))) limit 1",
            (name, json.dumps([*jobs])),
        ).fetchone()
        db.execute("commit")
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise
    if other is not None:
        return f"{other['holder']} has locked it"
    return f"run {running['id']} is in progress" if running and row["leads"] else None


def delete_hold_of_command(db: sqlite3.Connection, name: str, holder: str) -> None:
    """End the hold of a command."""
    db.execute("delete from hold where name = ? and holder = ?", (name, holder))


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
