"""A line `NAME = value` of a crontab, which sets a variable for the lines after it.

The rules are those of Debian's cron (env.c), tried against the program itself: nothing in a value is expanded, and quotes
around it do not keep blanks at its end.
"""

from __future__ import annotations

import re

_BLANK = r"[ \t\v\f\r]*"
_ASSIGNMENT = re.compile(
    rf"""(?:"(?P<double>[^"=]*)"|'(?P<single>[^'=]*)'|(?P<bare>[^ \t\v\f\r='"][^ \t\v\f\r=]*)){_BLANK}={_BLANK}"""
    rf"""(?:"(?P<in_double>[^"]*)"{_BLANK}|'(?P<in_single>[^']*)'{_BLANK}|(?P<plain>[^"' \t\v\f\r].*)?)"""
)
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_assignment(text: str) -> tuple[str, str] | None:
    """Name and value; None for a line that sets nothing. `text` has no blanks at its start.

    `NAME=` alone sets the empty value, as in other crons; to Debian's it is a mistake.
    """
    found = _ASSIGNMENT.fullmatch(text)
    if not found:
        return None
    name = found["double"] or found["single"] or found["bare"] or ""
    value = (found["in_double"] or found["in_single"] or found["plain"] or "").rstrip(" \t\v\f\r")
    if len(value) >= 2 and value[0] in "'\"" and value[-1] == value[0]:
        value = value[1:-1]
    return name, value


def is_variable_name(text: str) -> bool:
    """Whether a shell could use a variable of this name."""
    return _VARIABLE_NAME.fullmatch(text) is not None


def format_assignment(name: str, value: str) -> str | None:
    """The line that sets it; None for a value that no line can set."""
    for line in (f"{name}={value}", f'{name}="{value}"', f"{name}='{value}'"):
        if value.isprintable() and (value or '"' in line) and parse_assignment(line) == (name, value):
            return line
    return None
