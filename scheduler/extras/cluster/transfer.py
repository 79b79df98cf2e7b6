"""The command `database migrate`: copies all rows from one database to another, between a file and a server."""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import click

from heartbeatd.state_folder import is_server, real_path
from scheduler.cli.output import utc_now
from scheduler.cli.progress import show_progress
from scheduler.extras.cluster.leadership import lead_for_a_command
from scheduler.model.state_address import address_problem
from scheduler.store.database import Store, StoreError, open_empty_database
from scheduler.store.locations import open_for_writing, open_read_only, open_read_only_any_version
from scheduler.store.transaction import is_file
from scheduler.system.boot_clock import BootClock
from scheduler.system.state_lock import StateLock, make_state_folder

BATCH = 500  # rows


def copy_database(source: str, target: str) -> None:
    """Copy all rows from one database to another."""
    with ExitStack() as held:
        for text in (source, target):
            if is_server(text) and (problem := address_problem(text)):
                raise click.ClickException(problem)
        origin, _ = _lock(source, held, is_source=True)
        place, epoch = _lock(target, held, is_source=False)
        store = open_for_writing(place)
        held.callback(store.close)
        store.epoch = epoch
        with show_progress("copying"):
            counts = copy_all_rows(origin, store)
    for table, number in counts.items():
        click.echo(f"{table:<20} {number:>9,}")
    total = sum(counts.values())
    click.echo(
        f"copied {total:,} rows of {len(counts)} tables, and compared the row counts: now set `state: {target}` in the config"
    )


def _lock(text: str, held: ExitStack, *, is_source: bool) -> tuple[Path | str, int | None]:
    """Let no daemon use a database during the copy. Returns where it is, and the epoch of the lease if it is on a server."""
    if is_server(text):
        # One of the tables has the lease. They are created in the target only.
        (open_read_only(text) if is_source else open_for_writing(text)).close()
        lease = lead_for_a_command(text, f"migrate-{secrets.token_hex(4)}", BootClock(), "heartbeatd database migrate")
        held.callback(lease.stop)
        return text, lease.epoch
    path = real_path(Path(text))
    if not is_source:
        make_state_folder(path.parent)
    elif not path.exists():
        raise click.ClickException(f"there is no database {text}")
    lock = path.with_name(path.name + ".lock")
    held.enter_context(StateLock.take(lock, started_at=utc_now(), instance=secrets.token_hex(8)))
    return path, None


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
        for side in (origin, target.connection):
            if not is_file(side):  # one statement may take as long as it needs, and each side waits for the other
                side.execute("set statement_timeout = 0")
                side.execute("set idle_in_transaction_session_timeout = 0")
        if is_file(origin):
            origin.text_factory = partial(str, encoding="utf-8", errors="replace")  # another program may have written no text
        origin.execute("begin")  # one state of the database, also while a daemon writes
        with target.transaction() as db:
            for table in tables:
                if db.execute(f"select 1 from {table} limit 1").fetchone():  # noqa: S608 (our own name)
                    raise StoreError(f"the target has rows already (in the table {table}); name an empty database")
                _copy_table(origin, db, table)
            for table, last in _last_ids(origin, tables).items():
                _reserve_ids(db, table, last)
            counts = {}
            for table in tables:
                number, found = (side.execute(f"select count(*) from {table}").fetchone()[0] for side in (origin, db))  # noqa: S608
                if found != number:
                    raise StoreError(f"the table {table} has {found} rows instead of {number}; nothing was copied")
                counts[table] = number
    return counts


def _copy_table(origin: sqlite3.Connection, db: sqlite3.Connection, table: str) -> None:
    rows = origin.execute(f"select * from {table}")  # noqa: S608 (names of ours)
    names = [column[0] for column in rows.description]
    columns = ", ".join(f'"{name}"' for name in names)
    statement = f"insert into {table} ({columns}) values ({', '.join('?' * len(names))})"  # noqa: S608 (names of ours)
    while batch := rows.fetchmany(BATCH):
        db.executemany(statement, [tuple(row) for row in batch])


def _last_ids(db: sqlite3.Connection, tables: list[str]) -> dict[str, int]:
    """The highest id that each table with generated ids has ever used, if it has used one."""
    query = "select name, seq from sqlite_sequence"
    if not is_file(db):
        query = "select left(sequencename, -7), last_value from pg_sequences where schemaname = current_schema()"  # NAME_id_seq
    used = {name: seq or 0 for name, seq in db.execute(query)}
    # In a file, only some of them have a row there.
    with_ids = {table for table in tables if "id integer primary key" in _definition(db, table)} if is_file(db) else {*used}
    present = {table: db.execute(f"select max(id) from {table}").fetchone()[0] or 0 for table in with_ids}  # noqa: S608 (our names)
    return {table: last for table, highest in present.items() if (last := max(used.get(table, 0), highest))}


def _definition(db: sqlite3.Connection, table: str) -> str:
    return str(db.execute("select sql from sqlite_master where type = 'table' and name = ?", (table,)).fetchone()[0]).lower()


def _reserve_ids(db: sqlite3.Connection, table: str, last: int) -> None:
    """Let the next new row of a table get a higher id than this."""
    if not is_file(db):
        db.execute(
            "select setval(pg_get_serial_sequence(?, 'id')::regclass, ?::bigint, ?::bigint > 0)", (table, max(last, 1), last)
        )
    elif "autoincrement" in _definition(db, table):
        db.execute("delete from sqlite_sequence where name = ?", (table,))
        db.execute("insert into sqlite_sequence (name, seq) values (?, ?)", (table, last))
