"""Finds and loads what extras add to the core: stores, executors, listeners and commands, by the entry points of packages.

An entry point in the group `heartbeatd.stores`, `heartbeatd.executors`, `heartbeatd.listeners` or `heartbeatd.commands` names an
object of an installed package. The extras of heartbeatd are in scheduler/extras/, which the core never imports.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from scheduler.model.expected_error import ExpectedError

Point = Literal["stores", "executors", "listeners", "commands"]

# Which optional dependencies of heartbeatd an entry point needs. All others are part of the default installation.
GROUPS = {
    "database.migrate": "cluster",
    "mcp": "mcp",
    "otel": "otel",
    "postgresql": "cluster",
    "procrastinate": "cluster",
    "tools": "mcp",
    "worker": "cluster",
}


class MissingExtra(ExpectedError):
    """Something is to be used that is not installed. The text says what to install."""


def find_names(point: Point) -> tuple[str, ...]:
    """The names of everything that extras add at an extension point, sorted. Their libraries may be missing."""
    return tuple(sorted(name for name, place in _find(point).items() if _exists(place)))


def is_known(point: Point, name: str) -> bool:
    """Whether an installed package has registered this name. The extra may have been deleted."""
    return name in _find(point)


@cache
def load(point: Point, name: str) -> Any:
    """Import the object that an extra has registered under a name. Raises MissingExtra."""
    if (missing := describe_missing(point, name)) is not None:
        raise MissingExtra(f"{name}: {missing}")
    return load_without_libraries(point, name)


def load_without_libraries(point: Point, name: str) -> Any:
    """Import the object of one of `find_names`, although the libraries that it uses later may be missing."""
    module, _, attribute = _find(point)[name].partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


def describe_missing(point: Point, name: str) -> str | None:
    """One line that says what to install for an extra; None if everything is installed. Nothing of the extra is imported."""
    place = _find(point).get(name)
    if place is not None and _exists(place) and all(map(_is_installed, _dependencies(GROUPS.get(name)))):
        return None
    package = f"heartbeatd[{GROUPS[name]}]" if name in GROUPS else "heartbeatd"
    return f"this needs an extra that is not installed; write: pip install '{package}'"


@cache
def _find(point: Point) -> dict[str, str]:
    """What extras add at an extension point: the places of the objects, such as `package.module:name`, by their names.

    `importlib.metadata` finds the same, but its import would be a third of the CPU time of `--help`.
    The files: https://packaging.python.org/en/latest/specifications/entry-points/#file-format
    """
    places: dict[str, str] = {}
    for folder in sys.path:
        with suppress(OSError):  # not every entry is a folder
            for package in Path(folder).iterdir():
                if package.suffix == ".dist-info":
                    places = _read_group(package / "entry_points.txt", f"[heartbeatd.{point}]") | places
    return places


def _read_group(path: Path, group: str) -> dict[str, str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:  # most packages have no such file, and some may not be readable
        return {}
    found, is_wanted = {}, False
    for line in lines:
        if line.startswith("["):
            is_wanted = line.strip() == group
        elif is_wanted and "=" in line:
            name, _, place = line.partition("=")
            found[name.strip()] = place.strip()
    return found


def _exists(place: str) -> bool:
    try:
        return find_spec(place.partition(":")[0]) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def _dependencies(group: str | None) -> list[str]:
    """The packages that a group of optional dependencies needs, such as `psycopg`."""
    from importlib.metadata import distribution

    needed = [line.partition(";") for line in distribution("heartbeatd").requires or ()]
    return [re.split(r"[^\w.-]", name)[0] for name, _, marker in needed if re.search(rf"extra == .{group}\b", marker)]


def _is_installed(package: str) -> bool:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return bool(distribution(package))
    except PackageNotFoundError:
        return False
