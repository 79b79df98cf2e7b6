"""Inserts new agents, jobs and other entries into the text of a config as whole lines, without changing any other byte.

Loading and dumping the YAML would keep comments, but not all spaces, brackets and quotes. The new text is used only if it parses
to the old data plus the new entries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import ConfigError, Diagnostics
from scheduler.config.file.marked_yaml import MarkedMap
from scheduler.config.file.yaml_errors import split_lines

Keys = Mapping[str, object]

_PLAIN = re.compile(r"[0-9]+[smhd]|(?:[A-Za-z_/]|\./|~/)[A-Za-z0-9_./@%+=:-]*(?: [A-Za-z0-9_./@%+=-]+)*")
_ENDING = re.compile(r".*[:]( .*)?")
_END_MARK = re.compile(r"\.\.\.(?!\S)")
_WORDS = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
_STEP = "  "
_BLOCKS = frozenset(("heartbeat",))  # maps with too many keys for one line
APOSTROPHE = "'"


class NoInsertionPoint(ValueError):
    """The text has no place for new entries; the message says what to write."""


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry to insert, such as a job: its name, its keys, and the comment lines above it."""

    name: str
    keys: Keys
    comment: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _InsertionPoint:
    """Where to insert: before which line, with which indentation and further indentation, and whether the section is missing."""

    line: int
    indent: str
    step: str = _STEP
    header: bool = False


@dataclass(frozen=True, slots=True)
class EditedText:
    """A text with new entries, and the data that it parses to."""

    text: str
    root: MarkedMap


def insert_entries(text: str, section: str, entries: Sequence[NewEntry]) -> EditedText:
    """Insert the entries at the end of a section, such as `cron`. Their names must be new.

    Raises UnreadableYaml for text that is not YAML, NoInsertionPoint if the section is not on lines of its own.
    """
    before = marked_yaml.parse_yaml(text, Diagnostics(""))
    root = MarkedMap() if before is None else before
    there = root.get(section) if isinstance(root, MarkedMap) else None
    if isinstance(root, MarkedMap) and isinstance(there, MarkedMap | None):
        wanted = {**root, section: {**(there or {}), **{entry.name: entry.keys for entry in entries}}}
        for place in _find_insertion_points(text, root, section):
            made = _insert_at(text, place, section, entries)
            if (found := parse_or_none(made)) == wanted:
                return EditedText(made, found)
    what = "jobs" if section == "cron" else section
    raise NoInsertionPoint(
        f"has no place to insert {what}; write `{section}:` on a line of its own, with its {what} indented below it"
    )


def render_section(section: str, entries: Sequence[NewEntry], newline: str = "\n") -> str:
    """A complete section with these entries."""
    return newline.join([f"{section}:", *_render_entries(entries, _InsertionPoint(0, _STEP))]) + newline


def render_scalar(value: object) -> str:
    """A text, number, list or map on one line. A text is quoted only where necessary, and always inside lists and maps."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{render_scalar(key)}: {_render_inner(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_render_inner, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return str(value)
    if _PLAIN.fullmatch(value) and not _ENDING.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return quote_text(value)


def _render_inner(value: object) -> str:
    return quote_text(value) if isinstance(value, str) else render_scalar(value)


def quote_text(text: str) -> str:
    """A text in quotes, on one line."""
    if text.isprintable():
        return f"'{text.replace(APOSTROPHE, APOSTROPHE * 2)}'" if '"' in text or "\\" in text else f'"{text}"'
    return '"' + "".join(_ESCAPES.get(sign) or (sign if sign.isprintable() else _escape_character(sign)) for sign in text) + '"'


def _escape_character(sign: str) -> str:
    code = ord(sign)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def _render_entries(entries: Sequence[NewEntry], place: _InsertionPoint) -> Iterator[str]:
    for entry in entries:
        yield from (f"{place.indent}# {_printable_comment(line)}".rstrip() for line in entry.comment)
        yield f"{place.indent}{render_scalar(entry.name)}:"
        yield from _render_keys(entry.keys, place.indent + place.step, place.step)


def _render_keys(keys: Keys, indent: str, step: str) -> Iterator[str]:
    for key, value in keys.items():
        if key in _BLOCKS and isinstance(value, Mapping) and value:
            yield f"{indent}{key}:"
            yield from _render_keys(value, indent + step, step)
        else:
            yield f"{indent}{key}: {quote_text(str(value)) if key == 'schedule' else render_scalar(value)}"


def _printable_comment(comment: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in comment)


def _find_insertion_points(text: str, root: MarkedMap, section: str) -> Iterator[_InsertionPoint]:
    """Possible insertion points, the best first."""
    lines = _split_text(text)
    bottom = _end_of_document(lines)
    if section not in root:
        column = min((key.column for key, _ in root.marks.values()), default=0)
        yield _InsertionPoint(bottom, " " * column, header=True)
        return
    key = root.marks[section][0]
    end = min((other.line for other, _ in root.marks.values() if other.line > key.line), default=bottom)
    indent, step = _measure_indentation(root[section], key.column)
    yield _InsertionPoint(_line_after_last_entry(lines, key.line + 1, end, len(indent)), indent, step)
    yield _InsertionPoint(end, indent, step)


def _end_of_document(lines: Sequence[str]) -> int:
    """The line after the document: the line of its end mark `...`, or the end of the text."""
    return next((number for number, line in enumerate(lines) if _END_MARK.match(line)), len(lines))


def _measure_indentation(entries: MarkedMap | None, column: int) -> tuple[str, str]:
    """The indentation of the names, and the further indentation of their keys."""
    if not entries:
        return " " * column + _STEP, _STEP
    name, (at, _) = next(iter(entries.marks.items()))
    keys = entries[name]
    if not isinstance(keys, MarkedMap) or not keys:
        return " " * at.column, _STEP
    first = next(iter(keys.marks.values()))[0]
    return " " * at.column, " " * (
        first.column - at.column
    ) if 1 < first.column - at.column < 9 and first.line > at.line else _STEP


def _line_after_last_entry(lines: Sequence[str], first: int, end: int, indent: int) -> int:
    """The line after the last line of the entries, before blank lines and less indented comments."""
    while end > first:
        line = lines[end - 1]
        outside = len(line) - len(line.lstrip(" ")) < indent
        if line.strip() and not (outside and line.lstrip(" ").startswith("#")):
            break
        end -= 1
    return end


def _insert_at(text: str, place: _InsertionPoint, section: str, entries: Sequence[NewEntry]) -> str:
    lines = _split_text(text)
    newline = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    new = [f"{line}{newline}" for line in _render_block(lines, place, section, entries)]
    head = lines[: place.line]
    if head and not head[-1].endswith(("\n", "\r")):
        head[-1] += newline
    return "".join([*head, *new, *lines[place.line :]])


def _render_block(lines: Sequence[str], place: _InsertionPoint, section: str, entries: Sequence[NewEntry]) -> list[str]:
    if not place.header:
        return list(_render_entries(entries, place))
    apart = [""] if lines and lines[-1].strip() else []
    inside = _InsertionPoint(place.line, place.indent + _STEP)
    return [*apart, f"{place.indent}{section}:", *_render_entries(entries, inside)]


def _split_text(text: str) -> list[str]:
    """The lines with their ends; none for an empty text."""
    return split_lines(text) if text else []


def parse_or_none(text: str) -> Any:
    """The data of this text; None if it is not valid."""
    diagnostics = Diagnostics("")
    try:
        found = marked_yaml.parse_yaml(text, diagnostics)
        diagnostics.raise_errors()
    except (marked_yaml.UnreadableYaml, ConfigError):
        return None
    return found
