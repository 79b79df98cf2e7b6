"""Reloads the config in the running daemon, or shows what that would change."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import click

from heartbeatd.verbs import Reload
from scheduler.cli import config_preview, daemon_files
from scheduler.cli.daemon_client import connect_to_daemon
from scheduler.cli.daemon_files import DaemonFiles, Source
from scheduler.cli.output import print_answer, print_config_errors, print_warnings
from scheduler.config.file.diagnostics import ConfigError
from scheduler.model.expected_error import InputError
from scheduler.store import config_history


def reload_config(make: Callable[[], Reload], source: Source) -> int:
    """Reload the config, or show what that would change. Returns the exit code."""
    verb = make()
    if verb.dry_run:
        return _show_changes(source)
    path, files = source.config, source.files
    running = connect_to_daemon(files)
    if running is None:
        raise click.ClickException(
            "the daemon is not running; it reads the config when it starts (`heartbeatd check --diff` shows what it changes)"
        )
    if (own := _config_of_daemon(path, files)) is not None:
        raise InputError(
            f"the daemon reads {own}, not {path}; copy the file there first, or use --dry-run to see what {path} would change"
        )
    try:
        found = running.reload_config(verb, path)
    except ConfigError as error:
        return print_config_errors(error, source.form)
    if source.form == "json":
        click.echo(json.dumps(found.as_data(), indent=2))
        return 0
    print_warnings(found.warnings)
    click.echo("\n".join((found.says, *found.lines)))
    return 0


def _show_changes(source: Source) -> int:
    """Show what the file would change. If the running daemon reads this file, its errors and warnings are shown too."""
    path, preview = source.config, config_preview.preview_file(source)
    files = daemon_files.locate_files(path, source.state)
    running = connect_to_daemon(files) if preview.is_against_daemon and _config_of_daemon(path, files) is None else None
    for warning in preview.warnings:
        click.echo(warning, err=True)
    try:
        print_warnings(running.reload_config(Reload(dry_run=True), path).warnings if running else ())
    except ConfigError as error:
        return print_config_errors(error, "text")
    print_answer(preview.data, source.form, preview.lines)
    return 0


def _config_of_daemon(path: Path, files: DaemonFiles) -> Path | None:
    """The file that the running daemon reads, if it is not the one at `path`."""
    with daemon_files.open_for_reading(files) as db:
        found = config_history.config_in_force(db)
    return found[0].path if found and os.path.realpath(found[0].path) != os.path.realpath(path) else None
