"""Foresight and hindsight: what the interface tells of the time to come, and why something ran or did not."""

from __future__ import annotations

import sqlite3
from datetime import date, datetime, timedelta
from typing import Any

from scheduler.config.file.wording import written
from scheduler.config.keys import fields
from scheduler.insight import explanation as explaining
from scheduler.insight import forecast
from scheduler.model.entry import Key
from scheduler.model.outcome import Kind
from scheduler.store import entries
from scheduler.system import lanes
from scheduler.web.call import Call, instant
from scheduler.web.problem import bad, not_found
from scheduler.web.reading import check_reach, kind_of, reading
from scheduler.work import plan as plans
from scheduler.work.plan import Plan

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
        span = fields.some_duration(call.query.get("for", "24h"))
    except ValueError as error:
        raise bad(f"for: {error}") from error
    if span > forecast.LONGEST:
        raise bad(f"for: at most {written(forecast.LONGEST)}")
    return span


def _switch(call: Call, key: str) -> bool:
    said = call.query.get(key, "false")
    if said not in ("true", "false"):
        raise bad(f"{key}: write true or false")
    return said == "true"
