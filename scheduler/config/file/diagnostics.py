"""Complaints: what is wrong with a config, where it stands, and what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from scheduler.config.file.remedies import Remedy, Wrong, sentence

_Key = tuple[int, int, str]


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
    remedies: tuple[Remedy, ...] = ()

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        return ": ".join(part for part in (place, self.path, self.message) if part)

    def as_json(self) -> dict[str, object]:
        """For programs; `remedies` are the changes that the message suggests, any one of them, where a program can make them."""
        found: dict[str, object] = {"line": self.line, "column": self.column, "path": self.path, "message": self.message}
        return found | ({"remedies": [remedy.as_json() for remedy in self.remedies]} if self.remedies else {})


class ConfigError(Exception):
    """A config that is refused, with all its faults; its text is one line for each, in the order of the file."""

    def __init__(self, complaints: Iterable[Complaint], warnings: Iterable[Complaint] = ()) -> None:
        self.complaints = tuple(complaints)
        self.warnings = tuple(warnings)
        super().__init__("\n".join(map(str, self.complaints)))


class Complaints:
    """Gathers faults and warnings while a file is read.

    What is said once about a place is not said again: a fault in a default is one fault, however many inherit it. `homes`
    gives the path under which a place is known if it was reached by another: that of the default. `unknown` are the maps with a
    key that nobody could understand, and that may be any that is missing there. `partial`: a part of the file is no YAML and was
    left out, so that nothing can be said of what is missing.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._faults: dict[_Key, Complaint] = {}
        self._warnings: dict[_Key, Complaint] = {}
        self._open: dict[tuple[int, int], tuple[_Key, Wrong]] = {}
        self._spoilt: set[tuple[int, int]] = set()
        self.homes: Mapping[tuple[int, int], str] = {}
        self.unknown: dict[tuple[str, ...], Place] = {}
        self.partial = False

    def fault(
        self, place: Place, path: str, what: str | Wrong, *, spoils: bool = False, opens: bool = False, missing: str = ""
    ) -> None:
        """Note a fault; it is that of a key that is `missing` at the place, if one is named.

        One that `spoils` its place leaves nothing there that more could be said of. One that `opens` its place is of a value in
        the wrong form: what else is wrong with the value that was meant is said in the same line, in place of the advice.
        """
        at = (place.line, place.column)
        wrong = what if isinstance(what, Wrong) else Wrong(what)
        if at in self._spoilt:
            return
        if spoils and place.line >= 0:
            self._spoilt.add(at)
        if at in self._open and not opens:
            key, first = self._open.pop(at)
            if gone := tuple(remedy for remedy in wrong.remedies if remedy.remove):
                wrong = Wrong(wrong.problem, *gone, words="remove it")
            said = str(wrong) if any(remedy.quote for remedy in first.remedies) else f"{first.problem}; {wrong}"
            self._faults[key] = replace(self._faults[key], message=said, remedies=wrong.remedies)
            return
        key = self._note(self._faults, place, path, wrong, missing)
        if opens and place.line >= 0:
            self._open.setdefault(at, (key, wrong))

    def narrow(self, place: Place, fits: Callable[[object], bool], otherwise: object) -> None:
        """Of the values suggested at a place, keep those that fit what else the file says; `otherwise`: where none does."""
        if (found := self._open.get((place.line, place.column))) is None:
            return
        key, wrong = found
        good = tuple(remedy for remedy in wrong.remedies if remedy.value is None or fits(remedy.value)) or (Remedy(otherwise),)
        if good != wrong.remedies:
            self._faults[key] = replace(self._faults[key], message=sentence(wrong.problem, good, None), remedies=good)

    def warn(self, place: Place, path: str, message: str | Wrong) -> None:
        self._note(self._warnings, place, path, message if isinstance(message, Wrong) else Wrong(message))

    @property
    def refused(self) -> bool:
        """Whether there was a fault."""
        return bool(self._faults)

    @property
    def warnings(self) -> tuple[Complaint, ...]:
        return _sorted(self._warnings)

    def raise_if_any(self) -> None:
        """Raises ConfigError when there was a fault."""
        if self._faults:
            raise ConfigError(_sorted(self._faults), self.warnings)

    def _note(self, notes: dict[_Key, Complaint], place: Place, path: str, wrong: Wrong, missing: str = "") -> _Key:
        message = str(wrong)
        if isinstance(place, Elsewhere):
            message = f"{message} ({place.variable})" if place.variable else message
            key = (0, 0, path + message)
            notes.setdefault(key, Complaint(0, 0, path, message, self._source, wrong.remedies))
            return key
        home = self.homes.get((place.line, place.column), path)
        path = home if home == path or not missing else f"{home}.{missing}"
        key = (place.line, place.column, message)
        notes.setdefault(key, Complaint(place.line + 1, place.column + 1, path, message, self._source, wrong.remedies))
        return key


def _sorted(notes: Mapping[_Key, Complaint]) -> tuple[Complaint, ...]:
    return tuple(sorted(notes.values(), key=lambda note: (note.line, note.column)))
