"""Waiting wakes: kept, merged, spaced, and ended only when an agent has heard them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from scheduler.model.events import WakeMoved
from scheduler.model.outcome import Kind, WakeResult
from scheduler.model.timestamps import from_millis, from_optional_millis, iso_utc, to_millis, to_optional_millis
from scheduler.model.wake import FLOOD, GAP, Wake, clip_wake_text
from scheduler.store import entries, runs
from scheduler.store.entries import EntryRow
from scheduler.store.transaction import Transaction

SAME_SENDER = "state = 'waiting' and kind = :kind and name = :name and source = :source and sender = :sender and token = :token"

OF_SENDER = f"select * from wake where {SAME_SENDER}"  # noqa: S608 (literals of this file, as below)

# A wake starts a run no later than the one that it joins would have, unless it has just been refused.
MERGE = f"""
update wake set count = count + 1, text = :text, outcome = :outcome, updated_at = :now,
  tries = case when :urgent then 0 else tries end, run_id = coalesce(:run, run_id),
  waits_for = case when :refused or :start < coalesce(due_at, :start + 1) then :waits_for else waits_for end,
  due_at = case when :refused then :start else min(coalesce(due_at, :start), coalesce(:start, due_at)) end
where {SAME_SENDER} returning id
"""  # noqa: S608

JOIN_NEWER = f"""
update wake set count = count + :more, tries = max(tries, :tries), due_at = coalesce(due_at, :again_at)
where {SAME_SENDER} returning id
"""  # noqa: S608


def keep_wake(
    tx: Transaction,
    entry_row: EntryRow,
    wake: Wake,
    due_at: datetime | None,
    *,
    waits_for: str | None = None,
    refused_by: int | None = None,
    held_until: datetime | None = None,
) -> int:
    """Keep a wake until its agent has been told it; gives the id of the row that holds it.

    Wakes of one source, sender and token merge: a count, and the last text. `due_at` says when it may start a run (None: only
    together with another), `waits_for` why not at once, `refused_by` the row of the run that was refused. Until `held_until` it
    starts nothing by itself, for others are to come with it; `let_go` ends that.
    """
    row_id = _merge_wake(tx, wake, due_at, waits_for, refused_by) or _insert_wake(
        tx, wake, due_at, waits_for, refused_by, held_until
    )
    if waits_for is not None:
        _report_result(tx, wake, WakeResult.DEFERRED, final=False)
    _advance_due_at(tx, entry_row)
    return row_id


def find_wake_of_sender(tx: Transaction, wake: Wake) -> Wake | None:
    """The waiting wake of the same sender, with which this one would merge."""
    if not _may_have_wakes(tx, wake.kind, wake.name):
        return None
    row = tx.db.execute(OF_SENDER, _sender_columns(wake)).fetchone()
    return _wake_from_row(row) if row else None


def count_wakes_by_token(tx: Transaction, kind: Kind, name: str) -> dict[str, int]:
    """How many rows each token has that are still to be told; those of people and jobs are under the empty name."""
    query = "select token, count(*) from wake where kind = ? and name = ? and state in ('waiting', 'taken') group by token"
    return dict(tx.db.execute(query, (kind, name)).fetchall())


def find_wait_reason(tx: Transaction, kind: Kind, name: str, reasons: Iterable[str]) -> tuple[str, datetime | None] | None:
    """For which of these reasons a wake of an entry waits, and when it starts a run; None where none waits for any."""
    if not _may_have_wakes(tx, kind, name):
        return None
    query = (
        "select waits_for, due_at from wake where kind = ? and name = ? and state = 'waiting'"
        " and waits_for in (select value from json_each(?)) limit 1"
    )
    row = tx.db.execute(query, (kind, name, json.dumps(list(reasons)))).fetchone()
    return (row["waits_for"], from_optional_millis(row["due_at"])) if row else None


def release_held_wakes(tx: Transaction, entry_row: EntryRow) -> None:
    """Let the wakes of an agent that were held for others start their run."""
    if _may_have_wakes(tx, entry_row.kind, entry_row.name):
        tx.db.execute(
            "update wake set held_until = null where kind = ? and name = ? and state = 'waiting'",
            (entry_row.kind, entry_row.name),
        )
        _advance_due_at(tx, entry_row)


def start_waiting_wakes_now(tx: Transaction, kind: Kind, name: str, *, refused_only: bool) -> None:
    """Let the waiting wakes of an entry start a run now that would have waited for a slot; or those alone that were refused."""
    if _may_have_wakes(tx, kind, name):
        tx.db.execute(
            "update wake set due_at = ? where kind = ? and name = ? and state = 'waiting' and due_at is null"
            " and (waits_for is not null or not ?)",
            (to_millis(tx.now), kind, name, refused_only),
        )


def entries_with_delayed_wakes(tx: Transaction, reasons: Iterable[str]) -> list[EntryRow]:
    """The entries whose wakes start a run only later, for one of these reasons."""
    rows = tx.db.execute(
        "select kind, name from wake where state = 'waiting' and due_at > ?"
        " and waits_for in (select value from json_each(?)) group by kind, name order by min(id)",
        (to_millis(tx.now), json.dumps(list(reasons))),
    ).fetchall()
    return [entries.get_entry(tx, Kind(row["kind"]), row["name"]) for row in rows]


def start_delayed_wakes_by(tx: Transaction, entry_row: EntryRow, at: datetime, gap: timedelta) -> None:
    """Let the waiting wakes of an entry that are to start a run later start it by then, if the gap allows it."""
    tx.db.execute(
        "update wake set due_at = min(due_at, ?) where kind = ? and name = ? and state = 'waiting'",  # null stays null
        (to_millis(_after_gap(entry_row, at, gap)), entry_row.kind, entry_row.name),
    )
    _advance_due_at(tx, entry_row)


def _advance_due_at(tx: Transaction, entry_row: EntryRow) -> None:
    """Look at the entry as soon as a wake may start a run of it, unless one is open."""
    at = next_start_at(tx, entry_row.kind, entry_row.name)
    sooner = at is not None and (entry_row.due_at is None or at < entry_row.due_at)
    if sooner and runs.find_open_run(tx.db, entry_row.kind, entry_row.name) is None:
        entries.save_entry(tx, entry_row, entry_row._replace(due_at=at))


def _after_gap(entry_row: EntryRow, at: datetime, gap: timedelta) -> datetime:
    return at if entry_row.last_woken_at is None else max(at, entry_row.last_woken_at + gap)


def _sender_columns(wake: Wake) -> dict[str, str]:
    return {"kind": wake.kind, "name": wake.name, "source": wake.source, "sender": wake.sender, "token": wake.token}


def _merge_wake(
    tx: Transaction, wake: Wake, due_at: datetime | None, waits_for: str | None, refused_by: int | None
) -> int | None:
    """Join the row that waits for the same sender. It starts a run no later than it would have, unless it has been refused."""
    start, is_refused = to_optional_millis(due_at), waits_for not in (None, GAP, FLOOD)
    row = tx.db.execute(
        MERGE,
        _sender_columns(wake)
        | {"text": clip_wake_text(wake.text), "outcome": wake.outcome, "now": to_millis(tx.now), "urgent": wake.urgent}
        | {"run": refused_by, "refused": is_refused, "start": start, "waits_for": waits_for},
    ).fetchone()
    if row is None:
        return None
    _report_result(tx, wake, WakeResult.JOINED)
    return int(row["id"])


def _insert_wake(
    tx: Transaction,
    wake: Wake,
    due_at: datetime | None,
    waits_for: str | None,
    refused_by: int | None,
    held_until: datetime | None,
) -> int:
    now = to_millis(tx.now)
    _cache_waiting(tx, wake.kind, wake.name)
    row = tx.db.execute(
        "insert into wake (kind, name, source, sender, token, text, outcome, created_at, updated_at, due_at, held_until,"
        " waits_for, run_id, state) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'waiting') returning id",
        (
            wake.kind, wake.name, wake.source, wake.sender, wake.token, clip_wake_text(wake.text), wake.outcome, now, now,
            to_optional_millis(due_at), to_optional_millis(held_until), waits_for, refused_by,
        ),
    ).fetchone()  # fmt: skip
    return int(row["id"])


def next_start_at(tx: Transaction, kind: Kind, name: str) -> datetime | None:
    """When the next waiting wake of an entry wants to start a run."""
    if not _may_have_wakes(tx, kind, name):
        return None
    query = "select min(max(due_at, coalesce(held_until, 0))) from wake where kind = ? and name = ? and state = 'waiting'"
    return from_optional_millis(tx.db.execute(query, (kind, name)).fetchone()[0])


def any_starts_by(db: sqlite3.Connection, until: datetime) -> bool:
    """Whether any waiting wake is going to start a run by itself before long."""
    query = "select 1 from wake where state = 'waiting' and due_at <= ? limit 1"
    return db.execute(query, (to_millis(until),)).fetchone() is not None


def find_starting_wake(tx: Transaction, kind: Kind, name: str) -> Wake | None:
    """The wake that starts a run now, if one does: the one that has waited longest."""
    if not _may_have_wakes(tx, kind, name):
        return None
    row = tx.db.execute(
        "select * from wake where kind = ? and name = ? and state = 'waiting'"
        " and max(due_at, coalesce(held_until, 0)) <= ? order by due_at, id limit 1",
        (kind, name, to_millis(tx.now)),
    ).fetchone()
    return _wake_from_row(row) if row else None


def take_waiting_wakes(tx: Transaction, kind: Kind, name: str, run_id: int, first: Wake | None) -> tuple[Wake, ...]:
    """Give every waiting wake to a run; `first` is the one that started it, all others ride along."""
    if not _may_have_wakes(tx, kind, name):
        return ()
    rows = tx.db.execute(
        "update wake set state = 'taken', run_id = ?, started = id = ? where kind = ? and name = ? and state = 'waiting'"
        " returning *",
        (run_id, first.id if first else 0, kind, name),
    ).fetchall()
    return tuple(sorted((_wake_from_row(row) for row in rows), key=lambda wake: wake.id))


def wakes_taken_by(db: sqlite3.Connection, run_id: int) -> tuple[Wake, ...]:
    """The wakes that a run holds."""
    rows = db.execute("select * from wake where run_id = ? and state = 'taken' order by id", (run_id,)).fetchall()
    return tuple(_wake_from_row(row) for row in rows)


def end_delivered_wakes(tx: Transaction, run_id: int, result: WakeResult | None = None) -> None:
    """End the wakes of a run that has told them; `result` is what became of them all if it was something else."""
    rows = tx.db.execute(
        "update wake set state = 'ended', updated_at = ? where run_id = ? and state = 'taken' returning *",
        (to_millis(tx.now), run_id),
    ).fetchall()
    for wake in sorted((_wake_from_row(row) for row in rows), key=lambda wake: wake.id):
        _report_result(tx, wake, result or _delivered_result(wake))


def _delivered_result(wake: Wake) -> WakeResult:
    """How a wake was told that has been: late, because something kept it from being told at first, by its own run or another."""
    if wake.tries or wake.waits_for not in (None, GAP):
        return WakeResult.DEFERRED
    return WakeResult.STARTED if wake.started else WakeResult.JOINED


def return_wakes(tx: Transaction, run_id: int, again_at: datetime | None = None, why: str | None = None) -> None:
    """Let the wakes of a run that did not tell them wait for the next one; they start none by themselves before `again_at`.

    `why` is what that run ended by.
    """
    taken = wakes_taken_by(tx.db, run_id)
    for wake in taken:
        _join_newer(tx, wake, again_at)
        _report_result(tx, wake, WakeResult.DEFERRED, final=False)
    tx.db.execute(
        "update wake set state = 'waiting', tries = tries + 1, started = 0, due_at = ?, waits_for = coalesce(?, waits_for)"
        " where run_id = ? and state = 'taken'",
        (to_optional_millis(again_at), why, run_id),
    )
    if taken:
        _cache_waiting(tx, taken[0].kind, taken[0].name)


def _join_newer(tx: Transaction, wake: Wake, again_at: datetime | None) -> None:
    """Where the same sender has asked again during the run, its newer text waits for both."""
    newer = tx.db.execute(
        JOIN_NEWER,
        _sender_columns(wake) | {"more": wake.count, "tries": wake.tries + 1, "again_at": to_optional_millis(again_at)},
    ).fetchone()
    if newer is not None:
        tx.db.execute("update wake set state = 'ended', updated_at = ? where id = ?", (to_millis(tx.now), wake.id))
        _report_result(tx, wake, WakeResult.JOINED)


def delay_waiting_wakes(tx: Transaction, kind: Kind, name: str, gap: timedelta) -> None:
    """Let wakes that came during a run start the next one only after the gap."""
    if not _may_have_wakes(tx, kind, name):
        return
    start = to_millis(tx.now + gap)
    tx.db.execute(
        "update wake set due_at = ?, waits_for = coalesce(waits_for, ?)"
        " where kind = ? and name = ? and state = 'waiting' and due_at < ?",
        (start, GAP if gap else None, kind, name, start),
    )


def expire_old_wakes(tx: Transaction, keep: timedelta) -> list[Wake]:
    """End the wakes that have waited longer than `keep`, and give them; forget what nobody can look at any more.

    The texts of a run stay as long as its row, all others as long again as they were kept.
    """
    last = to_millis(tx.now - keep)
    rows = tx.db.execute(
        "update wake set state = 'ended', updated_at = ? where state = 'waiting' and updated_at < ? returning *",
        (to_millis(tx.now), last),
    ).fetchall()
    expired = sorted((_wake_from_row(row) for row in rows), key=lambda wake: wake.id)
    for wake in expired:
        _report_result(tx, wake, WakeResult.EXPIRED)
    tx.db.execute(
        "delete from wake where state = 'ended' and updated_at < ?"
        " and (run_id is null or not exists (select 1 from run where run.id = wake.run_id))",
        (last,),
    )
    return expired


def expire_wakes_of_entry(tx: Transaction, kind: Kind, name: str) -> None:
    """End all waiting wakes of an entry that is no more."""
    rows = tx.db.execute(
        "update wake set state = 'ended', updated_at = ? where kind = ? and name = ? and state = 'waiting' returning *",
        (to_millis(tx.now), kind, name),
    ).fetchall()
    for row in rows:
        _report_result(tx, _wake_from_row(row), WakeResult.EXPIRED)


def report_rejected_wake(tx: Transaction, wake: Wake, why: str | None = None) -> None:
    """Say that a wake is not taken at all."""
    tx.report(WakeMoved(wake.name, wake.source, wake.sender, WakeResult.REJECTED, problem=why))


def wake_progress(db: sqlite3.Connection, wake_id: int) -> dict[str, Any] | None:
    """Where a wake stands: its state, and the run that last took it."""
    row = db.execute("select state, run_id from wake where id = ?", (wake_id,)).fetchone()
    return dict(row) if row else None


def wakes_of_run(db: sqlite3.Connection, run_id: int) -> list[dict[str, Any]]:
    """The wakes that a run was to tell last, with their whole texts, as plain data."""
    query = "select id, source, sender, count, outcome, state, created_at, text from wake where run_id = ? order by id"
    return [dict(row) | {"created_at": iso_utc(from_millis(row["created_at"]))} for row in db.execute(query, (run_id,))]


def find_wake(db: sqlite3.Connection, wake_id: int) -> sqlite3.Row | None:
    """The row of one wake."""
    row: sqlite3.Row | None = db.execute("select * from wake where id = ?", (wake_id,)).fetchone()
    return row


def next_waiting_wake(db: sqlite3.Connection, kind: Kind, name: str) -> sqlite3.Row | None:
    """The row of the waiting wake of an entry that starts a run first; one that starts none comes last."""
    row: sqlite3.Row | None = db.execute(
        "select * from wake where kind = ? and name = ? and state = 'waiting'"
        " order by due_at is null, max(due_at, coalesce(held_until, 0)), id limit 1",
        (kind, name),
    ).fetchone()
    return row


def count_waiting_by_agent(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """How many wakes wait, by agent."""
    query = "select name, count(*) as rows from wake where state = 'waiting' and kind = ? group by name order by name"
    return [dict(row) for row in db.execute(query, (Kind.HEARTBEAT,))]


# One seek for each entry that a wake waits for: a thousand wakes of one agent cost no more than one.
ENTRIES_WITH_WAKES = """
with recursive each (wake) as (
  select (select id from wake where state = 'waiting' order by kind, name limit 1)
  union all
  select (select following.id from wake as following join wake as last on last.id = each.wake
    where following.state = 'waiting' and (following.kind, following.name) > (last.kind, last.name)
    order by following.kind, following.name limit 1)
  from each where each.wake is not null
)
select kind, name from each join wake on wake.id = each.wake
"""


def _may_have_wakes(tx: Transaction, kind: Kind, name: str) -> bool:
    """Whether any wake waits for an entry. One question a turn answers it for all: most beats have no wake to look for."""
    if tx.entries_with_wakes is None:
        tx.entries_with_wakes = {(row[0], row[1]) for row in tx.db.execute(ENTRIES_WITH_WAKES)}
    return (kind, name) in tx.entries_with_wakes


def _cache_waiting(tx: Transaction, kind: Kind, name: str) -> None:
    if tx.entries_with_wakes is not None:
        tx.entries_with_wakes.add((kind, name))


def count_waiting_wakes(db: sqlite3.Connection, kind: Kind, name: str) -> int:
    """How many wakes wait for one entry."""
    query = "select count(*) from wake where kind = ? and name = ? and state = 'waiting'"
    return int(db.execute(query, (kind, name)).fetchone()[0])


def _wake_from_row(row: sqlite3.Row) -> Wake:
    return Wake(
        name=row["name"],
        source=row["source"],
        sender=row["sender"],
        text=row["text"],
        outcome=row["outcome"],
        urgent=row["due_at"] is not None,
        count=row["count"],
        tries=row["tries"],
        id=row["id"],
        kind=Kind(row["kind"]),
        token=row["token"],
        waits_for=row["waits_for"],
        started=bool(row["started"]),
    )


def _report_result(tx: Transaction, wake: Wake, result: WakeResult, *, final: bool = True) -> None:
    if wake.kind is Kind.HEARTBEAT:
        tx.report(WakeMoved(wake.name, wake.source, wake.sender, result, final))


def clamp_future_times(tx: Transaction) -> None:
    """After the system clock was set back: no wake came in the future, and those that wait for a time start a run now."""
    tx.db.execute(
        "update wake set due_at = min(due_at, :now), held_until = min(held_until, :now), updated_at = min(updated_at, :now)",
        {"now": to_millis(tx.now)},
    )
