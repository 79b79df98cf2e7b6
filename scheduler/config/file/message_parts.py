"""Formats the parts of a message: quoted values, similar names."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from scheduler.config.file.remedies import InvalidValue, Remedy, join_with_or

LONGEST_QUOTED = 40  # characters of a value that a message may quote; a longer text may be a secret at the wrong key
MOST_COMPARED = 1000  # names that a misspelt name is compared with; each comparison takes microseconds
MOST_ALIKE = 3  # equally similar names that are suggested; more than these are a numbered series and not a typing error
MOST_LISTED = 5  # names that a message lists before it gives their number


def quote_value(value: object) -> str:
    """A value as messages may quote it."""
    if isinstance(value, str):
        return repr(str(value)) if len(value) <= LONGEST_QUOTED else "this text"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return describe_type(value)


def find_closest(word: str, known: Collection[str]) -> tuple[str, ...]:
    """The known words that a misspelt word may stand for: those one or two letters away, only the nearest, and only if few.

    In words of up to four letters one letter may differ, in words of one letter none: more would be another word.
    """
    allowed = 0 if len(word) < 2 else 1 if len(word) < 5 else 2
    if not allowed or len(word) > LONGEST_QUOTED or len(known) > MOST_COMPARED:
        return ()
    if folded := tuple(other for other in known if _fold_spelling(other) == _fold_spelling(word)):
        return folded[:1]
    found: dict[int, list[str]] = {1: [], 2: []}
    for other in known:
        if len(other) > 1 and 0 < (away := edit_distance(word, other, allowed)) <= allowed:
            found[away].append(other)
    nearest = found[1] or found[2]
    return tuple(nearest) if len(nearest) <= MOST_ALIKE else ()


def edit_distance(word: str, other: str, most: int) -> int:
    """The number of letters to insert, delete, change or swap with the next one; `most` + 1 for more than `most`."""
    if abs(len(word) - len(other)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, left in enumerate(word, 1):
        before, last, row = row, before, [i]
        for j, right in enumerate(other, 1):
            away = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (left != right))
            if last and j > 1 and left == other[j - 2] and word[i - 2] == right:
                away = min(away, last[j - 2] + 1)
            row.append(away)
        if min(row) > most:
            return most + 1
    return row[-1]


def _fold_spelling(word: str) -> str:
    """The word without differences of spelling: max-retries, maxRetries and Max_Retries are the same."""
    return word.replace("-", "").replace("_", "").replace(" ", "").lower()


def did_you_mean(word: str, known: Collection[str]) -> str:
    """'; did you mean ...?' if a known word is similar, else an empty text."""
    close = find_closest(word, known)
    return f"; did you mean {join_with_or(close)}?" if close else ""


def undeclared_name(name: str, noun: str, offered: Collection[str]) -> InvalidValue:
    """An error for a name that the file does not declare; it suggests similar names, or the first few of those `offered`."""
    problem = f"{name!r} is not a declared {noun}"
    if close := find_closest(name, offered):
        return InvalidValue(problem, *map(Remedy, close), advice=f"did you mean {join_with_or(close)}?")
    names = tuple(islice(offered, MOST_LISTED))
    more = (f"another of the {len(offered)} declared",) if len(offered) > MOST_LISTED else ()
    listed = f"write {join_with_or((*names, *more))}, or " if names else ""
    return InvalidValue(problem, *map(Remedy, names), advice=f"{listed}declare it under {noun}s:")


def describe_type(value: object) -> str:
    """The type of a value in words, with its article."""
    if value is None:
        return "an empty value"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    return "a number" if isinstance(value, int | float) else "a string"
