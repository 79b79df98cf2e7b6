"""The commands `database backup` and `database migrate`: copy the database to a file, or to and from a PostgreSQL server."""

from __future__ import annotations

import secrets
import shlex
from contextlib import ExitStack
from pathlib import Path

import click

from heartbeatd.state_folder import is_server, real_path
from scheduler.cli import daemon_files
from scheduler.cli.output import utc_now
from scheduler.cli.progress import show_progress
from scheduler.model.state_address import address_problem, describe_server, schema_of
from scheduler.store import database, transfer
from scheduler.store.database import Store
from scheduler.store.locations import open_for_writing
from scheduler.system.boot_clock import BootClock
from scheduler.system.state_lock import StateLock, make_state_folder


def back_up(copy: Path, path: Path, state: Path | None) -> None:
    """Copy the database file, even while the daemon is running."""
    files = daemon_files.locate_files(path, state)
    if files.server:
        schema = schema_of(files.server)
        raise click.ClickException(
            f"{files.shown} is a PostgreSQL server; use its own tools: pg_dump --format=custom --schema={schema}"
            f" --file={shlex.quote(str(copy))} {shlex.quote(files.server)}"
        )
    with show_progress(f"copying {files.database}"):
        database.back_up(files.database, copy)
    click.echo(f"copied {files.database} to {copy} ({copy.stat().st_size} bytes)")


def copy_database(source: str, target: str) -> None:
    """Copy all rows from one database to another."""
    with ExitStack() as held:
        for text in (source, target):
            if is_server(text) and (problem := address_problem(text)):
                raise click.ClickException(problem)
        origin = _locked(source, held)
        with show_progress("copying"):
            counts = transfer.copy_all_rows(origin, _open_target(target, held))
    for table, number in counts.items():
        click.echo(f"{table:<20} {number:>9,}")
    total = sum(counts.values())
    click.echo(
        f"copied {total:,} rows of {len(counts)} tables, and compared the row counts: now set `state: {target}` in the config"
    )


def _locked(text: str, held: ExitStack) -> Path | str:
    """The database that is read. No daemon may use it during the copy."""
    if is_server(text):
        from scheduler.store.postgresql import has_tables

        if not has_tables(text):
            raise click.ClickException(
                f"{describe_server(text)} has no tables of heartbeatd in the schema {schema_of(text)}; name the database, and the"
                " schema with ?options=-csearch_path%3DNAME"
            )
        _lead(text, held)
        return text
    path = real_path(Path(text))
    if not path.exists():
        raise click.ClickException(f"there is no database {text}")
    _lock_file(path, held)
    return path


def _open_target(text: str, held: ExitStack) -> Store:
    if is_server(text):
        store = open_for_writing(text)
        held.callback(store.close)
        store.epoch = _lead(text, held)
        return store
    path = real_path(Path(text))
    make_state_folder(path.parent)
    _lock_file(path, held)
    store = open_for_writing(path)
    held.callback(store.close)
    return store


def _lock_file(path: Path, held: ExitStack) -> None:
    lock = path.with_name(path.name + ".lock")
    held.enter_context(StateLock.take(lock, started_at=utc_now(), instance=secrets.token_hex(8)))


def _lead(address: str, held: ExitStack) -> int | None:
    """Take the lease, so that no daemon leads during the copy. The tables are created first if there are none."""
    from scheduler.store.leadership import lead_for_a_command

    open_for_writing(address).close()
    lease = lead_for_a_command(address, f"migrate-{secrets.token_hex(4)}", BootClock(), "heartbeatd database migrate")
    held.callback(lease.stop)
    return lease.epoch
