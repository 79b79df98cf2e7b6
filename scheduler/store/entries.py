"""The due-queue: one standing row per agent or job, and the claim that takes a due one."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from scheduler.model import schedule
from scheduler.model.outcome import Kind, Outcome, Reason, Skip, Trigger
from scheduler.model.schedule import Pace
from scheduler.model.timestamps import millis, moment, optional
from scheduler.store import entry_history
from scheduler.store.transaction import Transaction

FAILED = frozenset({Outcome.FAILED, Outcome.TIMEOUT})
UNTIL_RESUMED = datetime(9999, 1, 1, tzinfo=UTC)  # the end of a pause that somebody must end


class Standing(NamedTuple):
    """An entry's row. Every slot up to `settled_until` has its end; `slot` is the next one.

    What becomes of an entry is worked out as a new value, and written once, by `save`. A beat takes nine of these values: as
    tuples they are made in a tenth of the time that dataclasses need.
    """

    id: int
    kind: Kind
    name: str
    state: str
    pace_text: str
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
    def pace(self) -> Pace:
        """When its slots come; the row alone decides it, so that what passed under an older config is still known."""
        return schedule.pace(self.pace_text, self.anchor)

    @property
    def backs_off_until(self) -> datetime | None:
        """Before when no slot of its grid runs, because it failed; None when it does not back off.

        A slot that ran and lies ahead of what is accounted for is the trace of a clock that was set back, and says nothing.
        """
        pause = schedule.stretched(self.pace_text, self.failures)
        if pause is None or self.last_slot is None or self.last_slot > self.settled_until:
            return None
        return self.last_slot + pause

    @property
    def paused(self) -> bool:
        """Whether somebody paused it and has not resumed it yet."""
        return self.paused_until is not None

    @property
    def is_due_by_hand(self) -> bool:
        """Whether its first slot was set to when it was first seen, and has not run yet."""
        return self.last_slot is None and self.slot == self.first_seen_at

    @property
    def pause_ends(self) -> datetime | None:
        """When the pause ends by itself; None without a pause, and for one that somebody must end."""
        return None if self.paused_until == UNTIL_RESUMED else self.paused_until


@dataclass(frozen=True, slots=True)
class Open:
    """The open run of an entry: running, or waiting for its next attempt, its agent's lane or a provider that another run tries.

    `outcome` is what its last attempt came to: `abandoned` if that was cut short, `skipped` if none has begun; None while the
    first one runs.
    """

    run_id: int
    state: str
    slot: datetime
    trigger: Trigger
    attempt: int
    crashes: int
    fence: int
    owner: str
    started_at: datetime
    not_before: datetime | None = None
    outcome: str | None = None
    reason: str | None = None
    error: str | None = None
    text: str | None = None

    @property
    def has_not_begun(self) -> bool:
        """Whether it has only ever waited for its agent's lane or its provider."""
        return self.outcome == Outcome.SKIPPED

    @property
    def in_its_way(self) -> Skip:
        """What a run that has not begun waits for."""
        return Skip(self.reason or Skip.BUSY)

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled it, and its end is still to come."""
        return self.reason == Reason.CANCELLED

    @property
    def has_failed(self) -> bool:
        """Whether an attempt of it has come to an end of its own, which was none to stay with."""
        return self.outcome in FAILED


# Every column by its place: two dozen names looked up one by one would take three times as long.
ENTRY = (
    "select id, kind, name, state, pace, first_seen_at, anchor, settled_until, slot, due_at, paused_until, last_slot,"
    " last_ended_at, last_woken_at, last_success_at, failures, quiet, alerting, troubles, precheck, queue, approvals, active_at,"
    " flapping"
    " from entry"
)


def _standing(row: sqlite3.Row) -> Standing:
    (
        number, kind, name, state, pace, first_seen_at, anchor, settled_until, slot, due_at, paused_until, last_slot,
        last_ended_at, last_woken_at, last_success_at, failures, quiet, alerting, troubles, precheck, queue, approvals, active_at,
        flapping,
    ) = row  # fmt: skip
    return Standing(
        number, Kind(kind), name, state, pace, moment(first_seen_at), moment(anchor), moment(settled_until),
        optional(slot), optional(due_at), optional(paused_until), optional(last_slot), optional(last_ended_at),
        optional(last_woken_at), optional(last_success_at), failures, quiet, alerting, troubles, precheck, queue, approvals,
        optional(active_at), flapping,
    )  # fmt: skip


def due(db: sqlite3.Connection, now: datetime, places: int, most: int) -> list[Standing]:
    """Entries whose time has come, at most `most`, and no more than there are `places`; those that came due first.

    If more are due than there are places, those that have waited longest since their last run come first.
    """
    limit = min(places, most)
    rows = db.execute(f"{ENTRY} where due_at <= ? order by due_at, id limit ?", (millis(now), limit)).fetchall()
    if len(rows) == limit < COMPETING and _more_are_due(db, now, places):
        rows = db.execute(LONGEST_WAITING, (millis(now), limit)).fetchall()
    return [_standing(row) for row in rows]


COMPETING = 200  # entries that are compared; in a longer queue the order is fair as well, for it takes in those due first

# A slot that ran and lies ahead of what is accounted for is the trace of a clock that was set back.
LONGEST_WAITING = (
    f"{ENTRY} where id in (select id from entry where due_at <= ? order by due_at, id limit {COMPETING})"  # noqa: S608 (a number of ours)
    " order by max(coalesce(min(last_slot, settled_until), 0), coalesce(last_ended_at, 0)), due_at, id limit ?"
)


def _more_are_due(db: sqlite3.Connection, now: datetime, number: int) -> bool:
    query = "select 1 from entry where due_at <= ? order by due_at limit 1 offset ?"
    return db.execute(query, (millis(now), number)).fetchone() is not None


def next_due(db: sqlite3.Connection) -> datetime | None:
    """When the next entry wants to be looked at; the index is the heap."""
    return optional(db.execute("select min(due_at) from entry where due_at is not null").fetchone()[0])


def find(db: sqlite3.Connection, kind: Kind, name: str) -> Standing | None:
    """The standing row of one entry."""
    row = db.execute(f"{ENTRY} where kind = ? and name = ?", (kind, name)).fetchone()
    return _standing(row) if row else None


def texts(db: sqlite3.Connection) -> dict[tuple[Kind, str], tuple[str, str]]:
    """State and pace of every entry, by kind and name: the little that tells whether a plan changes it."""
    rows = db.execute("select kind, name, state, pace from entry")
    return {(Kind(row[0]), row[1]): (row[2], row[3]) for row in rows}


def everything(db: sqlite3.Connection) -> list[Standing]:
    """Every standing row, by name."""
    return [_standing(row) for row in db.execute(f"{ENTRY} order by kind, name")]


def after(db: sqlite3.Connection, last_id: int, limit: int) -> list[Standing]:
    """The next entries in the order of their ids, for work that goes round."""
    return [_standing(row) for row in db.execute(f"{ENTRY} where id > ? order by id limit ?", (last_id, limit))]


def newest(db: sqlite3.Connection) -> datetime | None:
    """When the newest entry was first seen."""
    return optional(db.execute("select max(first_seen_at) from entry").fetchone()[0])


def add(tx: Transaction, kind: Kind, name: str, state: str, pace: str, anchor: datetime, settled_until: datetime) -> Standing:
    """A new entry, first seen now, with nothing planned yet."""
    tx.db.execute(
        "insert into entry (kind, name, state, pace, first_seen_at, anchor, settled_until) values (?, ?, ?, ?, ?, ?, ?)",
        (kind, name, state, pace, millis(tx.now), millis(anchor), millis(settled_until)),
    )
    return get(tx, kind, name)


COLUMNS = tuple("pace" if field == "pace_text" else field for field in Standing._fields)

WHAT_DECIDES_SLOTS = {"state", "pace", "anchor"}


def save(tx: Transaction, before: Standing, after: Standing) -> None:
    """Write what has become of an entry, by one statement; nothing where nothing has changed.

    What decides its slots changes seldom, and how it was is kept.
    """
    changed = {column: now for column, was, now in zip(COLUMNS, before, after, strict=True) if now != was}
    if changed.keys() & WHAT_DECIDES_SLOTS:
        entry_history.note(tx, before.kind, before.name, before.state, before.pace_text, before.anchor)
    if changed:
        values = [millis(value) if isinstance(value, datetime) else value for value in changed.values()]
        tx.db.execute(_update(tuple(changed)), (*values, before.id))


@lru_cache(maxsize=256)  # what changes together in a beat is nearly always the same
def _update(columns: tuple[str, ...]) -> str:
    """Column names come from the table above, never from a user: the values alone are data."""
    assignments = ", ".join(f"{column} = ?" for column in columns)
    return f"update entry set {assignments} where id = ?"  # noqa: S608


def get(tx: Transaction, kind: Kind, name: str) -> Standing:
    """The row of an entry that is known to have one."""
    found = find(tx.db, kind, name)
    assert found is not None
    return found


def begin_report(tx: Transaction, kind: Kind, name: str, slot: datetime) -> Open | None:
    """Open the row of a result that came later, beside whatever runs now; None when that slot has its result already."""
    row = tx.db.execute(
        "insert into run (kind, name, slot, trigger, state, attempt, fence, owner, started_at, config_hash)"
        " values (?, ?, ?, ?, 'reported', 1, 1, ?, ?, ?) on conflict (kind, name, trigger, slot) do nothing returning *",
        (kind, name, millis(slot), Trigger.RESULT, tx.owner, millis(tx.now), tx.config_hash),
    ).fetchone()
    return _open(row) if row else None


def has_row(db: sqlite3.Connection, standing: Standing, slot: datetime) -> bool:
    """Whether a slot of the entry's own pace has its row."""
    key = (standing.kind, standing.name, standing.pace.trigger, millis(slot))
    return db.execute("select 1 from run where kind = ? and name = ? and trigger = ? and slot = ?", key).fetchone() is not None


def open_run(db: sqlite3.Connection, kind: Kind, name: str) -> Open | None:
    """The entry's open run, if it has one; a partial unique index makes two impossible."""
    row = db.execute("select * from run where kind = ? and name = ? and state in ('running', 'waiting')", (kind, name)).fetchone()
    return _open(row) if row else None


def open_among(db: sqlite3.Connection, standings: Sequence[Standing]) -> dict[int, Open]:
    """The open runs of these entries, by the ids of their rows: one question for all that is due in a turn."""
    rows = db.execute(
        "select entry.id as entry_id, run.* from entry join run on run.kind = entry.kind and run.name = entry.name"
        " where run.state in ('running', 'waiting') and entry.id in (select value from json_each(?))",
        (json.dumps([standing.id for standing in standings]),),
    )
    return {row["entry_id"]: _open(row) for row in rows}


def any_under_way(tx: Transaction, kind: Kind, names: Sequence[str]) -> bool:
    """Whether one of these entries has an open run, or is due."""
    row = tx.db.execute(
        "select 1 from json_each(?) as named where"
        " exists (select 1 from run where kind = ? and name = named.value and state in ('running', 'waiting'))"
        " or exists (select 1 from entry where kind = ? and name = named.value and due_at <= ?) limit 1",
        (json.dumps(names), kind, kind, millis(tx.now)),
    ).fetchone()
    return row is not None


def open_runs(db: sqlite3.Connection) -> list[tuple[Kind, str, Open]]:
    """Every open run with its entry's key."""
    rows = db.execute("select * from run where state in ('running', 'waiting') order by id").fetchall()
    return [(Kind(row["kind"]), row["name"], _open(row)) for row in rows]


def open_by_id(db: sqlite3.Connection, run_id: int) -> tuple[Kind, str, Open] | None:
    """One open run with its entry's kind and name; None when it is closed, or was never there."""
    row = db.execute("select * from run where id = ? and state in ('running', 'waiting')", (run_id,)).fetchone()
    return (Kind(row["kind"]), row["name"], _open(row)) if row else None


def _open(row: sqlite3.Row) -> Open:
    return Open(
        run_id=row["id"],
        state=row["state"],
        slot=moment(row["slot"]),
        trigger=Trigger(row["trigger"]),
        attempt=row["attempt"],
        crashes=row["crashes"],
        fence=row["fence"],
        owner=row["owner"] or "",
        started_at=moment(row["started_at"]),
        not_before=optional(row["not_before"]),
        outcome=row["outcome"],
        reason=row["reason"],
        error=row["error"],
        text=row["text"],
    )


def begin(tx: Transaction, standing: Standing, slot: datetime, trigger: Trigger, model: str | None) -> tuple[int, int] | None:
    """Open the row of a first attempt; gives its id and fence, None when that slot has its row already."""
    row = tx.db.execute(
        "insert into run (kind, name, slot, trigger, state, attempt, fence, owner, started_at, model_requested, config_hash)"
        " values (?, ?, ?, ?, 'running', 1, 1, ?, ?, ?, ?)"
        " on conflict (kind, name, trigger, slot) do nothing returning id, fence",
        (standing.kind, standing.name, millis(slot), trigger, tx.owner, millis(tx.now), model, tx.config_hash),
    ).fetchone()
    return (row["id"], row["fence"]) if row else None


def begin_again(tx: Transaction, run: Open, model: str | None) -> Open | None:
    """Claim the next attempt of a waiting run, by the config in force now; None when it no longer waits."""
    row = tx.db.execute(
        "update run set state = 'running', fence = fence + 1, attempt = attempt + 1, owner = ?, not_before = null,"
        " model_requested = ?, config_hash = ?, cut_at = null,"
        " started_at = case when outcome in ('skipped', 'abandoned') or cut_at is not null then ? else started_at end"
        " where id = ? and state = 'waiting' and fence = ? returning *",
        (tx.owner, model, tx.config_hash, millis(tx.now), run.run_id, run.fence),
    ).fetchone()
    return replace(_open(row), started_at=tx.now) if row else None


def look_now(tx: Transaction, standing: Standing, reason: Skip) -> bool:
    """Have a run that waits for its agent's lane, or for its provider, tried at once; False when none does."""
    row = tx.db.execute(
        "update run set not_before = ? where kind = ? and name = ? and state = 'waiting' and reason = ? returning id",
        (millis(tx.now), standing.kind, standing.name, reason),
    ).fetchone()
    return row is not None


def seize(tx: Transaction, run: Open) -> Open:
    """Own an open run in order to end it; whoever worked on it does so no longer."""
    row = tx.db.execute(
        "update run set state = 'running', fence = fence + 1, owner = ?"
        " where id = ? and state in ('running', 'waiting') returning *",
        (tx.owner, run.run_id),
    ).fetchone()
    return _open(row)
