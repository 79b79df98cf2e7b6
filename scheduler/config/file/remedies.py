"""Describes an invalid value: what is wrong, and the changes that would correct it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

_IS_TRIAL: ContextVar[bool] = ContextVar("trying", default=False)

Keys = tuple[tuple[str, object], ...]

_PLAIN_TEXT = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./%+@-]*(?: [A-Za-z0-9_./%+@-]+)*")
_NUMBER = re.compile(r"[0-9][0-9_.eExXa-fA-F+-]*")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:\.\.[0-9]{4}-[0-9]{2}-[0-9]{2})?")
_YAML_KEYWORDS = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


@dataclass(frozen=True, slots=True)
class Remedy:
    """One way to correct the file at the position of a diagnostic. A field that is None or empty changes nothing.

    `value` replaces the value there, or is that of a missing key. `key` is the right name of the key, `under` the path of the
    map that the key belongs in. `beside` are keys to set in the same map, `inside` keys to set in the value, which is a map.
    `quote`: the text as it is written there, in quotes. `remove`: without this key or item.

    `is_certain`: the writer must have meant this. Otherwise it is an example of what may be written.
    """

    value: object = None
    key: str | None = None
    under: tuple[str, ...] | None = None
    beside: Keys = ()
    inside: Keys = ()
    quote: bool = False
    remove: bool = False
    is_certain: bool = field(default=False, compare=False)

    def as_json(self) -> dict[str, object]:
        """The fields that are set, for `check --format json`."""
        found: dict[str, object] = {}
        if self.value is not None:
            found["value"] = self.value
        if self.key is not None:
            found["key"] = self.key
        if self.under is not None:
            found["under"] = list(self.under)
        for name, keys in (("beside", self.beside), ("inside", self.inside)):
            if keys:
                found[name] = dict(keys)
        return found | {name: True for name in ("quote", "remove") if getattr(self, name)}


class InvalidValue(ValueError):
    """An error about a value. Its text is the `problem` and the `advice`; `steps` lead to the invalid part of the value.

    Without `advice`, the text lists the values of the remedies.
    """

    def __init__(self, problem: str, *remedies: Remedy, advice: str | None = None, steps: tuple[str | int, ...] = ()) -> None:
        self.problem = problem
        self.remedies = remedies
        self.advice = advice
        self.steps = steps
        super().__init__(compose_message(problem, remedies, advice))

    def inside_step(self, step: str | int) -> InvalidValue:
        """The same error for the value that contains this one under `step`."""
        return InvalidValue(self.problem, *self.remedies, advice=self.advice, steps=(step, *self.steps))


def compose_message(problem: str, remedies: tuple[Remedy, ...], advice: str | None) -> str:
    """The sentence of a diagnostic: the problem, then the advice."""
    advice = _write_one_of(remedies) if advice is None else advice
    return f"{problem}; {advice}" if advice else problem


def _write_one_of(remedies: tuple[Remedy, ...]) -> str:
    values = [as_yaml(remedy.value) for remedy in remedies if remedy.value is not None]
    return f"write {join_with_or(tuple(values))}" if values else ""


def suggest_examples(problem: str, *values: object, advice: str | None = None) -> InvalidValue:
    """An error with values that could be written instead, as examples."""
    return InvalidValue(problem, *(Remedy(value) for value in values), advice=advice)


def suggest_correction(problem: str, value: object, advice: str | None = None) -> InvalidValue:
    """An error with the value that the writer must have meant."""
    return InvalidValue(problem, Remedy(value, is_certain=True), advice=advice)


def suggest_candidates(
    problem: str, parse: Callable[[Any], object], candidates: list[object], *examples: object, advice: str | None = None
) -> InvalidValue:
    """An error with the candidates that `parse` accepts, or, if it accepts none, with the examples.

    A single accepted candidate is certain; several are alternatives.
    """
    if _IS_TRIAL.get():
        return InvalidValue(problem)
    good = [value for value in candidates if value is not None and is_accepted(parse, value)]
    if good:
        return InvalidValue(problem, *(Remedy(value, is_certain=len(good) == 1) for value in good))
    return suggest_examples(problem, *examples, advice=advice)


def is_accepted(parse: Callable[[Any], object], value: object) -> bool:
    """Whether `parse` accepts a value. No suggestions are worked out for one that it rejects."""
    token = _IS_TRIAL.set(True)
    try:
        parse(value)
    except ValueError:
        return False
    finally:
        _IS_TRIAL.reset(token)
    return True


def suggest_removal(problem: str, advice: str, *examples: Remedy) -> InvalidValue:
    """An error for a key that would have no effect and can be removed."""
    return InvalidValue(problem, Remedy(remove=True), *examples, advice=advice)


def join_with_or(words: tuple[str, ...]) -> str:
    """The words as alternatives: a, b or c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def as_yaml(value: object) -> str:
    """A value as YAML on one line; text is quoted if a YAML parser could read it as something else."""
    if value is None:
        return "~"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{as_yaml(str(key))}: {as_yaml(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_yaml, value))}]"
    if not isinstance(value, str):
        return str(value)
    if _DATE.fullmatch(value) or (
        _PLAIN_TEXT.fullmatch(value) and not _NUMBER.fullmatch(value) and value.lower() not in _YAML_KEYWORDS
    ):
        return value
    return '"' + "".join(_ESCAPES.get(sign) or (sign if sign.isprintable() else f"\\U{ord(sign):08x}") for sign in value) + '"'
