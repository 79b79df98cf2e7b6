"""Reads what reloads of the config have changed, as data for `status` and `explain`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from scheduler.model.config_changes import RecordedConfigEvent
from scheduler.model.outcome import Kind
from scheduler.model.timestamps import iso_utc
from scheduler.store import config_history


def reload_status(db: sqlite3.Connection) -> dict[str, Any]:
    """How the config is reloaded (`mode`: watch, manual, None before the first start), and the last reload or refused reload."""
    last = config_history.last_config_event(db)
    return {"mode": config_history.reload_mode(db), "last": _event_data(last) if last else None}


def config_changes_between(db: sqlite3.Connection, begin: datetime, end: datetime) -> list[dict[str, Any]]:
    """Every reload, refused reload and changed start in [begin, end), the oldest first, with its folded lines."""
    return [_event_data(event) for event in config_history.config_events(db, begin, end)]


def _event_data(recorded: RecordedConfigEvent) -> dict[str, Any]:
    event = recorded.event
    return {
        "at": iso_utc(recorded.at),
        "result": event.result,
        "by": event.by,
        "lines": event.diff.lines(),
        "problems": event.problem.splitlines() if event.problem else [],
    }


def changes_of_entry(
    db: sqlite3.Connection, kind: Kind, name: str, begin: datetime, end: datetime, agents: frozenset[str] | None = None
) -> list[dict[str, Any]]:
    """What reloads in [begin, end) have changed for one entry, the oldest first, one item for each key.

    Each item has `at`, `by` (file watch, SIGHUP, command, token NAME, start), `result`, `what`, `key`, `old` and `new`. `what` is
    `changed`, `added`, `removed`, `renamed` (`old` and `new` are the names), `shared` (a key outside agents and jobs, such as
    `timezone`), `refused` (`new` has the errors), or `not stored` (so many entries changed that their names were not kept).
    Keys of `defaults` are listed as the keys of the entry that they change.
    `agents` are those that the reader may see (None: all).
    """
    label = kind.label_of(name)
    visible = (each.of_agents(agents) for each in config_history.config_events(db, begin, end))
    return [
        {"at": iso_utc(recorded.at), "by": recorded.event.by, "result": recorded.event.result} | change
        for recorded in visible
        if recorded is not None
        for change in _changes_of_label(recorded, label)
    ]


def _changes_of_label(recorded: RecordedConfigEvent, label: str) -> Iterator[dict[str, Any]]:
    diff = recorded.event.diff
    if recorded.event.problem is not None:
        yield _change_data("refused", None, None, recorded.event.problem)
    for what, names in (("added", diff.added), ("removed", diff.removed)):
        if label in names:
            yield _change_data(what, None, None, None)
    for old, new in diff.renamed:
        if label in (old, new):
            yield _change_data("renamed", None, old, new)
    for change in diff.changes:
        if not change.entries:
            yield _change_data("shared", change.key, change.old, change.new)
        elif label in change.entries:
            yield _change_data("changed", change.key, change.old, change.new)
    if recorded.left_out:
        yield _change_data("not stored", None, None, None)


def _change_data(what: str, key: str | None, old: str | None, new: str | None) -> dict[str, Any]:
    return {"what": what, "key": key, "old": old, "new": new}
