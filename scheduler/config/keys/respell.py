"""Misspelt and misplaced keys: each is noted, and what stands there is read as what it is meant to be.

Done before defaults are inherited, so that one slip of the pen is one line, and nothing that depends on the key is missed.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import Diagnostics, Position
from scheduler.config.file.marked_yaml import MarkedList, MarkedMap
from scheduler.config.file.remedies import Remedy
from scheduler.config.keys import models, unknown_keys
from scheduler.config.keys.models import ConfigPart
from scheduler.config.keys.unknown_keys import choose_model, key_names, nested_models

Steps = tuple[str, ...]


def correct_unknown_keys(root: MarkedMap, diagnostics: Diagnostics) -> None:
    """Note every key that its map may not hold, and put its value where it belongs; what belongs nowhere is taken out."""
    while unknown := list(_find_unknown_keys(root, models.Config, ())):
        for node, steps, key in unknown:
            if key in node:  # else a map that is shared has been put right already
                _correct_key(root, node, steps, key, diagnostics)


def _find_unknown_keys(node: MarkedMap, model: type[ConfigPart], steps: Steps) -> Iterator[tuple[MarkedMap, Steps, str]]:
    if not node.keys() <= key_names(model):
        top = model is models.Config
        yield from ((node, steps, key) for key in node if key not in key_names(model) and not (top and key.startswith("x-")))
    for key, (form, parts) in nested_models(model).items():
        below = node.get(key)
        if form == "named" and isinstance(below, MarkedMap):
            for name, held in below.items():
                if isinstance(held, MarkedMap) and (part := choose_model(parts, held)):
                    yield from _find_unknown_keys(held, part, (*steps, key, name))
        elif isinstance(below, MarkedMap) and (part := choose_model(parts, below)):
            yield from _find_unknown_keys(below, part, (*steps, key))
        elif form == "list" and isinstance(below, MarkedList):
            for index, held in enumerate(below):
                if isinstance(held, MarkedMap):
                    yield from _find_unknown_keys(held, parts[0], (*steps, key, f"{index}"))


def _correct_key(root: MarkedMap, node: MarkedMap, steps: Steps, key: str, diagnostics: Diagnostics) -> None:
    value, marks = node[key], node.marks[key]
    wrong = unknown_keys.explain_misplaced_key(key, value, steps, root)
    diagnostics.add_error(marks[0], marked_yaml.dotted_path([*_restore_indexes(steps), key]), wrong)
    del node[key]
    remedy = wrong.remedies[0] if wrong.remedies else Remedy()
    if not remedy.is_certain:
        if not remedy.remove:
            diagnostics.unknown_keys.setdefault(steps, marks[0])
        return
    home = node if remedy.under is None else _ensure_map(root, remedy.under, marks)
    right = remedy.key or key
    if right not in home:
        home[right] = value if remedy.value is None else remedy.value
        home.marks[right] = marks
    elif unknown_keys.can_merge(value, home[right]):
        home[right].update(value)
        home[right].marks.update(value.marks)


def _ensure_map(root: MarkedMap, steps: Steps, marks: tuple[Position, Position]) -> MarkedMap:
    """The map at `steps`, made where it is not there."""
    node, place = root, marks[0]
    for step in steps:
        if not isinstance(node.get(step), MarkedMap):
            node[step] = MarkedMap()
            node.marks.setdefault(step, (place, place))
        place = node.marks[step][0]
        node = node[step]
    return node


def _restore_indexes(steps: Steps) -> list[str | int]:
    return [
        int(step) if step.isdigit() and index and steps[index - 1] == "active_hours" else step for index, step in enumerate(steps)
    ]
