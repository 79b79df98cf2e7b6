"""Targets: whom an agent last spoke with, and so where `last` leads; a channel whose URL names somebody is its own target."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from scheduler.model.settings import Channel, Target
from scheduler.model.timestamps import from_millis, iso_utc, to_millis
from scheduler.store.transaction import Transaction

MOST = 20  # that are known of an agent


def record_target(tx: Transaction, agent: str, target: Target, title: str | None) -> None:
    """An agent has been spoken with there just now; of those longest ago the surplus is forgotten. No title: as it was."""
    tx.db.execute(
        "insert or replace into target (name, channel, whom, title, at) values (:agent, :channel, :whom, coalesce(:title,"
        " (select title from target where name = :agent and channel = :channel and whom = :whom), ''), :now)",
        {"agent": agent, "channel": target.channel, "whom": target.recipient, "title": title, "now": to_millis(tx.now)},
    )
    tx.db.execute(
        "delete from target where name = :agent"
        " and id not in (select id from target where name = :agent order by id desc limit :most)",
        {"agent": agent, "most": MOST},
    )


def known_targets(db: sqlite3.Connection, agent: str) -> list[dict[str, Any]]:
    """The targets of an agent as plain data, the last one first: by the order in which they came, whatever the clock said."""
    rows = db.execute("select channel, whom, title, at from target where name = ? order by id desc", (agent,))
    return [{"channel": row[0], "target": row[1], "title": row[2], "at": iso_utc(from_millis(row[3]))} for row in rows]


def last_target(db: sqlite3.Connection, channels: Mapping[str, Channel], agent: str | None) -> Target | None:
    """Where the agent's user wrote from most recently; None if that is unknown, or its channel takes no recipient any more.

    An earlier target is never used instead: it may lead to a different person.
    """
    row = db.execute("select channel, whom from target where name = ? order by id desc limit 1", (agent,)).fetchone()
    channel = channels.get(row["channel"]) if row else None
    return Target(row["channel"], row["whom"]) if channel is not None and channel.needs_target else None
