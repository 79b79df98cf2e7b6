"""Reads, edits and writes the config file for the commands that change it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from scheduler.cli import daemon_files
from scheduler.cli.options import InputError
from scheduler.config.file import config_text, marked_yaml, text_editing
from scheduler.config.file.diagnostics import Diagnostics
from scheduler.config.file.text_editing import EditRefused
from scheduler.config.settings import load
from scheduler.engine.config_reload import changed_lines
from scheduler.system.files import FileChanged, read_file, replace_file

_DOTS = re.compile(r"(?<!\\)\.")


def read_config(path: Path) -> bytes:
    """The content of the config. Raises InputError."""
    try:
        return read_file(path)
    except OSError as error:
        advice = "`heartbeatd init DIR` writes a config to begin with"
        raise InputError(f"{path} cannot be read: {error.strerror or error}; {advice}") from error


def write_config(path: Path, before: bytes, after: bytes) -> None:
    """Replace the content `before` of the config. Raises InputError; then the file is unchanged."""
    try:
        replace_file(path, before, after)
    except FileChanged as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"{path} was not written: {error.strerror or error}") from error


def edit_file(path: Path, edits: Sequence[tuple[list[str], Any]], *, dry: bool) -> None:
    """Write the edits, and print the changed lines. Raises ConfigError or InputError; then the file is as it was."""
    before = read_config(path)
    diagnostics = Diagnostics(str(path))
    config_text.parse_content(before, diagnostics)
    new = old = before.decode()
    try:
        for steps, value in edits:
            new = text_editing.apply_patch(new, text_editing.nest_value(steps, value))
    except EditRefused as error:
        raise InputError(error.located_in(path)) from None
    after = new.encode()
    load.load_config(path, os.environ, content=after, resolve_secrets=False)
    for line in changed_lines(old, new) or ("nothing changed",):
        click.echo(line)
    if dry or after == before:
        return
    write_config(path, before, after)
    _say_when_it_is_applied(path)


def _say_when_it_is_applied(path: Path) -> None:
    files = daemon_files.locate_files(path, None)
    if daemon_files.find_running_daemon(files) is None:
        click.echo("written; the daemon is not running and reads the file when it starts", err=True)
    elif load.load_config(path, os.environ, resolve_secrets=False).settings.reload == "manual":
        click.echo("written; the daemon applies the file after `heartbeatd reload`", err=True)
    else:
        click.echo("written; the daemon applies the file within a few seconds", err=True)


def parse_assignment(text: str) -> tuple[list[str], Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{text!r} has no =; write KEY=VALUE, as in agents.mail.heartbeat.interval=1h")
    diagnostics = Diagnostics("")
    try:
        found = marked_yaml.parse_yaml(value, diagnostics)
    except marked_yaml.UnreadableYaml:
        found = None
    if diagnostics.has_errors:
        raise InputError(f"the value of {key} is not YAML: {value!r}; put a text with special characters in quotes of its own")
    if found is None:
        raise InputError(f"{key} has no value; write KEY=VALUE, or `heartbeatd config unset {key}` to remove it")
    return parse_key(key), found


def parse_key(text: str) -> list[str]:
    steps = [step.replace("\\.", ".") for step in _DOTS.split(text.strip())]
    if not all(steps):
        raise InputError(f"{text!r} is not the path of a key; write for example agents.mail.heartbeat.interval")
    return steps
