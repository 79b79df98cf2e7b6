"""Reading: what the interface tells of the daemon's state, from the database and without touching it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from itertools import islice
from typing import Any

from scheduler.config.file.message_parts import format_duration
from scheduler.config.keys import value_parsers
from scheduler.insight import explanation as explaining
from scheduler.insight import forecast, status_data, wake_waits
from scheduler.insight.wake_waits import Wait
from scheduler.model.entry import Key
from scheduler.model.outcome import Kind
from scheduler.store import disk_reserve, entries, outbox_view, runs_view, targets
from scheduler.store.database import reader, row_number
from scheduler.system import lanes
from scheduler.web.api_request import Call, instant
from scheduler.web.app_state import Reach
from scheduler.web.http_errors import Problem, bad, not_found
from scheduler.work import plan as plans
from scheduler.work.plan import Plan

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


def message_id(call: Call) -> int:
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


A_DAY = timedelta(days=1)
MOST_FIRINGS = 10_000


def plan(call: Call) -> dict[str, Any]:
    """What fires in the hours or days to come, as far as the caller's agents go."""
    call.only("for", "from", "name", "kind", "all")
    now, each = call.reach.clock(), _switch(call, "all")
    begin = _begin(call, now)
    span = _span(call)
    with reading(call.reach) as db:
        seen = forecast.foresee(db, plans.make(call.reach.settings()), now)
    chosen = _chosen(call, seen)
    told = forecast.told(chosen, begin, begin + span)
    if not each:
        return told
    if sum(entry["total"] for entry in told["entries"]) > MOST_FIRINGS:
        raise bad(f"all: more than {MOST_FIRINGS} firings; ask for less time, or by name")
    return forecast.told(chosen, begin, begin + span, each=True)


def explain(call: Call) -> dict[str, Any]:
    """Why an agent or a job ran or did not run: now, at one instant, or on a local day."""
    call.only("kind", "at", "on")
    now, plan = call.reach.clock(), plans.make(call.reach.settings())
    if "at" in call.query and "on" in call.query:
        raise bad("write either at or on")
    with reading(call.reach) as db:
        key = _key(call, plan, db)
        asked = explaining.about(db, plan, key, lanes.beside(call.reach.state), now, running=True)
        assert asked is not None  # `_key` has found it
        try:
            if "at" in call.query:
                return explaining.at_instant(asked, instant("at", call.query["at"]))
            if "on" in call.query:
                return explaining.on_day(asked, _day(call.query["on"]))
        except ValueError as error:
            raise bad(f"{'at' if 'at' in call.query else 'on'}: {error}") from error
        return explaining.at_present(asked)


def _key(call: Call, plan: Plan, db: sqlite3.Connection) -> Key:
    """The one entry that the path names, where the caller's token reaches it."""
    name, kind = call.path["name"], kind_of(call.query.get("kind"))
    keys = [(each, name) for each in Kind if kind in (None, each)]
    reached = [key for key in keys if call.caller.reaches(*key)]
    found = [key for key in reached if key in plan.entries or entries.find(db, *key) is not None]
    if not reached:
        check_reach(call, *keys[0])
    if not found:
        raise not_found(f"agent or cron job {name!r}")
    if len(found) > 1:
        raise bad(f"there are an agent and a cron job {name!r}; add kind=agent or kind=cron")
    return found[0]


def _chosen(call: Call, seen: list[forecast.Foreseen]) -> list[forecast.Foreseen]:
    kind, name = kind_of(call.query.get("kind")), call.query.get("name")
    if kind is not None and name is not None:
        check_reach(call, kind, name)
    mine = [each for each in seen if call.caller.reaches(each.course.kind, each.course.name)]
    found = [each for each in mine if kind in (None, each.course.kind) and name in (None, each.course.name)]
    if name is not None and not found:
        raise not_found(f"{'cron job' if kind is Kind.CRON else 'agent' if kind else 'agent or cron job'} {name!r}")
    return found


def _begin(call: Call, now: datetime) -> datetime:
    begin = instant("from", call.query["from"]) if "from" in call.query else now
    if begin.year not in forecast.YEARS:
        raise bad(f"from: write a time in the years {forecast.YEARS[0]} to {forecast.YEARS[-1]}")
    return begin


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a day; write 2026-11-20") from None


def _span(call: Call) -> timedelta:
    try:
        span = value_parsers.parse_positive_duration(call.query.get("for", "24h"))
    except ValueError as error:
        raise bad(f"for: {error}") from error
    if span > forecast.LONGEST:
        raise bad(f"for: at most {format_duration(forecast.LONGEST)}")
    return span


def _switch(call: Call, key: str) -> bool:
    said = call.query.get(key, "false")
    if said not in ("true", "false"):
        raise bad(f"{key}: write true or false")
    return said == "true"
