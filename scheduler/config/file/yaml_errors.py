"""Explains YAML syntax errors: their position, what is wrong, and what to write."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ruamel.yaml.error import MarkedYAMLError

from scheduler.config.file.diagnostics import NO_POSITION, Position

MISSING_COLON = "this is not `key: value`; put a space after the colon"

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")
_NO_PAIR = re.compile(r"\s*(?![-#'\"{\[])(?:(?!: )[^#])*[^:\s](?:\s*|\s+#.*)")
_BREAKS = ("\x85", "\u2028", "\u2029")  # line breaks in YAML 1.1, but not in YAML 1.2 and not in editors
_PRIVATE_CODES = range(0xE000, 0xF8FF)  # Unicode's private use area: no text means these characters


_OPENED = (  # what is wrong where a quote or bracket began, by the beginning of the parser's problem
    ("found unexpected ':'", 'a colon is not expected inside brackets; put the text in quotes, like "08:00" or "127.0.0.1:8080"'),
    ("found unexpected end of stream", "the quote that opens here is not closed"),
    ("could not find expected ':'", MISSING_COLON),
)
_MISFIT = "this does not fit the lines above it; correct the indentation, or put the text in quotes"
_HERE = (  # what is wrong where the parser stopped
    ("found unknown escape", r"a backslash starts an escape sequence in double quotes; use single quotes, or write \\"),
    ("did not find expected node content", "a value or a closing bracket is missing here"),
    ("mapping values are not allowed", "a colon is not expected here: put the text in quotes, or correct the indentation"),
    ("did not find expected key", _MISFIT),
    ("did not find expected '-'", _MISFIT),
    ("did not find expected <document start>", _MISFIT),
)


def explain_yaml_error(error: Exception, text: str) -> tuple[Position, str]:
    """The position and the explanation of an error that the YAML parser found in `text`."""
    if not isinstance(error, MarkedYAMLError):
        return _describe_unprintable(text)
    problem, context = str(error.problem or ""), str(error.context or "")
    here: Position = error.problem_mark or error.context_mark or NO_POSITION
    began: Position = error.context_mark or here
    if problem.startswith("found character that cannot start"):
        return here, _describe_bad_start(text, here)
    if "scanning an alias" in context:
        return began, 'text that begins with * must be in quotes: "*/5 * * * *"'
    if "tab" in problem:
        return here, "a tab cannot indent; use spaces"
    if problem.startswith("did not find expected ',' or"):
        if "".join(split_lines(text)[here.line : here.line + 1])[: here.column].endswith("$"):
            return _LineColumn(here.line, here.column - 1), 'inside brackets, a reference must be in quotes: "${NAME}"'
        return here, f"the bracket that opens on line {began.line + 1} is not closed here"
    if problem.startswith("mapping values are not allowed") and (before := _line_without_colon(text, here)) is not None:
        return before, MISSING_COLON
    for place, explanations in ((began, _OPENED), (here, _HERE)):
        for beginning, explanation in explanations:
            if problem.startswith(beginning):
                return place, explanation
    return here, f"this is not YAML: {problem}"


def _line_without_colon(text: str, place: Position) -> Position | None:
    """The line before a `key: value`, if it is text without a colon. The parser takes both lines for one text."""
    lines = split_lines(text)
    before = next((number for number in range(place.line - 1, -1, -1) if lines[number].strip()), None)
    if before is None or ": " in lines[place.line][: place.column] or not _NO_PAIR.fullmatch(lines[before].rstrip("\r\n")):
        return None
    return _LineColumn(before, len(lines[before]) - len(lines[before].lstrip()))


def mask_line_breaks(text: str) -> tuple[str, dict[str, str]]:
    """The text without the characters that the parser, but no editor, takes for a line break, and what its masks stand for."""
    masks: dict[str, str] = {}
    for sign in _BREAKS:
        if sign in text:
            mask = unused_character(text)
            masks[mask] = sign
            text = text.replace(sign, mask)
    return text, masks


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
