"""Waiting wakes: kept, merged, spaced, and ended only when an agent has heard them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from scheduler import paces
from scheduler.events import WakeTold
from scheduler.outcome import Kind, WakeResult
from scheduler.tables import duequeue, history
from scheduler.tables.duequeue import Standing
from scheduler.tables.times import bound, millis, optional
from scheduler.turn import Turn
from scheduler.wake import Wake, clip

ROWS = 20  # wakes kept apart per agent; those of further senders only raise a count


def ask(turn: Turn, standing: Standing, wake: Wake, held_until: datetime | None = None) -> int:
    """Keep a wake until its agent has heard it; gives the id of the row that holds it.

    Wakes of one source and sender merge: a count, and the last text. Until `held_until` it starts nothing by itself, for others
    are to come with it; `let_go` ends that.
    """
    due_at = _start_at(turn, standing, wake)
    row_id = _merge(turn, standing, wake, due_at) or _insert(turn, standing, wake, due_at, held_until)
    if due_at is None and wake.urgent:
        _tell(turn, wake, WakeResult.DEFERRED)
    _look_again(turn, standing)
    return row_id


def let_go(turn: Turn, standing: Standing) -> None:
    """Let the wakes of an agent that were held for others start their run."""
    if _may_wait(turn, standing.kind, standing.name):
        turn.db.execute(
            "update wake set held_until = null where kind = ? and name = ? and state = 'waiting'", (standing.kind, standing.name)
        )
        _look_again(turn, standing)


def remind(turn: Turn, kind: Kind, name: str) -> None:
    """Let the waiting wakes of an entry that has no slots to be told at start a run now."""
    if _may_wait(turn, kind, name):
        turn.db.execute(
            "update wake set due_at = coalesce(due_at, ?) where kind = ? and name = ? and state = 'waiting'",
            (millis(turn.now), kind, name),
        )


def put_off(turn: Turn, reasons: Iterable[str]) -> list[Standing]:
    """The entries whose wakes start a run only later, for the last one that was to tell them ended by one of these reasons."""
    rows = turn.db.execute(
        "select distinct wake.kind, wake.name from wake join run on run.id = wake.run_id where wake.state = 'waiting'"
        " and wake.due_at > ? and run.reason in (select value from json_each(?)) order by wake.id",
        (millis(turn.now), json.dumps(list(reasons))),
    ).fetchall()
    return [duequeue.get(turn, Kind(row["kind"]), row["name"]) for row in rows]


def begin_by(turn: Turn, standing: Standing, at: datetime) -> None:
    """Let the waiting wakes of an entry that are to start a run later start it by then, if the gap allows it."""
    turn.db.execute(
        "update wake set due_at = min(due_at, ?) where kind = ? and name = ? and state = 'waiting'",  # null stays null
        (millis(_after_gap(turn, standing, at)), standing.kind, standing.name),
    )
    _look_again(turn, standing)


def _look_again(turn: Turn, standing: Standing) -> None:
    """Look at the entry as soon as a wake may start a run of it, unless one is open."""
    at = next_start(turn, standing.kind, standing.name)
    sooner = at is not None and (standing.due_at is None or at < standing.due_at)
    if sooner and duequeue.open_run(turn.db, standing.kind, standing.name) is None:
        duequeue.save(turn, standing, standing._replace(due_at=at))


def _start_at(turn: Turn, standing: Standing, wake: Wake) -> datetime | None:
    """When the wake may start a run: at once, after the gap, when a flood is over, or (None) only together with another."""
    if not wake.urgent:
        return None
    if standing.kind is not Kind.HEARTBEAT:
        return turn.now
    flood = turn.limits.wake_flood
    if history.starts_by_wakes(turn.db, standing.kind, standing.name, turn.now - flood.within) >= flood.count:
        return turn.now + flood.within if standing.pace is paces.NEVER else None
    return _after_gap(turn, standing, turn.now)


def _after_gap(turn: Turn, standing: Standing, at: datetime) -> datetime:
    return at if standing.last_woken_at is None else max(at, standing.last_woken_at + turn.limits.wake_gap)


def _merge(turn: Turn, standing: Standing, wake: Wake, due_at: datetime | None) -> int | None:
    """Join a row that waits for the same sender, or, where too many wait, the newest of all."""
    key = (standing.kind, standing.name)
    found = turn.db.execute(
        "select id from wake where kind = ? and name = ? and source = ? and sender = ? and state = 'waiting'",
        (*key, wake.source, wake.sender),
    ).fetchone()
    if found is None and count(turn.db, *key) >= ROWS:
        found = turn.db.execute(
            "select max(id) as id from wake where kind = ? and name = ? and state = 'waiting'", key
        ).fetchone()
        turn.db.execute(
            "update wake set count = count + 1, due_at = coalesce(due_at, ?) where id = ?", (bound(due_at), found["id"])
        )
    elif found is not None:
        turn.db.execute(
            "update wake set count = count + 1, text = ?, outcome = ?, updated_at = ?, due_at = coalesce(due_at, ?) where id = ?",
            (clip(wake.text), wake.outcome, millis(turn.now), bound(due_at), found["id"]),
        )
    if found is None:
        return None
    _tell(turn, wake, WakeResult.JOINED)
    return int(found["id"])


def _insert(turn: Turn, standing: Standing, wake: Wake, due_at: datetime | None, held_until: datetime | None) -> int:
    now = millis(turn.now)
    _note_waiting(turn, standing.kind, standing.name)
    row = turn.db.execute(
        "insert into wake (kind, name, source, sender, text, outcome, created_at, updated_at, due_at, held_until, state)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'waiting') returning id",
        (
            standing.kind, standing.name, wake.source, wake.sender, clip(wake.text), wake.outcome, now, now,
            bound(due_at), bound(held_until),
        ),
    ).fetchone()  # fmt: skip
    return int(row["id"])


def next_start(turn: Turn, kind: Kind, name: str) -> datetime | None:
    """When the next waiting wake of an entry wants to start a run."""
    if not _may_wait(turn, kind, name):
        return None
    query = "select min(max(due_at, coalesce(held_until, 0))) from wake where kind = ? and name = ? and state = 'waiting'"
    return optional(turn.db.execute(query, (kind, name)).fetchone()[0])


def impatient(db: sqlite3.Connection, until: datetime) -> bool:
    """Whether any waiting wake is going to start a run by itself before long."""
    query = "select 1 from wake where state = 'waiting' and due_at <= ? limit 1"
    return db.execute(query, (millis(until),)).fetchone() is not None


def starter(turn: Turn, kind: Kind, name: str) -> Wake | None:
    """The wake that starts a run now, if one does: the one that has waited longest."""
    if not _may_wait(turn, kind, name):
        return None
    row = turn.db.execute(
        "select * from wake where kind = ? and name = ? and state = 'waiting'"
        " and max(due_at, coalesce(held_until, 0)) <= ? order by due_at, id limit 1",
        (kind, name, millis(turn.now)),
    ).fetchone()
    return _wake(row) if row else None


def take(turn: Turn, kind: Kind, name: str, run_id: int, first: Wake | None) -> tuple[Wake, ...]:
    """Give every waiting wake to a run; `first` is the one that started it, all others ride along."""
    if not _may_wait(turn, kind, name):
        return ()
    rows = turn.db.execute(
        "update wake set state = 'taken', run_id = ? where kind = ? and name = ? and state = 'waiting' returning *",
        (run_id, kind, name),
    ).fetchall()
    taken = tuple(sorted((_wake(row) for row in rows), key=lambda wake: wake.id))
    for wake in taken:
        _tell(turn, wake, WakeResult.STARTED if first and wake.id == first.id else WakeResult.JOINED)
    return taken


def taken_by(db: sqlite3.Connection, run_id: int) -> tuple[Wake, ...]:
    """The wakes that a run holds."""
    rows = db.execute("select * from wake where run_id = ? and state = 'taken' order by id", (run_id,)).fetchall()
    return tuple(_wake(row) for row in rows)


def heard(turn: Turn, run_id: int) -> None:
    """End the wakes of a run that has rendered them."""
    turn.db.execute(
        "update wake set state = 'ended', updated_at = ? where run_id = ? and state = 'taken'", (millis(turn.now), run_id)
    )


def give_back(turn: Turn, run_id: int, again_at: datetime | None = None) -> None:
    """Let the wakes of a run that did not hear them wait for the next one; they start none by themselves before `again_at`."""
    for wake in taken_by(turn.db, run_id):
        newer = turn.db.execute(
            "update wake set count = count + ?, tries = max(tries, ?), due_at = coalesce(due_at, ?)"
            " where state = 'waiting' and source = ? and sender = ? and kind = ? and name = ? returning id",
            (wake.count, wake.tries + 1, bound(again_at), wake.source, wake.sender, wake.kind, wake.name),
        ).fetchone()
        state = "ended" if newer else "waiting"
        turn.db.execute(
            "update wake set state = ?, tries = tries + 1, due_at = ? where id = ?", (state, bound(again_at), wake.id)
        )
        _note_waiting(turn, wake.kind, wake.name)
        _tell(turn, wake, WakeResult.DEFERRED)


def space(turn: Turn, kind: Kind, name: str, gap: timedelta) -> None:
    """Let wakes that came during a run start the next one only after the gap."""
    if not _may_wait(turn, kind, name):
        return
    turn.db.execute(
        "update wake set due_at = max(due_at, ?) where kind = ? and name = ? and state = 'waiting' and due_at is not null",
        (millis(turn.now + gap), kind, name),
    )


def expire(turn: Turn) -> None:
    """End the wakes that have waited longer than `wake_keep`, and forget the ended ones after as long again."""
    rows = turn.db.execute(
        "update wake set state = 'ended', updated_at = ? where state = 'waiting' and updated_at < ? returning *",
        (millis(turn.now), millis(turn.now - turn.limits.wake_keep)),
    ).fetchall()
    for row in rows:
        _tell(turn, _wake(row), WakeResult.EXPIRED)
    turn.db.execute("delete from wake where state = 'ended' and updated_at < ?", (millis(turn.now - turn.limits.wake_keep),))


def drop(turn: Turn, kind: Kind, name: str) -> None:
    """End all waiting wakes of an entry that is no more."""
    rows = turn.db.execute(
        "update wake set state = 'ended', updated_at = ? where kind = ? and name = ? and state = 'waiting' returning *",
        (millis(turn.now), kind, name),
    ).fetchall()
    for row in rows:
        _tell(turn, _wake(row), WakeResult.EXPIRED)


def reject(turn: Turn, wake: Wake) -> None:
    """Say that a wake is not taken at all."""
    _tell(turn, wake, WakeResult.REJECTED)


def progress(db: sqlite3.Connection, wake_id: int) -> dict[str, Any] | None:
    """Where a wake stands: its state, and the run that last took it."""
    row = db.execute("select state, run_id from wake where id = ?", (wake_id,)).fetchone()
    return dict(row) if row else None


def waiting(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """How many wakes wait, by agent."""
    query = "select name, count(*) as rows from wake where state = 'waiting' and kind = ? group by name order by name"
    return [dict(row) for row in db.execute(query, (Kind.HEARTBEAT,))]


def _may_wait(turn: Turn, kind: Kind, name: str) -> bool:
    """Whether any wake waits for an entry. One question a turn answers it for all: most beats have no wake to look for."""
    if turn.waited_for is None:
        rows = turn.db.execute("select distinct kind, name from wake where state = 'waiting'")
        turn.waited_for = {(row[0], row[1]) for row in rows}
    return (kind, name) in turn.waited_for


def _note_waiting(turn: Turn, kind: Kind, name: str) -> None:
    if turn.waited_for is not None:
        turn.waited_for.add((kind, name))


def count(db: sqlite3.Connection, kind: Kind, name: str) -> int:
    """How many wakes wait for one entry."""
    query = "select count(*) from wake where kind = ? and name = ? and state = 'waiting'"
    return int(db.execute(query, (kind, name)).fetchone()[0])


def _wake(row: sqlite3.Row) -> Wake:
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
    )


def _tell(turn: Turn, wake: Wake, result: WakeResult) -> None:
    if wake.kind is Kind.HEARTBEAT:
        turn.tell(WakeTold(wake.name, wake.source, wake.sender, result))
