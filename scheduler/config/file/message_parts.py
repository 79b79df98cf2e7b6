"""Formats the parts of a message: quoted values, similar names."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from itertools import islice

LONGEST_QUOTED = 40  # characters of a value that a message may quote; a longer text may be a secret at the wrong key
MOST_COMPARED = 1000  # names that a misspelt name is compared with; each comparison takes microseconds
SIMILAR = 0.8  # the ratio of difflib from which a word is suggested
SHORT, SIMILAR_SHORT = 4, 0.75  # in a word of up to four letters, two may be exchanged
INSTEAD_OF_SHARDS = "several machines share one database on a PostgreSQL server, and one lease (docs/scaling.md)"
MOST_LISTED = 5  # names that a message lists before it gives their number

_PLAIN_TEXT = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./%+@-]*(?: [A-Za-z0-9_./%+@-]+)*")
_NUMBER = re.compile(r"[0-9][0-9_.eExXa-fA-F+-]*")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:\.\.[0-9]{4}-[0-9]{2}-[0-9]{2})?")
_YAML_KEYWORDS = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


def quote_value(value: object) -> str:
    """A value as messages may quote it."""
    if isinstance(value, str):
        return repr(str(value)) if len(value) <= LONGEST_QUOTED else "this text"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return describe_type(value)


def find_closest(word: str, known: Collection[str]) -> str:
    """The known word that is most similar to a misspelt one; empty if none is similar. Capitals, `-` and `_` do not count."""
    if len(word) > LONGEST_QUOTED or len(known) > MOST_COMPARED:
        return ""
    cutoff = SIMILAR if len(word) > SHORT else SIMILAR_SHORT
    spellings = {_fold_spelling(other): other for other in known}
    return next((spellings[close] for close in get_close_matches(_fold_spelling(word), spellings, n=1, cutoff=cutoff)), "")


def _fold_spelling(word: str) -> str:
    return word.replace("-", "").replace("_", "").replace(" ", "").lower()


def did_you_mean(word: str, known: Collection[str]) -> str:
    """'; did you mean ...?' if a known word is similar, else an empty text."""
    close = find_closest(word, known)
    return f"; did you mean {close}?" if close else ""


def undeclared_name(name: str, noun: str, offered: Collection[str]) -> str:
    """The error for a name that the file does not declare: with a similar name, or the first few of those `offered`."""
    problem = f"{name!r} is not a declared {noun}"
    if similar := did_you_mean(name, offered):
        return f"{problem}{similar}"
    names = tuple(islice(offered, MOST_LISTED))
    more = (f"another of the {len(offered)} declared",) if len(offered) > MOST_LISTED else ()
    listed = f"write {join_with_or((*names, *more))}, or " if names else ""
    return f"{problem}; {listed}declare it under {'cron' if noun == 'job' else noun + 's'}:"


def join_with_or(words: Sequence[str]) -> str:
    """The words as alternatives: a, b or c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


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
