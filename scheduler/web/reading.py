"""Reading: what the interface tells of the daemon's state, from the database and without touching it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from scheduler.insight import status_data, wake_waits
from scheduler.insight.wake_waits import Wait
from scheduler.model.outcome import Kind
from scheduler.store import disk_reserve, outbox_view, runs_view, targets
from scheduler.store.database import reader, row_number
from scheduler.web.call import Call, instant
from scheduler.web.problem import Problem, bad, not_found
from scheduler.web.reach import Reach

MOST_RUNS = 1000
KINDS = {"agent": Kind.HEARTBEAT, "heartbeat": Kind.HEARTBEAT, "cron": Kind.CRON}


@contextmanager
def reading(reach: Reach) -> Iterator[sqlite3.Connection]:
    """A connection that only reads, and sees one state of the database throughout. Raises StoreError."""
    db = reader(reach.state)
    try:
        db.execute("begin")
        yield db
    finally:
        db.close()


def overview(call: Call) -> dict[str, Any]:
    """Everything at a glance, as far as the caller's agents go."""
    call.only()
    with reading(call.reach) as db:
        told = status_data.snapshot(db, call.reach.clock())
    told["reserve_bytes"] = disk_reserve.held(call.reach.state)
    told["config_hash"] = call.reach.settings().hash
    told["entries"] = _reached(call, told["entries"])
    told["wakes"] = [each for each in told["wakes"] if call.caller.reaches(Kind.HEARTBEAT, each["name"])]
    return told


def agents(call: Call) -> dict[str, Any]:
    """Every agent."""
    call.only()
    with reading(call.reach) as db:
        return {"agents": _reached(call, status_data.entries(db, call.reach.clock(), Kind.HEARTBEAT))}


def jobs(call: Call) -> dict[str, Any]:
    """Every cron job."""
    call.only()
    with reading(call.reach) as db:
        return {"cron": _reached(call, status_data.entries(db, call.reach.clock(), Kind.CRON))}


def agent(call: Call) -> dict[str, Any]:
    """One agent, with the targets that are known of it, the last one first."""
    call.only()
    name = call.path["name"]
    check_reach(call, Kind.HEARTBEAT, name)
    with reading(call.reach) as db:
        found = status_data.entries(db, call.reach.clock(), Kind.HEARTBEAT, name)
        known = targets.known(db, name)
    if not found:
        raise not_found(f"agent {name!r}")
    return found[0] | {"targets": known}


def runs(call: Call) -> dict[str, Any]:
    """Runs, the newest first or (`sort=cost`) the dearest. A token for some agents has to name one of them."""
    call.only("kind", "name", "since", "until", "outcome", "reason", "limit", "sort")
    kind, name = kind_of(call.query.get("kind")), call.query.get("name")
    if call.caller.agents is not None:
        kind = Kind.HEARTBEAT
        check_reach(call, kind, name or "")
    since, until = (instant(key, call.query[key]) if key in call.query else None for key in ("since", "until"))
    limit, sort = _limit(call.query.get("limit", "20")), _sort(call.query.get("sort", "id"))
    outcome, reason = call.query.get("outcome"), call.query.get("reason")
    with reading(call.reach) as db:
        return {"runs": runs_view.page(db, kind, name, since, until, outcome, reason, limit, sort)}


def run(call: Call) -> dict[str, Any]:
    """One run."""
    call.only()
    return _one(call, "run", runs_view.whole)


def outbox(call: Call) -> dict[str, Any]:
    """Messages that are not delivered: those on their way, then those that were given up, the newest first."""
    call.only("limit")
    limit = _limit(call.query.get("limit", "100"))
    with reading(call.reach) as db:
        return {"outbox": list(islice((each for each in outbox_view.listed(db) if _reaches(call, each)), limit))}


def letter(call: Call) -> int:
    """The number of a message that the caller may move."""
    number = _number(call, "message")
    with reading(call.reach) as db:
        found = outbox_view.sender(db, number)
    if found is None:
        raise not_found(f"message {number}")
    check_reach(call, Kind(found[0]), found[1])
    return number


def wake(call: Call) -> dict[str, Any]:
    """Where a wake stands, and what it waits for."""
    call.only()
    found = _one(call, "wake", status_data.wake)
    still = wait(call, found["id"])
    return found | (still.as_data() if still else {"waits_for": None, "until": None})


def wait(call: Call, wake_id: int) -> Wait | None:
    """What a wake waits for; None for one that has ended."""
    with reading(call.reach) as db:
        return wake_waits.of(db, wake_id, call.reach.clock())


def check_reach(call: Call, kind: Kind, name: str) -> None:
    """Raises Problem when the caller's token is not good for this entry."""
    if not call.caller.reaches(kind, name):
        allowed = ", ".join(sorted(call.caller.agents or ()))
        raise Problem(403, "forbidden", f"the token {call.caller.name!r} is only for the agents {allowed}")


def _one(call: Call, what: str, find: Callable[[sqlite3.Connection, int], dict[str, Any] | None]) -> dict[str, Any]:
    number = _number(call, what)
    with reading(call.reach) as db:
        found = find(db, number)
    if found is None:
        raise not_found(f"{what} {number}")
    check_reach(call, Kind(found["kind"]), found["name"])
    return found


def _number(call: Call, what: str) -> int:
    number = row_number(call.path["id"])
    if number is None:
        raise not_found(f"{what} of this number")
    return number


def _reached(call: Call, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in entries if _reaches(call, each)]


def _reaches(call: Call, entry: dict[str, Any]) -> bool:
    return call.caller.reaches(Kind(entry["kind"]), entry["name"])


def kind_of(word: str | None) -> Kind | None:
    """The kind that a query names, None for none. Raises Problem."""
    if word is not None and word not in KINDS:
        raise bad("kind: write agent or cron")
    return KINDS[word] if word is not None else None


def _sort(word: str) -> str:
    if word not in runs_view.ORDERS:
        raise bad(f"sort: write {' or '.join(runs_view.ORDERS)}")
    return word


def _limit(text: str) -> int:
    limit = row_number(text)
    if limit is None or not 1 <= limit <= MOST_RUNS:
        raise bad(f"limit: write a number from 1 to {MOST_RUNS}")
    return limit
