"""The past: runs as people and programs look at them."""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime
from typing import Any

from scheduler.model.budget import NANO
from scheduler.model.outcome import Kind, Outcome
from scheduler.model.timestamps import iso, millis, moment, optional
from scheduler.store import wakes

ORDERS = {"id": "id desc", "cost": "cost_usd desc nulls last, id desc"}


def page(
    db: sqlite3.Connection,
    kind: Kind | None = None,
    name: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    outcome: str | None = None,
    reason: str | None = None,
    limit: int = 20,
    sort: str = "id",
) -> list[dict[str, Any]]:
    """Runs, the newest first or (`sort` is cost) the dearest, as plain data; every bound may be left out."""
    filters = {
        "kind = ?": kind,
        "name = ?": name,
        "slot >= ?": since and millis(since),
        "slot < ?": until and millis(until),
        "case state when 'closed' then outcome else state end = ?": outcome,
        "reason = ?": reason,
    }
    used = {text: value for text, value in filters.items() if value is not None}
    where = " and ".join(used) or "true"
    query = f"select * from run where {where} order by {ORDERS[sort]} limit ?"  # noqa: S608 (literals of this file)
    return [as_data(db, row) for row in db.execute(query, (*used.values(), limit))]


def speaking_of(db: sqlite3.Connection, kind: Kind, name: str, begin: datetime, end: datetime) -> list[sqlite3.Row]:
    """The rows of an entry's slots in [begin, end), the oldest first, with those that began before and may reach into it."""
    query = (
        "select * from run where kind = ? and name = ? and slot < ?"
        " and (slot >= ? or (slots > 1 and finished_at >= ?)) order by id"
    )
    return db.execute(query, (kind, name, millis(end), millis(begin), millis(begin))).fetchall()


def last_real_run(db: sqlite3.Connection, kind: Kind, name: str) -> int | None:
    """The id of the newest closed row that is no skip."""
    row = db.execute(
        "select id from run where kind = ? and name = ? and state = 'closed' and outcome <> 'skipped' order by id desc limit 1",
        (kind, name),
    ).fetchone()
    return row["id"] if row else None


def skipped_since(db: sqlite3.Connection, kind: Kind, name: str, run_id: int) -> dict[str, int]:
    """How many slots were skipped in the rows after this one, by reason."""
    rows = db.execute(
        "select reason, sum(slots) from run where kind = ? and name = ? and id > ? and outcome = 'skipped' and state = 'closed'"
        " group by reason order by sum(slots) desc",
        (kind, name, run_id),
    )
    return {row[0]: row[1] for row in rows}


def one(db: sqlite3.Connection, run_id: int) -> dict[str, Any] | None:
    """One run as plain data."""
    row = db.execute("select * from run where id = ?", (run_id,)).fetchone()
    return as_data(db, row) if row else None


def whole(db: sqlite3.Connection, run_id: int) -> dict[str, Any] | None:
    """One run, and under `wakes` those that it was to tell, with their whole texts; that is absent where there were none."""
    run, held = one(db, run_id), wakes.of_run(db, run_id)
    return run | {"wakes": held} if run is not None and held else run


def as_data(db: sqlite3.Connection, row: sqlite3.Row) -> dict[str, Any]:
    """A run as JSON shows it: times in UTC with Z, sizes of the prompt's parts, and where its messages stand."""
    targets = _targets(db, row["id"])
    return {
        "id": row["id"],
        "kind": row["kind"],
        "name": row["name"],
        "slot": iso(moment(row["slot"])),
        "slots": row["slots"],
        "trigger": row["trigger"],
        "outcome": row["outcome"] if row["state"] == "closed" else None,
        "state": row["state"],
        "reason": row["reason"],
        "suppression": row["suppression"],
        "attempt": row["attempt"],
        "not_before": iso(optional(row["not_before"])),
        "started_at": iso(optional(row["started_at"])),
        "finished_at": iso(optional(row["finished_at"])),
        "model_requested": row["model_requested"],
        "model_used": row["model_used"],
        "request_id": row["request_id"],
        "tokens": json.loads(row["tokens"]) if row["tokens"] else {"input": 0, "output": 0, "cache_read": 0, "cache_write": 0},
        "cost_usd": row["cost_usd"],
        "charged": _charged(row),
        "prompt_parts": [{"name": name, "chars": chars} for name, chars in json.loads(row["prompt_parts"] or "{}").items()],
        "left_out": json.loads(row["left_out"] or "[]"),
        "precheck": _precheck_data(row),
        "exit_code": row["exit_code"],
        "tool_calls": json.loads(row["tool_calls"] or "[]"),
        "log": row["log"],
        "text": row["text"],
        "truncated": bool(row["truncated"]),
        "result_due_at": iso(optional(row["result_due_at"])),
        "error": row["error"],
        "delivery": {
            "state": delivery_state(row["kind"], row["outcome"], row["suppression"], [each["state"] for each in targets]),
            "targets": targets,
        },
        "notices": _notices(db, row["id"]),
        "config_hash": row["config_hash"],
    }


def _charged(row: sqlite3.Row) -> dict[str, float] | None:
    """What the run counts for in its budgets; more than it cost where nobody said what that was. None: it has no budget."""
    if row["charged_nanos"] is None:
        return None
    return {"usd": row["charged_nanos"] / NANO, "tokens": row["charged_tokens"]}


def _precheck_data(row: sqlite3.Row) -> dict[str, Any] | None:
    if row["precheck_output"] is None:
        return None
    return {"exit_code": row["precheck_exit"], "output": row["precheck_output"], "error": row["precheck_error"]}


def _targets(db: sqlite3.Connection, run_id: int) -> list[dict[str, str]]:
    """Each channel that is to be told, with where its message stands and what kept it; one in parts stands where its parts do."""
    states: dict[str, list[str]] = {}
    errors: dict[str, str] = {}
    whom: dict[str, str] = {}
    query = "select channel, whom, state, error from outbox where run_id = ? and notice is null order by id"
    for row in db.execute(query, (run_id,)):
        states.setdefault(row["channel"], []).append(row["state"])
        whom[row["channel"]] = row["whom"]
        if row["error"] and row["state"] != "delivered":
            errors[row["channel"]] = row["error"]
    named = {channel: {"target": each} if each else {} for channel, each in whom.items()}
    told = ({"channel": channel, **named[channel], "state": _together(parts)} for channel, parts in states.items())
    return [target | {"error": errors[target["channel"]]} if target["channel"] in errors else target for target in told]


def _notices(db: sqlite3.Connection, run_id: int) -> list[dict[str, str]]:
    """What we ourselves told of a run, to which channel, and where that stands."""
    query = "select notice, channel, state, text from outbox where run_id = ? and notice is not null order by id"
    return [dict(row) for row in db.execute(query, (run_id,))]


def delivery_state(kind: str, outcome: str | None, suppression: str | None, states: list[str]) -> str:
    """One word for all messages of a run; `no_target`: it had something to say and nobody is to be told."""
    if not states:
        said = kind == Kind.HEARTBEAT and outcome in (Outcome.ALERT, Outcome.OK)
        return "no_target" if said and suppression is None else "none"
    return _together(states)


def _together(states: list[str]) -> str:
    if len(set(states)) == 1:
        return states[0]
    return "partial" if "delivered" in states else "pending"
