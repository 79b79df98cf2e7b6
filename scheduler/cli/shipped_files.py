"""Reads the files that come with heartbeatd: the documentation, the systemd unit, and the files for containers and Grafana."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

import click

from scheduler.cli.options import InputError
from scheduler.config.file.message_parts import did_you_mean

FURTHER_PAGES = {"readme": "README.md", "changes": "CHANGELOG.md", "grafana": "grafana/README.md"}
CHECKOUT = Path(__file__).parents[2]  # without a wheel, the files are in the top-level folders of the checkout


def locate(path: str) -> Traversable:
    """A shipped file or folder by its path in the checkout, such as `docs/time.md`. It may not exist."""
    installed = files("scheduler").joinpath("shipped")
    return (installed if installed.is_dir() else CHECKOUT).joinpath(*PurePosixPath(path).parts)


def read_text(path: str) -> str:
    """The text of a shipped file."""
    return locate(path).read_text("utf-8")


def list_files(folder: str) -> Iterator[str]:
    """The paths of all files in a shipped folder and its subfolders, sorted."""
    for child in sorted(locate(folder).iterdir(), key=lambda child: child.name):
        path = f"{folder}/{child.name}"
        if child.is_dir():
            yield from list_files(path)
        else:
            yield path


def print_page(topic: str | None) -> None:
    """Print a page of the documentation, or the titles of all pages. Raises InputError for an unknown page."""
    pages = {PurePosixPath(path).stem: path for path in list_files("docs") if path.endswith(".md")} | FURTHER_PAGES
    if topic is None:
        from scheduler.cli.output import format_table  # `files` writes shipped files without a table

        click.echo(format_table(("TOPIC", "TITLE"), [(name, _title(path)) for name, path in sorted(pages.items())]))
        return
    name = topic.removesuffix(".md").lower()
    if name not in pages:
        raise InputError(f"there is no page {topic!r}{did_you_mean(name, pages) or '; `heartbeatd docs` lists them'}")
    click.echo(read_text(pages[name]), nl=False)


def _title(path: str) -> str:
    return read_text(path).split("\n", 1)[0].removeprefix("# ")
