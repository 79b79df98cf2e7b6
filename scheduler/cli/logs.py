"""The command `logs`: lists the events of the daemon, or of one agent or job, and follows new events."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import click

from heartbeat.words import one_line
from heartbeatd.answers import ReloadEvent
from scheduler.cli import daemon_files, options
from scheduler.cli.daemon_files import DaemonFiles, Source
from scheduler.cli.output import format_elapsed, format_time, paint, utc_now, zone_name
from scheduler.insight.reason_texts import ending_text
from scheduler.insight.reload_history import EVENT_TEXTS, EntryChange, changes_of_entry, config_changes_between
from scheduler.model.levels import Level, level_of, level_of_run
from scheduler.model.outcome import Key
from scheduler.model.problem import Subject
from scheduler.store import boots, overviews
from scheduler.store.overviews import LoggedEvent

BEGINNING = datetime(1970, 1, 2, tzinfo=UTC)
POLL_INTERVAL = 1.0  # seconds between two looks at the database
OVERLAP = timedelta(minutes=5)  # a tick that writes its events late does not hide them
MAX_NEW = 10_000  # events that one look shows
DAEMON_LEVELS = {"started": Level.GOOD, "shut down": Level.LOST, "ended unexpectedly": Level.BAD}


# An event that concerns no entry and no row.
_event = partial(LoggedEvent, id=None, kind=None, name=None, planned_runs=1, began_at=None)


def print_logs(name: str | None, follow: bool, lines: int, since: datetime | None, source: Source) -> None:
    """Print the last events, and with `follow` each new one until Ctrl-C."""
    begun = utc_now()
    with source.open() as db:
        key = options.resolve_recorded(name, db) if name is not None else None
        found = _read_events(db, source, key, since or BEGINNING, lines) if lines else []
        newest = _read_events(db, source, key, begun - OVERLAP, MAX_NEW) if follow else []
    _print_events(found, source.form)
    if follow:
        if daemon_files.find_running_daemon(source.files) is None:
            click.echo("the daemon is not running; waiting for new events until Ctrl-C", err=True)
        _follow(source, key, {_identity(event) for event in newest})
    elif not found and source.form == "text":
        click.echo("nothing has happened yet" if since is None else "nothing has happened since then")
    elif source.form == "text":
        click.echo(f"times in {zone_name()}")


def _follow(source: Source, key: Key | None, seen: set[tuple[object, ...]]) -> None:
    """Print each event that was not `seen`, until Ctrl-C."""
    looked = utc_now()
    try:
        while True:
            sys.stdout.flush()
            time.sleep(POLL_INTERVAL)
            since, looked = looked - OVERLAP, utc_now()
            with source.open() as db:
                found = _read_events(db, source, key, since, MAX_NEW)
            _print_events([event for event in found if _identity(event) not in seen], source.form)
            seen |= set(map(_identity, found))
    except KeyboardInterrupt:
        return


def _read_events(db: sqlite3.Connection, source: Source, key: Key | None, since: datetime, limit: int) -> list[LoggedEvent]:
    """The last `limit` events since a time, the oldest first.

    Starts and ends of the daemon are always among them. With `key`, all others concern this entry.
    """
    found, now = overviews.list_activity(db, key, since, limit), utc_now()
    found += [event for event in _daemon_events(db, source.files) if event.at >= since]
    changed: list[tuple[ReloadEvent | EntryChange, str]]
    if key is None:
        changed = [(each, "; ".join(each.lines or each.problems)) for each in config_changes_between(db, since, now)]
    else:
        changed = [(each, each.says) for each in changes_of_entry(db, *key, since, now)]
    found += [
        _event(event="config", at=each.at, result=each.result, detail=each.by, error=says or None) for each, says in changed
    ]
    return sorted(found, key=lambda event: event.at)[-limit:]


def _daemon_events(db: sqlite3.Connection, files: DaemonFiles) -> Iterator[LoggedEvent]:
    recorded = boots.all_boots(db)  # before the lock, which a daemon has taken before it records its start
    running = daemon_files.is_daemon_running(files, db)
    for boot in recorded:
        yield _event(event="daemon", at=boot.started_at, result="started", detail=f"pid {boot.pid}", error=None)
    for down in boots.downtimes_between(recorded, running=running):
        yield _event(event="daemon", at=down.since, result=ending_text(down.clean), detail=None, error=None)


def _identity(event: LoggedEvent) -> tuple[object, ...]:
    """An event that is the same at the next look. A record of skipped planned times grows, and is then printed again."""
    return event.event, event.id, event.result, event.planned_runs, event.at


def _print_events(events: list[LoggedEvent], form: str) -> None:
    for event in events:
        click.echo(json.dumps(event.as_data()) if form == "json" else "  ".join(_format_event(event)))


def _format_event(event: LoggedEvent) -> Iterator[str]:
    """The columns of a line: the time, the entry or the part of the daemon, what happened, and the details."""
    level = _level(event)
    at = format_time(event.at)
    yield paint(at, level) if level is Level.PLANNED else at
    yield Subject(event.kind, event.name).label if event.kind and event.name else event.event
    text, detail, error = _describe(event)
    more = f": {one_line(error)}" if error else ""
    yield paint(text, level) + (f" {one_line(detail)}" if detail else "") + more


def _describe(event: LoggedEvent) -> tuple[str, str, str | None]:
    """What happened in one or two words, a detail, and a longer text."""
    detail, error, number = event.detail or "", event.error, event.id
    match event.event:
        case "run":
            took = f", {format_elapsed(event.began_at, event.at)}" if event.began_at else ""
            return event.result, f"{detail} (run {number}{took})".strip(), error
        case "skip":
            times = f"{event.planned_runs} times, " if event.planned_runs > 1 else ""
            return "skipped", f"{detail} ({times}run {number})", error
        case "start":
            return "started", f"by {detail} (run {number})", None
        case "message":
            return f"message {event.result}", f"to {detail} (message {number})", error
        case "problem":
            return f"problem {event.result}", detail, error
        case "config":
            return EVENT_TEXTS[event.result], f"by {detail}", error
        case _:
            return event.result, f"({detail})" if detail else "", error


def _level(event: LoggedEvent) -> Level | None:
    match event.event:
        case "run" | "skip":
            return level_of_run(event.result, event.detail)
        case "message":
            return level_of(event.result)
        case "daemon":
            return DAEMON_LEVELS.get(event.result)
        case "problem":
            return Level.LOST if event.result == "opened" else Level.GOOD
        case "config":
            return Level.BAD if event.result == "refused" else None
        case _:
            return None
