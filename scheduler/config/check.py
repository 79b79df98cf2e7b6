"""Checking: a part of the file against its model, with pydantic's findings said in our words."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from scheduler.config import tree
from scheduler.config.complaint import Complaints, Place
from scheduler.config.fields import Inside
from scheduler.config.models import Part
from scheduler.config.wording import closest, either, shown, unknown_key

PartT = TypeVar("PartT", bound=Part)

_OF_A_UNION = ("union_tag_invalid", "union_tag_not_found")
_TO_WRITE = {
    "argv": "argv: [program, argument]",
    "start": 'start: "08:00"',
    "end": 'end: "22:00"',
    "url": 'url: "https://..."',
    "call": 'call: "package.module:function"',
    "model": "model: claude-haiku-5-5",
    "input": "input: 1.0",
    "output": "output: 5.0",
    "value": 'value: "${NAME}"',
    "command": "command: ./new-mail.sh",
    "may": "may: [read, wake]",
}


def check(
    model: type[PartT], node: Any, steps: tuple[str, ...], place: Place, complaints: Complaints, *, part: bool = False
) -> PartT | None:
    """The part as a model; None when it has faults, which are noted. `part`: what is missing may come from elsewhere."""
    try:
        return model.model_validate(node)
    except ValidationError as error:
        for found in error.errors(include_url=False, include_input=False):
            if not (part and found["type"] in ("missing", "union_tag_not_found")):
                _note(model, node, steps, place, found, complaints)
    return None


def _note(
    model: type[Part], node: Any, steps: tuple[str, ...], place: Place, found: ErrorDetails, complaints: Complaints
) -> None:
    error = found["ctx"]["error"] if found["type"] == "value_error" else None
    tag = ("kind",) if found["type"] in _OF_A_UNION else ()
    steps_inside = (*found["loc"], *tag, *(error.steps if isinstance(error, Inside) else ()))
    at, known = tree.locate(node, steps_inside, place)
    complaint = _message(model, found)
    if found["type"] == "extra_forbidden":
        at = _key_place(node, known, at)
    complaints.fault(at, tree.dotted([*steps, *known]), complaint)


def _message(model: type[Part], found: ErrorDetails) -> str:
    kind, last = found["type"], str(found["loc"][-1]) if found["loc"] else ""
    if kind == "value_error":
        return str(found["ctx"]["error"])
    if kind == "extra_forbidden":
        return unknown_key(last, _keys(model, found["loc"][:-1]))
    if kind == "missing":
        return f"is missing; write {_TO_WRITE.get(last, f'{last}: ...')}"
    if kind in _OF_A_UNION:
        return _untagged(found, _kinds(model, found["loc"]))
    if kind == "list_type":
        return "a list is wanted here"
    return "a map is wanted here: keys with values, each on a line of its own and indented"


def _untagged(found: ErrorDetails, kinds: tuple[str, ...]) -> str:
    """What is said of a `kind` that is not there, or is none of those that there are."""
    if found["type"] == "union_tag_not_found":
        return f"is missing; write kind: {either(kinds)}"
    tag = str(found["ctx"]["tag"])
    close = closest(tag, kinds)
    return f"{shown(tag)} is not known here; {f'did you mean {close}?' if close else f'write kind: {either(kinds)}'}"


def _key_place(node: Any, steps: list[str | int], place: Place) -> Place:
    for step in steps[:-1]:
        node = node[step]
    marks = getattr(node, "marks", {})
    return marks[steps[-1]][0] if isinstance(marks, dict) and steps[-1] in marks else place


def _keys(model: type[Part], steps: tuple[str | int, ...]) -> list[str]:
    """The keys that the map at `steps` may hold."""
    return list(_inner(model, steps)[0].model_fields)


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
