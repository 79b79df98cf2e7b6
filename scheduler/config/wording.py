"""Wording: how a complaint shows a wrong value, offers the right words and writes a length of time."""

from __future__ import annotations

from datetime import timedelta
from difflib import get_close_matches
from typing import Any

SHOWN = 40  # characters of a wrong value that a message repeats; what is longer may be a secret in the wrong place
SUGGESTED_FROM = 1000  # names that a misspelt one is compared with, at most: comparing takes microseconds for each


def shown(value: object) -> str:
    """A wrong value as a message may repeat it."""
    if isinstance(value, str):
        return repr(str(value)) if len(value) <= SHOWN else "this text"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return kind(value)


def suggest(word: str, known: Any) -> str:
    """'; did you mean ...?' when one of the known words is close, else nothing."""
    close = get_close_matches(word, known, n=1, cutoff=0.6) if len(word) <= SHOWN and len(known) <= SUGGESTED_FROM else []
    return f"; did you mean {close[0]}?" if close else ""


def either(words: tuple[str, ...]) -> str:
    """The words as a choice: a, b or c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def written(span: timedelta) -> str:
    """A length of time as the config writes it: 1h30m."""
    seconds = round(span.total_seconds())
    parts = ((seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


def kind(value: object) -> str:
    """What sort of value it is."""
    if value is None:
        return "an empty value"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    return "a number" if isinstance(value, int | float) else "a text"
