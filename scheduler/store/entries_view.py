"""Reads entries together with their newest run and waiting wakes, for `status` and the metrics."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from datetime import datetime

from scheduler.model.entry_row import UNTIL_RESUMED, EntryRow
from scheduler.model.outcome import Kind
from scheduler.model.timestamps import from_millis, from_optional_millis, to_millis
from scheduler.store import entries

# Each entry with its newest run record (found by index), and the number of its waiting wakes. A kind or name of null means any.
OVERVIEWS = f"""
select {", ".join(f"entry.{column}" for column in entries.COLUMNS)},
  last.id as last_id, last.slot as last_run_slot, last.slots as last_slots, last.trigger as last_trigger,
  last.state as last_state, last.outcome as last_outcome, last.reason as last_reason, last.suppression as last_suppression,
  last.started_at as last_run_started_at, last.finished_at as last_finished_at, last.error as last_error,
  last.worker as last_worker, last.repeats as last_repeats,
  (select awaits from outbox where entry.kind = 'cron' and outbox.name = entry.name and awaits is not null and state = 'pending'
    limit 1) as failing_awaits,
  (select count(*) from wake where wake.kind = entry.kind and wake.name = entry.name and wake.state = 'waiting') as wakes
from entry left join run as last on last.id =
  (select id from run where run.kind = entry.kind and run.name = entry.name order by id desc limit 1)
where entry.state <> 'removed' and (cast(:kind as text) is null or entry.kind = :kind)
  and (cast(:name as text) is null or entry.name = :name)
order by entry.kind desc, entry.name
"""  # noqa: S608 (names of ours)

# The names come as one JSON text, because SQLite limits the number of parameters.
GAUGES = """
with awaited as materialized (select kind, name from run where result_due_at is not null)
select entry.kind, entry.name, failures, quiet, alerting, first_seen_at, last_ended_at, last_success_at,
  case when paused_until is null and state = 'active' then coalesce(due_at, slot) end as next_due,
  case when state = 'active' and paused_until is not null then 'paused' else state end as state, pace, settled_until,
  expected_at, expected_before, good_slots, bad_slots, case when paused_until = :forever then paused_at end as paused_at,
  exists (select 1 from awaited where awaited.kind = entry.kind and awaited.name = entry.name) as awaits,
  slot is null and exists (
    select 1 from run where kind = entry.kind and name = entry.name and state in ('running', 'waiting')) as goes_on
from json_each(:keys) as wanted cross join entry where entry.kind = wanted.value ->> 0 and entry.name = wanted.value ->> 1
"""


def entry_overviews(db: sqlite3.Connection, kind: Kind | None, name: str | None) -> list[tuple[EntryRow, sqlite3.Row]]:
    """Every entry that is not removed, or those of one kind or name: agents first, sorted by name. See OVERVIEWS."""
    found = db.execute(OVERVIEWS, {"kind": kind, "name": name})
    return [(entries.entry_from_row(row[: len(entries.COLUMNS)]), row) for row in found]


def entry_gauges(db: sqlite3.Connection, keys: Collection[tuple[str, str]]) -> list[sqlite3.Row]:
    """The columns of these entries that metrics show. See GAUGES."""
    return db.execute(GAUGES, {"keys": json.dumps(list(keys)), "forever": to_millis(UNTIL_RESUMED)}).fetchall()


def schedules_of_entries(db: sqlite3.Connection) -> dict[tuple[str, str], tuple[str, datetime]]:
    """The schedule text and the anchor of every active entry, by kind and name."""
    rows = db.execute("select kind, name, pace, anchor from entry where state = 'active'")
    return {(row["kind"], row["name"]): (row["pace"], from_millis(row["anchor"])) for row in rows}


def muted_entries(db: sqlite3.Connection, now: datetime) -> frozenset[tuple[str, str]]:
    """Kind and name of every entry whose messages are suppressed."""
    rows = db.execute("select kind, name from entry where muted_until > ? and state <> 'removed'", (to_millis(now),))
    return frozenset((row["kind"], row["name"]) for row in rows)


def count_due_entries(db: sqlite3.Connection, now: datetime) -> tuple[int, datetime | None]:
    """How many entries are due, and since when the first of them is."""
    count, oldest = db.execute("select count(*), min(due_at) from entry where due_at <= ?", (to_millis(now),)).fetchone()
    return count, from_optional_millis(oldest)


def count_open_runs(db: sqlite3.Connection) -> dict[str, int]:
    """The number of open runs by state: `running`, and `waiting` for a retry, a lane or a provider."""
    return dict(db.execute("select state, count(*) from run where state in ('running', 'waiting') group by state").fetchall())


OWNERS = {
    "run": "select kind, name from run where id = ?",
    "wake": "select kind, name from wake where id = ?",
    "outbox": "select kind, name from outbox where id = ?",
}


def entry_of_row(db: sqlite3.Connection, table: str, number: int) -> tuple[str, str] | None:
    """Kind and name of the entry of a row in `run`, `wake` or `outbox`; None if there is no such row."""
    row = db.execute(OWNERS[table], (number,)).fetchone()
    return (row["kind"], row["name"]) if row else None
