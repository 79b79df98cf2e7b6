"""The file as plain data, in which every key and value remembers where it stands.

Built from the C parser's events: the round-trip objects of the same library take ten times as long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from _ruamel_yaml import CParser
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from scheduler.config.file import yaml_errors
from scheduler.config.file.diagnostics import NOWHERE, Complaints, Elsewhere, Place
from scheduler.model.secret import MASK

DEPTH = 64  # maps and lists inside each other; a config needs eight
NODES = 5_000_000  # values once every alias is followed: 100,000 agents that share twenty keys are half of that

Steps = Sequence[str | int]

_ODD = re.compile(r"[-+]?(0[0-9_]+|0x[0-9a-fA-F_]+|0[ob][0-7_]+|[0-9][0-9_]*_[0-9_]*|[0-9][0-9_]*(:[0-5]?[0-9])+|[0-9]{19,})")
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class Map(dict[str, Any]):
    """A map; `marks` says where each key and its value begin."""

    __slots__ = ("marks",)

    def __init__(self, items: dict[str, Any] | None = None, marks: dict[str, tuple[Place, Place]] | None = None) -> None:
        super().__init__(items or {})
        self.marks = marks or {}


class Items(list[Any]):
    """A list; `marks` says where each item begins."""

    __slots__ = ("marks",)

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[Place] = []


class Odd(str):
    """Text without quotes that other readers of YAML take for a number: 22:00, 022, 1_000."""

    __slots__ = ()


class Unreadable(Exception):
    """What is wrong is noted already, and nothing can be made of the text."""


class Broken(Exception):
    """The text is no YAML from here on: the parser's `error`, and the `path` of what it was reading."""

    def __init__(self, error: Exception, path: str) -> None:
        self.error = error
        self.path = path
        super().__init__(str(error))


@dataclass(frozen=True, slots=True)
class Document:
    """What a text holds, Map, Items, str, int, float, bool or None, and where that begins."""

    node: Any
    place: Place


def read(text: str, complaints: Complaints, at: Elsewhere | None = None) -> Any:
    """The one document in `text`.

    Faults go to `complaints`; one of grammar, depth or size leaves the rest unread and raises Unreadable. `at` is the place to
    give to everything, for text that is not the file.
    """
    try:
        return document(text, complaints, at).node
    except Broken as broken:
        place, wrong = yaml_errors.explain(broken.error, text)
        complaints.fault(at or place, broken.path, wrong)
        raise Unreadable from None


def document(text: str, complaints: Complaints, at: Elsewhere | None = None, masks: Mapping[str, str] | None = None) -> Document:
    """As `read`, but raises Broken for what is no YAML. `masks` are texts that stand for others, of the same length."""
    breaks = yaml_errors.masks_of_breaks(text)
    for mask, sign in breaks.items():
        text = text.replace(sign, mask)
    reader = _Reader(text, complaints, at, {**breaks, **(masks or {})})
    try:
        return reader.document()
    except (YAMLError, UnicodeEncodeError) as error:
        raise Broken(error, dotted(reader.path)) from None


def locate(node: Any, steps: Steps, place: Place, *, tagged: bool = True) -> tuple[Place, list[str | int]]:
    """Where the value at `steps` stands, and the steps that the file has too; `place` is that of `node` itself.

    Steps that the file does not have (a union's tag, the index of a single item written without its list) are passed over;
    a last step that is missing is kept, at the place of what misses it, and so are all where the steps are not `tagged`.
    """
    known: list[str | int] = []
    for index, step in enumerate(steps):
        if isinstance(node, Map) and step in node:
            key_at, value_at = node.marks[str(step)]
            place = key_at if isinstance(node[str(step)], Map) else value_at
            node = node[str(step)]
        elif isinstance(node, Items) and isinstance(step, int):
            place, node = node.marks[step], node[step]
        elif isinstance(step, int) or (tagged and index < len(steps) - 1) or not isinstance(node, Map | None):
            continue
        else:
            node = None
        known.append(step)
    return place, known


def dotted(steps: Steps) -> str:
    """The path as it is written: agents.ops.context[0]."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{shown_key(step)}" for step in steps)
    return text.removeprefix(".")


def shown_key(key: str) -> str:
    """A key fit for a message: short, on one line, and without the value that NAME=value brought into it."""
    name, _, value = key.partition("=")
    key = f"{name}={MASK}" if value else key
    printable = key if key.isprintable() else ascii(key)[1:-1]
    return printable if len(printable) <= 63 else f"{printable[:60]}..."


class _Reader:
    def __init__(self, text: str, complaints: Complaints, at: Elsewhere | None, masks: Mapping[str, str]) -> None:
        self._next = CParser(text).get_event
        self._complaints = complaints
        self._at = at
        self._masks = masks
        self._nodes = 0
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._plain: dict[str, Any] = dict(_WORDS)
        self.path: list[str | int] = []

    def document(self) -> Document:
        self._next()
        event = self._next()
        if isinstance(event, StreamEndEvent):
            return Document(None, NOWHERE)
        first = self._next()
        node = self._node(first, 0)
        self._next()
        after = self._next()
        if isinstance(after, DocumentStartEvent):
            self._fault(after.start_mark, "a second document begins here; a config is one document: remove the ---")
        return Document(node, self._at or first.start_mark)

    def _node(self, event: Any, depth: int) -> Any:
        kind = type(event)
        if kind is AliasEvent:
            return self._alias(event)
        self._nodes += 1
        before = self._nodes
        if event.tag is not None:
            self._fault(event.start_mark, "tags are not used here; remove the word that begins with !")
        if kind is ScalarEvent:
            node = self._scalar(event)
        elif depth == DEPTH:
            self._stop(event.start_mark, f"more than {DEPTH} maps and lists stand inside each other here")
        elif kind is MappingStartEvent:
            node = self._map(depth + 1)
        else:
            assert kind is SequenceStartEvent
            node = self._items(depth + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = node, self._nodes - before + 1
        return node

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if event.style:
            return self._unmasked(text) if self._masks else text
        try:
            return self._plain[text]
        except KeyError:
            value = _resolve(text)
            return self._plain.setdefault(text, self._unmasked(value) if self._masks and type(value) is str else value)

    def _unmasked(self, text: str) -> str:
        for mask, meant in self._masks.items():
            text = text.replace(mask, meant)
        return text

    def _items(self, depth: int) -> Items:
        items = Items()
        while type(event := self._next()) is not SequenceEndEvent:
            self.path.append(len(items))
            items.marks.append(self._at or event.start_mark)
            items.append(self._node(event, depth))
            self.path.pop()
        return items

    def _map(self, depth: int) -> Map:
        node = Map()
        marks = node.marks
        merges: list[tuple[Place, Any]] = []
        path = self.path
        while type(event := self._next()) is not MappingEndEvent:
            key = self._key(event, depth)
            path.append(key)
            value_event = self._next()
            value = self._node(value_event, depth)
            if key == "<<" and not event.style:
                merges.append((value_event.start_mark, value))
            elif key in marks:
                first = marks[key][0].line + 1
                self._fault(
                    event.start_mark, f"is given twice; the first is on line {first}" if not self._at else "is given twice"
                )
            elif key:
                node[key] = value
                marks[key] = (self._at, self._at) if self._at else (event.start_mark, value_event.start_mark)
            path.pop()
        for place, source in merges:
            self._merge(node, place, source)
        return node

    def _key(self, event: Any, depth: int) -> str:
        key = self._node(event, depth)
        if type(key) is str and key:
            return key
        if isinstance(key, Map | Items) or key == "":
            self._fault(event.start_mark, "a key must be a word")
        else:
            self._fault(event.start_mark, "this key does not read as text; put it in quotes")
        return ""

    def _merge(self, node: Map, place: Place, source: Any) -> None:
        for part in source if isinstance(source, Items) else [source]:
            if not isinstance(part, Map):
                self._fault(place, "<< takes a map that has an anchor, as in <<: *name, or a list of them")
                return
            for key, value in part.items():
                if key not in node:
                    node[key] = value
                    node.marks[key] = part.marks[key]

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            message = "this alias names no anchor above it; if the star is text, put the text in quotes"
            self._complaints.fault(self._at or event.start_mark, dotted(self.path), message, spoils=True)
            return None
        node, size = self._anchors[event.anchor]
        self._nodes += size
        if self._nodes > NODES:
            self._stop(event.start_mark, f"aliases make this file more than {NODES:,} values long")
        return node

    def _fault(self, place: Place, message: str) -> None:
        self._complaints.fault(self._at or place, dotted(self.path), message)

    def _stop(self, place: Place, message: str) -> None:
        self._fault(place, message)
        raise Unreadable


def _resolve(text: str) -> Any:
    """What text without quotes means: numbers by YAML 1.2, and text that is a number to others marked as such."""
    if text[0] not in "+-.0123456789":
        return text
    if _ODD.fullmatch(text):
        return Odd(text)
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text
