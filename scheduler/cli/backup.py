"""The command `database backup`: copies the database to a file."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from scheduler.cli import daemon_files
from scheduler.cli.progress import show_progress
from scheduler.model.state_address import schema_of
from scheduler.store import database


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
