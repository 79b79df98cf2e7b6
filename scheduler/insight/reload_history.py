"""Reads what reloads of the config have changed, as data for `status` and `explain`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime

from heartbeatd import answers
from heartbeatd.answers import ReloadEvent, ReloadStatus
from scheduler.model.config_changes import Override, RecordedConfigEvent
from scheduler.model.outcome import Kind
from scheduler.store import config_history


def reload_status(db: sqlite3.Connection) -> ReloadStatus:
    """How the config is reloaded (`mode`: watch, manual, None before the first start), and the last reload or refused reload."""
    found, last = config_history.config_in_force(db), config_history.last_config_event(db)
    return ReloadStatus(mode=found[0].mode if found else None, last=_read_event(last) if last else None)


def config_changes_between(db: sqlite3.Connection, begin: datetime, end: datetime) -> list[ReloadEvent]:
    """Every reload, refused reload and changed start in [begin, end), the oldest first, with its folded lines."""
    return [_read_event(event) for event in config_history.config_events(db, begin, end)]


def describe_overrides(found: Iterable[Override]) -> list[answers.Override]:
    """The environment variables that set values of the config, in words too."""
    texts = ((each, f"{each.key} {each.in_file} -> {each.value} by {each.variable}") for each in found)
    return [answers.Override(**asdict(each), says=says) for each, says in texts]


EVENT_TEXTS = {
    "applied": "config reloaded",
    "refused": "config rejected",
    "started": "config changed before the start",
    "checklist": "checklist edited",
}


def _read_event(recorded: RecordedConfigEvent) -> ReloadEvent:
    event = recorded.event
    problems = event.problem.splitlines() if event.problem else []
    says = f"{EVENT_TEXTS[event.result]}, by {event.by}"
    return ReloadEvent(
        at=recorded.at, says=says, result=event.result, by=event.by, lines=list(event.diff.lines()), problems=problems
    )


@dataclass(frozen=True, slots=True)
class EntryChange:
    """What a reload has changed for one entry: `changed`, `added`, `removed`, or `refused`."""

    at: datetime
    by: str  # file watch, SIGHUP, command, token NAME, start
    result: str
    what: str
    says: str


def changes_of_entry(
    db: sqlite3.Connection, kind: Kind, name: str, begin: datetime, end: datetime, agents: frozenset[str] | None = None
) -> list[EntryChange]:
    """What reloads in [begin, end) have changed for one entry, the oldest first, one item for each key.

    Keys of `defaults` are listed as the keys of the entry that they change. `agents`: what the reader may see (None: everything).
    """
    label, found = kind.label_of(name), config_history.config_events(db, begin, end)
    visible = [own for each in found if (own := each.of_agents(agents)) is not None]
    return [
        EntryChange(own.at, own.event.by, own.event.result, what, says)
        for own in visible
        for what, says in _changes_of_label(own, label)
    ]


def _changes_of_label(recorded: RecordedConfigEvent, label: str) -> Iterator[tuple[str, str]]:
    problem, diff = recorded.event.problem, recorded.event.diff.of_entries([label])
    if problem is not None:
        yield "refused", ": ".join(("the config was rejected", *problem.splitlines()[:1]))
    yield from (("added", "added") for _ in diff.added)
    yield from (("removed", "removed") for _ in diff.removed)
    yield from (("changed", change.says) for change in diff.changes)
