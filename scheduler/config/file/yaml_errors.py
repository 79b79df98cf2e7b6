"""Explains YAML syntax errors, and makes the rest of the text readable."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ruamel.yaml.error import MarkedYAMLError

from scheduler.config.file.diagnostics import NO_POSITION, Position
from scheduler.config.file.remedies import InvalidValue, Remedy

LARGEST_TEXT = 2_000_000  # characters; longer texts are not parsed repeatedly to recover from errors
MISSING_COLON = ("this is not `key: value`", "put a space after the colon")
UNQUOTED_REFERENCE = 'inside brackets, ${NAME} must be in quotes: "${NAME}"; put it in quotes'
ADD_QUOTES = Remedy(quote=True, is_certain=True)

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")
_VALUE = re.compile(
    r"(?P<before>\s*(?:- +)*(?:[^\s#'\"{}\[\],:&*!|>%@`][^:#]*?:[ \t]+|- +))(?P<value>[^\s'\"{}\[\]#].*?)(?P<after>\s*|\s+#.*)"
)
_NO_PAIR = re.compile(r"\s*(?![-#'\"{\[])(?:(?!: )[^#])*[^:\s](?:\s*|\s+#.*)")
_REFERRING = re.compile(r"[^\s,{}\[\]\"']*(?:\$\{[^{}\"']*\}[^\s,{}\[\]\"']*)+")
_IN_BRACKETS = re.compile(r"(?<=[\[{,:])\s*(?P<value>[^\s,{}\[\]\"'][^,{}\[\]\"']*?)\s*(?=[,}\]])")
_BREAKS = ("\x85", "\u2028", "\u2029")  # line breaks in YAML 1.1, but not in YAML 1.2 and not in editors
_PRIVATE_CODES = range(0xE000, 0xF8FF)  # Unicode's private use area: no text means these characters


@dataclass(frozen=True, slots=True)
class Recovery:
    """How to continue after a syntax error: the error to report, and the text without it.

    `masks` replace parts of the text by as many other characters, so that all positions stay the same. Without masks, lines were
    left out.
    """

    place: Position
    wrong: InvalidValue
    text: str
    masks: dict[str, str]


def explain_yaml_error(error: Exception, text: str) -> tuple[Position, InvalidValue]:
    """The position and the explanation of an error that the YAML parser found in `text`."""
    place, message = _describe_error(error, text)
    problem, _, words = message.partition("; ")
    return place, InvalidValue(problem, advice=words)


def _describe_error(error: Exception, text: str) -> tuple[Position, str]:
    if not isinstance(error, MarkedYAMLError):
        return _describe_unprintable(text)
    problem, context = str(error.problem or ""), str(error.context or "")
    here: Any = error.problem_mark or error.context_mark or NO_POSITION
    began: Any = error.context_mark or here
    if problem.startswith("found character that cannot start"):
        return here, _describe_bad_start(text, here)
    if "scanning an alias" in context:
        return began, 'text that begins with * must be in quotes: "*/5 * * * *"'
    if problem.startswith("found unexpected ':'"):
        return here, 'a colon is not expected inside brackets; put the text in quotes: "08:00"'
    if "tab" in problem:
        return here, "a tab cannot indent; use spaces"
    if problem.startswith("found unexpected end of stream"):
        return began, "the quote that opens here is not closed"
    if problem.startswith("found unknown escape"):
        return here, r"a backslash starts an escape sequence in double quotes; use single quotes, or write \\"
    if problem.startswith("did not find expected node content"):
        return here, "a value or a closing bracket is missing here"
    if problem.startswith("did not find expected ',' or"):
        return here, f"the bracket that opens on line {began.line + 1} is not closed here"
    if problem.startswith("mapping values are not allowed"):
        return here, "a colon is not expected here: put the text in quotes, or correct the indentation"
    if problem.startswith("could not find expected ':'"):
        return began, "this is not `key: value`; put a space after the colon"
    if problem.startswith(("did not find expected key", "did not find expected '-'", "did not find expected <document start>")):
        return here, "this does not fit the lines above it; correct the indentation, or put the text in quotes"
    return here, f"this is not YAML: {problem}"


def recover_from_error(error: Exception, text: str, reads_to: Callable[[str], int]) -> Recovery | None:
    """How to continue after an error; None if impossible. `reads_to` returns the last line up to which a text parses."""
    place, wrong = explain_yaml_error(error, text)
    if not isinstance(error, MarkedYAMLError) or place.line < 0 or len(text) > LARGEST_TEXT:
        return None
    lines = split_lines(text)
    if not place.line < len(lines):
        return None
    reached = max(place.line, error.problem_mark.line if error.problem_mark else 0)
    for start, end, refers in _find_unquoted_texts(lines[place.line], place.column):
        token = lines[place.line][start:end]
        mask = unused_character(text) * len(token)
        line = lines[place.line][:start] + mask + lines[place.line][end:]
        tried = "".join([*lines[: place.line], line, *lines[place.line + 1 :]])
        if reads_to(tried) > reached:
            problem, words = (UNQUOTED_REFERENCE, "") if refers else (wrong.problem, wrong.advice)
            return Recovery(_LineColumn(place.line, start), InvalidValue(problem, ADD_QUOTES, advice=words), tried, {mask: token})
    return _skip_block(lines, place, wrong, _first_line_to_skip(error, place), reads_to)


def _skip_block(
    lines: list[str], place: Position, wrong: InvalidValue, first: int, reads_to: Callable[[str], int]
) -> Recovery | None:
    """The text without the block of the error, or without the line before, which may be its cause."""
    ways = [(first, place, wrong)]
    before = next((number for number in range(first - 1, -1, -1) if lines[number].strip()), None)
    if before is not None and _NO_PAIR.fullmatch(lines[before].rstrip("\r\n")):
        line = lines[before]
        ways.append(
            (before, _LineColumn(before, len(line) - len(line.lstrip())), InvalidValue(MISSING_COLON[0], advice=MISSING_COLON[1]))
        )
    for number, at, message in reversed(ways):
        left = _without_block(lines, number)
        if reads_to(left) > first:
            return Recovery(at, message, left, {})
    return None


def _find_unquoted_texts(line: str, column: int) -> Iterator[tuple[int, int, bool]]:
    """The parts of a line that may be unquoted text, each with whether it is a `${...}` reference inside brackets."""
    for found in _REFERRING.finditer(line):
        if found.start() <= column + 1 and column <= found.end() and not _VALUE.fullmatch(line.rstrip("\r\n")):
            yield found.start(), found.end(), True
    if value := _VALUE.fullmatch(line.rstrip("\r\n")):
        start, end = value.span("value")
        if start <= column + 1 and column <= end:
            yield start, end, False
    for found in _IN_BRACKETS.finditer(line):
        start, end = found.span("value")
        colon = _value_offset(found["value"])
        if start <= column <= end:
            yield start + colon, end, False


def _value_offset(text: str) -> int:
    """The offset of the value in `key: value`; 0 if the text is not such a pair."""
    found = re.match(r"[A-Za-z_][\w.-]*:\s+", text)
    return found.end() if found else 0


def _first_line_to_skip(error: MarkedYAMLError, place: Position) -> int:
    """The first line to leave out: the line of the unclosed bracket, else the line of the error."""
    unclosed = str(error.problem or "").startswith(("did not find expected ',' or", "did not find expected node content"))
    return error.context_mark.line if unclosed and error.context_mark else place.line


def _without_block(lines: list[str], first: int) -> str:
    """The text with one line, and the lines indented below it, emptied."""
    left = list(lines)
    indent = _measure_indent(lines[first])
    for number in range(first, len(lines)):
        if number > first and lines[number].strip() and _measure_indent(lines[number]) <= indent:
            break
        left[number] = lines[number][len(lines[number].rstrip("\r\n")) :]
    return "".join(left)


def _measure_indent(line: str) -> int:
    line = line.expandtabs()
    return len(line) - len(line.lstrip(" "))


def mask_line_breaks(text: str) -> dict[str, str]:
    """Replacements for the characters of `text` that the parser, but no editor, takes for a line break."""
    found: dict[str, str] = {}
    for sign in _BREAKS:
        if sign in text:
            found[unused_character(text + "".join(found))] = sign
    return found


def unused_character(text: str) -> str:
    """A character of the private use area that is not in the text."""
    return next(chr(code) for code in _PRIVATE_CODES if chr(code) not in text)


def _describe_bad_start(text: str, place: Position) -> str:
    line = split_lines(text)[place.line]
    found = line[place.column : place.column + 1]
    if found == "\t":
        return "a tab cannot indent; use spaces"
    return f"text that begins with {found or 'this character'} must be in quotes" + (': "@reboot"' if found == "@" else "")


def _describe_unprintable(text: str) -> tuple[Position, str]:
    found = _UNPRINTABLE.search(text)
    start = found.start() if found else 0
    problem = f"the character U+{ord(text[start]):04X} is not allowed in a config" if text else "the file is empty"
    return position_after(text[:start]), problem


@dataclass(frozen=True, slots=True)
class _LineColumn:
    line: int
    column: int


def split_lines(text: str) -> list[str]:
    """The lines with their line ends, as YAML 1.2 and editors count them."""
    return [found for found in _LINE.findall(text) if found] or [""]


def position_after(text: str) -> Position:
    """The position just after `text`."""
    lines = split_lines(text + "?")
    return _LineColumn(len(lines) - 1, len(lines[-1]) - 1)
