"""`status`: whether the daemon is up, what is due, and how each entry last fared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from scheduler.cli import daemon_state, options
from scheduler.cli.daemon_state import Place, Up
from scheduler.cli.output import called, local, passed, rough, short, table, utc_now, why, wrapped, zone_name
from scheduler.cli.wake_progress import waiting
from scheduler.config.file.message_parts import format_count
from scheduler.insight.status_data import read_status
from scheduler.insight.wake_waits import WakeWait
from scheduler.model.circuit import EVERY_MODEL, Circuit
from scheduler.model.outcome import Kind
from scheduler.store import disk_reserve

HEAD = ("NAME", "STATE", "NEXT", "LAST", "WHY", "ENDED")
UNITS = (("usd_per_day", ""), ("tokens_per_day", "token"), ("runs_per_day", "run"))  # none for money
DOWNS = 3  # that people are told of; programs get them all


@click.command()
@options.config
@options.state
@options.form
def status(path: Path, state: Path | None, form: str) -> None:
    """Say what is due, what runs, and whether the daemon is up."""
    where = daemon_state.looked_at(path, state)
    up, now = daemon_state.running(where), utc_now()
    with daemon_state.reading(where) as db:
        seen = read_status(db, now) if db else None
    if form == "json":
        click.echo(json.dumps(_as_data(seen, up) | {"reserve_bytes": disk_reserve.held(where.database)}, indent=2))
        return
    for fact in (*_life(seen, up, now, where), *(_facts(seen) if seen else ())):
        for line in wrapped(fact, 2 + len(fact) - len(fact.lstrip())):
            click.echo(line)
    for line in _entries(seen, now) if seen else ():
        click.echo(line)


def _worries(seen: dict[str, Any]) -> Iterator[str]:
    """What keeps things from going as the config on the disk says."""
    refused = seen["config_refused"]
    if refused:
        yield f"config: refused {local(refused['at'])}, the old one is in force"
        yield from (f"  {problem}" for problem in refused["problems"])
    if seen["deadman_problem"]:
        yield f"deadman: pings do not arrive: {seen['deadman_problem']}"
    yield from map(_breaker, seen["breakers"])
    yield from map(_outage, seen["outages"])
    for entry in seen["flapping"]:
        yield f"flapping: {called(entry['kind'], entry['name'])} failed and worked again by turns"


def _breaker(breaker: dict[str, Any]) -> str:
    since, probe = local(breaker["opened_at"]), local(breaker["next_probe_at"])
    why = breaker["error"] or breaker["reason"]
    return f"circuit breaker open: {_circuit(breaker)} since {since}, next probe from {probe}: {why}"


def _outage(outage: dict[str, Any]) -> str:
    state = "failing" if outage["failing"] else "works again"
    flapping = " and flapping" if outage["flapping"] else ""
    told = f"reported {local(outage['told_at'])}" if outage["told_at"] else "not reported yet"
    return f"{state}{flapping}: {_circuit(outage)} ({outage['reason']}) since {local(outage['since'])}, {told}"


def _circuit(named: dict[str, Any]) -> str:
    """A provider, or one of its models, as the config names them."""
    return str(Circuit(named["provider"], EVERY_MODEL if named["model"] is None else named["model"]))


def _as_data(seen: dict[str, Any] | None, up: Up | None) -> dict[str, Any]:
    """The snapshot, with what only the lock can tell: whether the last life goes on."""
    empty: dict[str, Any] = {"daemon": None, "downs": [], "config_hash": None, "config_refused": None, "breakers": []}
    empty |= {"deadman_problem": None, "outages": [], "flapping": []}
    seen = seen or empty | {"budget": None, "entries": [], "queue": None, "wakes": [], "outbox": []}
    return seen | {"daemon": (seen["daemon"] or {}) | {"running": up is not None, "pid": up.pid if up else None}}


def _life(seen: dict[str, Any] | None, up: Up | None, now: datetime, where: Place) -> Iterator[str]:
    life = seen["daemon"] if seen else None
    if up is not None:
        begun = _begun(life, up)
        since = f" since {local(begun)} ({rough(passed(begun, now))})" if begun else ""
        yield f"daemon: running{since}, pid {up.pid or 'not known'}"
    elif life is None:
        yield f"daemon: has never run on {where.database}; `heartbeatd run` starts it"
    else:
        since = life["ended_at"] or life["last_tick_at"]
        span = rough(passed(since, now))
        yield f"daemon: down since {local(since)} ({span}), {_how(life['ended_at'] is not None)}"
    if up is not None and (shortage := disk_reserve.shortage(where.database)):
        yield f"disk: {shortage}"
    if seen:
        yield from _worries(seen)
    for down in (seen["downs"] if seen else [])[:DOWNS]:
        span = rough(passed(down["since"], down["until"]))
        yield f"  was down {local(down['since'])} to {local(down['until'])} ({span}), {_how(down['clean'])}"


def _begun(life: dict[str, Any] | None, up: Up) -> str | datetime | None:
    """When the daemon that is up began: as its life is on record, which ends the time that it was down before."""
    return life["started_at"] if life and life["pid"] == up.pid and life["ended_at"] is None else up.started_at


def _how(clean: bool) -> str:
    return "stopped in order" if clean else "ended unexpectedly"


def _facts(seen: dict[str, Any]) -> Iterator[str]:
    """What is not well, or under way, beside the daemon itself."""
    queue = seen["queue"]
    yield f"queue: {queue['due']} due, {queue['running']} running, {queue['retrying']} waiting for another attempt"
    for box in seen["outbox"]:
        since = f" since {local(box['oldest_at'])}" if box["oldest_at"] else ""
        yield f"outbox: {box['channel']}: {box['pending']} pending{since}, {box['dead']} given up"
    yield from _budgets(seen)
    for tell in (_failing, partial(_wakes, seen), _held):  # one kind of line after the other
        for entry in seen["entries"]:
            yield from tell(entry)


def _entries(seen: dict[str, Any], now: datetime) -> Iterator[str]:
    if seen["entries"]:
        yield ""
        yield table(HEAD, [_row(entry, now) for entry in seen["entries"]])
    yield f"times in {zone_name()}"


def _failing(entry: dict[str, Any]) -> Iterator[str]:
    if failing := entry["failing"]:
        name = called(entry["kind"], entry["name"])
        told = f"told {local(failing['told_at'])}" if failing["told_at"] else "not told yet"
        often = "once" if failing["times"] == 1 else f"{failing['times']} times in a row"
        fault = f" ({failing['reason']})" if failing["reason"] else ""
        yield f"failing: {name} {often}{fault} since {local(failing['since'])}, {told}"


def _wakes(seen: dict[str, Any], entry: dict[str, Any]) -> Iterator[str]:
    found = (each for each in seen["wakes"] if each["name"] == entry["name"] and entry["kind"] == Kind.HEARTBEAT)
    wait = next(found, None)
    yield from waiting(entry, WakeWait(wait["waits_for"]) if wait else None)


def _held(entry: dict[str, Any]) -> Iterator[str]:
    for hold in entry["busy"]:
        yield f"busy: {hold['id']} holds {called(entry['kind'], entry['name'])} until {local(hold['until'])}"


def _budgets(seen: dict[str, Any]) -> Iterator[str]:
    """What today has had of each budget of which anything is used."""
    found = [("all", seen["budget"]), *((called(entry["kind"], entry["name"]), entry["budget"]) for entry in seen["entries"])]
    for name, budget in found:
        bounds = [(budget[key], unit) for key, unit in UNITS if key in (budget or {})]
        used = (f"{_some(bound['used'])} of {_bound(bound['of'], unit)}" for bound, unit in bounds)
        if bounds:
            yield f"budget: {name}: {', '.join(used)} today"


def _bound(amount: float, unit: str) -> str:
    return format_count(int(amount), unit) if unit else f"{_some(amount)} USD"


def _some(amount: float) -> str:
    return f"{amount:,}" if isinstance(amount, int) else f"{amount:.2f}" if amount >= 0.1 else f"{amount:.4f}"


def _row(entry: dict[str, Any], now: datetime) -> list[str]:
    last = entry["last_run"] or {}
    return [
        called(entry["kind"], entry["name"]),
        entry["state"],
        short(entry["next_due"] or entry["paused_until"], now),
        last.get("outcome") or last.get("state") or "-",
        why(last.get("reason"), last.get("suppression"), last.get("delivery", "none")),
        short(last.get("finished_at"), now),
    ]
