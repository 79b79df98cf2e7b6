"""Collects the errors and warnings of a config, each with its source position and its suggestions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from heartbeatd.state_folder import OVERRIDE_PREFIX

_ENTRY = re.compile(r"^(agents|cron)\.[^.]+")
_DEFAULTS = {"agents": "defaults", "cron": "defaults.cron"}

_DiagnosticKey = tuple[int, int, str]


class Position(Protocol):
    """A position in the file as the YAML parser counts it: line and column from 0."""

    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ExternalPosition:
    """The position of a value that is not in the file; `variable` is the environment variable that it comes from, if any."""

    variable: str = ""
    line: int = -1
    column: int = -1


NO_POSITION = ExternalPosition()


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One error or warning. `line` and `column` count from 1; both are 0 if it is about no line of the file."""

    line: int
    column: int
    path: str
    message: str
    source: str = "config.yaml"

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        return ": ".join(part for part in (place, self.path, self.message) if part)

    def as_json(self) -> dict[str, object]:
        """The diagnostic for `check --format json`."""
        return {"line": self.line, "column": self.column, "path": self.path, "message": self.message}


class ConfigError(Exception):
    """A config was rejected. The text has one line for each error, in the order of the file."""

    def __init__(self, errors: Iterable[Diagnostic], warnings: Iterable[Diagnostic] = ()) -> None:
        self.errors = tuple(errors)
        self.warnings = tuple(warnings)
        super().__init__("\n".join(map(str, self.errors)))


class Diagnostics:
    """Collects errors and warnings while a file is read.

    The same message is kept once per position, so an error in a default is one error, however many entries inherit it.
    `default_paths` are the paths of values under `defaults` by position: messages name these, not the path of an entry.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._errors: dict[_DiagnosticKey, Diagnostic] = {}
        self._warnings: dict[_DiagnosticKey, Diagnostic] = {}
        self.default_paths: Mapping[tuple[int, int], str] = {}

    def add_error(self, place: Position, path: str, message: str, *, missing: str = "") -> None:
        """Add an error; `missing` is the key that is missing at this position, if the error is about one."""
        self._add_diagnostic(self._errors, place, path, message, missing)

    def add_warning(self, place: Position, path: str, message: str) -> None:
        self._add_diagnostic(self._warnings, place, path, message)

    @property
    def has_errors(self) -> bool:
        """Whether there is an error."""
        return bool(self._errors)

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return _sort_by_position(self._errors)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        return _sort_by_position(self._warnings)

    def raise_errors(self) -> None:
        """Raise ConfigError if there is an error."""
        if self._errors:
            raise ConfigError(self.errors, self.warnings)

    def _add_diagnostic(
        self, notes: dict[_DiagnosticKey, Diagnostic], place: Position, path: str, message: str, missing: str = ""
    ) -> None:
        if isinstance(place, ExternalPosition):
            if place.variable.startswith(f"{OVERRIDE_PREFIX}defaults"):  # all values of a variable have one position
                path = _ENTRY.sub(lambda found: _DEFAULTS[found[1]], path, count=1)
            message = f"{message} ({place.variable})" if place.variable else message
            notes.setdefault((0, 0, path + message), Diagnostic(0, 0, path, message, self._source))
            return
        home = self.default_paths.get((place.line, place.column), path)
        path = home if home == path or not missing else f"{home}.{missing}"
        key = (place.line, place.column, message)
        notes.setdefault(key, Diagnostic(place.line + 1, place.column + 1, path, message, self._source))


def _sort_by_position(notes: Mapping[_DiagnosticKey, Diagnostic]) -> tuple[Diagnostic, ...]:
    return tuple(sorted(notes.values(), key=lambda note: (note.line, note.column)))
