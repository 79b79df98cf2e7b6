"""Parses JSON and JSON5 with line numbers, and keeps the part before an error.

The json module reports no lines and loses everything at the first error. JSON5 adds comments, trailing commas, unquoted keys,
single quotes, hexadecimal numbers and numbers such as .5 (the specification at json5.org, version 1.0.0).

No library does both. json5 and pyjson5 give no lines of values. json-five (1.1.2) has lines in its model, but nothing is left of
a file with an error, and 100 KB take 1.2 s instead of 0.06 s.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

_SPACE = re.compile(r"(?:[\s\ufeff]+|//[^\n\r]*|/\*.*?\*/)*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_$\u0080-\U0010ffff][\w$\u200c\u200d-]*")
_NUMBER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|Infinity|NaN|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])")
_TEXT = {quote: re.compile(rf"{quote}((?:[^{quote}\\\n\r]|\\(?:\r\n|.))*){quote}", re.DOTALL) for quote in "\"'"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|\r\n|.)", re.DOTALL)
_MEANINGS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "\n": "", "\r\n": "", "\r": ""}
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "Infinity": float("inf"), "NaN": float("nan")}
LONGEST_NUMBER = 40  # characters; longer numbers are no settings, and converting them takes time

Errors = list[tuple[int, str]]


Steps = tuple[str | int, ...]


def read_json5(text: str, max_depth: int, max_lines: int) -> tuple[object, dict[Steps, int], Errors]:
    """The value, the lines of the first `max_lines` values below it by their steps, and errors as (line, message).

    After an error, the value has all that was complete before it.
    """
    reader = _Reader(text, max_depth, max_lines)
    found: list[object] = []
    try:
        reader.skip_space()
        reader.read_value(found, 0, ())
        reader.skip_space()
        if reader.at < len(text):
            reader.fail("unexpected text after the end of the value")
    except _BrokenJson as error:
        reader.errors.append((reader.line(), f"{error}; the rest of the file was left out"))
    return found[0] if found else {}, reader.lines, reader.errors


class _BrokenJson(Exception):
    """The text is not JSON5 at the position of the reader."""


class _Reader:
    def __init__(self, text: str, max_depth: int, max_lines: int) -> None:
        self.text = text
        self.at = 0
        self.errors: Errors = []
        self.lines: dict[Steps, int] = {}
        self._max_depth = max_depth
        self._max_lines = max_lines  # the steps of two million deep values would take a gigabyte
        self._line = 1
        self._counted = 0

    def fail(self, message: str) -> NoReturn:
        raise _BrokenJson(message)

    def line(self) -> int:
        """The line at the current position, from 1."""
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line

    def skip_space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def read_value(self, into: Any, step: str | int, steps: Steps) -> None:
        """Read a value into a map or list. A container is there before it is read, so that an error keeps its first part."""
        sign = self._next()
        if sign in ("{", "["):
            if len(steps) >= self._max_depth:
                self.fail(f"is nested more than {self._max_depth} deep")
            made: dict[str, object] | list[object] = {} if sign == "{" else []
            _put(into, step, made)
            self._fill(made, steps)
        elif sign in ('"', "'"):
            _put(into, step, self._read_text())
        elif number := _NUMBER.match(self.text, self.at):
            self.at = number.end()
            _put(into, step, _to_number(number[0]))
        elif (word := _WORD.match(self.text, self.at)) and word[0] in _WORDS:
            self.at = word.end()
            _put(into, step, _WORDS[word[0]])
        else:
            self.fail("a value was expected here" if sign else "the file ends here")

    def _fill(self, made: dict[str, object] | list[object], steps: Steps) -> None:
        """Read the children of a map or a list."""
        end = "}" if isinstance(made, dict) else "]"
        self.at += 1
        self.skip_space()
        while self._next() != end:
            line = self.line()
            step = self._read_key() if isinstance(made, dict) else len(made)
            if isinstance(made, dict) and step in made:
                self.errors.append((line, f"the key {step} is given twice; the last one counts"))
            if len(self.lines) < self._max_lines:
                self.lines[*steps, step] = line
            self.read_value(made, step, (*steps, step))
            self.skip_space()
            if self._next() != end:
                self._expect(",", f"a comma or {end} was expected here")
        self.at += 1

    def _read_key(self) -> str:
        """A key, with the colon after it."""
        sign = self._next()
        if sign in ('"', "'"):
            key = self._read_text()
        elif word := _WORD.match(self.text, self.at):
            key, self.at = word[0], word.end()
        else:
            self.fail("a key was expected here" if sign else "the file ends here")
        self.skip_space()
        self._expect(":", "a colon was expected after the key")
        return key

    def _read_text(self) -> str:
        found = _TEXT[self._next()].match(self.text, self.at)
        if found is None:
            self.fail("a text begins here and does not end on its line")
        self.at = found.end()
        text = _ESCAPE.sub(_unescape, found[1])
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins pairs such as \\ud83d\\ude00

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _expect(self, sign: str, message: str) -> None:
        """Read this sign, and the space after it."""
        if self._next() != sign:
            self.fail("the file ends here" if self.at >= len(self.text) else message)
        self.at += 1
        self.skip_space()


def _put(into: Any, step: str | int, value: object) -> None:
    if isinstance(into, list):
        into.append(value)
    else:
        into[step] = value


def _unescape(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) > 1 and code[0] in "ux":
        return chr(int(code[1:], 16))
    return _MEANINGS.get(code, code)


def _to_number(text: str) -> object:
    plain = text.lower().lstrip("+-")
    if len(text) > LONGEST_NUMBER:
        return text
    if plain.startswith("0x"):
        value: int | float = int(plain, 16)
    elif plain in ("infinity", "nan"):
        value = float(plain.replace("infinity", "inf"))
    else:
        value = int(plain) if plain.isdigit() else float(plain)
    return -value if text.startswith("-") else value
