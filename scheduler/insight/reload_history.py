"""Reads what reloads of the config have changed, as data for `status` and `explain`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime

from heartbeatd.answers import EntryChange, ReloadEvent, ReloadStatus
from scheduler.model.config_changes import RecordedConfigEvent
from scheduler.model.outcome import Kind
from scheduler.store import config_history


def reload_status(db: sqlite3.Connection) -> ReloadStatus:
    """How the config is reloaded (`mode`: watch, manual, None before the first start), and the last reload or refused reload."""
    last = config_history.last_config_event(db)
    return ReloadStatus(mode=config_history.reload_mode(db), last=_read_event(last) if last else None)


def config_changes_between(db: sqlite3.Connection, begin: datetime, end: datetime) -> list[ReloadEvent]:
    """Every reload, refused reload and changed start in [begin, end), the oldest first, with its folded lines."""
    return [_read_event(event) for event in config_history.config_events(db, begin, end)]


def _read_event(recorded: RecordedConfigEvent) -> ReloadEvent:
    event = recorded.event
    problems = event.problem.splitlines() if event.problem else []
    return ReloadEvent(at=recorded.at, result=event.result, by=event.by, lines=list(event.diff.lines()), problems=problems)


def changes_of_entry(
    db: sqlite3.Connection, kind: Kind, name: str, begin: datetime, end: datetime, agents: frozenset[str] | None = None
) -> list[EntryChange]:
    """What reloads in [begin, end) have changed for one entry, the oldest first, one item for each key.

    Each item has `at`, `by` (file watch, SIGHUP, command, token NAME, start), `result`, `what`, `key`, `old` and `new`. `what` is
    `changed`, `added`, `removed`, or `refused` (`new` has the errors). Keys of `defaults` are listed as the keys of the entry
    that they change. `agents` are those that the reader may see (None: all).
    """
    label = kind.label_of(name)
    visible = (each.of_agents(agents) for each in config_history.config_events(db, begin, end))
    return [
        EntryChange(
            at=recorded.at,
            by=recorded.event.by,
            result=recorded.event.result,
            what=what,
            key=key,
            old=old,
            new=new,
            says=_change_text(what, key, old, new),
        )
        for recorded in visible
        if recorded is not None
        for what, key, old, new in _changes_of_label(recorded, label)
    ]


Change = tuple[str, str | None, str | None, str | None]  # what, key, old and new value


def _changes_of_label(recorded: RecordedConfigEvent, label: str) -> Iterator[Change]:
    problem, diff = recorded.event.problem, recorded.event.diff.of_entries([label])
    if problem is not None:
        yield "refused", None, None, problem
    yield from (("added", None, None, None) for _ in diff.added)
    yield from (("removed", None, None, None) for _ in diff.removed)
    yield from (("changed", change.key, change.old, change.new) for change in diff.changes)


def _change_text(what: str, key: str | None, old: str | None, new: str | None) -> str:
    if what == "changed":
        return f"{key} {old} -> {new}"
    if what == "refused" and new:
        return f"the config was rejected: {new.splitlines()[0]}"
    return what
