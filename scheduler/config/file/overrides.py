"""Overrides: values of the config that the environment sets by their path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import Diagnostics, ExternalPosition
from scheduler.config.file.marked_yaml import MarkedMap

PREFIX = "HEARTBEATD_SET__"


def find_overrides(environ: Mapping[str, str]) -> dict[str, str]:
    """The overrides that are set, by variable, in a stable order."""
    return {variable: environ[variable] for variable in sorted(environ) if variable.startswith(PREFIX)}


def apply_overrides(root: MarkedMap, environ: Mapping[str, str], diagnostics: Diagnostics) -> MarkedMap:
    """The config with the overrides on top: HEARTBEATD_SET__agents__ops__model=x sets agents.ops.model.

    Values are read as YAML. Maps that a path needs are made; what is shared by an alias is not touched elsewhere.
    """
    for variable, text in find_overrides(environ).items():
        steps = variable.removeprefix(PREFIX).split("__")
        place = ExternalPosition(variable)
        if not all(steps):
            diagnostics.add_error(place, "", f"this is not a path; write {PREFIX}defaults__heartbeat__interval")
            continue
        try:
            value = marked_yaml.parse_yaml(text, diagnostics, place)
        except marked_yaml.UnreadableYaml:
            continue
        root = _set_value(root, steps, value, place, diagnostics)
    return root


def _set_value(node: MarkedMap, steps: list[str], value: Any, place: ExternalPosition, diagnostics: Diagnostics) -> MarkedMap:
    first, *rest = steps
    if rest:
        below = node.get(first)
        if not isinstance(below, MarkedMap | None):
            diagnostics.add_error(place, first, "is not a map, so that nothing inside it can be set")
            return node
        value = _set_value(below or MarkedMap(), rest, value, place, diagnostics)
    marks = {**node.marks, first: node.marks[first] if rest and first in node.marks else (place, place)}
    return MarkedMap({**node, first: value}, marks)
