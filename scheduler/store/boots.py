"""The lives of the daemon: when each began, when it was last seen, and how it ended."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from scheduler.model.timestamps import millis, moment, optional
from scheduler.store.transaction import Transaction

SIGN_OF_LIFE = timedelta(seconds=5)

LIVES_SINCE = (
    "select started_at, last_tick_at, ended_at from boot"
    " where id >= coalesce((select max(id) from boot where started_at <= ?), 0) order by id"
)


@dataclass(frozen=True, slots=True)
class Boot:
    """Who this life is."""

    instance: str
    pid: int
    version: str
    tzdata: str


@dataclass(frozen=True, slots=True)
class Down:
    """A time in which no daemon ran; `clean` says that it had been stopped in order. `until` None: it still is."""

    since: datetime
    until: datetime | None
    clean: bool


@dataclass(frozen=True, slots=True)
class Life:
    """One life: which process, since when, until when it was last seen, and whether it ended in order by then."""

    instance: str
    pid: int
    version: str
    started_at: datetime
    seen_until: datetime
    clean: bool


def begin(tx: Transaction, boot: Boot) -> bool:
    """Write the row of this life; True when zone rules or the program changed since the last one: times must be found anew."""
    last = tx.db.execute("select version, tzdata from boot order by id desc limit 1").fetchone()
    now = millis(tx.now)
    tx.db.execute(
        "insert into boot (instance, pid, version, tzdata, started_at, last_tick_at, config_hash) values (?, ?, ?, ?, ?, ?, ?)",
        (boot.instance, boot.pid, boot.version, boot.tzdata, now, now, tx.config_hash),
    )
    return last is not None and (last["version"], last["tzdata"]) != (boot.version, boot.tzdata)


def tick(tx: Transaction) -> None:
    """A sign of life, not oftener than it is worth a write."""
    tx.db.execute(
        "update boot set last_tick_at = ? where instance = ? and last_tick_at not between ? and ?",
        (millis(tx.now), tx.owner, millis(tx.now - SIGN_OF_LIFE), millis(tx.now)),
    )


def write_down(tx: Transaction) -> None:
    """A turn that writes is a sign of life too, so that nothing on record is later than its life was last seen."""
    tx.db.execute(
        "update boot set last_tick_at = :now where instance = :instance and last_tick_at <> :now",
        {"now": millis(tx.now), "instance": tx.owner},
    )


def adopt(tx: Transaction) -> None:
    """This life goes on by the plan of this turn."""
    tx.db.execute(
        "update boot set config_hash = ?, config_problem = null, config_refused_at = null where instance = ?",
        (tx.config_hash, tx.owner),
    )


def refuse(tx: Transaction, problem: str) -> None:
    """A changed config was refused; the one in force stays."""
    tx.db.execute(
        "update boot set config_problem = ?, config_refused_at = ? where instance = ?", (problem, millis(tx.now), tx.owner)
    )


def note_deadman(tx: Transaction, problem: str | None) -> None:
    """Pings to the dead man's switch do not arrive; None: they do again."""
    tx.db.execute("update boot set deadman_problem = ? where instance = ?", (problem, tx.owner))


def end(tx: Transaction) -> None:
    """This life ends in order."""
    tx.db.execute("update boot set ended_at = ?, last_tick_at = ? where instance = ?", (millis(tx.now), millis(tx.now), tx.owner))


def last_seen(db: sqlite3.Connection) -> datetime | None:
    """When the last life was last seen; it lies ahead where the clock was set back since."""
    row = db.execute("select last_tick_at from boot order by id desc limit 1").fetchone()
    return moment(row[0]) if row else None


def pull_near(tx: Transaction) -> None:
    """The clock was ahead, and was set right: no life has begun, been seen or ended in the future."""
    tx.db.execute(
        "update boot set started_at = min(started_at, :now), last_tick_at = min(last_tick_at, :now),"
        " ended_at = min(ended_at, :now)",
        {"now": millis(tx.now)},
    )


def ended_cleanly(db: sqlite3.Connection) -> bool:
    """Whether the last life ended in order; True for a new database."""
    row = db.execute("select ended_at from boot order by id desc limit 1").fetchone()
    return row is None or row["ended_at"] is not None


def latest(db: sqlite3.Connection) -> sqlite3.Row | None:
    """The last life's row."""
    found: sqlite3.Row | None = db.execute("select * from boot order by id desc limit 1").fetchone()
    return found


def downs_since(db: sqlite3.Connection, since: datetime) -> list[Down]:
    """The times after `since` in which no daemon ran, the first one first; the last one, without an end, is after the last life.

    Whether that life goes on all the same is for the caller to know.
    """
    rows = db.execute(LIVES_SINCE, (millis(since),)).fetchall()
    starts = [*(moment(row["started_at"]) for row in rows[1:]), None]
    return [
        Down(max(since, moment(row["ended_at"] or row["last_tick_at"])), until, row["ended_at"] is not None)
        for row, until in zip(rows, starts, strict=False)  # without any life there is no end of one
        if until is None or until > since
    ]


def downs(db: sqlite3.Connection, limit: int = 5) -> list[Down]:
    """The last times in which no daemon ran, the latest first."""
    rows = db.execute("select started_at, last_tick_at, ended_at from boot order by id desc limit ?", (limit + 1,)).fetchall()
    return [
        Down(moment(before["ended_at"] or before["last_tick_at"]), optional(after["started_at"]), before["ended_at"] is not None)
        for after, before in pairwise(rows)
    ]


def lives(db: sqlite3.Connection) -> list[Life]:
    """Every life that is on record, the oldest first."""
    return [_life(row) for row in db.execute("select * from boot order by id")]


def _life(row: sqlite3.Row) -> Life:
    seen = row["ended_at"] if row["ended_at"] is not None else row["last_tick_at"]
    return Life(row["instance"], row["pid"], row["version"], moment(row["started_at"]), moment(seen), row["ended_at"] is not None)


def gaps(lives: list[Life], *, running: bool) -> list[Down]:
    """When no daemon ran between the lives, the earliest first, and since the last one unless it is still `running`."""
    found = [Down(before.seen_until, after.started_at, before.clean) for before, after in pairwise(lives)]
    if lives and not running:
        found.append(Down(lives[-1].seen_until, None, lives[-1].clean))
    return found
