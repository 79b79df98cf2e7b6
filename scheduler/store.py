"""The SQLite file: how it is opened, checked, migrated, and written in one transaction at a time."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlite_utils import Database, Migrations

APPLICATION_ID = 0x48425444  # "HBTD": tells our file from anyone else's
BUSY_MS = 1_000
PASSING = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
})  # fmt: skip
DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

migrations = Migrations("heartbeatd")


class StoreError(Exception):
    """The database cannot be used; the text says which file, why, and what to type."""


class Unavailable(Exception):
    """The database could not be written just now (locked, disk full); nothing was changed, and trying later is right."""


def millis(instant: datetime) -> int:
    """An aware time as UTC milliseconds, the only form in which times are bound."""
    return (instant - EPOCH) // MILLISECOND


def moment(value: int) -> datetime:
    """The aware UTC time of so many milliseconds."""
    return EPOCH + timedelta(milliseconds=value)


class Store:
    """The daemon's only writing connection.

    WAL with `synchronous=FULL`, for an acknowledged commit must survive a power loss. Every write goes through `transaction`.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.connection = connection
        self._inode = path.stat().st_ino

    @classmethod
    def open(cls, path: Path, *, check: bool = False) -> Store:
        """Open or create the file at `path` and bring its schema up to date; `check` reads every page first.

        The file is 0600 whatever the umask. Raises StoreError and touches nothing where the file is damaged, not ours, or of
        a newer heartbeatd.
        """
        inspect(path, thorough=check)
        _create_private(path)
        try:
            connection = _connect(path)
            _migrate(path, connection)
        except sqlite3.DatabaseError as error:
            raise _unusable(path, error) from error
        return cls(path, connection)

    def close(self) -> None:
        """Close; the last connection to close folds the write-ahead log into the file."""
        self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One `begin immediate` transaction: committed whole, or rolled back whole on any exception.

        Raises Unavailable where SQLite could not begin or commit within the busy timeout, or the file was replaced.
        """
        self._same_file()
        try:
            self.connection.execute("begin immediate")
            yield self.connection
            self.connection.execute("commit")
        except sqlite3.DatabaseError as error:
            self._roll_back()
            raise self._named(error) from error
        except BaseException:
            self._roll_back()
            raise

    def _named(self, error: sqlite3.DatabaseError) -> Exception:
        """What an error of SQLite means for us; one that means that we are wrong stays itself."""
        if _code(error) in PASSING:
            return Unavailable(str(error))
        return StoreError(_damaged(self.path, str(error))) if _code(error) in DAMAGE else error

    def _roll_back(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("rollback")

    def _same_file(self) -> None:
        """SQLite writes happily into a file that is no longer there under its name."""
        try:
            inode = self.path.stat().st_ino
        except OSError as error:
            raise Unavailable(f"{self.path} is gone: {error.strerror}") from error
        if inode != self._inode:
            raise Unavailable(f"{self.path} was replaced while the daemon ran; restart it to use the new file")


def reader(path: Path) -> sqlite3.Connection:
    """A connection that reads only and never checkpoints. Raises StoreError where there is nothing to read."""
    if not path.exists():
        raise StoreError(f"{path}: no database yet; heartbeatd run makes it")
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_MS / 1000, isolation_level=None
        )
        connection.row_factory = sqlite3.Row
        _refuse_foreign(path, connection)
        _refuse_newer(path, Database(connection))
    except sqlite3.DatabaseError as error:
        raise _unusable(path, error) from error
    return connection


def inspect(path: Path, *, thorough: bool = True) -> None:
    """Raise StoreError unless the file at `path` is absent, new, or a sound database of ours; read only."""
    log = path.with_name(path.name + "-wal")
    if not path.exists():
        return
    if path.stat().st_size == 0:
        # An empty file beside a write-ahead log is a database that lost its content, not a new one.
        if log.exists() and log.stat().st_size:
            raise StoreError(_damaged(path, "the file is empty but its write-ahead log is not"))
        return
    connection = reader(path)
    try:
        found = connection.execute("pragma quick_check(1)").fetchone()[0] if thorough else "ok"
    except sqlite3.DatabaseError as error:
        found = str(error)
    finally:
        connection.close()
    if found != "ok":
        raise StoreError(_damaged(path, found))


def _create_private(path: Path) -> None:
    """SQLite gives the log files the mode of the database, so the mode of the first file decides for all."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None, cached_statements=256)
    connection.row_factory = sqlite3.Row
    for pragma in ("journal_mode = wal", "synchronous = full", "foreign_keys = on", "journal_size_limit = 4194304"):
        connection.execute(f"pragma {pragma}")
    return connection


def _migrate(path: Path, connection: sqlite3.Connection) -> None:
    database = Database(connection)
    if migrations.pending(database) and migrations.applied(database):
        _keep_copy(path, connection)
    if migrations.pending(database):
        connection.execute(f"pragma application_id = {APPLICATION_ID}")
        migrations.apply(database)


def _keep_copy(path: Path, connection: sqlite3.Connection) -> None:
    """A copy of the database as it was before its schema moved, beside it."""
    copy = path.with_name(path.name + ".before-migration")
    _create_private(copy)
    target = sqlite3.connect(copy)
    try:
        connection.backup(target)
    finally:
        target.close()


def _refuse_foreign(path: Path, connection: sqlite3.Connection) -> None:
    owner = connection.execute("pragma application_id").fetchone()[0]
    if owner != APPLICATION_ID:
        raise StoreError(f"{path} is a database of another program; name another file in `state:`")


def _refuse_newer(path: Path, database: Database) -> None:
    known = {migration.name for migration in migrations.pending(Database(memory=True))}
    unknown = sorted({migration.name for migration in migrations.applied(database)} - known)
    if unknown:
        raise StoreError(
            f"{path} was written by a newer heartbeatd (schema {unknown[-1]}, this one knows {max(known)}); upgrade heartbeatd"
        )


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; the ones that only detail it lie above the low byte."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _unusable(path: Path, error: sqlite3.DatabaseError) -> StoreError:
    """Only what SQLite calls damage is damage: a file that is locked or may not be read is sound as far as we know."""
    return StoreError(_damaged(path, str(error)) if _code(error) in DAMAGE else f"cannot use {path} just now: {error}")


def _damaged(path: Path, finding: str) -> str:
    aside = f"{path}.damaged"
    return (
        f"{path} is not a sound database ({finding}); nothing was changed. "
        "Set it aside and start anew, or put a backup in its place: "
        f"mv {path} {aside}; mv {path}-wal {aside}-wal"
    )


@migrations()
def m001_first_schema(db: Any) -> None:
    """The standing entries, one row per occurrence, and what is still to be said or heard."""
    for statement in FIRST_SCHEMA.split(";\n"):
        if statement.strip():
            db.conn.execute(statement)


FIRST_SCHEMA = """
create table entry (
  id integer primary key,
  kind text not null,
  name text not null,
  state text not null,              -- active, disabled, removed
  pace text not null,               -- what decides the slots, as canonical text
  first_seen_at integer not null,
  anchor integer not null,          -- where the grid of slots stands
  settled_until integer not null,   -- every slot up to here has its row
  slot integer,                     -- the next slot
  due_at integer,                   -- when to look at this entry next; null while it runs or nothing is planned
  paused_until integer,
  last_slot integer,                -- the last slot of the grid that ran
  last_ended_at integer,
  last_woken_at integer,            -- end of the last run that a wake started
  last_success_at integer,
  failures integer not null default 0,
  quiet integer not null default 0,
  alerting integer not null default 0,
  unique (kind, name)
) strict;

create index entry_due on entry (due_at) where due_at is not null;

create table run (
  id integer primary key,
  kind text not null,
  name text not null,
  slot integer not null,
  trigger text not null,
  slots integer not null default 1,
  state text not null,              -- running, waiting (for its next attempt), closed
  outcome text,
  reason text,
  suppression text,
  attempt integer not null default 0,
  crashes integer not null default 0,
  fence integer not null default 0,
  owner text,
  not_before integer,
  started_at integer,
  finished_at integer,
  model_requested text,
  model_used text,
  tokens text,
  cost_usd real,
  prompt_parts text,
  exit_code integer,
  text text,
  error text,
  config_hash text,
  unique (kind, name, trigger, slot)
) strict;

create unique index run_open on run (kind, name) where state in ('running', 'waiting');

create index run_of_entry on run (kind, name, id);

create index run_finished on run (finished_at) where state = 'closed';

create index run_started on run (kind, name, trigger, started_at);

create table wake (
  id integer primary key,
  name text not null,
  kind text not null,
  source text not null,
  sender text not null,
  text text not null,
  outcome text,
  count integer not null default 1,
  created_at integer not null,
  updated_at integer not null,
  due_at integer,                   -- when it may start a run; null: it waits for the next one
  state text not null,              -- waiting, taken, ended
  run_id integer
) strict;

create unique index wake_waiting on wake (kind, name, source, sender) where state = 'waiting';

create index wake_taken on wake (run_id) where state = 'taken';

create table outbox (
  id integer primary key,
  key text not null,
  channel text not null,
  run_id integer not null,
  kind text not null,
  name text not null,
  trigger text not null,
  slot integer not null,
  part integer not null,
  parts integer not null,
  title text not null,
  text text not null,
  state text not null,
  attempts integer not null default 0,
  not_before integer not null,
  created_at integer not null,
  sending_at integer,
  doubted_at integer,               -- when it was first unknown whether it had arrived
  finished_at integer,
  error text,
  unique (key, channel)
) strict;

create index outbox_pending on outbox (not_before) where state = 'pending';

create index outbox_sending on outbox (id) where state in ('sending', 'uncertain', 'held');

create index outbox_channel on outbox (channel, state, created_at);

create index outbox_run on outbox (run_id);

create table digest (
  kind text not null,
  name text not null,
  channel text not null,
  hash text not null,
  outbox_id integer not null,
  until_at integer not null,        -- until then the same text is no news
  primary key (kind, name, channel, hash)
) strict, without rowid;

create table breaker (
  provider text primary key,
  reason text not null,
  opened_at integer not null,
  probe_at integer not null         -- from then on one run may try it
) strict;

create table message (
  id integer primary key,
  name text not null,
  role text not null,
  text text not null,
  at integer not null
) strict;

create index message_of_agent on message (name, id);

create table boot (
  id integer primary key,
  instance text not null,
  pid integer not null,
  version text not null,
  tzdata text not null,
  started_at integer not null,
  last_tick_at integer not null,
  ended_at integer,                 -- null after a stop that was not clean
  config_hash text
) strict
"""
