"""The mailbox: what the outbox still holds and what was given up, as people and programs look at it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from scheduler.model.timestamps import iso, optional

BEGINS = 200  # characters of a text that are told; its run has the whole
MOVABLE = frozenset({"pending", "uncertain", "held", "dead"})  # those that somebody may send again or drop

# What is on its way before what was given up, the newest first.
LISTED = """
select id, run_id, kind, name, channel, state, part, parts, attempts, created_at, not_before, doubted_at, error, notice,
  substr(text, 1, ?) as begins
from outbox where state in ('pending', 'sending', 'uncertain', 'held', 'dead') order by state = 'dead', id desc
"""


def listed(db: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """Every message that is neither delivered nor dropped, as plain data, read as far as it is asked for.

    `doubted`: an attempt may have arrived. `notice` names what we ourselves tell of a run. `next_try_at` is None
    where none is planned.
    """
    return (_as_data(row) for row in db.execute(LISTED, (BEGINS,)))


def sender(db: sqlite3.Connection, message_id: int) -> tuple[str, str] | None:
    """Kind and name of the entry whose message this is; None for none."""
    row = db.execute("select kind, name from outbox where id = ?", (message_id,)).fetchone()
    return (row["kind"], row["name"]) if row else None


def _as_data(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "run": row["run_id"],
        "kind": row["kind"],
        "name": row["name"],
        "channel": row["channel"],
        "state": row["state"],
        "part": row["part"],
        "parts": row["parts"],
        "attempts": row["attempts"],
        "created_at": iso(optional(row["created_at"])),
        "next_try_at": iso(optional(row["not_before"])) if row["state"] == "pending" else None,
        "doubted": row["doubted_at"] is not None,
        "error": row["error"],
        "notice": row["notice"],
        "begins": row["begins"],
    }
