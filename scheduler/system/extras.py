"""Finds and loads what extras add to the core: stores, executors, listeners and commands, by the entry points of packages.

An entry point in the group `heartbeatd.stores`, `heartbeatd.executors`, `heartbeatd.listeners` or `heartbeatd.commands` names an
object of an installed package. The extras of heartbeatd are in scheduler/extras/, which the core never imports.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from scheduler.model.expected_error import ExpectedError

# importlib.metadata is imported where it is used: it takes a third of the CPU time of a command that needs no extra.
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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


class UnusableExtra(ExpectedError):
    """An extra is not installed, or cannot be imported. The text names it, and says what to install or to repair."""


def find_names(point: Point) -> tuple[str, ...]:
    """The names of everything that extras add at an extension point, sorted. Their libraries may be missing."""
    return tuple(sorted(name for name, found in _find(point).items() if _exists(found.module)))


def is_known(point: Point, name: str) -> bool:
    """Whether an installed package has registered this name. The extra may have been deleted."""
    return name in _find(point)


@cache
def load(point: Point, name: str) -> Any:
    """Import the object that an extra has registered under a name. Raises UnusableExtra."""
    if (missing := describe_missing(point, name)) is not None:
        raise UnusableExtra(f"{name}: {missing}")
    return load_without_libraries(point, name)


def load_without_libraries(point: Point, name: str) -> Any:
    """The same for one of `find_names`, although the libraries that it uses later may be missing."""
    found = _find(point)[name]
    try:
        return found.load()
    except Exception as error:  # it may be the code of others
        problem = f"{found.module} cannot be imported: {type(error).__name__}: {error}"
        package = found.dist.name if found.dist else found.module
        raise UnusableExtra(f"{name}: {problem}; repair or remove the package {package}") from error


def describe_missing(point: Point, name: str) -> str | None:
    """One line that says what to install for an extra; None if everything is installed. Its module is not imported."""
    found = _find(point).get(name)
    if found is not None and _exists(found.module) and all(map(_is_installed, _dependencies(GROUPS.get(name)))):
        return None
    return how_to_install(GROUPS.get(name))


def how_to_install(group: str | None) -> str:
    """What to do if an extra is missing. heartbeatd is installed from its checkout: no package index has it."""
    command = f"pipx install --force './heartbeatd{f'[{group}]' if group else ''}'"
    place = "in the parent folder of the checkout, with all extras that you use"
    return f"this needs an extra that is not installed; run {command} {place}"


@cache  # a search reads a file of each installed package, which takes milliseconds
def _find(point: Point) -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {found.name: found for found in entry_points(group=f"heartbeatd.{point}")}


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False
    except Exception:  # noqa: BLE001 (the package around it cannot be imported: `load` says why)
        return True


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
