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
        ours = model.execute("select name, sql from sqlite_master where type = 'table' and sql like '%strict%' order by name")
        tables = {row["name"]: row["sql"] for row in ours}
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
            # Without `autoincrement`, SQLite goes on from the highest id in the table.
            generated = "autoincrement" if is_file(db) else "id integer primary key"
            for table, definition in tables.items():
                if generated in definition and (last := _last_id(origin, table)):
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


def _last_id(db: sqlite3.Connection, table: str) -> int:
    """The highest id that a table with generated ids has ever used; 0 if none."""
    query = "select seq from sqlite_sequence where name = ?"  # a file has a row there only for some tables
    if not is_file(db):
        query = "select last_value from pg_sequences where schemaname = current_schema() and sequencename = ? || '_id_seq'"
    used, highest = db.execute(query, (table,)).fetchone(), db.execute(f"select max(id) from {table}").fetchone()  # noqa: S608 (our name)
    return max(used[0] or 0 if used else 0, highest[0] or 0)


def _reserve_ids(db: sqlite3.Connection, table: str, last: int) -> None:
    """Let the next new row of a table get a higher id than this."""
    if not is_file(db):
        db.execute("select setval(pg_get_serial_sequence(?, 'id')::regclass, ?::bigint)", (table, last))
    else:
        db.execute("delete from sqlite_sequence where name = ?", (table,))
        db.execute("insert into sqlite_sequence (name, seq) values (?, ?)", (table, last))
