"""Overrides: values of the config that the environment sets by their path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import Complaints, Elsewhere
from scheduler.config.file.marked_yaml import Map

PREFIX = "HEARTBEATD_SET__"


def named(environ: Mapping[str, str]) -> dict[str, str]:
    """The overrides that are set, by variable, in a stable order."""
    return {variable: environ[variable] for variable in sorted(environ) if variable.startswith(PREFIX)}


def apply(root: Map, environ: Mapping[str, str], complaints: Complaints) -> Map:
    """The config with the overrides on top: HEARTBEATD_SET__agents__ops__model=x sets agents.ops.model.

    Values are read as YAML. Maps that a path needs are made; what is shared by an alias is not touched elsewhere.
    """
    for variable, text in named(environ).items():
        steps = variable.removeprefix(PREFIX).split("__")
        place = Elsewhere(variable)
        if not all(steps):
            complaints.fault(place, "", f"this is not a path; write {PREFIX}defaults__heartbeat__interval")
            continue
        try:
            value = marked_yaml.read(text, complaints, place)
        except marked_yaml.Unreadable:
            continue
        root = _put(root, steps, value, place, complaints)
    return root


def _put(node: Map, steps: list[str], value: Any, place: Elsewhere, complaints: Complaints) -> Map:
    first, *rest = steps
    if rest:
        below = node.get(first)
        if not isinstance(below, Map | None):
            complaints.fault(place, first, "is not a map, so that nothing inside it can be set")
            return node
        value = _put(below or Map(), rest, value, place, complaints)
    marks = {**node.marks, first: node.marks[first] if rest and first in node.marks else (place, place)}
    return Map({**node, first: value}, marks)
