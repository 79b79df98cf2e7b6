"""The lives of the daemon: when each began, when it was last seen, and how it ended."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from scheduler.model.timestamps import from_millis, from_optional_millis, to_millis
from scheduler.store.transaction import Transaction

TICK_EVERY = timedelta(seconds=5)

BOOTS_SINCE = (
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
class Downtime:
    """A time in which no daemon ran; `clean` says that it had been stopped in order. `until` None: it still is."""

    since: datetime
    until: datetime | None
    clean: bool


@dataclass(frozen=True, slots=True)
class BootRecord:
    """One life: which process, since when, until when it was last seen, and whether it ended in order by then."""

    instance: str
    pid: int
    version: str
    started_at: datetime
    seen_until: datetime
    clean: bool


def record_boot(tx: Transaction, boot: Boot) -> bool:
    """Write the row of this life; True when zone rules or the program changed since the last one: times must be found anew."""
    last = tx.db.execute("select version, tzdata from boot order by id desc limit 1").fetchone()
    now = to_millis(tx.now)
    tx.db.execute(
        "insert into boot (instance, pid, version, tzdata, started_at, last_tick_at, config_hash) values (?, ?, ?, ?, ?, ?, ?)",
        (boot.instance, boot.pid, boot.version, boot.tzdata, now, now, tx.config_hash),
    )
    return last is not None and (last["version"], last["tzdata"]) != (boot.version, boot.tzdata)


def refresh_last_tick(tx: Transaction) -> None:
    """A sign of life, not oftener than it is worth a write."""
    tx.db.execute(
        "update boot set last_tick_at = ? where instance = ? and last_tick_at not between ? and ?",
        (to_millis(tx.now), tx.owner, to_millis(tx.now - TICK_EVERY), to_millis(tx.now)),
    )


def record_last_tick(tx: Transaction) -> None:
    """A turn that writes is a sign of life too, so that nothing on record is later than its life was last seen."""
    tx.db.execute(
        "update boot set last_tick_at = :now where instance = :instance and last_tick_at <> :now",
        {"now": to_millis(tx.now), "instance": tx.owner},
    )


def record_config(tx: Transaction) -> None:
    """This life goes on by the plan of this turn."""
    tx.db.execute(
        "update boot set config_hash = ?, config_problem = null, config_refused_at = null where instance = ?",
        (tx.config_hash, tx.owner),
    )


def record_config_problem(tx: Transaction, problem: str) -> None:
    """A changed config was refused; the one in force stays."""
    tx.db.execute(
        "update boot set config_problem = ?, config_refused_at = ? where instance = ?", (problem, to_millis(tx.now), tx.owner)
    )


def record_deadman_problem(tx: Transaction, problem: str | None) -> None:
    """Pings to the dead man's switch do not arrive; None: they do again."""
    tx.db.execute("update boot set deadman_problem = ? where instance = ?", (problem, tx.owner))


def record_clean_end(tx: Transaction) -> None:
    """This life ends in order."""
    tx.db.execute(
        "update boot set ended_at = ?, last_tick_at = ? where instance = ?", (to_millis(tx.now), to_millis(tx.now), tx.owner)
    )


def last_tick_at(db: sqlite3.Connection) -> datetime | None:
    """When the last life was last seen; it lies ahead where the clock was set back since."""
    row = db.execute("select last_tick_at from boot order by id desc limit 1").fetchone()
    return from_millis(row[0]) if row else None


def clamp_future_times(tx: Transaction) -> None:
    """The clock was ahead, and was set right: no life has begun, been seen or ended in the future."""
    tx.db.execute(
        "update boot set started_at = min(started_at, :now), last_tick_at = min(last_tick_at, :now),"
        " ended_at = min(ended_at, :now)",
        {"now": to_millis(tx.now)},
    )


def last_boot_ended_cleanly(db: sqlite3.Connection) -> bool:
    """Whether the last life ended in order; True for a new database."""
    row = db.execute("select ended_at from boot order by id desc limit 1").fetchone()
    return row is None or row["ended_at"] is not None


def latest_boot(db: sqlite3.Connection) -> sqlite3.Row | None:
    """The last life's row."""
    found: sqlite3.Row | None = db.execute("select * from boot order by id desc limit 1").fetchone()
    return found


def downtimes_since(db: sqlite3.Connection, since: datetime) -> list[Downtime]:
    """The times after `since` in which no daemon ran, the first one first; the last one, without an end, is after the last life.

    Whether that life goes on all the same is for the caller to know.
    """
    rows = db.execute(BOOTS_SINCE, (to_millis(since),)).fetchall()
    starts = [*(from_millis(row["started_at"]) for row in rows[1:]), None]
    return [
        Downtime(max(since, from_millis(row["ended_at"] or row["last_tick_at"])), until, row["ended_at"] is not None)
        for row, until in zip(rows, starts, strict=False)  # without any life there is no end of one
        if until is None or until > since
    ]


def latest_downtimes(db: sqlite3.Connection, limit: int = 5) -> list[Downtime]:
    """The last times in which no daemon ran, the latest first."""
    rows = db.execute("select started_at, last_tick_at, ended_at from boot order by id desc limit ?", (limit + 1,)).fetchall()
    return [
        Downtime(
            from_millis(before["ended_at"] or before["last_tick_at"]),
            from_optional_millis(after["started_at"]),
            before["ended_at"] is not None,
        )
        for after, before in pairwise(rows)
    ]


def all_boots(db: sqlite3.Connection) -> list[BootRecord]:
    """Every life that is on record, the oldest first."""
    return [_boot_from_row(row) for row in db.execute("select * from boot order by id")]


def _boot_from_row(row: sqlite3.Row) -> BootRecord:
    seen = row["ended_at"] if row["ended_at"] is not None else row["last_tick_at"]
    return BootRecord(
        row["instance"],
        row["pid"],
        row["version"],
        from_millis(row["started_at"]),
        from_millis(seen),
        row["ended_at"] is not None,
    )


def downtimes_between(boots: list[BootRecord], *, running: bool) -> list[Downtime]:
    """When no daemon ran between the lives, the earliest first, and since the last one unless it is still `running`."""
    found = [Downtime(before.seen_until, after.started_at, before.clean) for before, after in pairwise(boots)]
    if boots and not running:
        found.append(Downtime(boots[-1].seen_until, None, boots[-1].clean))
    return found


@dataclass(frozen=True, slots=True)
class Stall:
    """A turn was to begin at `since` and began at `until`."""

    since: datetime
    until: datetime


def record_stall(tx: Transaction, late: timedelta) -> None:
    """Remember that this turn began late."""
    tx.db.execute("insert into stall (since, until) values (?, ?)", (to_millis(tx.now - late), to_millis(tx.now)))


def stalls_between(db: sqlite3.Connection, begin: datetime, end: datetime) -> list[Stall]:
    """The stalls that touch a time."""
    rows = db.execute("select * from stall where until >= ? and since < ? order by id", (to_millis(begin), to_millis(end)))
    return [Stall(from_millis(row["since"]), from_millis(row["until"])) for row in rows]


def delete_old_stalls(tx: Transaction, keep: timedelta) -> None:
    """They are remembered no longer than the history."""
    tx.db.execute("delete from stall where until < ?", (to_millis(tx.now - keep),))
