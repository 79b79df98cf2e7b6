"""Parses JSON and JSON5 with line numbers, and keeps the part before an error.

The json module reports no lines and loses everything at the first error. JSON5 adds comments, trailing commas, unquoted keys,
single quotes, hexadecimal numbers and numbers such as .5 (the specification at json5.org, version 1.0.0).

No library does both. json5 and pyjson5 give no lines of values. json-five (1.1.2) has lines in its model, but nothing is left of
a file with an error, and 100 KB take 1.2 s instead of 0.06 s.
"""

from __future__ import annotations

import re

from scheduler.config.file.marked_yaml import MarkedList, MarkedMap

_SPACE = re.compile(r"(?:[\s\ufeff]+|//[^\n\r]*|/\*.*?\*/)*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_$\u0080-\U0010ffff][\w$\u200c\u200d-]*")
_NUMBER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|Infinity|NaN|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])")
_TEXT = {quote: re.compile(rf"{quote}((?:[^{quote}\\\n\r]|\\(?:\r\n|.))*){quote}", re.DOTALL) for quote in "\"'"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|\r\n|.)", re.DOTALL)
_MEANINGS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "\n": "", "\r\n": "", "\r": ""}
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "Infinity": float("inf"), "NaN": float("nan")}
LONGEST_NUMBER = 40  # characters; longer numbers are no settings, and converting them takes time

Errors = list[tuple[int, str]]


def read_json5(text: str, max_depth: int) -> tuple[object, Errors]:
    """The value, and errors as (line, message). After an error, the value has all that was complete before it."""
    reader = _Reader(text, max_depth)
    try:
        reader.skip_space()
        reader.found = reader.read_value(0, at_top=True)
        reader.skip_space()
        if reader.at < len(text):
            reader.fail("unexpected text after the end of the value")
    except _BrokenJson as error:
        reader.errors.append((error.line, f"{error.message}; the rest of the file was left out"))
    return reader.found, reader.errors


class _BrokenJson(Exception):
    def __init__(self, line: int, message: str) -> None:
        self.line = line
        self.message = message
        super().__init__(message)


class _Place:
    """A position as the YAML parser counts it."""

    __slots__ = ("column", "line")

    def __init__(self, line: int) -> None:
        self.line = line
        self.column = 0


class _Reader:
    def __init__(self, text: str, max_depth: int) -> None:
        self.text = text
        self.at = 0
        self.found: object = MarkedMap()
        self.errors: Errors = []
        self._max_depth = max_depth
        self._line = 0
        self._counted = 0

    def fail(self, message: str) -> None:
        raise _BrokenJson(self.line() + 1, message)

    def line(self) -> int:
        """The line at the current position, from 0."""
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line

    def skip_space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def read_value(self, depth: int, *, at_top: bool = False) -> object:
        sign = self.text[self.at : self.at + 1]
        if sign in ("{", "[") and depth >= self._max_depth:
            self.fail(f"is nested more than {self._max_depth} deep")
        if sign == "{":
            made = MarkedMap()
            self.found = made if at_top else self.found
            self._read_map(made, depth)
            return made
        if sign == "[":
            items = MarkedList()
            self.found = items if at_top else self.found
            self._read_list(items, depth)
            return items
        if sign in ('"', "'"):
            return self._read_text()
        if number := _NUMBER.match(self.text, self.at):
            self.at = number.end()
            return _to_number(number[0])
        if (word := _WORD.match(self.text, self.at)) and word[0] in _WORDS:
            self.at = word.end()
            return _WORDS[word[0]]
        self.fail("the file ends here" if not sign else "a value was expected here")
        return None

    def _read_map(self, made: MarkedMap, depth: int) -> None:
        self.at += 1
        self.skip_space()
        while self.text[self.at : self.at + 1] != "}":
            place = _Place(self.line())
            key = self._read_key()
            self.skip_space()
            self._expect(":", "a colon was expected after the key")
            self.skip_space()
            if key in made:
                self.errors.append((place.line + 1, f"the key {key} is given twice; the last one counts"))
            self._read_into(made, key, place, depth)
            self.skip_space()
            if self.text[self.at : self.at + 1] != "}":
                self._expect(",", "a comma or } was expected here")
                self.skip_space()
        self.at += 1

    def _read_list(self, items: MarkedList, depth: int) -> None:
        self.at += 1
        self.skip_space()
        while self.text[self.at : self.at + 1] != "]":
            place = _Place(self.line())
            self._read_into(items, len(items), place, depth)
            self.skip_space()
            if self.text[self.at : self.at + 1] != "]":
                self._expect(",", "a comma or ] was expected here")
                self.skip_space()
        self.at += 1

    def _read_into(self, made: MarkedMap | MarkedList, step: str | int, place: _Place, depth: int) -> None:
        """Read a value into its container. A container is put there before it is read, so that an error keeps its first part."""
        outer, self.found = self.found, None
        try:
            value = self.read_value(depth + 1, at_top=True)
        except _BrokenJson:
            value, self.found = self.found, outer
            if value is not None:
                _put(made, step, value, place)
            raise
        self.found = outer
        _put(made, step, value, place)

    def _read_key(self) -> str:
        sign = self.text[self.at : self.at + 1]
        if sign in ('"', "'"):
            return self._read_text()
        word = _WORD.match(self.text, self.at)
        if word is None:
            self.fail("the file ends here" if not sign else "a key was expected here")
            return ""
        self.at = word.end()
        return word[0]

    def _read_text(self) -> str:
        found = _TEXT[self.text[self.at]].match(self.text, self.at)
        if found is None:
            self.fail("a text begins here and does not end on its line")
            return ""
        self.at = found.end()
        text = _ESCAPE.sub(_unescape, found[1])
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins pairs such as \\ud83d\\ude00

    def _expect(self, sign: str, message: str) -> None:
        if self.text[self.at : self.at + 1] != sign:
            self.fail("the file ends here" if self.at >= len(self.text) else message)
        self.at += 1


def _put(made: MarkedMap | MarkedList, step: str | int, value: object, place: _Place) -> None:
    if isinstance(made, MarkedMap):
        made[str(step)] = value
        made.marks[str(step)] = (place, place)
    else:
        made.append(value)
        made.marks.append(place)


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
