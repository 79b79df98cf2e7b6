"""Misspelt and misplaced keys: each is noted, and what stands there is read as what it is meant to be.

Done before defaults are inherited, so that one slip of the pen is one line, and nothing that depends on the key is missed.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import Complaints, Place
from scheduler.config.file.marked_yaml import Items, Map
from scheduler.config.file.remedies import Remedy
from scheduler.config.keys import models, unknown_keys
from scheduler.config.keys.models import Part
from scheduler.config.keys.unknown_keys import chosen, inner, names

Steps = tuple[str, ...]


def respell(root: Map, complaints: Complaints) -> None:
    """Note every key that its map may not hold, and put its value where it belongs; what belongs nowhere is taken out."""
    while unknown := list(_unknown(root, models.Config, ())):
        for node, steps, key in unknown:
            if key in node:  # else a map that is shared has been put right already
                _put_right(root, node, steps, key, complaints)


def _unknown(node: Map, model: type[Part], steps: Steps) -> Iterator[tuple[Map, Steps, str]]:
    if not node.keys() <= names(model):
        top = model is models.Config
        yield from ((node, steps, key) for key in node if key not in names(model) and not (top and key.startswith("x-")))
    for key, (form, parts) in inner(model).items():
        below = node.get(key)
        if form == "named" and isinstance(below, Map):
            for name, held in below.items():
                if isinstance(held, Map) and (part := chosen(parts, held)):
                    yield from _unknown(held, part, (*steps, key, name))
        elif isinstance(below, Map) and (part := chosen(parts, below)):
            yield from _unknown(below, part, (*steps, key))
        elif form == "list" and isinstance(below, Items):
            for index, held in enumerate(below):
                if isinstance(held, Map):
                    yield from _unknown(held, parts[0], (*steps, key, f"{index}"))


def _put_right(root: Map, node: Map, steps: Steps, key: str, complaints: Complaints) -> None:
    value, marks = node[key], node.marks[key]
    wrong = unknown_keys.misplaced(key, value, steps, root)
    complaints.fault(marks[0], marked_yaml.dotted([*_with_numbers(steps), key]), wrong)
    del node[key]
    remedy = wrong.remedies[0] if wrong.remedies else Remedy()
    if not remedy.means:
        if not remedy.remove:
            complaints.unknown.setdefault(steps, marks[0])
        return
    home = node if remedy.under is None else _made(root, remedy.under, marks)
    right = remedy.key or key
    if right not in home:
        home[right] = value if remedy.value is None else remedy.value
        home.marks[right] = marks
    elif unknown_keys.can_join(value, home[right]):
        home[right].update(value)
        home[right].marks.update(value.marks)


def _made(root: Map, steps: Steps, marks: tuple[Place, Place]) -> Map:
    """The map at `steps`, made where it is not there."""
    node, place = root, marks[0]
    for step in steps:
        if not isinstance(node.get(step), Map):
            node[step] = Map()
            node.marks.setdefault(step, (place, place))
        place = node.marks[step][0]
        node = node[step]
    return node


def _with_numbers(steps: Steps) -> list[str | int]:
    return [
        int(step) if step.isdigit() and index and steps[index - 1] == "active_hours" else step for index, step in enumerate(steps)
    ]
