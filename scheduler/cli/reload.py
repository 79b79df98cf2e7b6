"""Reloads the config in the running daemon, or shows what that would change."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from heartbeatd.verbs import Reload
from scheduler.cli import config_preview, daemon_files
from scheduler.cli.daemon_client import connect_to_daemon
from scheduler.cli.daemon_files import DaemonFiles, Source
from scheduler.cli.output import print_warnings
from scheduler.config.file.diagnostics import Diagnostic
from scheduler.model.expected_error import InputError
from scheduler.store import config_history


def reload_config(make: Callable[..., Reload], source: Source) -> int:
    """Reload the config, or show what that would change. Returns the exit code."""
    if make().dry_run:
        return _show_changes(source)
    path, files = source.config, source.files
    running = connect_to_daemon(files)
    if running is None:
        raise click.ClickException(
            "the daemon is not running; it reads the config when it starts (`heartbeatd check --diff` shows what it changes)"
        )
    _refuse_other_file(path, files)
    taken, answer = running.reload_config(dry=False)
    if source.form == "json":
        click.echo(json.dumps(answer, indent=2))
        return 0 if taken else 2
    _print_notes(answer, path)
    for line in answer.get("lines", []):
        click.echo(line)
    return 0 if taken else 2


def _show_changes(source: Source) -> int:
    """Show what the file would change. If the running daemon reads this file, its errors and warnings are shown too."""
    path, preview = source.config, config_preview.preview_file(source)
    files = daemon_files.locate_files(path, source.state)
    taken, answer = True, dict[str, Any]()
    if preview.data["against"]["running"] and _config_of_daemon(path, files) is None:
        running = connect_to_daemon(files)
        taken, answer = running.reload_config(dry=True) if running else (True, {})
    _print_notes(answer, path)
    for warning in preview.warnings:
        click.echo(warning, err=True)
    if taken:
        config_preview.print_preview(preview, source.form)
    return 0 if taken else 2


def _print_notes(answer: dict[str, Any], path: Path) -> None:
    print_warnings(_format_note(warning, path) for warning in answer.get("warnings", []))
    for fault in answer.get("errors", []):
        click.echo(_format_note(fault, path), err=True)


def _config_of_daemon(path: Path, files: DaemonFiles) -> Path | None:
    """The file that the running daemon reads, if it is not the one at `path`."""
    with daemon_files.open_for_reading(files) as db:
        found = config_history.config_in_force(db) if db else None
    return found[0].path if found and os.path.realpath(found[0].path) != os.path.realpath(path) else None


def _refuse_other_file(path: Path, files: DaemonFiles) -> None:
    own = _config_of_daemon(path, files)
    if own is not None:
        raise InputError(
            f"the daemon reads {own}, not {path}; copy the file there first, or use --dry-run to see what {path} would change"
        )


def _format_note(note: str | dict[str, Any], path: Path) -> str:
    """A note of the daemon. One with a source position is printed in the format of `check`."""
    if isinstance(note, str):
        return note
    return str(Diagnostic(note["line"], note["column"], note["path"], note["message"], str(path)))
