"""Checking: a part of the file against its model, with pydantic's findings said in our words.

A part with faults is mended for the checks that follow: what was meant takes the place of what is written, and what nobody
can understand is left out. So one wrong value hides none of the other faults.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from scheduler.config.build.config_node import UNKNOWN, Steps
from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import Complaints, Place
from scheduler.config.file.marked_yaml import Items, Map, Odd
from scheduler.config.file.message_parts import closest, shown
from scheduler.config.file.remedies import Remedy, Wrong, either, surely
from scheduler.config.keys import models
from scheduler.config.keys.models import Part
from scheduler.config.keys.unknown_keys import unknown_key

PartT = TypeVar("PartT", bound=Part)

_OF_A_UNION = ("union_tag_invalid", "union_tag_not_found")
_TO_WRITE: dict[str, tuple[object, str]] = {
    "start": ("08:00", 'start: "08:00"'),
    "end": ("22:00", 'end: "22:00"'),
    "model": ("claude-haiku-5-5", "model: claude-haiku-5-5"),
    "input": (1.0, "input: 1.0"),
    "output": (5.0, "output: 5.0"),
    "command": ("./new-mail.sh", "command: ./new-mail.sh"),
    "may": (["read", "wake"], "may: [read, wake]"),
    "argv": (None, "argv: [program, argument]"),
    "url": (None, 'url: "https://..."'),
    "call": (None, 'call: "package.module:function"'),
    "value": (None, 'value: "${NAME}"'),
}
_SHORT_FOR: dict[type[Part], str] = {
    models.Heartbeat: "interval",
    models.HeartbeatMisfire: "grace",
    models.JobMisfire: "grace",
    models.Dedup: "window",
    models.History: "keep",
    models.Calendar: "dates",
}


@dataclass(slots=True)
class Checked(Generic[PartT]):
    """A part that was checked: the model of what is right in it, what that was made of, and what was left out, with its place."""

    model: PartT
    node: Any
    lost: dict[Steps, Place] = field(default_factory=dict)


def check(
    model: type[PartT], node: Any, steps: tuple[str, ...], place: Place, complaints: Complaints, *, part: bool = False
) -> Checked[PartT]:
    """The part as a model. Its faults are noted, and what has them is mended or left out. `part`: what is missing may come from
    elsewhere.
    """
    lost: dict[Steps, Place] = {}
    again: set[Steps] = set()
    while True:
        try:
            return Checked(model.model_validate(node), node, lost)
        except ValidationError as error:
            whole, before = node, tuple(lost)
            for found in error.errors(include_url=False, include_input=False):
                at, known, wrong = _fault(model, whole, place, found)
                key = tuple(known)
                follows = any(gone[: len(key)] == key for gone in before)  # it lacks what has been left out
                absent = found["type"] in ("missing", "union_tag_not_found")
                if not follows and not ((part or complaints.partial) and absent):
                    opens = found["type"] == "value_error" and not any(remedy.key for remedy in wrong.remedies)
                    opens = opens and not isinstance(_value(whole, key), Map)
                    missing = str(known[-1]) if absent else ""
                    complaints.fault(at, marked_yaml.dotted([*steps, *known]), wrong, opens=opens, missing=missing)
                if any(key[: len(gone)] == gone and key != gone for gone in lost):
                    continue
                if not follows and _can_be_mended(wrong, key, node) and key not in again:
                    again.add(key)
                    node = mended(node, key, wrong.remedies[0])
                    continue
                gone = _left_out(found, key)
                lost[gone] = at
                node = without(node, gone)
                if found["type"] == "extra_forbidden":
                    lost[*key[:-1], UNKNOWN] = at
            if node is whole:  # nothing could be mended or left out: then nothing is left
                lost[()] = place
                node = Map()


def _value(node: Any, steps: Steps) -> Any:
    for step in steps:
        if isinstance(node, Items):
            node = node[int(step)]
            continue
        node = node.get(str(step)) if isinstance(node, Map) else None
    return node


def _can_be_mended(wrong: Wrong, steps: Steps, node: Any) -> bool:
    """Whether the fault says what was meant. Only the last item of a list is taken out, so that the others keep their numbers."""
    last = bool(steps) and isinstance(steps[-1], int) and len(_value(node, steps[:-1])) == steps[-1] + 1
    return any(remedy.means and (last or not remedy.remove or isinstance(steps[-1], str)) for remedy in wrong.remedies[:1])


def _left_out(found: ErrorDetails, steps: Steps) -> Steps:
    """What must go with a fault that cannot be mended: a map that lacks a key, a runner of no kind, a list with a wrong item."""
    if found["type"] in ("missing", *_OF_A_UNION):
        steps = steps[:-1]
    while steps and isinstance(steps[-1], int):
        steps = steps[:-1]
    return steps


def mended(node: Any, steps: Steps, remedy: Remedy) -> Any:
    """A copy of the data with the remedy applied where the steps lead; what is shared with others is not touched."""
    if not steps:
        return _right(node, remedy)
    first, *rest = steps
    if isinstance(node, Map):
        below = node.get(str(first))
        if rest:
            return Map({**node, str(first): mended(below, tuple(rest), remedy)}, node.marks)
        if remedy.remove:
            return without(node, steps)
        key = remedy.key or str(first)
        marks = {**node.marks, **{added: node.marks[str(first)] for added, _ in remedy.beside}}
        found = {
            key if old == str(first) else old: _right(value, remedy) if old == str(first) else value
            for old, value in node.items()
        }
        return Map({**found, **dict(remedy.beside)}, {**marks, key: node.marks[str(first)]})
    copy = Items()
    copy.extend(node)
    copy.marks = node.marks
    if remedy.remove and not rest:
        del copy[int(first)]
    else:
        copy[int(first)] = mended(node[int(first)], tuple(rest), remedy)
    return copy


def _right(value: Any, remedy: Remedy) -> Any:
    if remedy.quote:
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    if remedy.inside and isinstance(value, Map):
        return Map({**value, **dict(remedy.inside)}, value.marks)
    return value if remedy.value is None else remedy.value


def without(node: Any, steps: Steps) -> Any:
    """A copy of the data without the key, or without what is in the list, that the steps lead to."""
    if not steps:
        return Map()
    first, *rest = steps
    if isinstance(node, Map) and rest:
        return Map({**node, str(first): without(node[str(first)], tuple(rest))}, node.marks)
    if isinstance(node, Map):
        return Map({key: value for key, value in node.items() if key != first}, node.marks)
    copy = Items()
    copy.extend(without(value, tuple(rest)) if at == first else value for at, value in enumerate(node))
    copy.marks = node.marks
    return copy


def _fault(model: type[Part], node: Any, place: Place, found: ErrorDetails) -> tuple[Place, list[str | int], Wrong]:
    """Where one of pydantic's findings is, the steps to it, and what is said of it."""
    error = found["ctx"]["error"] if found["type"] == "value_error" else None
    tag = ("kind",) if found["type"] in _OF_A_UNION else ()
    inside = error.steps if isinstance(error, Wrong) else ()
    at, known = marked_yaml.locate(node, (*found["loc"], *tag, *inside), place)
    if found["type"] == "extra_forbidden":
        at = _key_place(node, known, at)
    return at, known, _wrong(model, node, found)


def _wrong(model: type[Part], node: Any, found: ErrorDetails) -> Wrong:
    kind, last = found["type"], str(found["loc"][-1]) if found["loc"] else ""
    if kind == "value_error":
        error = found["ctx"]["error"]
        return error if isinstance(error, Wrong) else Wrong(str(error))
    if kind == "extra_forbidden":
        return unknown_key(last, _inner(model, found["loc"][:-1])[0])
    if kind == "missing":
        value, words = _TO_WRITE.get(last, (None, f"{last}: ..."))
        return Wrong("is missing", *([] if value is None else [Remedy(value)]), words=f"write {words}")
    if kind in _OF_A_UNION:
        return _untagged(found, _kinds(model, found["loc"]))
    if kind == "list_type":
        return Wrong("a list is wanted here")
    return _no_map(_inner(model, found["loc"]), _value(node, found["loc"]))


def _no_map(parts: list[type[Part]], value: Any) -> Wrong:
    """What is said of a value in place of a map: the map that it may be short for, such as an interval for a heartbeat."""
    key = _SHORT_FOR.get(parts[0]) if len(parts) == 1 else None
    if key and not isinstance(value, Map | Items):
        short = {key: str(value) if isinstance(value, Odd) else value}
        try:
            parts[0].model_validate(short)
        except ValidationError:
            pass
        else:
            return surely("a map is wanted here", short)
    return Wrong("a map is wanted here: keys with values, each on a line of its own and indented")


def _untagged(found: ErrorDetails, kinds: tuple[str, ...]) -> Wrong:
    """What is said of a `kind` that is not there, or is none of those that there are."""
    if found["type"] == "union_tag_not_found":
        return Wrong("is missing", words=f"write kind: {either(kinds)}")
    tag = str(found["ctx"]["tag"])
    close = closest(tag, kinds)
    if len(close) == 1:
        return surely(f"{shown(tag)} is not known here", close[0], words=f"did you mean {close[0]}?")
    return Wrong(f"{shown(tag)} is not known here", words=f"write kind: {either(kinds)}")


def _key_place(node: Any, steps: list[str | int], place: Place) -> Place:
    for step in steps[:-1]:
        node = node[step]
    marks = getattr(node, "marks", {})
    return marks[steps[-1]][0] if isinstance(marks, dict) and steps[-1] in marks else place


def _kinds(model: type[Part], steps: tuple[str | int, ...]) -> tuple[str, ...]:
    """What `kind` may be in the union at `steps`."""
    return tuple(kind for part in _inner(model, steps) for kind in _kinds_of(part))


def _inner(model: type[Part], steps: tuple[str | int, ...]) -> list[type[Part]]:
    """The model at `steps`, or all that may stand there."""
    found = [model]
    for step in steps:
        if step in found[0].model_fields:
            found = _parts(found[0].model_fields[str(step)].annotation) or found
        else:  # a name, an index or the tag of a union
            found = [part for part in found if step in _kinds_of(part)] or found
    return found


def _kinds_of(part: type[Part]) -> tuple[str, ...]:
    kind = part.model_fields.get("kind")
    return get_args(kind.annotation) if kind and get_origin(kind.annotation) is Literal else ()


def _parts(annotation: Any) -> list[type[Part]]:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return [annotation]
    return [part for inner in get_args(annotation) for part in _parts(inner)]
