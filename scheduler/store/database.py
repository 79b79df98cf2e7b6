"""Opens, checks, migrates and writes the SQLite file."""

from __future__ import annotations

import errno
import logging
import os
import shlex
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from scheduler.model.expected_error import ExpectedError
from scheduler.store.disk_reserve import DiskReserve, shortage_message
from scheduler.store.migrations import migrations
from scheduler.store.transaction import UnitOfWork
from scheduler.system.files import sync_to_disk
from scheduler.system.log import log_event

APPLICATION_ID = 0x48425444  # "HBTD": marks the file as ours
BUSY_MS = 1_000
STATEMENTS = 512  # that stay prepared; the engine has more than 230
PASSING = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
})  # fmt: skip
NO_ROOM = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})  # the latter: no room for the log's index
DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
FOLDED_AT, FOLDED_AT_IF_SHORT = 1000, 32  # pages of the log before it is folded into the file; it uses room that rows need
NO_FILES: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)
MOST_DIGITS = 18  # digits of a row id


class StoreError(ExpectedError):
    """The database cannot be used. The text says which file, why, and which command helps."""


class DatabaseUnavailable(Exception):
    """The database could not be written now (locked, disk full). Nothing was changed; the caller should try again later."""


class DatabaseFull(DatabaseUnavailable):
    """The database could not be written because its disk is full."""


class CommitUnknown(DatabaseUnavailable):
    """The connection to the server was lost during a commit. `Store.was_committed` finds out whether it was carried out."""


class LeadershipLost(DatabaseUnavailable):
    """Another daemon leads: this one must not write any more."""


def parse_row_id(text: str) -> int | None:
    """The row id that a user wrote; None if it is no number, or has more digits than an SQLite integer."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


class Store:
    """The daemon's only writing connection.

    It uses WAL with `synchronous=FULL`, because an acknowledged commit must survive a power loss. Every write goes through
    `transaction`. `epoch` is set while this daemon leads others on a server, and `is_fenced` once another one has led since.
    `server_identity` differs between a server and the standby that replaces it; None: it is a file, or not known. `reserve` is
    None if the database is in no file of this machine: its disk is then not known.
    """

    epoch: int | None = None
    is_fenced = False
    server_identity: str | None = None
    reserve: DiskReserve | None = None

    def __init__(self, path: Path, connection: sqlite3.Connection, reserve: DiskReserve | None) -> None:
        self.path = path
        self.connection = connection
        self.reserve = reserve
        self._inodes = {file: _inode(file) for file in (path, *_log_files(path))}
        self._last: UnitOfWork | None = None  # the last transaction, if it was committed
        self._others = 0  # the commits of other connections before the transaction
        self._version = (0, 0)  # of the content after it

    @classmethod
    def open(cls, path: Path, *, check: bool = False, reserve: DiskReserve | None = None) -> Store:
        """Open or create the file at `path`, and apply missing migrations. `check` reads every page first.

        `reserve` is the file's disk reserve, if the caller has used it already. The file is 0600 whatever the umask. Raises
        StoreError, and changes nothing, if the file is damaged, belongs to another program or a newer heartbeatd, is no regular
        file, or has several names.
        """
        check_file(path)
        path = path.resolve()
        reserve = reserve or DiskReserve(path)
        reserve.release_if_short()
        check_database(path, thorough=check)
        with _store_errors(path):
            if not path.exists() or path.stat().st_size == 0:
                _create_database(path)
            path.chmod(0o600)
            connection = _open_connection(path)
        return cls(path, connection, reserve)

    def connect(self) -> None:
        """Connect to the server, if that has not been possible yet. A file is open from the start."""

    def abort(self) -> None:
        """Interrupt a statement that waits for the server, from any thread. Does nothing for a file."""

    def keep_reserve(self) -> None:
        """Create the disk reserve if there is room. While there is none, keep the write-ahead log small."""
        if self.reserve is not None:
            self._fold_log_at(FOLDED_AT if self.reserve.create_if_missing() else FOLDED_AT_IF_SHORT)

    def make_room(self) -> bool:
        """Release the disk reserve, because the disk is full; False if there was nothing to release."""
        if self.reserve is None or not self.reserve.release_room():
            return False
        self._fold_log_at(FOLDED_AT_IF_SHORT)
        with suppress(sqlite3.OperationalError):  # every commit tries this again
            self.connection.execute("pragma wal_checkpoint(passive)").fetchall()
        return True

    def shortage(self) -> str | None:
        """What is wrong if its disk is so full that there is no room for the reserve; None if all is well."""
        return None if self.reserve is None else shortage_message(self.reserve.path)

    def close(self) -> None:
        """Close the connection. The last connection that closes folds the write-ahead log into the file."""
        self.connection.close()

    def was_committed(self, has_its_rows: Callable[[sqlite3.Connection], bool] = lambda _: True) -> bool:
        """Whether the transaction that raised CommitUnknown was committed. DatabaseUnavailable: that is not known yet.

        `has_its_rows` looks for something that it wrote: after a failover, the id of a lost transaction is used for another one.
        """
        raise NotImplementedError  # a commit to a file has succeeded or failed

    @contextmanager
    def transaction(self) -> Iterator[UnitOfWork]:
        """One `begin immediate` transaction. It is committed whole, or rolled back whole on any exception.

        Raises DatabaseUnavailable if SQLite could not begin or commit within the busy timeout, the file was replaced, or the
        server cannot be reached or refuses to write, and DatabaseFull if its disk is full.
        """
        try:
            work = self._begin()
            yield work
            work.write_changes()
            self._commit(work)
        except sqlite3.DatabaseError as error:
            self._roll_back()
            raise self._translate_error(error) from error
        except BaseException:
            self._roll_back()
            raise

    def _begin(self) -> UnitOfWork:
        self._check_same_file()
        last, self._last = self._last, None  # after a rollback nothing is known
        self.connection.execute("begin immediate")
        # It changes with each commit of another connection, such as that of a person who edits the file.
        self._others = self.connection.execute("pragma data_version").fetchone()[0]
        is_same = (self._others, self.connection.total_changes) == self._version
        return UnitOfWork(self.connection, last if is_same else None)

    def _commit(self, work: UnitOfWork) -> None:
        self.connection.execute("commit")
        self._last, self._version = work, (self._others, self.connection.total_changes)

    def _fold_log_at(self, pages: int) -> None:
        self.connection.execute(f"pragma wal_autocheckpoint = {pages}").fetchall()

    def _translate_error(self, error: sqlite3.DatabaseError) -> Exception:
        """The error to raise for an error of SQLite. An error caused by a bug in heartbeatd is returned unchanged."""
        if _is_disk_full(error):
            return DatabaseFull(f"cannot write {self.path}: {error}; free some space there")
        if _primary_code(error) in PASSING:
            return DatabaseUnavailable(str(error))
        return StoreError(_damage_message(self.path, str(error))) if _primary_code(error) in DAMAGE else error

    def _roll_back(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("rollback")

    def _check_same_file(self) -> None:
        """Raise if the files were replaced: SQLite writes without an error into files that were deleted."""
        for file, inode in self._inodes.items():
            found = _inode(file)
            if found == inode:
                continue
            if file != self.path:
                change = "removed" if found is None else "replaced"
                raise DatabaseUnavailable(
                    f"{file} was {change} while the daemon ran; restart it, so that what it still has is saved"
                )
            if found is None:
                raise DatabaseUnavailable(f"{self.path} is gone; put it back, or restart the daemon to begin with a new one")
            raise DatabaseUnavailable(f"{self.path} was replaced while the daemon ran; restart it to use the new file")


class MemoryStore(Store):
    """A new database in memory, which ends with its connection. It has no file, so its disk cannot be full."""

    def __init__(self) -> None:
        nowhere = Path(os.devnull)
        super().__init__(nowhere, open_empty_database(), None)
        self.connection.execute("pragma foreign_keys = on")

    def _check_same_file(self) -> None:
        """Nobody can replace it."""


def open_read_only(path: Path) -> sqlite3.Connection:
    """A connection that only reads and never checkpoints. Raises StoreError if there is nothing to read."""
    check_file(path)
    if not path.exists():
        raise StoreError(f"{path}: no database yet; heartbeatd run makes it")
    with _store_errors(path):
        uri = f"{path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_MS / 1000, isolation_level=None)
        with ExitStack() as on_error:
            on_error.callback(connection.close)
            connection.row_factory = sqlite3.Row
            if connection.execute("pragma application_id").fetchone()[0] != APPLICATION_ID:
                raise StoreError(f"{path} is a database of another program; name another file in `state:`")
            _refuse_other_versions(path, connection)
            on_error.pop_all()
    return connection


def open_read_only_any_version(path: Path) -> sqlite3.Connection:
    """Like `open_read_only`, but also reads an older schema, before a daemon of this version has migrated the file.

    The older database is copied into memory and migrated there; the file stays as it is. Raises StoreError.
    """
    connection = open_read_only(path)
    if not migrations.pending(connection):
        return connection
    copy = sqlite3.connect(":memory:", isolation_level=None)
    copy.row_factory = sqlite3.Row
    with closing(connection), _store_errors(path), ExitStack() as on_error:
        on_error.callback(copy.close)
        connection.backup(copy)
        migrations.apply(copy)
        on_error.pop_all()
    return copy


def open_empty_database() -> sqlite3.Connection:
    """An empty database in memory, for readers that come before the first daemon."""
    connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=STATEMENTS)
    connection.row_factory = sqlite3.Row
    migrations.apply(connection)
    return connection


def check_file(path: Path) -> None:
    """Raise StoreError unless `path` is a regular file, or is absent without a log that shows that a database was lost.

    The file is not opened, because opening a pipe would block for ever.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        log, _ = _log_files(path)
        if log.exists() and not path.exists():  # another process may have just created it, before its log
            raise StoreError(_loss_message(path, log)) from None
        return
    except OSError as error:
        if error.errno != errno.ELOOP:
            return  # creating or opening it fails with a better message
        raise StoreError(f"{path} is a link that leads in a circle; name a file in `state:`") from error
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in NO_FILES if is_kind(mode)), "no regular file")
        raise StoreError(f"{path} is {kind}, not a database; nothing was changed; name a file in `state:`")


def check_links(path: Path) -> None:
    """Raise StoreError if the file has several names: each name would have its own lock and its own log."""
    links = path.stat().st_nlink if path.exists() else 1
    if links > 1:
        raise StoreError(
            f"{path} has {links} hard links, and a separate daemon could write to it under each name; nothing was changed. "
            f"Remove the other names (find / -xdev -samefile {shlex.quote(str(path))}), or replace them with copies"
        )


def check_database(path: Path, *, thorough: bool = True) -> None:
    """Raise StoreError unless `path` is absent, new, or an undamaged database of heartbeatd with one name. Only reads."""
    log, _ = _log_files(path)
    check_file(path)
    check_links(path)
    if not path.exists():
        return
    if path.stat().st_size == 0:
        # An empty file next to a write-ahead log is a database that lost its content, not a new database.
        if log.exists() and log.stat().st_size:
            raise StoreError(_damage_message(path, "the file is empty but its write-ahead log is not"))
        return
    connection = open_read_only(path)
    try:
        found = connection.execute("pragma quick_check(1)").fetchone()[0] if thorough else "ok"
    except sqlite3.DatabaseError as error:
        found = str(error)
    finally:
        connection.close()
    if found != "ok":
        raise StoreError(_damage_message(path, found))


def _log_files(path: Path) -> tuple[Path, Path]:
    """The write-ahead log of a database and the log's index, which all connections share."""
    return path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _create_database(path: Path) -> None:
    """Create a new database in the same folder and move it to its path: readers find either none or a complete one.

    It is written to the disk once, before the move: after a power cut an unfinished file is created again from the start.
    """
    fresh = path.with_name(path.name + ".new")
    files = (fresh, *_log_files(fresh))
    for file in files:
        file.unlink(missing_ok=True)
    try:
        _create_private(fresh)
        with closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
            for pragma in ("journal_mode = memory", "synchronous = off"):
                connection.execute(f"pragma {pragma}")
            _apply_migrations(fresh, connection)
            connection.execute("pragma journal_mode = wal")
        sync_to_disk(fresh)
        fresh.replace(path)
    except BaseException:
        for file in files:
            file.unlink(missing_ok=True)
        raise
    sync_to_disk(path.parent)


def _create_private(path: Path) -> None:
    """Create the file with mode 0600. SQLite gives the log files the mode of the database."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)


def _open_connection(path: Path) -> sqlite3.Connection:
    """The writing connection, with the schema up to date. If that fails it is closed again, which removes its log files."""
    connection = sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None, cached_statements=STATEMENTS)
    with ExitStack() as on_error:
        on_error.callback(connection.close)
        connection.row_factory = sqlite3.Row
        for pragma in ("journal_mode = wal", "synchronous = full", "foreign_keys = on", "journal_size_limit = 4194304"):
            connection.execute(f"pragma {pragma}")
        _apply_migrations(path, connection)
        on_error.pop_all()
    return connection


def _apply_migrations(path: Path, connection: sqlite3.Connection) -> None:
    pending = migrations.pending(connection)
    if not pending:
        return
    copy = path.with_name(path.name + ".before-migration") if migrations.applied(connection) else None
    if copy is not None:  # as it is before the migration, for the way back
        _copy(connection, copy)
    connection.execute(f"pragma application_id = {APPLICATION_ID}")
    migrations.apply(connection)
    if copy is not None:
        log_event(logging.INFO, "migrated", database=path, migrations=",".join(pending), copy=copy)


def back_up(path: Path, copy: Path) -> None:
    """Copy a database to a new file of mode 0600. The copy is consistent, also while a daemon writes to the database.

    Raises StoreError if there is nothing to copy, if the database is damaged, or if `copy` exists.
    """
    if os.path.lexists(copy):
        raise StoreError(f"{copy} exists; name a new file")
    check_database(path)
    unfinished = copy.with_name(copy.name + ".unfinished")
    with closing(open_read_only(path)) as connection:
        try:
            _copy(connection, unfinished)
        except sqlite3.DatabaseError as error:
            raise StoreError(f"cannot copy {path} to {copy}: {error}") from error
    unfinished.rename(copy)
    sync_to_disk(copy.absolute().parent)


def _copy(connection: sqlite3.Connection, copy: Path) -> None:
    """Write all pages of a database to a file, or leave no file."""
    try:
        _create_private(copy)
        with closing(sqlite3.connect(copy)) as target:
            connection.backup(target)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise


def _refuse_other_versions(path: Path, connection: sqlite3.Connection) -> None:
    obstacle = migrations.obstacle(migrations.applied(connection))
    if obstacle and obstacle.endswith("upgrade heartbeatd"):
        obstacle += f", or restore {path.name}.before-migration"
    if obstacle:
        raise StoreError(f"{path} {obstacle}")


def _primary_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code: the low byte. Extended codes only add detail above it."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_disk_full(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) in NO_ROOM


@contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    """Raises StoreError for an error of SQLite. Only corruption counts as damage; a locked or unreadable file may be sound."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if _primary_code(error) in DAMAGE:
            raise StoreError(_damage_message(path, str(error))) from error
        problem = "its disk is full; free some space there" if _is_disk_full(error) else error
        raise StoreError(f"cannot use {path} just now: {problem}") from error


def _damage_message(path: Path, finding: str) -> str:
    log, _ = _log_files(path)
    move_log = f"; {_set_aside_command(path, log)}" if log.exists() else ""
    is_other = finding == "file is not a database"  # SQLite says so of a file with another beginning
    advice = "If it is another file, correct `state` or --state. Otherwise, move" if is_other else "Move"
    return (
        f"{path} is damaged or not a database ({finding}); nothing was changed. "
        f"{advice} it to another path, then start without the history or copy a backup to its place: "
        f"{_set_aside_command(path, path)}{move_log}"
    )


def _loss_message(path: Path, log: Path) -> str:
    return (
        f"{path} is missing, but its write-ahead log exists: the database was lost; nothing was changed. "
        f"Put the database back next to its log, or move the log to another path to start without the history or with a backup: "
        f"{_set_aside_command(path, log)}"
    )


def _set_aside_command(path: Path, file: Path) -> str:
    """The shell command that moves a database, or its log, out of the way."""
    return shlex.join(["mv", str(file), f"{path}.damaged{file.name.removeprefix(path.name)}"])
