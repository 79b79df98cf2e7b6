"""A line `NAME = value` of a crontab, which sets a variable for the lines after it.

The rules are those of Debian's cron (env.c), tried against the program itself: nothing in a value is expanded, and quotes
around it do not keep blanks at its end.
"""

from __future__ import annotations

import re

_BLANK = r"[ \t\v\f\r]*"
_LINE = re.compile(
    rf"""(?:"(?P<double>[^"=]*)"|'(?P<single>[^'=]*)'|(?P<bare>[^ \t\v\f\r='"][^ \t\v\f\r=]*)){_BLANK}={_BLANK}"""
    rf"""(?:"(?P<in_double>[^"]*)"{_BLANK}|'(?P<in_single>[^']*)'{_BLANK}|(?P<plain>[^"' \t\v\f\r].*)?)"""
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read(text: str) -> tuple[str, str] | None:
    """Name and value; None for a line that sets nothing. `text` has no blanks at its start.

    `NAME=` alone sets the empty value, as in other crons; to Debian's it is a mistake.
    """
    found = _LINE.fullmatch(text)
    if not found:
        return None
    name = found["double"] or found["single"] or found["bare"] or ""
    value = (found["in_double"] or found["in_single"] or found["plain"] or "").rstrip(" \t\v\f\r")
    if len(value) >= 2 and value[0] in "'\"" and value[-1] == value[0]:
        value = value[1:-1]
    return name, value


def is_name(text: str) -> bool:
    """Whether a shell could use a variable of this name."""
    return _NAME.fullmatch(text) is not None


def written(name: str, value: str) -> str | None:
    """The line that sets it; None for a value that no line can set."""
    for line in (f"{name}={value}", f'{name}="{value}"', f"{name}='{value}'"):
        if value.isprintable() and (value or '"' in line) and read(line) == (name, value):
            return line
    return None
