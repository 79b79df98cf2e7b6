"""Wording: how a sentence shows a wrong value, offers the right words, and writes how many and how long."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from difflib import get_close_matches
from itertools import islice

SHOWN = 40  # characters of a wrong value that a message repeats; what is longer may be a secret in the wrong place
SUGGESTED_FROM = 1000  # names that a misspelt one is compared with, at most: comparing takes microseconds for each
LISTED = 5  # names that a message lists before it says how many there are


def shown(value: object) -> str:
    """A wrong value as a message may repeat it."""
    if isinstance(value, str):
        return repr(str(value)) if len(value) <= SHOWN else "this text"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return kind(value)


def closest(word: str, known: Collection[str]) -> str | None:
    """The known word that a misspelt one is closest to; None when there is none close."""
    close = get_close_matches(word, known, n=1, cutoff=0.6) if len(word) <= SHOWN and len(known) <= SUGGESTED_FROM else []
    return close[0] if close else None


def suggest(word: str, known: Collection[str]) -> str:
    """'; did you mean ...?' when one of the known words is close, else nothing."""
    close = closest(word, known)
    return f"; did you mean {close}?" if close else ""


def unknown_key(key: str, known: Collection[str]) -> str:
    """What is said of a key that its map may not hold."""
    return f"unknown key{suggest(key, known)}"


def undeclared(name: str, noun: str, declared: Collection[str]) -> str:
    """What is said of a name that the file does not declare, with the names that it does: the closest, or the first few."""
    said = f"{name!r} is no {noun} of this file"
    if close := suggest(name, declared):
        return said + close
    names = tuple(islice(declared, LISTED))
    names = (*names, f"another of its {len(declared)}") if len(declared) > LISTED else names
    return f"{said}; {f'write {either(names)}, or ' if names else ''}declare it under {noun}s:"


def either(words: tuple[str, ...]) -> str:
    """The words as a choice: a, b or c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def counted(number: int, noun: str) -> str:
    """So many of something: 1 run, 2 runs."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


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
