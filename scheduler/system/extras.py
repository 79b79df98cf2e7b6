"""Finds and loads what extras add to the core: stores, executors, listeners and commands.

An extra is a module in a namespace package. Those of heartbeatd are in scheduler/extras/, which may be deleted. Any installed
package can put one into the folder `heartbeatd_extras/`. `ADDS` in such a module says at which extension point it adds which
objects. Entry points would say the same, but importlib.metadata would take a sixth of the CPU time of `heartbeatd --help`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, Literal

from scheduler.model.expected_error import ExpectedError

Point = Literal["stores", "executors", "listeners", "commands"]

NAMESPACES = ("scheduler.extras", "heartbeatd_extras")

# What heartbeatd's own extras add, and which optional dependencies it needs; None: those of the default installation. From this
# comes the advice on what to install, even without the extra.
GROUPS: dict[Point, dict[str, str | None]] = {
    "commands": {
        "config.import": None,
        "cron.export": None,
        "cron.import": None,
        "database.migrate": "cluster",
        "mcp": "mcp",
        "worker": "cluster",
    },
    "executors": {"procrastinate": "cluster", "tools": "mcp"},
    "listeners": {"buttons": None, "mcp": "mcp", "otel": "otel"},
    "stores": {"postgresql": "cluster"},
}


class MissingExtra(ExpectedError):
    """Something is to be used that is not installed. The text says what to install."""


class BrokenExtra(ExpectedError):
    """An extra cannot be imported. The text names it and the error."""


def find_names(point: Point) -> tuple[str, ...]:
    """The names of everything that extras add at an extension point, sorted. Their libraries may be missing."""
    return tuple(sorted(name for name, place in _find(point).items() if _exists(place)))


def is_known(point: Point, name: str) -> bool:
    """Whether an extra adds this name, or one of heartbeatd's own that was deleted."""
    return name in _find(point) or name in GROUPS[point]


@cache
def load(point: Point, name: str) -> Any:
    """Import the object that an extra has added under a name. Raises MissingExtra or BrokenExtra."""
    if (missing := describe_missing(point, name)) is not None:
        raise MissingExtra(f"{name}: {missing}")
    return load_without_libraries(point, name)


def load_without_libraries(point: Point, name: str) -> Any:
    """Import the object of one of `find_names`, although the libraries that it uses later may be missing. Raises BrokenExtra."""
    module, _, attribute = _find(point)[name].partition(":")
    found = _import_extra(module)
    return getattr(found, attribute) if attribute else found


def describe_missing(point: Point, name: str) -> str | None:
    """One line that says what to install for an extra; None if everything is installed. Nothing of the extra is imported."""
    place, group = _find(point).get(name), GROUPS[point].get(name)
    if place is not None and _exists(place) and (group is None or all(map(_is_installed, _dependencies(group)))):
        return None
    package = f"heartbeatd[{group}]" if group else "heartbeatd"
    return f"this needs an extra that is not installed; write: pip install '{package}'"


def find_broken() -> tuple[BrokenExtra, ...]:
    """The errors of the extras that do not say what they add, for example because they cannot be imported."""
    return tuple(each for each in _read_additions() if isinstance(each, BrokenExtra))


def _find(point: Point) -> dict[str, str]:
    """The places of the objects that extras add at an extension point, such as `package.module:name`, by name."""
    return {name: place for each in _read_additions() if isinstance(each, dict) for name, place in each.get(point, {}).items()}


@cache
def _read_additions() -> tuple[dict[str, dict[str, str]] | BrokenExtra, ...]:
    """`ADDS` of each extra, or the error of one that cannot be imported."""
    found: list[dict[str, dict[str, str]] | BrokenExtra] = []
    for name in _list_extras():
        try:
            found.append(getattr(_import_extra(name), "ADDS", BrokenExtra(f"the extra {name} has no ADDS")))
        except BrokenExtra as error:
            found.append(error)
    return tuple(found)


def _list_extras() -> Iterator[str]:
    """The names of the modules in the namespaces."""
    for namespace in NAMESPACES:
        spec = find_spec(namespace)
        for each in iter_modules(spec.submodule_search_locations if spec else ()):
            yield f"{namespace}.{each.name}"


def _import_extra(name: str) -> ModuleType:
    try:
        return import_module(name)
    except Exception as error:  # it may be the code of others
        raise BrokenExtra(f"the extra {name} cannot be imported: {type(error).__name__}: {error}") from error


def _exists(place: str) -> bool:
    try:
        return find_spec(place.partition(":")[0]) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def _dependencies(group: str) -> list[str]:
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
