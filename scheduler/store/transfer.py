"""Copies all rows from one database to another, between a file and a server, and moves those of single agents between shards."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from scheduler.model.outcome import Kind
from scheduler.model.shards import IDS_PER_SHARD
from scheduler.store.database import Store, StoreError, open_empty_database
from scheduler.store.locations import open_read_only_any_version

BATCH = 500  # rows


def copy_all_rows(source: Path | str, target: Store) -> dict[str, int]:
    """Copy all rows to an empty database of this version, in one transaction; returns their number by table.

    IDs stay the same, and IDs of deleted rows are not used again. The source is only read. What PostgreSQL cannot store in a text
    is replaced by U+FFFD: the character U+0000, and bytes that are not UTF-8. Raises StoreError if the target has rows, or if the
    counts differ at the end; then the target is unchanged.
    """
    with closing(open_read_only_any_version(source)) as origin, closing(open_empty_database()) as model:
        tables = [
            row["name"]
            for row in model.execute("select name from sqlite_master where type = 'table' and sql like '%strict%' order by name")
        ]
        _allow_long_work(origin, target.connection)
        if isinstance(origin, sqlite3.Connection):
            origin.text_factory = partial(str, encoding="utf-8", errors="replace")  # another program may have written no text
        origin.execute("begin")  # one state of the database, also while a daemon writes
        with target.transaction() as db:
            for table in tables:
                if db.execute(f"select 1 from {table} limit 1").fetchone():  # noqa: S608 (our own name)
                    raise StoreError(f"the target has rows already (in the table {table}); name an empty database")
            counts = {table: _copy_table(origin, db, table) for table in tables}
            used = {table: last for table, last in _last_ids(origin, tables) if last}
            for table, last in used.items():
                _reserve_ids(db, table, last)
            for table, number in counts.items():
                for side in (origin, db):
                    found = side.execute(f"select count(*) from {table}").fetchone()[0]  # noqa: S608 (names of ours)
                    if found != number:
                        raise StoreError(f"the table {table} has {found} rows instead of {number}; nothing was copied")
    return counts


def _allow_long_work(*databases: sqlite3.Connection) -> None:
    """Let these connections to a server take as long as they need for one statement, and wait for each other."""
    for db in databases:
        if not isinstance(db, sqlite3.Connection):
            db.execute("set statement_timeout = 0")
            db.execute("set idle_in_transaction_session_timeout = 0")


def reserve_ids_of_shard(db: sqlite3.Connection, index: int) -> None:
    """Let the ids of a shard begin where no other shard uses them, in each table whose ids never repeat."""
    tables = _tables_with_ids(db)
    for table, last in _last_ids(db, tables):
        if (last or 0) < index * IDS_PER_SHARD:
            _reserve_ids(db, table, index * IDS_PER_SHARD)


def _tables_with_ids(db: sqlite3.Connection) -> list[str]:
    if isinstance(db, sqlite3.Connection):
        rows = db.execute("select name from sqlite_master where type = 'table' and sql like '%strict%' order by name")
        return [row["name"] for row in rows]
    rows = db.execute("select sequencename from pg_sequences where schemaname = current_schema() order by sequencename")
    return [row["sequencename"].removesuffix("_id_seq") for row in rows]


def _copy_table(origin: sqlite3.Connection, db: sqlite3.Connection, table: str) -> int:
    rows = origin.execute(f"select * from {table}")  # noqa: S608 (names of ours)
    names = [column[0] for column in rows.description]
    columns = ", ".join(f'"{name}"' for name in names)
    statement = f"insert into {table} ({columns}) values ({', '.join('?' * len(names))})"  # noqa: S608 (names of ours)
    number = 0
    while batch := rows.fetchmany(BATCH):
        db.executemany(statement, [tuple(row) for row in batch])
        number += len(batch)
    return number


def _last_ids(db: sqlite3.Connection, tables: list[str]) -> Iterator[tuple[str, int | None]]:
    """The highest id that each table with generated ids has ever used."""
    if isinstance(db, sqlite3.Connection):
        used = {row["name"]: row["seq"] for row in db.execute("select name, seq from sqlite_sequence")}
        with_ids = [table for table in tables if "id integer primary key" in _definition(db, table)]
    else:
        rows = db.execute("select sequencename, last_value from pg_sequences where schemaname = current_schema()")
        used = {row["sequencename"].removesuffix("_id_seq"): row["last_value"] for row in rows}
        with_ids = [table for table in tables if table in used]
    for table in with_ids:
        present = db.execute(f"select max(id) from {table}").fetchone()[0]  # noqa: S608 (names of ours)
        yield table, max(used.get(table) or 0, present or 0)


def _definition(db: sqlite3.Connection, table: str) -> str:
    return str(db.execute("select sql from sqlite_master where type = 'table' and name = ?", (table,)).fetchone()[0]).lower()


def _reserve_ids(db: sqlite3.Connection, table: str, last: int) -> None:
    """Let the next new row of a table get a higher id than this."""
    if not isinstance(db, sqlite3.Connection):
        db.execute(
            "select setval(pg_get_serial_sequence(?, 'id')::regclass, ?::bigint, ?::bigint > 0)", (table, max(last, 1), last)
        )
    elif "autoincrement" in _definition(db, table):
        db.execute("delete from sqlite_sequence where name = ?", (table,))
        db.execute("insert into sqlite_sequence (name, seq) values (?, ?)", (table, last))


# The rows of one agent or job. `:kind` and `:name` are its key. Tables whose ids never repeat keep them when rows move.
_BY_KEY = "kind = :kind and name = :name"
_WITH_IDS = {"run": _BY_KEY, "wake": _BY_KEY, "outbox": _BY_KEY}
_OF_ENTRY = {"digest": _BY_KEY, "incident": _BY_KEY, "former": _BY_KEY, "change": _BY_KEY, "spend": _BY_KEY, "entry": _BY_KEY}
_OF_MESSAGES = {"used_button": f"outbox_id in (select id from outbox where {_BY_KEY})"}  # noqa: S608 (names of ours)
_OF_AGENT = {
    "condition_report": "condition_id in (select id from condition where name = :name)", "item": "name = :name",
    "target": "name = :name", "message": "name = :name", "hold": "name = :name", "rejected_wake": "agent = :name",
}  # fmt: skip
_LOCAL_IDS = ("entry", "former", "change", "target", "message", "rejected_wake")  # their ids only order the rows


def check_no_open_runs(source: Store, keys: Iterable[tuple[Kind, str]]) -> None:
    """Raise StoreError if a worker still executes a run of these agents and jobs, or a crash has interrupted one.

    Only their daemon can finish such a run, for example with `heartbeatd run --drain`.
    """
    for kind, name in keys:
        if source.connection.execute(f"select 1 from run where {_BY_KEY} and state = 'running'", _key(kind, name)).fetchone():  # noqa: S608 (names of ours)
            raise StoreError(
                f"{kind.label_of(name)} has a run in progress on a worker, or one that a crash has interrupted; undo the change"
                " of the config, run `heartbeatd run --drain` for each shard, and change the config again"
            )


def move_entries(source: Store, target: Store, keys: Iterable[tuple[Kind, str]]) -> None:
    """Move all rows of these agents and jobs to another database. Ids of runs, wakes, messages and conditions stay the same.

    The rows are first copied, and then deleted in the source. If the command is interrupted in between, it can be repeated.
    """
    chosen = list(keys)
    _allow_long_work(source.connection, target.connection)
    with target.transaction() as db:
        _copy_seen_jobs(source.connection, db)
        for kind, name in chosen:
            _copy_entry(source.connection, db, kind, name)
    with source.transaction() as db:
        for kind, name in chosen:
            for table, condition in reversed(_rows_of(kind).items()):
                db.execute(f"delete from {table} where {condition}", _key(kind, name))  # noqa: S608 (names of ours)


def _key(kind: Kind, name: str) -> dict[str, str]:
    return {"kind": kind.value, "name": name}


def _rows_of(kind: Kind) -> dict[str, str]:
    """The condition for the rows of an entry in each table. A table comes before those that its condition reads."""
    conditions = {"condition": "name = :name"} if kind is Kind.HEARTBEAT else {}
    agent = _OF_AGENT if kind is Kind.HEARTBEAT else {}
    return {**conditions, **_WITH_IDS, **_OF_MESSAGES, **_OF_ENTRY, **agent}


def _copy_seen_jobs(origin: sqlite3.Connection, db: sqlite3.Connection) -> None:
    """One-time jobs are known by a hash, so all are copied."""
    rows = [tuple(row) for row in origin.execute("select hash, seen_at from once")]
    db.executemany("insert into once (hash, seen_at) values (?, ?) on conflict do nothing", rows)


def _copy_entry(origin: sqlite3.Connection, db: sqlite3.Connection, kind: Kind, name: str) -> None:
    """Copy the rows of one entry. They replace older ones in the target; runs, wakes and messages are added to those there."""
    key, tables = _key(kind, name), _rows_of(kind)
    if _state_of(origin, key) == "removed" and _state_of(db, key) not in (None, "removed"):
        tables = {**_WITH_IDS, **_OF_MESSAGES}  # the target has a newer entry of this name
    for table, condition in reversed(tables.items()):
        if table not in _WITH_IDS:
            db.execute(f"delete from {table} where {condition}", key)  # noqa: S608 (names of ours)
    for table, condition in tables.items():
        known = {row["id"] for row in db.execute(f"select id from {table} where {condition}", key)} if table in _WITH_IDS else ()  # noqa: S608 (names of ours)
        rows = origin.execute(f"select * from {table} where {condition} order by 1", key)  # noqa: S608 (names of ours)
        names = [column[0] for column in rows.description if table not in _LOCAL_IDS or column[0] != "id"]
        found = [tuple(row[each] for each in names) for row in rows.fetchall() if not known or row["id"] not in known]
        columns = ", ".join(f'"{each}"' for each in names)
        db.executemany(f"insert into {table} ({columns}) values ({', '.join('?' * len(names))})", found)  # noqa: S608 (names of ours)


def _state_of(db: sqlite3.Connection, key: dict[str, str]) -> str | None:
    row = db.execute(f"select state from entry where {_BY_KEY}", key).fetchone()  # noqa: S608 (names of ours)
    return row["state"] if row else None


def reserve_ids_before_move(live: Sequence[Store], others: Iterable[Store]) -> None:
    """Let new ids in each database that is still used begin above all existing ids, because rows will move between them.

    If the move is interrupted, new ids are therefore never those of rows that have already moved.
    """
    tables = [*_WITH_IDS, "condition"]
    highest = max(last or 0 for store in (*live, *others) for _, last in _last_ids(store.connection, tables))
    for place, store in enumerate(live, highest // IDS_PER_SHARD + 1):
        with store.transaction() as db:
            for table in tables:
                _reserve_ids(db, table, place * IDS_PER_SHARD if len(live) > 1 else highest)
