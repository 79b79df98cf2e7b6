"""Inserts new jobs into the text of a config as whole lines, without changing any other byte.

Loading and dumping the YAML would keep comments, but not all spaces, brackets and quotes. The new text is used only if it parses
to the old data plus the new jobs.
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
APOSTROPHE = "'"


class NoInsertionPoint(ValueError):
    """The text has no place for new jobs; the message says what to write."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to insert: its name, its keys, and the comment lines above it."""

    name: str
    keys: Keys
    comment: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _InsertionPoint:
    """Where to insert: before which line, with which indentation and further indentation, and whether `cron:` is missing."""

    line: int
    indent: str
    step: str = _STEP
    header: bool = False


@dataclass(frozen=True, slots=True)
class EditedText:
    """A text with new jobs, and the data that it parses to."""

    text: str
    root: MarkedMap


def insert_jobs(text: str, entries: Sequence[NewJob]) -> EditedText:
    """Insert the jobs at the end of `cron:`. Their names must be new.

    Raises UnreadableYaml for text that is not YAML, NoInsertionPoint if `cron:` is not on lines of its own.
    """
    before = marked_yaml.parse_yaml(text, Diagnostics(""))
    root = MarkedMap() if before is None else before
    jobs = root.get("cron") if isinstance(root, MarkedMap) else None
    if isinstance(root, MarkedMap) and isinstance(jobs, MarkedMap | None):
        wanted = {**root, "cron": {**(jobs or {}), **{entry.name: entry.keys for entry in entries}}}
        for place in _find_insertion_points(text, root):
            made = _insert_at(text, place, entries)
            if (found := _parse_or_none(made)) == wanted:
                return EditedText(made, found)
    raise NoInsertionPoint("has no place to insert jobs; write `cron:` on a line of its own, with its jobs indented below it")


def render_cron_section(entries: Sequence[NewJob], newline: str = "\n") -> str:
    """A complete `cron:` section with these jobs."""
    return newline.join(["cron:", *_render_jobs(entries, _InsertionPoint(0, _STEP))]) + newline


def render_scalar(value: object) -> str:
    """A text, number or map on one line, quoted only where necessary."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{render_scalar(key)}: {_quote_text(str(inner))}" for key, inner in value.items()) + "}"
    if not isinstance(value, str):
        return str(value)
    if _PLAIN.fullmatch(value) and not _ENDING.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return _quote_text(value)


def _quote_text(text: str) -> str:
    if text.isprintable():
        return f"'{text.replace(APOSTROPHE, APOSTROPHE * 2)}'" if '"' in text or "\\" in text else f'"{text}"'
    return '"' + "".join(_ESCAPES.get(sign) or (sign if sign.isprintable() else _escape_character(sign)) for sign in text) + '"'


def _escape_character(sign: str) -> str:
    code = ord(sign)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def _render_jobs(entries: Sequence[NewJob], place: _InsertionPoint) -> Iterator[str]:
    inner = place.indent + place.step
    for entry in entries:
        yield from (f"{place.indent}# {_printable_comment(line)}".rstrip() for line in entry.comment)
        yield f"{place.indent}{render_scalar(entry.name)}:"
        for key, value in entry.keys.items():
            yield f"{inner}{key}: {_quote_text(str(value)) if key == 'schedule' else render_scalar(value)}"


def _printable_comment(comment: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in comment)


def _find_insertion_points(text: str, root: MarkedMap) -> Iterator[_InsertionPoint]:
    """Possible insertion points, the best first."""
    lines = _split_text(text)
    bottom = _end_of_document(lines)
    if "cron" not in root:
        column = min((key.column for key, _ in root.marks.values()), default=0)
        yield _InsertionPoint(bottom, " " * column, header=True)
        return
    key = root.marks["cron"][0]
    end = min((other.line for other, _ in root.marks.values() if other.line > key.line), default=bottom)
    indent, step = _measure_indentation(root["cron"], key.column)
    yield _InsertionPoint(_line_after_last_job(lines, key.line + 1, end, len(indent)), indent, step)
    yield _InsertionPoint(end, indent, step)


def _end_of_document(lines: Sequence[str]) -> int:
    """The line after the document: the line of its end mark `...`, or the end of the text."""
    return next((number for number, line in enumerate(lines) if _END_MARK.match(line)), len(lines))


def _measure_indentation(jobs: MarkedMap | None, column: int) -> tuple[str, str]:
    """The indentation of the job names, and the further indentation of their keys."""
    if not jobs:
        return " " * column + _STEP, _STEP
    name, (at, _) = next(iter(jobs.marks.items()))
    keys = jobs[name]
    if not isinstance(keys, MarkedMap) or not keys:
        return " " * at.column, _STEP
    first = next(iter(keys.marks.values()))[0]
    return " " * at.column, " " * (
        first.column - at.column
    ) if 1 < first.column - at.column < 9 and first.line > at.line else _STEP


def _line_after_last_job(lines: Sequence[str], first: int, end: int, indent: int) -> int:
    """The line after the last line of the jobs, before blank lines and less indented comments."""
    while end > first:
        line = lines[end - 1]
        outside = len(line) - len(line.lstrip(" ")) < indent
        if line.strip() and not (outside and line.lstrip(" ").startswith("#")):
            break
        end -= 1
    return end


def _insert_at(text: str, place: _InsertionPoint, entries: Sequence[NewJob]) -> str:
    lines = _split_text(text)
    newline = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    new = [f"{line}{newline}" for line in _render_block(lines, place, entries)]
    head = lines[: place.line]
    if head and not head[-1].endswith(("\n", "\r")):
        head[-1] += newline
    return "".join([*head, *new, *lines[place.line :]])


def _render_block(lines: Sequence[str], place: _InsertionPoint, entries: Sequence[NewJob]) -> list[str]:
    if not place.header:
        return list(_render_jobs(entries, place))
    apart = [""] if lines and lines[-1].strip() else []
    inside = _InsertionPoint(place.line, place.indent + _STEP)
    return [*apart, f"{place.indent}cron:", *_render_jobs(entries, inside)]


def _split_text(text: str) -> list[str]:
    """The lines with their ends; none for an empty text."""
    return split_lines(text) if text else []


def _parse_or_none(text: str) -> Any:
    diagnostics = Diagnostics("")
    try:
        found = marked_yaml.parse_yaml(text, diagnostics)
        diagnostics.raise_errors()
    except (marked_yaml.UnreadableYaml, ConfigError):
        return None
    return found
