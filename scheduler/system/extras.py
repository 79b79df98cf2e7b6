"""Finds and loads what extras add to the core: stores, executors, listeners and commands, by the entry points of packages.

An entry point in the group `heartbeatd.stores`, `heartbeatd.executors`, `heartbeatd.listeners` or `heartbeatd.commands` names an
object of an installed package. The extras of heartbeatd are in scheduler/extras/, which the core never imports.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from scheduler.model.expected_error import ExpectedError

Point = Literal["stores", "executors", "listeners", "commands"]

# The packages of pyproject.toml that bring the libraries of an entry point. Any other entry point needs no more libraries.
PACKAGES: dict[str, str] = {}


class MissingExtra(ExpectedError):
    """Something is to be used that is not installed. The text says what to install."""


def find_names(point: Point) -> tuple[str, ...]:
    """The names of everything that extras add at an extension point, sorted."""
    return tuple(sorted(_find(point)))


def load(point: Point, name: str) -> Any:
    """Import the object that an extra has registered under a name. Raises MissingExtra."""
    try:
        return _find(point)[name].load()
    except KeyError:
        raise MissingExtra(describe_missing(name)) from None
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{describe_missing(name)} ({error})") from None


@cache  # a search reads a file of each installed package, which takes milliseconds
def _find(point: Point) -> dict[str, EntryPoint]:
    return {found.name: found for found in entry_points(group=f"heartbeatd.{point}")}


def describe_missing(name: str) -> str:
    """One line that says what to install for the entry point."""
    package = f"heartbeatd[{PACKAGES[name]}]" if name in PACKAGES else "heartbeatd"
    return f"{name} needs an extra that is not installed; write: pip install '{package}'"
