"""Gauges: what people still look at after a restart, read from the database whenever they are asked for."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

from scheduler.model import schedule
from scheduler.model.budget import ALL, NOTHING, Budget, Scope
from scheduler.model.circuit import Circuit, around
from scheduler.model.outcome import Kind
from scheduler.model.settings import Settings
from scheduler.model.timestamps import moment
from scheduler.store import breakers, disk_reserve, entries_view, outbox, spend, wakes
from scheduler.telemetry.series import Family

Key = tuple[str, str]
ENTRY = ("kind", "name")
STATES = ("active", "paused", "disabled")
DONE = "done"

# Which column of an entry's row each gauge shows; those under TIMES are absent until known.
NUMBERS = {
    "heartbeatd_consecutive_failures": ("failures", "Failed runs in a row."),
    "heartbeatd_consecutive_quiet": ("quiet", "Successful runs in a row of which nobody was told."),
    "heartbeatd_alerting": ("alerting", "1 if the last successful run said something."),
}
TIMES = {
    "heartbeatd_entry_created_timestamp_seconds": ("first_seen_at", "When the entry was first seen."),
    "heartbeatd_next_due_timestamp_seconds": ("next_due", "When the entry is due next; absent while it is paused or disabled."),
    "heartbeatd_last_run_timestamp_seconds": ("last_ended_at", "When the last run ended, however it ended."),
    "heartbeatd_last_success_timestamp_seconds": ("last_success_at", "When the last run ended well."),
}


def of_entries(db: sqlite3.Connection, wanted: Collection[Key]) -> Iterator[Family]:
    """The gauges of the entries in `wanted`."""
    state = Family("gauge", "heartbeatd_entry_state", "1 for the state that the entry is in.", (*ENTRY, "state"))
    numbers = {column: Family("gauge", name, told, ENTRY) for name, (column, told) in NUMBERS.items()}
    times = {column: Family("gauge", name, told, ENTRY) for name, (column, told) in TIMES.items()}
    for row in entries_view.entry_gauges(db, wanted):
        key = (row["kind"], row["name"])
        now = _state(row)
        for each in _states(row["pace"]):
            state.put(int(now == each), *key, each)
        for column, family in numbers.items():
            family.put(row[column], *key)
        for column, family in times.items():
            if row[column] is not None:
                family.put(row[column] / 1000, *key)
    return iter((state, *numbers.values(), *times.values()))


def _state(row: sqlite3.Row) -> str:
    is_done = row["state"] == "active" and not row["goes_on"] and schedule.done(row["pace"], moment(row["settled_until"]))
    return DONE if is_done else row["state"]


def _states(pace: str) -> tuple[str, ...]:
    """The states that an entry can be in: only one that fires once is ever done."""
    return STATES if schedule.once(pace) is None else (*STATES, DONE)


def of_queue(db: sqlite3.Connection, now: datetime) -> Iterator[Family]:
    """How much of the queue is due, and since when."""
    count, oldest = entries_view.count_due_entries(db, now)
    yield one("heartbeatd_due_entries", "Entries whose time has come.", count)
    yield one(
        "heartbeatd_oldest_due_timestamp_seconds",
        "Since when the longest waiting entry is due; absent while none is.",
        None if oldest is None else oldest.timestamp(),
    )


def of_wakes(db: sqlite3.Connection, agents: Iterable[str]) -> Iterator[Family]:
    """How many wakes wait for each of these agents."""
    family = Family("gauge", "heartbeatd_wakes_pending", "Wakes that wait for the agent's next run.", ("name",))
    waiting = {row["name"]: row["rows"] for row in wakes.waiting(db)}
    for name in agents:
        family.put(waiting.get(name, 0), name)
    yield family


def of_breakers(db: sqlite3.Connection, asked: Collection[Circuit]) -> Iterator[Family]:
    """For which of these models, and of their providers as a whole, the circuit breaker is open."""
    whole = Family(
        "gauge", "heartbeatd_breaker_open", "1 while no calls are made to a provider that refuses them.", ("provider",)
    )
    models = Family(
        "gauge",
        "heartbeatd_breaker_model_open",
        "1 while no calls are made for a model that its provider refuses.",
        ("provider", "model"),
    )
    open_ones = {breaker.circuit for breaker in breakers.open_ones(db)}
    for circuit in around(asked):
        if circuit.is_whole:
            whole.put(int(circuit in open_ones), circuit.provider)
        else:
            models.put(int(circuit in open_ones), *circuit)
    return iter((whole, models))


def of_budgets(db: sqlite3.Connection, settings: Settings, wanted: Collection[Key], now: datetime) -> Iterator[Family]:
    """How much of today's budgets is used, reservations of what is in progress included; a budget of nothing is left out."""
    family = Family(
        "gauge",
        "heartbeatd_budget_used_ratio",
        "The share of today's budget that is used.",
        ("scope", "kind", "name", "budget"),
    )
    days = spend.days(db, now)
    for scope, budget in _budgets(settings, wanted):
        spent = days.get((budget.day(now).isoformat(), *scope), NOTHING)
        for key, used, bound in budget.measured(spent):
            family.put(used / bound, "all" if scope == ALL else "entry", *scope, key)
    yield family


def _budgets(settings: Settings, wanted: Collection[Key]) -> Iterator[tuple[Scope, Budget]]:
    if settings.limits.budget is not None:
        yield ALL, settings.limits.budget
    for (kind, name), allowance in settings.allowances.items():
        if allowance.own is not None and (kind, name) in wanted:
            yield (kind.value, name), allowance.own


def of_outbox(db: sqlite3.Connection, channels: Iterable[str]) -> Iterator[Family]:
    """What each channel has still to be told; a channel that is no longer declared is shown while something is left of it."""
    pending = Family("gauge", "heartbeatd_outbox_pending", "Messages that are still to be delivered.", ("channel",))
    dead = Family("gauge", "heartbeatd_outbox_dead", "Messages that were given up.", ("channel",))
    oldest = Family(
        "gauge",
        "heartbeatd_outbox_oldest_timestamp_seconds",
        "When the oldest undelivered message was written; absent while there is none.",
        ("channel",),
    )
    for channel in channels:
        pending.put(0, channel)
        dead.put(0, channel)
    for row in outbox.unfinished(db):
        if row["pending"] or row["dead"] or row["channel"] in channels:
            pending.put(row["pending"], row["channel"])
            dead.put(row["dead"], row["channel"])
        if row["oldest"] is not None:
            oldest.put(row["oldest"] / 1000, row["channel"])
    return iter((pending, dead, oldest))


def of_files(state: Path) -> Iterator[Family]:
    """How large the database is on disk, and what is in reserve for it."""
    family = Family("gauge", "heartbeatd_db_bytes", "Size of the database (db) and of its write-ahead log (wal).", ("file",))
    for label, path in (("db", state), ("wal", state.with_name(state.name + "-wal"))):
        try:
            family.put(path.stat().st_size, label)
        except FileNotFoundError:
            family.put(0, label)
    yield family
    told = "Room that is kept for a full disk; 0 while it is given up or cannot be made."
    yield one("heartbeatd_reserve_bytes", told, disk_reserve.held(state))


def of_settings(settings: Settings, wanted: Collection[Key]) -> Iterator[Family]:
    """What the config in force says."""
    intervals = Family(
        "gauge", "heartbeatd_interval_seconds", "How often the entry is due, where that is one length of time.", ENTRY
    )
    for (kind, name), interval in _intervals(settings):
        if (kind, name) in wanted:
            intervals.put(interval.total_seconds(), kind, name)
    yield intervals
    yield one("heartbeatd_concurrency_limit", "How many runs may go on at one time.", settings.limits.concurrency)
    # The first 48 bits: as many as a float holds exactly, with room.
    yield one("heartbeatd_config_hash", "A number that changes whenever the config in force does.", int(settings.hash[:12], 16))
    entries = len(settings.heartbeats) + len(settings.jobs)
    yield one("heartbeatd_entries_without_series", "Entries beyond server.metrics_entries.", entries - len(wanted))


def _intervals(settings: Settings) -> Iterator[tuple[Key, timedelta]]:
    for beat in settings.heartbeats.values():
        if beat.interval is not None:
            yield (Kind.HEARTBEAT.value, beat.name), beat.interval
    for job in settings.jobs.values():
        if job.every is not None:
            yield (Kind.CRON.value, job.name), job.every


def one(name: str, told: str, value: float | None) -> Family:
    """A gauge without labels; absent while `value` is None."""
    family = Family("gauge", name, told)
    if value is not None:
        family.put(value)
    return family
