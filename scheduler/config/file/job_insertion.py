"""New jobs in the text of a config: whole lines between others, and not a byte of the others changed.

A round trip through objects would keep comments too, but not every blank, bracket and quote. Where lines would not read as
what they are meant to be, together with all that was there, none are put in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import Complaints, ConfigError
from scheduler.config.file.marked_yaml import Map
from scheduler.config.file.yaml_errors import lines_of

Keys = Mapping[str, object]

_PLAIN = re.compile(r"[0-9]+[smhd]|(?:[A-Za-z_/]|\./|~/)[A-Za-z0-9_./@%+=:-]*(?: [A-Za-z0-9_./@%+=-]+)*")
_ENDING = re.compile(r".*[:]( .*)?")
_END_MARK = re.compile(r"\.\.\.(?!\S)")
_WORDS = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
_STEP = "  "
APOSTROPHE = "'"


class NoRoom(ValueError):
    """The text has no place for new lines; says what to do about it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A job to write: its name, its keys, and lines of comment above it."""

    name: str
    keys: Keys
    comment: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Place:
    """Before which line, with which indentation and which step inside, and whether `cron:` is still to be written."""

    line: int
    indent: str
    step: str = _STEP
    header: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """A text with new jobs, and what it reads as."""

    text: str
    root: Map


def insert(text: str, entries: Sequence[Entry]) -> Made:
    """The text with these jobs at the end of its `cron:`. Their names must be new.

    Raises tree.Unreadable for text that is no YAML, NoRoom where `cron:` does not stand in lines of its own.
    """
    before = marked_yaml.read(text, Complaints(""))
    root = Map() if before is None else before
    jobs = root.get("cron") if isinstance(root, Map) else None
    if isinstance(root, Map) and isinstance(jobs, Map | None):
        wanted = {**root, "cron": {**(jobs or {}), **{entry.name: entry.keys for entry in entries}}}
        for place in _places(text, root):
            made = _at(text, place, entries)
            if (found := _read(made)) == wanted:
                return Made(made, found)
    raise NoRoom("has no lines to put jobs between; write `cron:` on a line of its own, with its jobs indented below it")


def section(entries: Sequence[Entry], newline: str = "\n") -> str:
    """A `cron:` of its own."""
    return newline.join(["cron:", *_lines(entries, _Place(0, _STEP))]) + newline


def scalar(value: object) -> str:
    """A text, number, list or map on one line, in as few quotes as it can do with."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(key)}: {_quoted(str(inner))}" for key, inner in value.items()) + "}"
    if not isinstance(value, str):
        return str(value)
    if _PLAIN.fullmatch(value) and not _ENDING.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return _quoted(value)


def _quoted(text: str) -> str:
    if text.isprintable():
        return f"'{text.replace(APOSTROPHE, APOSTROPHE * 2)}'" if '"' in text or "\\" in text else f'"{text}"'
    return '"' + "".join(_ESCAPES.get(sign) or (sign if sign.isprintable() else _escape(sign)) for sign in text) + '"'


def _escape(sign: str) -> str:
    code = ord(sign)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def _lines(entries: Sequence[Entry], place: _Place) -> Iterator[str]:
    inner = place.indent + place.step
    for entry in entries:
        yield from (f"{place.indent}# {_shown(line)}".rstrip() for line in entry.comment)
        yield f"{place.indent}{scalar(entry.name)}:"
        for key, value in entry.keys.items():
            yield f"{inner}{key}: {_quoted(str(value)) if key == 'schedule' else scalar(value)}"


def _shown(comment: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in comment)


def _places(text: str, root: Map) -> Iterator[_Place]:
    """Where the jobs might go, the best first."""
    lines = _split(text)
    bottom = _bottom(lines)
    if "cron" not in root:
        column = min((key.column for key, _ in root.marks.values()), default=0)
        yield _Place(bottom, " " * column, header=True)
        return
    key = root.marks["cron"][0]
    end = min((other.line for other, _ in root.marks.values() if other.line > key.line), default=bottom)
    indent, step = _indentation(root["cron"], key.column)
    yield _Place(_after_the_last(lines, key.line + 1, end, len(indent)), indent, step)
    yield _Place(end, indent, step)


def _bottom(lines: Sequence[str]) -> int:
    """The line before which the document ends: that of its mark, or the end of the text."""
    return next((number for number, line in enumerate(lines) if _END_MARK.match(line)), len(lines))


def _indentation(jobs: Map | None, column: int) -> tuple[str, str]:
    """How far the names of jobs stand in, and how much further their keys."""
    if not jobs:
        return " " * column + _STEP, _STEP
    name, (at, _) = next(iter(jobs.marks.items()))
    keys = jobs[name]
    if not isinstance(keys, Map) or not keys:
        return " " * at.column, _STEP
    first = next(iter(keys.marks.values()))[0]
    return " " * at.column, " " * (
        first.column - at.column
    ) if 1 < first.column - at.column < 9 and first.line > at.line else _STEP


def _after_the_last(lines: Sequence[str], first: int, end: int, indent: int) -> int:
    """Behind the last line that belongs to the jobs: what follows are blank lines, and comments that stand further out."""
    while end > first:
        line = lines[end - 1]
        outside = len(line) - len(line.lstrip(" ")) < indent
        if line.strip() and not (outside and line.lstrip(" ").startswith("#")):
            break
        end -= 1
    return end


def _at(text: str, place: _Place, entries: Sequence[Entry]) -> str:
    lines = _split(text)
    newline = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    new = [f"{line}{newline}" for line in _block(lines, place, entries)]
    head = lines[: place.line]
    if head and not head[-1].endswith(("\n", "\r")):
        head[-1] += newline
    return "".join([*head, *new, *lines[place.line :]])


def _block(lines: Sequence[str], place: _Place, entries: Sequence[Entry]) -> list[str]:
    if not place.header:
        return list(_lines(entries, place))
    apart = [""] if lines and lines[-1].strip() else []
    inside = _Place(place.line, place.indent + _STEP)
    return [*apart, f"{place.indent}cron:", *_lines(entries, inside)]


def _split(text: str) -> list[str]:
    """Lines as YAML counts them, with their ends."""
    return lines_of(text) if text else []


def _read(text: str) -> Any:
    complaints = Complaints("")
    try:
        found = marked_yaml.read(text, complaints)
        complaints.raise_if_any()
    except (marked_yaml.Unreadable, ConfigError):
        return None
    return found
