"""Keeps one row per agent or job with its due time: the due-queue. Also keeps how each entry was configured before."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from scheduler.model import entry_schedule
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import Key, Kind
from scheduler.model.timestamps import EPOCH, MILLISECOND, from_optional_millis, to_millis
from scheduler.store.database import StoreError
from scheduler.store.locations import open_read_only
from scheduler.store.rows import insert_row, read_row, time_places
from scheduler.store.transaction import COLUMNS as COLUMNS
from scheduler.store.transaction import Transaction, first_time, recall

TIMES = time_places(EntryRow)
SELECT_ENTRY = f"select {', '.join(COLUMNS)} from entry"  # noqa: S608 (names of ours)
SELECT_DUE = (
    f"select {', '.join(COLUMNS)}, exists (select 1 from run where run.kind = entry.kind and run.name = entry.name"  # noqa: S608
    " and run.state in ('running', 'waiting')) from entry"
)
SELECT_ENTRIES = (
    f"select {', '.join(f'entry.{column}' for column in COLUMNS)} from json_each(?) as wanted cross join entry"  # noqa: S608
    " where entry.kind = wanted.value ->> 0 and entry.name = wanted.value ->> 1"
)


def entry_from_row(row: Sequence[Any]) -> EntryRow:
    """The entry in a row that has the columns of `EntryRow` in their order."""
    values = [*row]
    values[1] = Kind(values[1])
    for place in TIMES:
        if (millis := values[place]) is not None:
            values[place] = EPOCH + MILLISECOND * millis  # as `from_millis`, whose call would take as long as the sum
    return EntryRow._make(values)


def due_entries(db: sqlite3.Connection, now: datetime, places: int, most: int) -> list[tuple[EntryRow, bool]]:
    """The entries that are due, each with whether it has an open run, the longest due first: at most `most`, and `places`.

    If more entries are due than there are places, the entries whose last run is longest ago come first.
    """
    limit, next_at = min(places, most), next_due_at(db)
    if next_at is None or next_at > now:
        return []
    rows = db.execute(f"{SELECT_DUE} where due_at <= ? order by due_at, id limit ?", (to_millis(now), places + 1)).fetchall()
    if len(rows) > places and limit < COMPETING:
        rows = db.execute(LONGEST_WAITING, (to_millis(now), limit)).fetchall()
    return [(entry_from_row(row[:-1]), bool(row[-1])) for row in rows[:limit]]


COMPETING = 200  # entries that are compared; a longer queue is fair too, because the longest due are compared first

# A last slot later than settled_until was run before the clock was set back.
LONGEST_WAITING = (
    f"{SELECT_DUE} where id in (select id from entry where due_at <= ? order by due_at, id limit {COMPETING})"  # noqa: S608 (our own number)
    " order by max(coalesce(min(last_slot, settled_until), 0), coalesce(last_ended_at, 0)), due_at, id limit ?"
)


def next_due_at(db: sqlite3.Connection) -> datetime | None:
    """When the next entry comes due. One seek: the index on due_at serves as the heap."""
    return recall(db, "select min(due_at) from entry where due_at is not null", first_time)


def find_entry(db: sqlite3.Connection, kind: Kind, name: str) -> EntryRow | None:
    """The row of an entry; None if there is none."""
    row = db.execute(f"{SELECT_ENTRY} where kind = ? and name = ?", (kind, name)).fetchone()
    return entry_from_row(row) if row else None


def states_and_schedules(db: sqlite3.Connection) -> dict[Key, tuple[str, str]]:
    """State and schedule text of every entry, by kind and name: enough to see whether a new plan changes it."""
    rows = db.execute("select kind, name, state, pace from entry")
    return {(Kind(row[0]), row[1]): (row[2], row[3]) for row in rows}


def all_entries(db: sqlite3.Connection) -> list[EntryRow]:
    """The rows of all entries, sorted by kind and name."""
    return [entry_from_row(row) for row in db.execute(f"{SELECT_ENTRY} order by kind, name")]


def last_id_of_part(db: sqlite3.Connection, after: int, most: int) -> int | None:
    """The last of the next ids, at most so many, for work that visits all entries in turn. None if there is none after it."""
    query = "select max(id) from (select id from entry where id > ? order by id limit ?) as part"
    found: int | None = db.execute(query, (after, most)).fetchone()[0]
    return found


def unplanned_entries(db: sqlite3.Connection, after: int, last: int, settled_by: datetime) -> list[EntryRow]:
    """The active entries with ids in (after, last] that have no next slot, and whose slots have records until then at most."""
    query = (
        f"{SELECT_ENTRY} where id > ? and id <= ? and due_at is null and slot is null and paused_until is null"
        " and state = 'active' and settled_until <= ? order by id"
    )
    return [entry_from_row(row) for row in db.execute(query, (after, last, to_millis(settled_by)))]


def entries_paused_by_failures(db: sqlite3.Connection, after: int, last: int) -> list[EntryRow]:
    """The entries with ids in (after, last] that the daemon has paused."""
    query = f"{SELECT_ENTRY} where id > ? and id <= ? and paused_after_failures > 0 order by id"
    return [entry_from_row(row) for row in db.execute(query, (after, last))]


def newest_first_seen_at(db: sqlite3.Connection) -> datetime | None:
    """When the newest entry was first seen; None without entries."""
    return from_optional_millis(db.execute("select max(first_seen_at) from entry").fetchone()[0])


def add_entries(tx: Transaction, rows: Sequence[EntryRow]) -> None:
    """Insert new entries by one set of statements. They get their IDs here."""
    columns = COLUMNS[1:]
    statement = f"insert into entry ({', '.join(columns)}) values ({', '.join('?' * len(columns))})"  # noqa: S608 (names of ours)
    values = [[to_millis(value) if isinstance(value, datetime) else value for value in row[1:]] for row in rows]
    if values:
        tx.db.executemany(statement, values)


def change_entry(tx: Transaction, before: EntryRow, after: EntryRow) -> None:
    """Change an entry's row by the fields in which `after` differs from `before`. It is written later (`store/transaction`).

    An entry's state, schedule and anchor change seldom, and their former values are kept.
    """
    if (before.state, before.schedule_text, before.anchor) != (after.state, after.schedule_text, after.anchor):
        was = {"state": before.state, "pace": before.schedule_text, "anchor": before.anchor}
        insert_row(tx.db, "former", {"kind": before.kind, "name": before.name, **was, "until_at": tx.now})
    tx.db.change_entry(before, after)


def entries_expected_between(tx: Transaction, since: datetime, until: datetime) -> list[EntryRow]:
    """The entries whose next slot to be answered came due after `since`, and at `until` at the latest."""
    rows = tx.db.execute(f"{SELECT_ENTRY} where expected_at > ? and expected_at <= ?", (to_millis(since), to_millis(until)))
    return [entry_from_row(row) for row in rows]


def current_entry(tx: Transaction, kind: Kind, name: str) -> EntryRow | None:
    """The row of an entry with all changes of this transaction. None if there is no such entry."""
    found = tx.db.known_entry((kind, name))
    if found is None and (found := find_entry(tx.db, kind, name)):
        tx.db.know_entry(found)
    return found


def read_entries(tx: Transaction, keys: Iterable[Key]) -> None:
    """Read the rows of several entries by one query, unless they are known. `current_entry` then finds them without another."""
    unknown = [key for key in keys if tx.db.known_entry(key) is None]
    for row in tx.db.execute(SELECT_ENTRIES, (json.dumps(unknown),)) if unknown else ():
        tx.db.know_entry(entry_from_row(row))


def get_entry(tx: Transaction, kind: Kind, name: str) -> EntryRow:
    """The same for an entry that is known to have a row."""
    found = current_entry(tx, kind, name)
    assert found is not None
    return found


@dataclass(frozen=True, slots=True)
class PastState:
    """An earlier state, schedule and anchor of an entry, and until when they were valid."""

    state: str
    schedule_text: str
    anchor: datetime
    until: datetime


PAST_STATES = "select *, pace as schedule_text, until_at as until from former"


def past_states(db: sqlite3.Connection, kind: Kind, name: str) -> list[PastState]:
    """The earlier states of an entry, the oldest first."""
    rows = db.execute(f"{PAST_STATES} where kind = ? and name = ? order by id", (kind, name))
    return [read_row(PastState, row) for row in rows]


def past_states_since(db: sqlite3.Connection, since: datetime) -> dict[Key, list[PastState]]:
    """The states of all entries that ended at `since` or later, by entry, the oldest first."""
    found: dict[Key, list[PastState]] = {}
    for row in db.execute(f"{PAST_STATES} where until_at >= ? order by id", (to_millis(since),)):
        found.setdefault((Kind(row["kind"]), row["name"]), []).append(read_row(PastState, row))
    return found


def latest_past_state(db: sqlite3.Connection, kind: Kind, name: str) -> PastState | None:
    """The state of an entry before its last change; None if it never changed."""
    found = past_states(db, kind, name)
    return found[-1] if found else None


def record_one_time_job(tx: Transaction, name: str, schedule_text: str) -> bool:
    """Record for ever that the time of a one-time job was seen; returns whether it is new."""
    seen = {"hash": _one_time_job_hash(name, schedule_text), "seen_at": tx.now}
    return insert_row(tx.db, "once", seen, "on conflict do nothing returning hash").fetchone() is not None


def has_seen_one_time_job(state: Path | str, name: str, schedule_text: str) -> bool:
    """Whether the database at `state`, or on a server, has recorded this one-time job.

    An absent file has not; an unreadable file counts as if it had.
    """
    if isinstance(state, Path) and not state.exists():
        return False
    try:
        with closing(open_read_only(state)) as db:
            query = "select 1 from once where hash = ?"
            return db.execute(query, (_one_time_job_hash(name, schedule_text),)).fetchone() is not None
    except (StoreError, sqlite3.Error):
        return True


def _one_time_job_hash(name: str, schedule_text: str) -> str:
    parts = entry_schedule.schedule_parts(schedule_text)
    return sha256(json.dumps([name, parts["at"], parts["zone"]]).encode()).hexdigest()
