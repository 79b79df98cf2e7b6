"""Chronicle: what is on record of the daemon's lives and of the clocks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from cron.walltime import changes
from scheduler.model.local_days import Day
from scheduler.model.timestamps import iso
from scheduler.model.trigger_times import TICK
from scheduler.store import boots, clock_changes, stalls

Event = tuple[datetime, str, str]  # when, what in a word, what in a few


def life(db: sqlite3.Connection, instant: datetime, *, running: bool) -> dict[str, Any]:
    """Which life of the daemon an instant fell into, or since when and until when there was none."""
    lives = boots.lives(db)
    for gap in boots.gaps(lives, running=running):
        if gap.since < instant and (gap.until is None or instant < gap.until):
            return {"state": "down", "since": iso(gap.since), "until": iso(gap.until), "clean": gap.clean}
    found = next((life for life in reversed(lives) if life.started_at <= instant), None)
    if found is None:
        return {"state": "never"}
    goes_on = found is lives[-1] and running
    until = None if goes_on else iso(found.seen_until)
    return {"state": "up", "since": iso(found.started_at), "until": until, "pid": found.pid, "version": found.version}


def events(db: sqlite3.Connection, zone: ZoneInfo, day: Day, *, running: bool) -> list[dict[str, Any]]:
    """What happened on a day to the daemon, to its machine's clock and to the clock of its zone, in order."""
    found = (*_lives(db, running=running), *_jumps(db, day), *_stalls(db, day), *_changes(zone, day))
    return [{"at": iso(at), "what": what, "says": says} for at, what, says in sorted(found) if day.begins <= at < day.ends]


def _lives(db: sqlite3.Connection, *, running: bool) -> Iterator[Event]:
    lives = boots.lives(db)
    for each in lives:
        yield each.started_at, "daemon_started", f"the daemon started, pid {each.pid}"
        if each is lives[-1] and running:
            continue
        if each.clean:
            yield each.seen_until, "daemon_stopped", "the daemon stopped in order"
        else:
            yield each.seen_until, "daemon_lost", "the daemon was last seen; it ended unexpectedly"


def _jumps(db: sqlite3.Connection, day: Day) -> Iterator[Event]:
    for jump in clock_changes.between(db, day.begins, day.ends):
        far = timedelta(seconds=round(abs(jump.by).total_seconds()))
        way = "forward, or the machine slept" if jump.by > timedelta() else "back"
        yield jump.at, "clock_jumped", f"the machine's clock jumped {far} {way}"


def _stalls(db: sqlite3.Connection, day: Day) -> Iterator[Event]:
    for stall in stalls.between(db, day.begins, day.ends):
        long = timedelta(seconds=round((stall.until - stall.since).total_seconds()))
        yield stall.until, "stood_still", f"the daemon had stood still for {long}"


def _changes(zone: ZoneInfo, day: Day) -> Iterator[Event]:
    for change in changes(zone, day.begins - TICK, day.ends - TICK):
        before, after = (change.at - TICK).astimezone(zone), change.at.astimezone(zone)
        yield change.at, "clock_change", f"{zone}: {before + TICK:%H:%M} {before:%Z} was {after:%H:%M %Z}"
