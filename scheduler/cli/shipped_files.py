"""Reads the files that come with heartbeatd: the documentation, the systemd unit, and the files for containers and Grafana."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

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
