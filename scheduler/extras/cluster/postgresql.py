"""Keeps the same tables in PostgreSQL, and runs the statements of the store there. Imported only if `state` names a server.

After a failure, engine/tick.py tries the next transaction after DATABASE_RETRY. The connection is made again then.
"""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from typing import Any, cast

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from heartbeat.words import squeeze
from scheduler.extras.cluster.postgresql_schema import apply_schema, is_new, missing_migrations
from scheduler.model.state_address import describe_server, schema_of
from scheduler.store.database import (
    CommitUnknown,
    DatabaseFull,
    DatabaseUnavailable,
    LeadershipLost,
    Store,
    StoreError,
)
from scheduler.store.transaction import UnitOfWork

LARGEST = 2**63
OLDEST_SERVER = 130_000  # as PostgreSQL numbers its versions

# A server that cannot be reached is noticed within seconds, also if packets are dropped without an answer.
CONNECTION_DEFAULTS = {
    "connect_timeout": "4",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "8000",
    "application_name": "heartbeatd",
}
# With several hosts in the address, only the primary is used for writing, and to find out whether a commit was carried out.
WRITER_CONNECTION = {**CONNECTION_DEFAULTS, "target_session_attrs": "primary"}
# Milliseconds. A transaction whose daemon is frozen ends by itself, so that another daemon can take over.
WRITER_SETTINGS = {
    "statement_timeout": 15_000, "lock_timeout": 3_000, "idle_in_transaction_session_timeout": 4_000,
    "tcp_user_timeout": 4_000,  # the only limit while the server sends rows that a frozen daemon does not receive
}  # fmt: skip
READER_SETTINGS = {
    "statement_timeout": 15_000, "lock_timeout": 1_000, "idle_in_transaction_session_timeout": 60_000,
    "default_transaction_read_only": "on", "default_transaction_isolation": "repeatable read",
}  # fmt: skip

FULL = frozenset({"53100"})
DAMAGED = frozenset({"XX001", "XX002"})
# Classes and codes of errors that pass, or that a person can correct on the server: the daemon waits.
# https://www.postgresql.org/docs/current/errcodes-appendix.html
PASSING = ("08", "28", "3D", "40", "53", "55", "57", "58", "25006", "25P03", "42501", "3F000", "F0")

# Every user may call these functions, unless an administrator has revoked it. The timeline of pg_control_checkpoint() is that of
# the last checkpoint, which is still the old one just after a promotion.
IDENTITY = (
    "select system_identifier::text from pg_control_system()",
    "select left(pg_walfile_name(pg_current_wal_lsn()), 8)",
)
NO_RIGHT = "42501"
# An advisory lock, together with the number of the table `_leader`, so that each schema has one. Each transaction of the leader
# has it in shared mode.
LEADER_LOCK = 728_410
# `for key share` blocks a change of the epoch, which has a unique index, but not the renewal of this daemon's own lease.
# A command that takes a lock waits for the advisory lock (see command_lanes.py).
SEE_LEADER = (
    "select epoch, host, pg_current_xact_id()::text as number,"  # noqa: S608 (a constant)
    f" pg_advisory_xact_lock_shared({LEADER_LOCK}, tableoid::int) from _leader for key share"
)
SERVER_REPLACED = "another database server has taken over, and may lack the last commits"

# What a person has to mend, in the errors of a connection, which have no code. In other languages than English, the daemon waits.
MISTAKE = re.compile(
    r"FATAL: (database|role) .* does not exist|FATAL: .*authentication failed|FATAL: permission denied|no password supplied"
    r"|FATAL: no pg_hba.conf entry"
)

_STATEMENT_PARTS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|(?P<place>\?)|(?<![:\w]):(?P<name>[a-z_]+)")


class ServerError(sqlite3.OperationalError):
    """An error of PostgreSQL. The rest of the code handles it as it handles an error of SQLite.

    `sqlstate` is empty if the connection was lost, or could not be made.
    """

    def __init__(self, text: str, sqlstate: str = "") -> None:
        super().__init__(text)
        self.sqlstate = sqlstate

    @property
    def is_passing(self) -> bool:
        """Whether the same statement may work later: nothing is wrong with it."""
        return not self.sqlstate or self.sqlstate.startswith(PASSING)


class Row(tuple[Any, ...]):
    """A row that is read by position and by name, as those of sqlite3. `_positions` is set by `_row_class`."""

    __slots__ = ()
    _positions: Mapping[str, int] = {}

    def keys(self) -> list[str]:
        """The names of the columns."""
        return list(self._positions)

    def __getitem__(self, key: Any) -> Any:
        if type(key) is str:
            try:
                return tuple.__getitem__(self, self._positions[key])
            except KeyError:
                raise IndexError(f"no column {key}") from None
        return tuple.__getitem__(self, key)


@lru_cache(maxsize=1024)
def _row_class(names: tuple[bytes, ...]) -> type[Row]:
    positions: dict[str, int] = {}
    for position, name in enumerate(names):
        positions.setdefault(name.decode(), position)
    return type("Row", (Row,), {"__slots__": (), "_positions": positions})


def _make_rows(cursor: Any) -> Any:
    result = cursor.pgresult  # its names are ten times as quick to read as those of `cursor.description`
    if result is None or not result.nfields:
        return tuple
    row_class = _row_class(tuple([result.fname(number) for number in range(result.nfields)]))
    return lambda values: tuple.__new__(row_class, values)


class _IntegerDumper(psycopg.adapt.Dumper):  # type: ignore[misc]
    """An integer or a boolean. One that does not fit into a column raises OverflowError, as with sqlite3."""

    oid = psycopg.postgres.types["int8"].oid

    def dump(self, obj: int) -> bytes:
        if not -LARGEST <= obj < LARGEST:
            raise OverflowError("the integer is too large for the database")
        return b"%d" % obj


class _TextDumper(psycopg.adapt.Dumper):  # type: ignore[misc]
    """A text. PostgreSQL cannot store the character U+0000, so it becomes U+FFFD."""

    oid = psycopg.postgres.types["text"].oid

    def dump(self, obj: str) -> bytes:
        return obj.encode().replace(b"\0", "\ufffd".encode())


class _NumberLoader(psycopg.adapt.Loader):  # type: ignore[misc]
    """A sum of integers is an integer, as in SQLite."""

    def load(self, data: Any) -> int | float:
        text = bytes(data)
        return int(text) if text.lstrip(b"-").isdigit() else float(text)


class _BooleanLoader(psycopg.adapt.Loader):  # type: ignore[misc]
    """SQLite has no booleans but 0 and 1."""

    def load(self, data: Any) -> int:
        return int(bytes(data) == b"t")


class ServerConnection:
    """A connection with the part of the interface of `sqlite3.Connection` that the store uses. It commits each statement.

    Every error of the server is raised as `ServerError`.
    """

    def __init__(self, url: str, settings: Mapping[str, object], parameters: Mapping[str, str] = CONNECTION_DEFAULTS) -> None:
        self.url = url
        self.total_changes = 0
        self._raw = _connect(url, settings, parameters)
        self._abortion = threading.Lock()  # held while the twin is used or closed
        try:
            self._twin: socket.socket | None = socket.socket(fileno=os.dup(self._raw.fileno()))
        except OSError as error:  # this process has no descriptor left
            self._raw.close()
            raise ServerError(str(error)) from error
        self._trace: Callable[[str], object] | None = None

    def execute(self, statement: str, values: Sequence[object] | Mapping[str, object] = ()) -> Any:
        """Run a statement with parameters as SQLite has them: `?` or `:name`."""
        text, names = _translate(statement)
        if self._trace is not None:
            self._trace(statement)
        try:
            cursor = self._raw.cursor()
            given = [values[name] for name in names] if names else values or None  # type: ignore[call-overload]
            # Statements without rows are sent as they are; the others are prepared by the driver when they repeat.
            may_repeat = text.startswith(("select", "insert", "update", "delete", "\n", "with"))
            cursor.execute(text, given, prepare=None if may_repeat else False)
        except psycopg.Error as error:
            raise self._translate_error(error) from error
        if (cursor.statusmessage or "").startswith(("INSERT", "UPDATE", "DELETE")):
            self.total_changes += cursor.rowcount
        return cursor

    def executemany(self, statement: str, values: Iterable[Sequence[object]]) -> Any:
        """Run a statement once for each of these."""
        text, _ = _translate(statement)
        try:
            cursor = self._raw.cursor()
            cursor.executemany(text, list(values))
        except psycopg.Error as error:
            raise self._translate_error(error) from error
        self.total_changes += max(cursor.rowcount, 0)
        return cursor

    def execute_at_once(self, statements: str, values: Mapping[str, object]) -> list[Any]:
        """Run statements with `%(name)s` parameters in one transaction and one round trip. Returns the rows of the last one.

        The server does not wait for this process between the statements. If this process is frozen or cut off, no lock remains.
        """
        if self._trace is not None:
            self._trace(statements)
        try:
            cursor = psycopg.ClientCursor(self._raw, row_factory=_make_rows)
            cursor.execute(statements.encode(), values)
            while cursor.nextset():
                pass
            return list(cursor.fetchall())
        except psycopg.Error as error:
            raise self._translate_error(error) from error

    def set_trace_callback(self, trace: Callable[[str], object] | None) -> None:
        """Call `trace` with each statement before it is executed."""
        self._trace = trace

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open on a connection that still works."""
        status = self._raw.info.transaction_status
        return bool(status not in (pq.TransactionStatus.IDLE, pq.TransactionStatus.UNKNOWN))

    @property
    def is_lost(self) -> bool:
        """Whether the connection is closed or broken."""
        return bool(self._raw.closed)

    def abort(self) -> None:
        """Interrupt a statement that waits for the server, from any thread.

        The number of the driver's own descriptor may belong to another file by now, so a duplicate is kept for this.
        """
        with self._abortion, suppress(OSError):
            if self._twin is not None:
                self._twin.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; an open transaction is rolled back."""
        self._raw.close()
        with self._abortion:
            if self._twin is not None:
                self._twin.close()
            self._twin = None

    def _translate_error(self, error: psycopg.Error) -> ServerError:
        lost = self.is_lost and not (error.sqlstate or "").startswith("57")
        return ServerError(squeeze(str(error)), "" if lost else error.sqlstate or "XX000")


def _connect(url: str, settings: Mapping[str, object], parameters: Mapping[str, str]) -> Any:
    try:
        raw = psycopg.connect(
            make_conninfo("", **{**CONNECTION_DEFAULTS, **parameters, **_parameters(url), "client_encoding": "utf8"}),
            autocommit=True, prepare_threshold=2, cursor_factory=psycopg.RawCursor, row_factory=_make_rows,
        )  # fmt: skip
    except psycopg.Error as error:
        why = squeeze(str(error)).removeprefix("connection failed: ")
        raise ServerError(f"cannot connect to {describe_server(url)}: {why}", error.sqlstate or "") from error
    raw.prepared_max = 500
    raw.adapters.register_dumper(int, _IntegerDumper)
    raw.adapters.register_dumper(bool, _IntegerDumper)
    raw.adapters.register_dumper(str, _TextDumper)
    raw.adapters.register_loader("numeric", _NumberLoader)
    raw.adapters.register_loader("bool", _BooleanLoader)
    values = {"search_path": f'"{schema_of(url)}"', **settings}
    try:
        raw.execute("select " + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in values.items()))
    except psycopg.Error as error:
        raw.close()
        raise ServerError(squeeze(str(error)), error.sqlstate or "") from error
    return raw


def read_server_identity(connection: ServerConnection) -> str | None:
    """What differs between a primary and the standby that replaces it: the number of the cluster, and its timeline.

    None if the server does not say: it is no primary, or the connection is lost. A part is left out if the right is revoked.
    """
    parts = []
    for query in IDENTITY:
        try:
            parts.append(connection.execute(query).fetchone()[0])
        except ServerError as error:
            if error.sqlstate != NO_RIGHT:
                return None
    return "/".join(parts) or None


@lru_cache(maxsize=2048)
def _translate(statement: str) -> tuple[str, tuple[str, ...]]:
    """The statement with the placeholders of PostgreSQL, and the names of its parameters in their order (none for `?`)."""
    if statement == "begin immediate":
        return "begin", ()
    names: list[str] = []
    count = 0

    def replace(found: re.Match[str]) -> str:
        nonlocal count
        # The server asks for the type of a parameter that is only compared with null.
        as_text = "::text" if statement.startswith(" is null", found.end()) else ""
        if found["place"]:
            count += 1
            return f"${count}{as_text}"
        if found["name"] is None:
            return found[0]
        if found["name"] not in names:
            names.append(found["name"])
        return f"${names.index(found['name']) + 1}{as_text}"

    return _STATEMENT_PARTS.sub(replace, statement), tuple(names)


def _parameters(url: str) -> dict[str, object]:
    try:
        return {key: value for key, value in conninfo_to_dict(url).items() if value is not None}
    except psycopg.Error:
        raise StoreError("state: this is no address of a PostgreSQL server; write postgresql://USER@HOST/DATABASE") from None


def names_several_hosts(url: str) -> bool:
    """Whether the address, or a variable of libpq that completes it, names several servers."""
    given = _parameters(url)
    return any("," in str(given.get(key, os.environ.get(f"PG{key.upper()}", ""))) for key in ("host", "hostaddr"))


class ServerStore(Store):
    """The daemon's only writing connection, to a PostgreSQL server. It connects again when the connection was lost.

    With `epoch`, each transaction first checks that this daemon still leads, and keeps any other from taking over until its end.
    """

    _server: ServerConnection
    _is_ready = False  # whether there was a connection, and the tables have been checked

    def __init__(self, url: str) -> None:
        self.url = url
        self._unknown: str | None = None  # the id of the transaction whose commit may have been carried out

    @classmethod
    def open_server(cls, url: str, *, is_patient: bool = False) -> ServerStore:
        """Connect, and create or migrate the tables. Raises StoreError, or DatabaseUnavailable if the server is down.

        If the caller `is_patient`, the store is then returned without a connection, and `connect` tries again.
        """
        store = cls(url)
        try:
            store.connect()
        except DatabaseUnavailable:
            if not is_patient:
                raise
        return store

    def connect(self) -> None:
        """Connect, and create or migrate the tables, unless that has been done. Raises StoreError and DatabaseUnavailable."""
        if self._is_ready:
            return
        try:
            with ExitStack() as on_error:
                connection = ServerConnection(self.url, WRITER_SETTINGS, WRITER_CONNECTION)
                on_error.callback(connection.close)
                _check_server(self.url, connection)
                apply_schema(cast("sqlite3.Connection", connection), schema_of(self.url), describe_server(self.url))
                on_error.pop_all()
        except ServerError as error:
            # A problem that a person must correct is a StoreError.
            if error.is_passing and not error.sqlstate.startswith(("28", "3D", "42")) and not MISTAKE.search(str(error)):
                raise DatabaseUnavailable(str(error)) from error
            raise StoreError(f"cannot use {describe_server(self.url)}: {error}") from error
        self._use(connection, read_server_identity(connection))
        self._is_ready = True

    def abort(self) -> None:
        """Interrupt a statement that waits for the server, from any thread."""
        if self._is_ready:
            self._server.abort()

    def _use(self, connection: ServerConnection, identity: str | None) -> None:
        self._server = connection
        self.connection = cast("sqlite3.Connection", connection)
        self.server_identity = identity or self.server_identity

    def close(self) -> None:
        """Close the connection."""
        with suppress(ServerError):
            if self._is_ready:
                self._server.close()

    @contextmanager
    def transaction(self) -> Iterator[UnitOfWork]:
        """One transaction. It is committed as a whole, or rolled back as a whole on any exception.

        Raises DatabaseUnavailable if the server cannot be reached or refuses to write, DatabaseFull if its disk is full.
        """
        try:
            self._reconnect_if_lost()
            self._server.execute("begin immediate")  # as in SQLite, where it locks the file
            leader = self._server.execute(SEE_LEADER).fetchone()
            self._check_epoch(leader)
            work = UnitOfWork(self.connection)
            yield work
            work.write_changes()
            self._commit(str(leader["number"]))
        except ServerError as error:
            self._roll_back()
            raise self._translate_server_error(error) from error
        except BaseException:
            self._roll_back()
            raise

    def was_committed(self, has_its_rows: Callable[[sqlite3.Connection], bool] = lambda _: True) -> bool:
        """Whether the transaction that raised CommitUnknown was committed. DatabaseUnavailable: that is not known yet.

        Raises LeadershipLost if another daemon has led since: it has taken over what the transaction has claimed.
        """
        try:
            self._reconnect_if_lost()
            row = self._server.execute(
                "select epoch, host, pg_xact_status(cast(? as text)::xid8) as status from _leader", (self._unknown,)
            ).fetchone()
            has_rows = has_its_rows(self.connection)
        except ServerError as error:
            if error.sqlstate == "22023":  # the id is in the future: another server has taken over without this transaction
                return False
            raise self._translate_server_error(error) from error
        if row["status"] == "in progress":
            raise DatabaseUnavailable("the server has not finished the last commit yet")
        self._check_epoch(row)
        return bool(row["status"] == "committed") and has_rows

    def _check_epoch(self, leader: Row) -> None:
        if self.epoch is not None and leader["epoch"] != self.epoch:
            self.is_fenced = True
            raise LeadershipLost(f"{leader['host'] or 'another daemon'} leads since this one was cut off or frozen")

    def _commit(self, number: str) -> None:
        try:
            self._server.execute("commit")
        except ServerError as error:
            if not self._server.is_lost:
                raise
            self._unknown = number
            raise CommitUnknown(str(error)) from error

    def _reconnect_if_lost(self) -> None:
        if self._server.is_lost:
            self._server.close()
            connection = ServerConnection(self.url, WRITER_SETTINGS, WRITER_CONNECTION)
            identity = read_server_identity(connection)
            if self.epoch is not None and None not in (identity, self.server_identity) and identity != self.server_identity:
                connection.close()
                self.is_fenced = True
                raise LeadershipLost(SERVER_REPLACED)
            self._use(connection, identity)

    def _roll_back(self) -> None:
        with suppress(ServerError):
            if self._server.in_transaction:
                self._server.execute("rollback")

    def _translate_server_error(self, error: ServerError) -> Exception:
        """The error to raise for an error of the server. An error caused by a bug in heartbeatd is returned unchanged."""
        if error.sqlstate in FULL:
            return DatabaseFull(f"cannot write {describe_server(self.url)}: {error}; free some space on the server's disk")
        if error.sqlstate in DAMAGED:
            return StoreError(f"{describe_server(self.url)} has a damaged table: {error}")
        return DatabaseUnavailable(str(error)) if error.is_passing else error


def open_server_read_only(url: str) -> sqlite3.Connection:
    """A connection to the server that only reads. Raises StoreError if there is nothing to read."""
    server, schema = describe_server(url), schema_of(url)
    try:
        with ExitStack() as on_error:
            connection = ServerConnection(url, READER_SETTINGS)
            on_error.callback(connection.close)
            reader = cast("sqlite3.Connection", connection)
            missing = missing_migrations(reader, schema, server)
            if not missing:
                on_error.pop_all()
                return reader
    except ServerError as error:
        raise StoreError(f"cannot use {server} just now: {error}") from error
    if is_new(missing):
        raise StoreError(f"{server} has no tables of heartbeatd in the schema {schema} yet; heartbeatd run creates them")
    raise StoreError(f"{server} was written by an older heartbeatd (without schema {missing[0]}); heartbeatd run upgrades it")


def _check_server(url: str, connection: ServerConnection) -> None:
    """Raise StoreError unless the server can hold our rows and may be written."""
    row = connection.execute(
        "select current_setting('server_version_num') as version, current_setting('server_encoding') as encoding,"
        " pg_is_in_recovery() as standby"
    ).fetchone()
    if int(row["version"]) < OLDEST_SERVER:
        raise StoreError(f"{describe_server(url)} is PostgreSQL {int(row['version']) // 10_000}; heartbeatd needs 13 or newer")
    if row["encoding"] != "UTF8":
        raise StoreError(f"{describe_server(url)} has the encoding {row['encoding']}; create the database with encoding UTF8")
    if row["standby"]:
        raise DatabaseUnavailable(f"{describe_server(url)} is a read-only standby")
