"""Parses YAML into plain data in which every key and value has its source position.

It is built from the events of the C parser. The round-trip objects of the same library take ten times as long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from heartbeatd.secret import MASK
from scheduler.config.file import yaml_errors
from scheduler.config.file.diagnostics import NO_POSITION, Diagnostics, ExternalPosition, Position

MAX_DEPTH = 64  # levels of nested maps and lists; a config needs eight
MAX_NODES = 5_000_000  # values with every alias expanded; 100,000 agents that share twenty keys have half as many

Steps = Sequence[str | int]

_AMBIGUOUS_NUMBER = re.compile(
    r"[-+]?(0[0-9_]+|0x[0-9a-fA-F_]+|0[ob][0-7_]+|[0-9][0-9_]*_[0-9_]*|[0-9][0-9_]*(:[0-5]?[0-9])+|[0-9]{19,})"
)
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_KEYWORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class MarkedMap(dict[str, Any]):
    """A map; `marks` are the positions of each key and its value."""

    __slots__ = ("marks",)

    def __init__(self, items: dict[str, object] | None = None, marks: dict[str, tuple[Position, Position]] | None = None) -> None:
        super().__init__(items or {})
        self.marks = marks or {}


class MarkedList(list[Any]):
    """A list; `marks` are the positions of its items."""

    __slots__ = ("marks",)

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[Position] = []


class AmbiguousText(str):
    """Unquoted text that other YAML parsers read as a number: 22:00, 022, 1_000."""

    __slots__ = ()


class UnreadableYaml(Exception):
    """The text has no usable data. The errors are in the diagnostics already."""


@dataclass(frozen=True, slots=True)
class MarkedDocument:
    """The data of a text, MarkedMap, MarkedList, str, int, float, bool or None, and its position."""

    node: object
    position: Position


def parse_yaml(text: str, diagnostics: Diagnostics, at: ExternalPosition | None = None) -> object:
    """The data of the single document in `text`; otherwise as `parse_document`."""
    return parse_document(text, diagnostics, at).node


def parse_document(text: str, diagnostics: Diagnostics, at: ExternalPosition | None = None) -> MarkedDocument:
    """The single document in `text`.

    Errors are added to `diagnostics`. An error of syntax, depth or size stops the parsing and raises UnreadableYaml. `at` is the
    position of all values, for text that is not in the file.
    """
    masked, masks = yaml_errors.mask_line_breaks(text)
    reader = _YamlReader(masked, diagnostics, at, masks)
    try:
        return reader.read_document()
    except (YAMLError, UnicodeEncodeError) as error:
        place, wrong = yaml_errors.explain_yaml_error(error, text)
        diagnostics.add_error(at or place, dotted_path(reader.path), wrong)
        raise UnreadableYaml from None


def locate_value(node: object, steps: Steps, place: Position, *, tagged: bool = True) -> tuple[Position, list[str | int]]:
    """The position of the value at `steps`, and the steps that exist in the file; `place` is the position of `node`.

    Steps that the file does not have are left out: the tag of a union, or the index of a single item written without a list.
    A missing last step is kept, at the position of the map that lacks it; if not `tagged`, all missing steps are kept.
    """
    known: list[str | int] = []
    for index, step in enumerate(steps):
        if isinstance(node, MarkedMap) and step in node:
            key_at, value_at = node.marks[str(step)]
            place = key_at if isinstance(node[str(step)], MarkedMap) else value_at
            node = node[str(step)]
        elif isinstance(node, MarkedList) and isinstance(step, int):
            place, node = node.marks[step], node[step]
        elif isinstance(step, int) or (tagged and index < len(steps) - 1) or not isinstance(node, MarkedMap | None):
            continue
        else:
            node = None
        known.append(step)
    return place, known


def value_at(node: object, steps: Steps) -> object:
    """The value at these keys and indexes; None if there is none."""
    for step in steps:
        if isinstance(node, list):
            node = node[int(step)] if str(step).isdecimal() and int(step) < len(node) else None
        else:
            node = node.get(step) if isinstance(node, Mapping) else None
    return node


def texts_in(node: object, steps: tuple[str, ...] = (), seen: set[int] | None = None) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text in the data, with the keys on the way to it. With `seen`, what aliases share is visited once."""
    if isinstance(node, dict):
        if seen is not None and id(node) in seen:
            return
        if seen is not None:
            seen.add(id(node))
        for key, value in node.items():
            yield from texts_in(value, (*steps, str(key)), seen)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from texts_in(value, steps, seen)
    elif isinstance(node, str):
        yield steps, node


def dotted_path(steps: Steps) -> str:
    """The path as messages show it: agents.ops.context[0]."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{printable_key(step)}" for step in steps)
    return text.removeprefix(".")


def printable_key(key: str) -> str:
    """A key as messages may show it: short, on one line, and without a value that may be a secret (NAME=value)."""
    name, _, value = key.partition("=")
    key = f"{name}={MASK}" if value else key
    printable = key if key.isprintable() else ascii(key)[1:-1]
    return printable if len(printable) <= 63 else f"{printable[:60]}..."


class _YamlReader:
    def __init__(self, text: str, diagnostics: Diagnostics, at: ExternalPosition | None, masks: Mapping[str, str]) -> None:
        self._next = YAML(typ="safe").parse(text).__next__  # by the C parser, if that is installed
        self._complaints = diagnostics
        self._at = at
        self._masks = masks
        self._nodes = 0
        self._anchors: dict[str, tuple[object, int]] = {}
        self._plain: dict[str, object] = dict(_KEYWORDS)
        self.path: list[str | int] = []

    def read_document(self) -> MarkedDocument:
        self._next()
        event = self._next()
        if isinstance(event, StreamEndEvent):
            return MarkedDocument(None, NO_POSITION)
        first = self._next()
        node = self._read_node(first, 0)
        self._next()
        after = self._next()
        if isinstance(after, DocumentStartEvent):
            self._add_error(after.start_mark, "a second document begins here; a config is one document: remove the ---")
        return MarkedDocument(node, self._at or first.start_mark)

    def _read_node(self, event: Any, depth: int) -> object:
        kind = type(event)
        if kind is AliasEvent:
            return self._resolve_alias(event)
        self._nodes += 1
        if kind is ScalarEvent and event.tag is None and event.anchor is None:  # as nearly all events
            return self._read_scalar(event)
        before = self._nodes
        if event.tag is not None:
            self._add_error(event.start_mark, "YAML tags are not supported; remove the word that begins with !")
        if kind is ScalarEvent:
            node = self._read_scalar(event)
        elif depth == MAX_DEPTH:
            self._abort_reading(event.start_mark, f"maps and lists are nested more than {MAX_DEPTH} deep here")
        elif kind is MappingStartEvent:
            node = self._read_map(depth + 1)
        else:
            assert kind is SequenceStartEvent
            node = self._read_list(depth + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = node, self._nodes - before + 1
        return node

    def _read_scalar(self, event: ScalarEvent) -> object:
        text: str = event.value
        if event.style:
            return self._remove_masks(text) if self._masks else text
        try:
            return self._plain[text]
        except KeyError:
            value = _parse_plain_scalar(text)
            return self._plain.setdefault(text, self._remove_masks(value) if self._masks and type(value) is str else value)

    def _remove_masks(self, text: str) -> str:
        for mask, meant in self._masks.items():
            text = text.replace(mask, meant)
        return text

    def _read_list(self, depth: int) -> MarkedList:
        items = MarkedList()
        while type(event := self._next()) is not SequenceEndEvent:
            self.path.append(len(items))
            items.marks.append(self._at or event.start_mark)
            items.append(self._read_node(event, depth))
            self.path.pop()
        return items

    def _read_map(self, depth: int) -> MarkedMap:
        node = MarkedMap()
        marks = node.marks
        merges: list[tuple[Position, object]] = []
        path = self.path
        while type(event := self._next()) is not MappingEndEvent:
            key = self._read_key(event, depth)
            path.append(key)
            value_event = self._next()
            value = self._read_node(value_event, depth)
            if key == "<<" and not event.style:
                merges.append((value_event.start_mark, value))
            elif key in marks:
                first = marks[key][0].line + 1
                self._add_error(
                    event.start_mark, f"is given twice; the first is on line {first}" if not self._at else "is given twice"
                )
            elif key:
                node[key] = value
                marks[key] = (self._at, self._at) if self._at else (event.start_mark, value_event.start_mark)
            path.pop()
        for place, source in merges:
            self._merge_into(node, place, source)
        return node

    def _read_key(self, event: NodeEvent, depth: int) -> str:
        key = self._read_node(event, depth)
        if type(key) is str and key:
            return key
        if isinstance(key, MarkedMap | MarkedList) or key == "":
            self._add_error(event.start_mark, "a key must be a word")
        else:
            self._add_error(event.start_mark, "this key is not read as text; put it in quotes")
        return ""

    def _merge_into(self, node: MarkedMap, place: Position, source: object) -> None:
        for part in source if isinstance(source, MarkedList) else [source]:
            if not isinstance(part, MarkedMap):
                self._add_error(place, "<< takes a map that has an anchor, as in <<: *name, or a list of them")
                return
            for key, value in part.items():
                if key not in node:
                    node[key] = value
                    node.marks[key] = part.marks[key]

    def _resolve_alias(self, event: AliasEvent) -> object:
        if event.anchor not in self._anchors:
            message = "no anchor above has the name of this alias; if the star is text, put the text in quotes"
            self._abort_reading(event.start_mark, message)
        node, size = self._anchors[event.anchor]
        self._nodes += size
        if self._nodes > MAX_NODES:
            self._abort_reading(event.start_mark, f"aliases make this file more than {MAX_NODES:,} values long")
        return node

    def _add_error(self, place: Position, message: str) -> None:
        self._complaints.add_error(self._at or place, dotted_path(self.path), message)

    def _abort_reading(self, place: Position, message: str) -> NoReturn:
        self._add_error(place, message)
        raise UnreadableYaml


def _parse_plain_scalar(text: str) -> object:
    """The value of unquoted text by YAML 1.2; text that other parsers read as a number is marked as AmbiguousText."""
    if text[0] not in "+-.0123456789":
        return text
    if _AMBIGUOUS_NUMBER.fullmatch(text):
        return AmbiguousText(text)
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text
