"""Records where each agent's user wrote from most recently: the target that `deliver: last` uses."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from heartbeatd.answers import KnownTarget
from scheduler.model.settings import Channel, Target
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store.transaction import Transaction

MOST = 20  # targets that are kept per agent


def record_target(tx: Transaction, agent: str, target: Target, title: str | None) -> None:
    """Record that the agent's user has just written from there. The latest MOST targets are kept. `title` None: unchanged."""
    same = (agent, target.channel, target.recipient)
    before = tx.db.execute(
        "delete from target where name = ? and channel = ? and whom = ? returning title", same
    ).fetchone()  # the new row has a higher id, which makes it the latest
    if title is None:
        title = before["title"] if before else ""
    tx.db.execute("insert into target (name, channel, whom, title, at) values (?, ?, ?, ?, ?)", (*same, title, to_millis(tx.now)))
    tx.db.execute(
        "delete from target where name = :agent"
        " and id not in (select id from target where name = :agent order by id desc limit :most)",
        {"agent": agent, "most": MOST},
    )


def known_targets(db: sqlite3.Connection, agent: str) -> list[KnownTarget]:
    """The known targets of an agent, the latest first. The order is that of arrival, whatever the clock showed."""
    rows = db.execute("select channel, whom, title, at from target where name = ? order by id desc", (agent,))
    return [KnownTarget(channel=row[0], target=row[1], title=row[2], at=from_millis(row[3])) for row in rows]


def last_target(db: sqlite3.Connection, channels: Mapping[str, Channel], agent: str | None) -> Target | None:
    """Where the agent's user wrote from most recently; None if that is unknown, or its channel takes no recipient any more.

    An earlier target is never used instead: it may lead to a different person.
    """
    row = db.execute("select channel, whom from target where name = ? order by id desc limit 1", (agent,)).fetchone()
    channel = channels.get(row["channel"]) if row else None
    return Target(row["channel"], row["whom"]) if channel is not None and channel.needs_target else None
