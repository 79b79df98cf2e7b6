"""The command `init`: writes the first files into a new folder."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from scheduler.cli.options import InputError
from scheduler.config.settings import skeleton


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
def init(folder: Path) -> None:
    """Create a config.yaml with one agent in a folder.

    DIR is created if it does not exist. Existing files are never changed.
    """
    files = {folder / path: text for path, text in skeleton.starter_files().items()}
    for path in files:
        if os.path.lexists(path):
            raise InputError(f"{path} already exists; nothing was written")
    for path, text in files.items():
        _write_new_file(path, text)
        click.echo(f"wrote {path}")
    click.echo(f"next: cd {shlex.quote(str(folder))}; heartbeatd check; heartbeatd run")


def _write_new_file(path: Path, text: str) -> None:
    """Write a file with mode 0644 at most: a config that others may write is rejected."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "w", encoding="utf-8") as file:
        file.write(text)
