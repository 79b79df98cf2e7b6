"""Wording: how a sentence shows a wrong value, offers the right words, and writes how many and how long."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from itertools import islice

from scheduler.config.file.remedies import InvalidValue, Remedy, join_with_or

LONGEST_QUOTED = 40  # characters of a wrong value that a message repeats; what is longer may be a secret in the wrong place
MOST_COMPARED = 1000  # names that a misspelt one is compared with, at most: comparing takes microseconds for each
MOST_ALIKE = 3  # names that are all as close as each other: more are a family of names, and no slip
MOST_LISTED = 5  # names that a message lists before it says how many there are


def quote_value(value: object) -> str:
    """A wrong value as a message may repeat it."""
    if isinstance(value, str):
        return repr(str(value)) if len(value) <= LONGEST_QUOTED else "this text"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return describe_type(value)


def find_closest(word: str, known: Collection[str]) -> tuple[str, ...]:
    """The known words that a misspelt one may be: those one or two letters away, the nearest alone; few, or none at all.

    Of short words one letter is enough to make another word: up to four letters one may be wrong, and of one letter none.
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
    """How many letters must be put in, left out, changed or swapped with the next; `most` + 1 for more than `most`."""
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
    """The word without what spellings differ in: max-retries, maxRetries and Max_Retries are one."""
    return word.replace("-", "").replace("_", "").replace(" ", "").lower()


def did_you_mean(word: str, known: Collection[str]) -> str:
    """'; did you mean ...?' when a known word is close, else nothing."""
    close = find_closest(word, known)
    return f"; did you mean {join_with_or(close)}?" if close else ""


def undeclared_name(name: str, noun: str, offered: Collection[str]) -> InvalidValue:
    """A name that the file does not declare, with those that it does: the closest, or the first few of those `offered`."""
    problem = f"{name!r} is not a declared {noun}"
    if close := find_closest(name, offered):
        return InvalidValue(problem, *map(Remedy, close), advice=f"did you mean {join_with_or(close)}?")
    names = tuple(islice(offered, MOST_LISTED))
    more = (f"another of its {len(offered)}",) if len(offered) > MOST_LISTED else ()
    listed = f"write {join_with_or((*names, *more))}, or " if names else ""
    return InvalidValue(problem, *map(Remedy, names), advice=f"{listed}declare it under {noun}s:")


def format_count(number: int, noun: str) -> str:
    """So many of something: 1 run, 2 runs."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def format_duration(span: timedelta) -> str:
    """A length of time as the config writes it: 1h30m."""
    seconds = round(span.total_seconds())
    parts = ((seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


def describe_type(value: object) -> str:
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
