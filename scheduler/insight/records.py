"""Records: what the tables know of one entry's slots, as the rules of its account want it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from scheduler.engine import planning
from scheduler.insight.reason_texts import Cause
from scheduler.insight.slot_history import UNKNOWN, Record, Row, Stand, cause_of
from scheduler.model.outcome import WOKEN, Trigger
from scheduler.model.timestamps import EPOCH, MILLISECOND, moment
from scheduler.store import boots, clock_changes, entries, entry_history, runs_view, stalls
from scheduler.store.entries import Standing

BESIDE = WOKEN | {Trigger.REBOOT, Trigger.RESULT}  # what is started by no slot


@dataclass(frozen=True, slots=True)
class Found:
    """The record of a time, and what ran in it that no slot started."""

    record: Record
    beside: tuple[Cause, ...]


def load(db: sqlite3.Connection, standing: Standing, begin: datetime, end: datetime, now: datetime, *, running: bool) -> Found:
    """What is known of an entry in [begin, end); `running` says that a daemon runs now."""
    rows = runs_view.speaking_of(db, standing.kind, standing.name, begin, end)
    open_run = entries.open_run(db, standing.kind, standing.name)
    record = Record(
        stands=tuple(_stands(db, standing)),
        rows=tuple(Row(row["id"], moment(row["slot"]), row["slots"], _cause(row)) for row in rows if _is_own(row)),
        downs=boots.gaps(boots.lives(db), running=running),
        jumps=clock_changes.between(db, begin, end),
        stalls=stalls.between(db, begin, end),
        now=now,
        settled_until=standing.settled_until,
        paused_until=standing.paused_until if standing.state == "active" else None,
        rests_until=standing.backs_off_until,
        in_the_way=planning.in_the_way(open_run) if open_run else None,
    )
    return Found(record, tuple(_cause(row) for row in rows if not _is_own(row)))


def _is_own(row: sqlite3.Row) -> bool:
    return row["trigger"] not in BESIDE


def _cause(row: sqlite3.Row) -> Cause:
    return cause_of(row["state"], row["outcome"], row["reason"], row["suppression"])


def _stands(db: sqlite3.Connection, standing: Standing) -> Iterator[Stand]:
    """How it has stood, one after the other; before it was first seen it was not known."""
    since = standing.first_seen_at - MILLISECOND
    yield Stand(UNKNOWN, "{}", since, EPOCH, since)
    for before in entry_history.of(db, standing.kind, standing.name):
        yield Stand(before.state, before.pace_text, before.anchor, since, before.until)
        since = before.until
    yield Stand(standing.state, standing.pace_text, standing.anchor, since, None)
