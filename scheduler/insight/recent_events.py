"""Lists the recent events of the daemon or of one entry, from the database, for the command `logs`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from heartbeatd.answers import EntryChange, ReloadEvent
from scheduler.insight import reload_history
from scheduler.model.entry import Key
from scheduler.model.timestamps import iso_utc
from scheduler.store import activity, boots

Event = dict[str, Any]

DAEMON_KEYS: Event = {"id": None, "kind": None, "name": None, "detail": None, "slots": 1, "began_at": None, "error": None}


def list_events(
    db: sqlite3.Connection, key: Key | None, since: datetime, now: datetime, limit: int, *, running: bool
) -> list[Event]:
    """The last `limit` events since a time, the oldest first.

    Starts and ends of the daemon are always among them. With `key`, all others concern this entry. `event` is run, skip, start,
    message, condition, daemon or config; `result` is what happened to it.
    """
    found = activity.list_activity(db, key, since, limit)
    found += [event for event in _daemon_events(db, running=running) if event["at"] >= iso_utc(since)]
    found += _config_events(db, since, now) if key is None else _changes_of_entry(db, key, since, now)
    return sorted(found, key=lambda event: str(event["at"]))[-limit:]


def _daemon_events(db: sqlite3.Connection, *, running: bool) -> Iterator[Event]:
    recorded = boots.all_boots(db)
    for number, boot in enumerate(recorded):
        yield DAEMON_KEYS | {"at": iso_utc(boot.started_at), "event": "daemon", "result": "started", "detail": f"pid {boot.pid}"}
        if number < len(recorded) - 1 or not running:
            result = "stopped" if boot.clean else "ended unexpectedly"
            yield DAEMON_KEYS | {"at": iso_utc(boot.seen_until), "event": "daemon", "result": result}


def _config_events(db: sqlite3.Connection, since: datetime, now: datetime) -> Iterator[Event]:
    for change in reload_history.config_changes_between(db, since, now):
        yield _config_event(change, "; ".join(change.lines or change.problems) or None)


def _changes_of_entry(db: sqlite3.Connection, key: Key, since: datetime, now: datetime) -> Iterator[Event]:
    for change in reload_history.changes_of_entry(db, *key, since, now):
        yield _config_event(change, change.says)


def _config_event(change: ReloadEvent | EntryChange, says: str | None) -> Event:
    found = {"at": iso_utc(change.at), "event": "config", "result": change.result, "detail": change.by, "error": says}
    return DAEMON_KEYS | found
