"""The due-queue: one standing row per agent or job, and the claim that takes a due one."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from scheduler.model import entry_schedule
from scheduler.model.entry_schedule import EntrySchedule
from scheduler.model.outcome import Kind
from scheduler.model.timestamps import from_millis, from_optional_millis, to_millis
from scheduler.store.database import StoreError, open_read_only
from scheduler.store.transaction import Transaction

UNTIL_RESUMED = datetime(9999, 1, 1, tzinfo=UTC)  # the end of a pause that somebody must end


class EntryRow(NamedTuple):
    """An entry's row. Every slot up to `settled_until` has its end; `slot` is the next one.

    What becomes of an entry is worked out as a new value, and written once, by `save`. A beat takes nine of these values: as
    tuples they are made in a tenth of the time that dataclasses need.
    """

    id: int
    kind: Kind
    name: str
    state: str
    schedule_text: str
    first_seen_at: datetime
    anchor: datetime
    settled_until: datetime
    slot: datetime | None
    due_at: datetime | None
    paused_until: datetime | None = None
    last_slot: datetime | None = None
    last_ended_at: datetime | None = None
    last_woken_at: datetime | None = None
    last_success_at: datetime | None = None
    failures: int = 0
    quiet: int = 0
    alerting: int = 0
    troubles: int = 0
    precheck: str | None = None
    queue: int | None = None
    approvals: int | None = None
    active_at: datetime | None = None
    flapping: int = 0

    @property
    def schedule(self) -> EntrySchedule:
        """When its slots come; the row alone decides it, so that what passed under an older config is still known."""
        return entry_schedule.parse_schedule(self.schedule_text, self.anchor)

    @property
    def backs_off_until(self) -> datetime | None:
        """Before when no slot of its grid runs, because it failed; None when it does not back off.

        A slot that ran and lies ahead of what is accounted for is the trace of a clock that was set back, and says nothing.
        """
        pause = entry_schedule.backoff_pause(self.schedule_text, self.failures)
        if pause is None or self.last_slot is None or self.last_slot > self.settled_until:
            return None
        return self.last_slot + pause

    @property
    def paused(self) -> bool:
        """Whether somebody paused it and has not resumed it yet."""
        return self.paused_until is not None

    @property
    def runs_when_first_seen(self) -> bool:
        """Whether its first slot was set to when it was first seen, and has not run yet."""
        return self.last_slot is None and self.slot == self.first_seen_at

    @property
    def pause_ends(self) -> datetime | None:
        """When the pause ends by itself; None without a pause, and for one that somebody must end."""
        return None if self.paused_until == UNTIL_RESUMED else self.paused_until


# Every column by its place: two dozen names looked up one by one would take three times as long.
SELECT_ENTRY = (
    "select id, kind, name, state, pace, first_seen_at, anchor, settled_until, slot, due_at, paused_until, last_slot,"
    " last_ended_at, last_woken_at, last_success_at, failures, quiet, alerting, troubles, precheck, queue, approvals, active_at,"
    " flapping"
    " from entry"
)


def _entry_from_row(row: sqlite3.Row) -> EntryRow:
    (
        number, kind, name, state, schedule, first_seen_at, anchor, settled_until, slot, due_at, paused_until, last_slot,
        last_ended_at, last_woken_at, last_success_at, failures, quiet, alerting, troubles, precheck, queue, approvals, active_at,
        flapping,
    ) = row  # fmt: skip
    return EntryRow(
        number, Kind(kind), name, state, schedule, from_millis(first_seen_at), from_millis(anchor), from_millis(settled_until),
        from_optional_millis(slot), from_optional_millis(due_at), from_optional_millis(paused_until),
        from_optional_millis(last_slot), from_optional_millis(last_ended_at), from_optional_millis(last_woken_at),
        from_optional_millis(last_success_at), failures, quiet, alerting, troubles, precheck, queue, approvals,
        from_optional_millis(active_at), flapping,
    )  # fmt: skip


def due_entries(db: sqlite3.Connection, now: datetime, places: int, most: int) -> list[EntryRow]:
    """Entries whose time has come, at most `most`, and no more than there are `places`; those that came due first.

    If more are due than there are places, those that have waited longest since their last run come first.
    """
    limit = min(places, most)
    rows = db.execute(f"{SELECT_ENTRY} where due_at <= ? order by due_at, id limit ?", (to_millis(now), limit)).fetchall()
    if len(rows) == limit < COMPETING and _more_are_due(db, now, places):
        rows = db.execute(LONGEST_WAITING, (to_millis(now), limit)).fetchall()
    return [_entry_from_row(row) for row in rows]


COMPETING = 200  # entries that are compared; in a longer queue the order is fair as well, for it takes in those due first

# A slot that ran and lies ahead of what is accounted for is the trace of a clock that was set back.
LONGEST_WAITING = (
    f"{SELECT_ENTRY} where id in (select id from entry where due_at <= ? order by due_at, id limit {COMPETING})"  # noqa: S608 (a number of ours)
    " order by max(coalesce(min(last_slot, settled_until), 0), coalesce(last_ended_at, 0)), due_at, id limit ?"
)


def _more_are_due(db: sqlite3.Connection, now: datetime, number: int) -> bool:
    query = "select 1 from entry where due_at <= ? order by due_at limit 1 offset ?"
    return db.execute(query, (to_millis(now), number)).fetchone() is not None


def next_due_at(db: sqlite3.Connection) -> datetime | None:
    """When the next entry wants to be looked at; the index is the heap."""
    return from_optional_millis(db.execute("select min(due_at) from entry where due_at is not null").fetchone()[0])


def find_entry(db: sqlite3.Connection, kind: Kind, name: str) -> EntryRow | None:
    """The standing row of one entry."""
    row = db.execute(f"{SELECT_ENTRY} where kind = ? and name = ?", (kind, name)).fetchone()
    return _entry_from_row(row) if row else None


def states_and_schedules(db: sqlite3.Connection) -> dict[tuple[Kind, str], tuple[str, str]]:
    """State and pace of every entry, by kind and name: the little that tells whether a plan changes it."""
    rows = db.execute("select kind, name, state, pace from entry")
    return {(Kind(row[0]), row[1]): (row[2], row[3]) for row in rows}


def all_entries(db: sqlite3.Connection) -> list[EntryRow]:
    """Every standing row, by name."""
    return [_entry_from_row(row) for row in db.execute(f"{SELECT_ENTRY} order by kind, name")]


def entries_after(db: sqlite3.Connection, last_id: int, limit: int) -> list[EntryRow]:
    """The next entries in the order of their ids, for work that goes round."""
    return [_entry_from_row(row) for row in db.execute(f"{SELECT_ENTRY} where id > ? order by id limit ?", (last_id, limit))]


def newest_first_seen_at(db: sqlite3.Connection) -> datetime | None:
    """When the newest entry was first seen."""
    return from_optional_millis(db.execute("select max(first_seen_at) from entry").fetchone()[0])


def add_entry(
    tx: Transaction, kind: Kind, name: str, state: str, schedule_text: str, anchor: datetime, settled_until: datetime
) -> EntryRow:
    """A new entry, first seen now, with nothing planned yet."""
    tx.db.execute(
        "insert into entry (kind, name, state, pace, first_seen_at, anchor, settled_until) values (?, ?, ?, ?, ?, ?, ?)",
        (kind, name, state, schedule_text, to_millis(tx.now), to_millis(anchor), to_millis(settled_until)),
    )
    return get_entry(tx, kind, name)


COLUMNS = tuple("pace" if field == "schedule_text" else field for field in EntryRow._fields)

WHAT_DECIDES_SLOTS = {"state", "pace", "anchor"}


def save_entry(tx: Transaction, before: EntryRow, after: EntryRow) -> None:
    """Write what has become of an entry, by one statement; nothing where nothing has changed.

    What decides its slots changes seldom, and how it was is kept.
    """
    changed = {column: now for column, was, now in zip(COLUMNS, before, after, strict=True) if now != was}
    if changed.keys() & WHAT_DECIDES_SLOTS:
        record_past_state(tx, before.kind, before.name, before.state, before.schedule_text, before.anchor)
    if changed:
        values = [to_millis(value) if isinstance(value, datetime) else value for value in changed.values()]
        tx.db.execute(_update_statement(tuple(changed)), (*values, before.id))


@lru_cache(maxsize=256)  # what changes together in a beat is nearly always the same
def _update_statement(columns: tuple[str, ...]) -> str:
    """Column names come from the table above, never from a user: the values alone are data."""
    assignments = ", ".join(f"{column} = ?" for column in columns)
    return f"update entry set {assignments} where id = ?"  # noqa: S608


def get_entry(tx: Transaction, kind: Kind, name: str) -> EntryRow:
    """The row of an entry that is known to have one."""
    found = find_entry(tx.db, kind, name)
    assert found is not None
    return found


@dataclass(frozen=True, slots=True)
class PastState:
    """What decided an entry's slots, and until when."""

    state: str
    schedule_text: str
    anchor: datetime
    until: datetime


def record_past_state(tx: Transaction, kind: Kind, name: str, state: str, schedule_text: str, anchor: datetime) -> None:
    """Remember how an entry has stood until now."""
    tx.db.execute(
        "insert into former (kind, name, state, pace, anchor, until_at) values (?, ?, ?, ?, ?, ?)",
        (kind, name, state, schedule_text, to_millis(anchor), to_millis(tx.now)),
    )


def past_states(db: sqlite3.Connection, kind: Kind, name: str) -> list[PastState]:
    """How an entry stood before, the oldest first."""
    rows = db.execute("select state, pace, anchor, until_at from former where kind = ? and name = ? order by id", (kind, name))
    return [PastState(row["state"], row["pace"], from_millis(row["anchor"]), from_millis(row["until_at"])) for row in rows]


def latest_past_state(db: sqlite3.Connection, kind: Kind, name: str) -> PastState | None:
    """How an entry stood before its last change."""
    found = past_states(db, kind, name)
    return found[-1] if found else None


def clamp_future_times(tx: Transaction) -> None:
    """After the system clock was set back: no entry was run, woken or changed in the future."""
    tx.db.execute(
        "update entry set last_woken_at = min(last_woken_at, :now), last_ended_at = min(last_ended_at, :now),"
        " last_success_at = min(last_success_at, :now)",
        {"now": to_millis(tx.now)},
    )
    tx.db.execute("update former set until_at = min(until_at, ?)", (to_millis(tx.now),))


def delete_old_history(tx: Transaction, keep: timedelta) -> None:
    """It is remembered no longer than the history."""
    tx.db.execute("delete from former where until_at < ?", (to_millis(tx.now - keep),))


def record_one_time_job(tx: Transaction, name: str, schedule_text: str) -> bool:
    """Remember the moment of a job for ever; whether it is new."""
    row = tx.db.execute(
        "insert into once (hash, seen_at) values (?, ?) on conflict do nothing returning hash",
        (_one_time_job_hash(name, schedule_text), to_millis(tx.now)),
    ).fetchone()
    return row is not None


def has_seen_one_time_job(state: Path, name: str, schedule_text: str) -> bool:
    """Whether the database at `state` has seen a job's moment; one that is absent has not, one that cannot be read may."""
    if not state.exists():
        return False
    try:
        with closing(open_read_only(state)) as db:
            query = "select 1 from once where hash = ?"
            return db.execute(query, (_one_time_job_hash(name, schedule_text),)).fetchone() is not None
    except (StoreError, sqlite3.Error):
        return True


def _one_time_job_hash(name: str, schedule_text: str) -> str:
    said = entry_schedule.schedule_parts(schedule_text)
    return sha256(json.dumps([name, said["at"], said["zone"]]).encode()).hexdigest()
