"""The command `reload`: reloads the config in the running daemon, and shows what changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from scheduler.cli import daemon_state, options
from scheduler.cli.daemon_client import connect_to_daemon
from scheduler.config.file.diagnostics import Diagnostic


@click.command()
@click.option("--dry-run", "dry", is_flag=True, help="Only show what would change.")
@options.config_option
def reload(dry: bool, path: Path) -> int:
    """Reload the config in the running daemon.

    If the new config has errors, the daemon keeps the old one, and the exit code is 2.
    """
    running = connect_to_daemon(daemon_state.locate_files_or_warn(path))
    if running is None:
        raise click.ClickException(
            "the daemon is not running; it reads the config when it starts (`heartbeatd check` checks it now)"
        )
    taken, answer = running.reload_config(dry=dry)
    for warning in answer.get("warnings", []):
        click.echo(f"warning: {_format_note(warning, path)}", err=True)
    for line in answer.get("lines", []):
        click.echo(line)
    for fault in answer.get("errors", []):
        click.echo(_format_note(fault, path), err=True)
    return 0 if taken else 2


def _format_note(note: str | dict[str, Any], path: Path) -> str:
    """A note of the daemon. One with a source position is printed in the format of `check`."""
    if isinstance(note, str):
        return note
    return str(Diagnostic(note["line"], note["column"], note["path"], note["message"], str(path)))
