"""The command `backup`: copies the database to a file."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from scheduler.cli import daemon_files, options
from scheduler.cli.progress import show_progress
from scheduler.model.state_address import schema_of
from scheduler.store import database


@click.command()
@click.argument("copy", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@options.config_option
@options.state_option
def backup(copy: Path, path: Path, state: Path | None) -> None:
    """Copy the database to a file, even while the daemon is running.

    FILE must not exist yet. To restore a backup, stop the daemon, move the database and its -wal file to another path, and copy
    FILE to the path of the database.
    """
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
