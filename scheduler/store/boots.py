"""Records each boot of the daemon: when it began, when it last wrote, how it ended, and when it was frozen."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from heartbeatd.answers import Downtime, FrozenTime
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store.rows import insert_row, read_row
from scheduler.store.transaction import Transaction, is_file

TICK_EVERY = timedelta(seconds=5)
LEASE = timedelta(seconds=6)  # of the daemon that leads, without a renewal
MAX_CLOCK_DIFFERENCE = timedelta(seconds=5)  # between the clocks of this host and of the server


@dataclass(frozen=True, slots=True)
class Boot:
    """This daemon process: the instance id that its rows carry, its pid, and the versions of the program and the zone rules.

    `database_server` identifies the PostgreSQL server; None: the database is a file, or the server does not say.
    """

    instance: str
    pid: int
    version: str
    tzdata: str
    database_server: str | None = None


@dataclass(frozen=True, slots=True)
class Leader:
    """The daemon that leads: its instance id, its host, and the number and beginning of its leadership.

    `lag` is for how many seconds it has not renewed its lease. `former_host` is that of the daemon which led before.
    """

    holder: str
    host: str
    epoch: int
    lag: float
    since: datetime | None
    former_host: str | None

    def describe(self, at: Callable[[datetime], str]) -> str:
        """Where it is, since when it leads and after which one, and when it renewed its lease."""
        since = f" since {at(self.since)}" if self.since else ""
        former = f", took over from {self.former_host}" if self.former_host and self.former_host != self.host else ""
        return f"{self.host or 'a daemon'} leads{since} (epoch {self.epoch}){former}; its lease was renewed {self.lag:.1f} s ago"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootRecord(Boot):
    """One recorded boot. `ended_at` is None unless it was stopped in order.

    `deadman_problem` says why pings to the dead man's switch do not arrive.
    """

    started_at: datetime
    last_tick_at: datetime
    ended_at: datetime | None
    config_hash: str | None
    deadman_problem: str | None

    @property
    def clean(self) -> bool:
        """Whether it was stopped in order."""
        return self.ended_at is not None

    @property
    def seen_until(self) -> datetime:
        """Its end, or its last recorded tick if it has no recorded end."""
        return self.ended_at or self.last_tick_at


def record_boot(tx: Transaction, boot: Boot) -> bool:
    """Insert the row of this boot.

    True if the program or the zone rules differ from the last boot: all due times must be found again.
    """
    last = latest_boot(tx.db)
    times = {"started_at": tx.now, "last_tick_at": tx.now}
    insert_row(tx.db, "boot", asdict(boot) | times | {"config_hash": tx.config_hash})
    return last is not None and (last.version, last.tzdata) != (boot.version, boot.tzdata)


def latest_instances(db: sqlite3.Connection, limit: int) -> list[str]:
    """The instance ids of the latest boots."""
    return [row["instance"] for row in db.execute("select instance from boot order by id desc limit ?", (limit,))]


def record_last_tick(tx: Transaction) -> None:
    """Record the time of this tick, as its last statement.

    If the tick has written anything, no row is later than the last recorded tick. Otherwise this alone would make it write, so it
    is recorded once per TICK_EVERY.
    """
    since = tx.now if tx.db.has_written else tx.now - TICK_EVERY
    tx.db.execute(
        "update boot set last_tick_at = :now where instance = :instance and last_tick_at not between :since and :now",
        {"now": to_millis(tx.now), "since": to_millis(since), "instance": tx.owner},
    )


def is_last_tick(db: sqlite3.Connection, instance: str, at: datetime) -> bool:
    """Whether the last recorded tick is that of this time, of the boot `instance`. Each tick that writes is recorded."""
    last = latest_boot(db)
    return last is not None and (last.instance, to_millis(last.last_tick_at)) == (instance, to_millis(at))


def may_lack_commits(db: sqlite3.Connection, server: str | None, last_write: tuple[str, datetime] | None) -> bool:
    """Whether the server may have lost commits of the last boot: another one has taken over since, for example a standby.

    `last_write` is the last known write of this process, with its instance id. If it is there, all commits are.
    """
    last = latest_boot(db)
    if last is None:
        return last_write is not None
    if last_write is not None and last.instance == last_write[0]:
        return to_millis(last.last_tick_at) < to_millis(last_write[1])
    return None not in (server, last.database_server) and last.database_server != server


def record_config(tx: Transaction) -> None:
    """Record that this boot uses the config of the transaction."""
    tx.db.execute("update boot set config_hash = ? where instance = ?", (tx.config_hash, tx.owner))


def record_deadman_problem(tx: Transaction, problem: str | None) -> None:
    """Record why pings to the dead man's switch fail; None: they arrive again."""
    tx.db.execute("update boot set deadman_problem = ? where instance = ?", (problem, tx.owner))


def record_clean_end(tx: Transaction) -> None:
    """Record that the daemon is stopping in order."""
    tx.db.execute(
        "update boot set ended_at = ?, last_tick_at = ? where instance = ?", (to_millis(tx.now), to_millis(tx.now), tx.owner)
    )


def last_tick_at(db: sqlite3.Connection) -> datetime | None:
    """The time of the last recorded tick; None in a new database. It is in the future if the clock was set back since."""
    last = latest_boot(db)
    return last.last_tick_at if last else None


def count_crashes(db: sqlite3.Connection) -> int:
    """How many daemon processes ended without a clean stop. The latest boot is not counted, because it is still running."""
    query = "select count(*) from boot where ended_at is null and id < (select max(id) from boot)"
    return int(db.execute(query).fetchone()[0])


def last_crash_seen_at(db: sqlite3.Connection) -> datetime | None:
    """When the next daemon started after the last crash, on this machine or on another. None without a crash."""
    row = db.execute(
        "select min(started_at) as found from boot where id = (select min(id) from boot where id >"
        " (select max(id) from boot where ended_at is null and id < (select max(id) from boot)))"
    ).fetchone()
    return None if row["found"] is None else from_millis(row["found"])


def latest_boot(db: sqlite3.Connection) -> BootRecord | None:
    """The last boot; None in a new database."""
    row = db.execute("select * from boot order by id desc limit 1").fetchone()
    return read_row(BootRecord, row) if row else None


def find_leader(db: sqlite3.Connection) -> Leader | None:
    """The daemon that leads on a server; None if none leads, or the database is a file."""
    if is_file(db):
        return None
    row = db.execute(
        "select holder, coalesce(host, '') as host, epoch,"
        " greatest(0, ? - extract(epoch from until_at - clock_timestamp()))::float8 as lag,"
        " (extract(epoch from since_at) * 1000)::bigint as since, former_host from _leader where until_at > clock_timestamp()",
        (int(LEASE.total_seconds()),),
    ).fetchone()
    return read_row(Leader, row) if row else None


def is_leader_running(db: sqlite3.Connection) -> bool:
    """Whether the daemon of the last boot leads on a server, for a reader on any host. False if the database is a file.

    The clock of the server and the lease of the daemon decide, because the clocks of the hosts may differ.
    """
    boot, leader = latest_boot(db), find_leader(db)
    return boot is not None and leader is not None and not boot.clean and boot.instance == leader.holder


def find_clock_difference(db: sqlite3.Connection, now: datetime) -> str | None:
    """By how much the clock of the server differs from that of this host; None if they agree, or the database is a file."""
    if is_file(db):
        return None
    row = db.execute("select (extract(epoch from clock_timestamp()) * 1000)::bigint").fetchone()
    difference = from_millis(row[0]) - now
    if abs(difference) <= MAX_CLOCK_DIFFERENCE:
        return None
    direction = "ahead of" if difference > timedelta() else "behind"
    return f"the clock of the PostgreSQL server is {abs(difference).total_seconds():.0f} s {direction} that of this host"


@dataclass(frozen=True, slots=True)
class Replication:
    """Whether commits wait for a synchronous standby, the value of `synchronous_commit`, and how many standbys are connected."""

    waits: bool
    commits: str
    standbys: int


def read_replication(db: sqlite3.Connection) -> Replication:
    """How the server replicates commits. Every user may read this."""
    row = db.execute(
        "select current_setting('synchronous_standby_names') <> '' as waits, current_setting('synchronous_commit') as commits,"
        " (select count(*) from pg_stat_replication) as standbys"
    ).fetchone()
    return Replication(bool(row["waits"]), row["commits"], row["standbys"])


def latest_downtimes(db: sqlite3.Connection, limit: int = 5) -> list[Downtime]:
    """The last `limit` downtimes between two boots, the newest first."""
    rows = db.execute("select * from boot order by id desc limit ?", (limit + 1,)).fetchall()
    return downtimes_between([read_row(BootRecord, row) for row in reversed(rows)], running=True)[::-1]


def all_boots(db: sqlite3.Connection) -> list[BootRecord]:
    """Every recorded boot, the oldest first."""
    return [read_row(BootRecord, row) for row in db.execute("select * from boot order by id")]


def downtimes_between(boots: list[BootRecord], *, running: bool) -> list[Downtime]:
    """The downtimes between these boots, in order, and the one after the last boot unless it is `running`."""
    found = [Downtime(since=before.seen_until, until=after.started_at, clean=before.clean) for before, after in pairwise(boots)]
    if boots and not running:
        found.append(Downtime(since=boots[-1].seen_until, until=None, clean=boots[-1].clean))
    return found


STOPPED = "stopped"


def record_freeze(tx: Transaction, late: timedelta, cause: str | None) -> None:
    """Record that this tick began `late`. The table has a former name: `stall`.

    `cause` is STOPPED if a signal had stopped the process. None: it got no CPU time or disk access, or something else froze it.
    """
    insert_row(tx.db, "stall", {"since": tx.now - late, "until": tx.now, "cause": cause})


def freezes_between(db: sqlite3.Connection, begin: datetime, end: datetime) -> list[FrozenTime]:
    """The freezes that overlap [begin, end)."""
    rows = db.execute("select * from stall where until >= ? and since < ? order by id", (to_millis(begin), to_millis(end)))
    return [read_row(FrozenTime, row) for row in rows]
