"""Checks a part of the file against its model, and explains the errors of pydantic.

After an error the checking continues: a value that was certainly meant replaces the invalid one, and a value that cannot be
understood is removed. So one error does not hide the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import Diagnostics, Position
from scheduler.config.file.marked_yaml import AmbiguousText, MarkedList, MarkedMap
from scheduler.config.file.message_parts import find_closest, quote_value
from scheduler.config.file.remedies import InvalidValue, Remedy, join_with_or, suggest_correction
from scheduler.config.keys import models
from scheduler.config.keys.models import ConfigPart, kinds_of_model, models_in
from scheduler.config.keys.unknown_keys import explain_unknown_key

PartT = TypeVar("PartT", bound=ConfigPart)
Steps = tuple[str | int, ...]

UNKNOWN_KEY = ""  # the last step of a key that could not be understood: it may stand for any key that is missing there

_OF_A_UNION = ("union_tag_invalid", "union_tag_not_found")
_EXAMPLES: dict[str, tuple[object, str]] = {
    "start": ("08:00", 'start: "08:00"'),
    "end": ("22:00", 'end: "22:00"'),
    "model": ("claude-haiku-5-5", "model: claude-haiku-5-5"),
    "input": (1.0, "input: 1.0"),
    "output": (5.0, "output: 5.0"),
    "command": ("./new-mail.sh", "command: ./new-mail.sh"),
    "may": (["read", "wake"], "may: [read, wake]"),
    "argv": (None, "argv: [program, argument]"),
    "allow": (None, "allow: [TOOL, TOOL]"),
    "url": (None, 'url: "https://..."'),
    "call": (None, 'call: "package.module:function"'),
    "value": (None, 'value: "${NAME}"'),
}
_SHORT_FOR: dict[type[ConfigPart], str] = {
    models.Heartbeat: "interval",
    models.HeartbeatMisfire: "grace",
    models.JobMisfire: "grace",
    models.Conditions: "remind",
    models.Dedup: "window",
    models.History: "keep",
    models.Calendar: "dates",
}


@dataclass(slots=True)
class CheckedPart(Generic[PartT]):
    """A checked part: the model of its valid values, the data of that model, and the positions of values that were removed."""

    model: PartT
    node: Any
    unreadable: dict[Steps, Position] = field(default_factory=dict)


def check_part(
    model: type[PartT], node: Any, steps: tuple[str, ...], place: Position, diagnostics: Diagnostics, *, is_partial: bool = False
) -> CheckedPart[PartT]:
    """Check a part and add its errors; invalid values are corrected or removed. `is_partial`: missing keys are no errors."""
    lost: dict[Steps, Position] = {}
    again: set[Steps] = set()
    while True:
        try:
            return CheckedPart(model.model_validate(node), node, lost)
        except ValidationError as error:
            whole, before = node, tuple(lost)
            for found in error.errors(include_url=False, include_input=False):
                at, known, wrong = _locate_error(model, whole, place, found)
                key = tuple(known)
                follows = any(gone[: len(key)] == key for gone in before)  # a consequence of a value that was removed
                absent = found["type"] in ("missing", "union_tag_not_found")
                if not follows and not (is_partial and absent):
                    opens = found["type"] == "value_error" and not any(remedy.key for remedy in wrong.remedies)
                    opens = opens and not isinstance(_value_at(whole, key), MarkedMap)
                    missing = str(known[-1]) if absent else ""
                    diagnostics.add_error(at, marked_yaml.dotted_path([*steps, *known]), wrong, opens=opens, missing=missing)
                if any(key[: len(gone)] == gone and key != gone for gone in lost):
                    continue
                if not follows and _can_be_corrected(wrong, key, node) and key not in again:
                    again.add(key)
                    node = apply_remedy(node, key, wrong.remedies[0])
                    continue
                gone = _steps_to_remove(found, key)
                lost[gone] = at
                node = without_value(node, gone)
                if found["type"] == "extra_forbidden":
                    lost[*key[:-1], UNKNOWN_KEY] = at
            if node is whole:  # nothing could be corrected or removed: discard the whole part
                lost[()] = place
                node = MarkedMap()


def _value_at(node: Any, steps: Steps) -> Any:
    for step in steps:
        if isinstance(node, MarkedList):
            node = node[int(step)]
            continue
        node = node.get(str(step)) if isinstance(node, MarkedMap) else None
    return node


def _can_be_corrected(wrong: InvalidValue, steps: Steps, node: Any) -> bool:
    """Whether the correction is certain. Only the last item of a list may be removed, so that the others keep their indexes."""
    last = bool(steps) and isinstance(steps[-1], int) and len(_value_at(node, steps[:-1])) == steps[-1] + 1
    return any(remedy.is_certain and (last or not remedy.remove or isinstance(steps[-1], str)) for remedy in wrong.remedies[:1])


def _steps_to_remove(found: ErrorDetails, steps: Steps) -> Steps:
    """The values to remove with an error: a map that lacks a key, a runner of no kind, a list with a wrong item."""
    if found["type"] in ("missing", *_OF_A_UNION):
        steps = steps[:-1]
    while steps and isinstance(steps[-1], int):
        steps = steps[:-1]
    return steps


def apply_remedy(node: Any, steps: Steps, remedy: Remedy) -> Any:
    """A copy of the data with the remedy applied at the steps; data that is shared by an alias is not changed."""
    if not steps:
        return _corrected_value(node, remedy)
    first, *rest = steps
    if isinstance(node, MarkedMap):
        below = node.get(str(first))
        if rest:
            return MarkedMap({**node, str(first): apply_remedy(below, tuple(rest), remedy)}, node.marks)
        if remedy.remove:
            return without_value(node, steps)
        key = remedy.key or str(first)
        marks = {**node.marks, **{added: node.marks[str(first)] for added, _ in remedy.beside}}
        found = {
            key if old == str(first) else old: _corrected_value(value, remedy) if old == str(first) else value
            for old, value in node.items()
        }
        return MarkedMap({**found, **dict(remedy.beside)}, {**marks, key: node.marks[str(first)]})
    copy = MarkedList()
    copy.extend(node)
    copy.marks = node.marks
    if remedy.remove and not rest:
        del copy[int(first)]
    else:
        copy[int(first)] = apply_remedy(node[int(first)], tuple(rest), remedy)
    return copy


def _corrected_value(value: Any, remedy: Remedy) -> Any:
    if remedy.quote:
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    if remedy.inside and isinstance(value, MarkedMap):
        return MarkedMap({**value, **dict(remedy.inside)}, value.marks)
    return value if remedy.value is None else remedy.value


def without_value(node: Any, steps: Steps) -> Any:
    """A copy of the data without the key or list item at the steps."""
    if not steps:
        return MarkedMap()
    first, *rest = steps
    if isinstance(node, MarkedMap) and rest:
        return MarkedMap({**node, str(first): without_value(node[str(first)], tuple(rest))}, node.marks)
    if isinstance(node, MarkedMap):
        return MarkedMap({key: value for key, value in node.items() if key != first}, node.marks)
    copy = MarkedList()
    copy.extend(without_value(value, tuple(rest)) if at == first else value for at, value in enumerate(node))
    copy.marks = node.marks
    return copy


def _locate_error(
    model: type[ConfigPart], node: Any, place: Position, found: ErrorDetails
) -> tuple[Position, list[str | int], InvalidValue]:
    """The position of an error of pydantic, the steps to it, and its explanation."""
    error = found["ctx"]["error"] if found["type"] == "value_error" else None
    tag = ("kind",) if found["type"] in _OF_A_UNION else ()
    inside = error.steps if isinstance(error, InvalidValue) else ()
    at, known = marked_yaml.locate_value(node, (*found["loc"], *tag, *inside), place)
    if found["type"] == "extra_forbidden":
        at = _key_position(node, known, at)
    return at, known, _explain_error(model, node, found)


def _explain_error(model: type[ConfigPart], node: Any, found: ErrorDetails) -> InvalidValue:
    kind, last = found["type"], str(found["loc"][-1]) if found["loc"] else ""
    if kind == "value_error":
        error = found["ctx"]["error"]
        return error if isinstance(error, InvalidValue) else InvalidValue(str(error))
    if kind == "extra_forbidden":
        return explain_unknown_key(last, _models_at(model, found["loc"][:-1])[0])
    if kind == "missing":
        value, words = _EXAMPLES.get(last, (None, f"{last}: ..."))
        return InvalidValue("is missing", *([] if value is None else [Remedy(value)]), advice=f"write {words}")
    if kind in _OF_A_UNION:
        return _explain_kind(found, _kinds_at(model, found["loc"]))
    if kind == "list_type":
        return InvalidValue("this must be a list")
    return _explain_not_a_map(_models_at(model, found["loc"]), _value_at(node, found["loc"]))


def _explain_not_a_map(parts: list[type[ConfigPart]], value: Any) -> InvalidValue:
    """The error for a value in place of a map. It suggests the map that was meant, such as {interval: 30m} for 30m."""
    key = _SHORT_FOR.get(parts[0]) if len(parts) == 1 else None
    if key and not isinstance(value, MarkedMap | MarkedList):
        short = {key: str(value) if isinstance(value, AmbiguousText) else value}
        try:
            parts[0].model_validate(short)
        except ValidationError:
            pass
        else:
            return suggest_correction("this must be a map", short)
    return InvalidValue("this must be a map: keys with values, each on a line of its own and indented")


def _explain_kind(found: ErrorDetails, kinds: tuple[str, ...]) -> InvalidValue:
    """The error for a missing or unknown `kind`."""
    if found["type"] == "union_tag_not_found":
        return InvalidValue("is missing", advice=f"write kind: {join_with_or(kinds)}")
    tag = str(found["ctx"]["tag"])
    close = find_closest(tag, kinds)
    if len(close) == 1:
        return suggest_correction(f"{quote_value(tag)} is not allowed here", close[0], advice=f"did you mean {close[0]}?")
    return InvalidValue(f"{quote_value(tag)} is not allowed here", advice=f"write kind: {join_with_or(kinds)}")


def _key_position(node: Any, steps: list[str | int], place: Position) -> Position:
    for step in steps[:-1]:
        node = node[step]
    marks = getattr(node, "marks", {})
    return marks[steps[-1]][0] if isinstance(marks, dict) and steps[-1] in marks else place


def _kinds_at(model: type[ConfigPart], steps: tuple[str | int, ...]) -> tuple[str, ...]:
    """The words that `kind` may be in the union at `steps`."""
    return tuple(kind for part in _models_at(model, steps) for kind in kinds_of_model(part))


def _models_at(model: type[ConfigPart], steps: tuple[str | int, ...]) -> list[type[ConfigPart]]:
    """The models that the map at `steps` may have."""
    found = [model]
    for step in steps:
        if step in found[0].model_fields:
            found = models_in(found[0].model_fields[str(step)].annotation) or found
        else:  # a name, an index or the tag of a union
            found = [part for part in found if step in kinds_of_model(part)] or found
    return found
