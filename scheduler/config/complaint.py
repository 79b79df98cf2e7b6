"""Complaints: what is wrong with a config, where it stands, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


class Place(Protocol):
    """A position in the file as the parser counts it: line and column from 0."""

    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The place of what does not stand in the file; `variable` names the environment variable that holds it, if one does."""

    variable: str = ""
    line: int = -1
    column: int = -1


NOWHERE = Elsewhere()


@dataclass(frozen=True, slots=True)
class Complaint:
    """One thing to mend. `line` and `column` count from 1 and are 0 where no line of the file is to blame."""

    line: int
    column: int
    path: str
    message: str
    source: str = "config.yaml"

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        return ": ".join(part for part in (place, self.path, self.message) if part)

    def as_json(self) -> dict[str, int | str]:
        return {"line": self.line, "column": self.column, "path": self.path, "message": self.message}


class ConfigError(Exception):
    """A config that is refused, with all its faults; its text is one line for each, in the order of the file."""

    def __init__(self, complaints: Iterable[Complaint], warnings: Iterable[Complaint] = ()) -> None:
        self.complaints = tuple(complaints)
        self.warnings = tuple(warnings)
        super().__init__("\n".join(map(str, self.complaints)))


class Complaints:
    """Gathers faults and warnings while a file is read.

    What is said once about a place is not said again: a fault in a default is one fault, however many inherit it. `homes`
    tells the path under which a place is known if it was reached by another: that of the default.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._faults: dict[tuple[int, int, str], Complaint] = {}
        self._warnings: dict[tuple[int, int, str], Complaint] = {}
        self._spoilt: set[tuple[int, int]] = set()
        self.homes: Mapping[tuple[int, int], str] = {}

    def fault(self, place: Place, path: str, message: str, *, spoils: bool = False) -> None:
        """Note a fault. One that `spoils` its place leaves nothing there that more could be said of."""
        if (place.line, place.column) in self._spoilt:
            return
        if spoils and place.line >= 0:
            self._spoilt.add((place.line, place.column))
        self._note(self._faults, place, path, message)

    def warn(self, place: Place, path: str, message: str) -> None:
        self._note(self._warnings, place, path, message)

    @property
    def warnings(self) -> tuple[Complaint, ...]:
        return _sorted(self._warnings)

    def raise_if_any(self) -> None:
        """Raises ConfigError when there was a fault."""
        if self._faults:
            raise ConfigError(_sorted(self._faults), self.warnings)

    def _note(self, notes: dict[tuple[int, int, str], Complaint], place: Place, path: str, message: str) -> None:
        if isinstance(place, Elsewhere):
            message = f"{message} ({place.variable})" if place.variable else message
            notes.setdefault((0, 0, path + message), Complaint(0, 0, path, message, self._source))
            return
        path = self.homes.get((place.line, place.column), path)
        key = (place.line, place.column, message)
        notes.setdefault(key, Complaint(place.line + 1, place.column + 1, path, message, self._source))


def _sorted(notes: Mapping[tuple[int, int, str], Complaint]) -> tuple[Complaint, ...]:
    return tuple(sorted(notes.values(), key=lambda note: (note.line, note.column)))
