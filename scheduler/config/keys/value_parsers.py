"""Parses the notations of the config that are its own: durations, amounts of tokens, rates, times, days, names and programs.

Each function takes the data of the file and returns the value, or raises ValueError with the problem and what to write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from cron.expression import is_reboot, parse_expression
from heartbeat.calendars import DateRange, parse_dates
from heartbeat.hours import parse_days, parse_time
from heartbeatd.operations import DURATION, LONGEST_DURATION
from heartbeatd.state_folder import STATE_OVERRIDE, is_server
from scheduler.config.file.marked_yaml import AmbiguousText, printable_key
from scheduler.config.file.message_parts import LONGEST_QUOTED, describe_type, quote_value
from scheduler.config.keys import time_zones
from scheduler.model.settings import LAST_TARGET, LOG_CHANNEL, PREFIX_PLACEHOLDER
from scheduler.model.state_address import address_problem

Share = float | timedelta

MOST_SECONDS = 10**9  # longer durations are treated like this one
DURATION_EXAMPLES = ("90s", "30m", "1h30m")  # as messages suggest them
DEFAULT_PREFIX = "[{agent}@{host}]"
PREFIX_PLACEHOLDERS = ("agent", "host", "kind")
MAX_PREFIX_LENGTH = 100

_RATE = re.compile(r"(\d{1,9}) per (\S+)", re.ASCII)
_PERCENT = re.compile(r"(\d{1,2}|100)%", re.ASCII)
_TOKENS = re.compile(r"(\d{1,9})([km])", re.ASCII)


_MESSAGE_HEADERS = ("user-agent", "content-type", "idempotency-key")
_OUR_HEADERS = ("host", "connection", "content-length", "accept-encoding", "transfer-encoding")


def parse_text(value: object) -> str:
    """Text. Messages never show it, because it may be a secret."""
    if type(value) is str:
        if "\0" in value:
            raise ValueError("a string cannot contain the character U+0000")
        return value
    if isinstance(value, AmbiguousText | int | float):
        raise ValueError("this is not read as text; put it in quotes")
    raise ValueError(f'this must be a string, not {describe_type(value)}; write "TEXT"')


def parse_nonempty_text(value: object) -> str:
    if not parse_text(value).strip():
        raise ValueError("the string is empty; write a value")
    return str(value)


def text_like(pattern: str, problem: str) -> Callable[[object], str]:
    """A parser of text that has the form of this regular expression. `problem` follows the text that has not."""
    form = re.compile(pattern, re.ASCII)

    def parse(value: object) -> str:
        if form.fullmatch(found := parse_text(value)):
            return found
        raise ValueError(f"{quote_value(printable_key(found))} {problem}")  # the name of a variable may be NAME=secret

    return parse


# A name that is safe in metrics, file names and commands.
parse_name = text_like(
    r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}", "is not a name; use 1 to 63 characters from A-Z a-z 0-9 . _ -, not starting with . or -"
)
# It is a part of the names of the server's tools for the model.
parse_tool_server = text_like(r"[A-Za-z0-9_-]{1,32}", "is not a name for a server; use 1 to 32 characters from A-Z a-z 0-9 _ -")
parse_tool_name = text_like(
    r"[A-Za-z0-9./_-]{1,64}", "is not the name of a tool; use 1 to 64 characters from A-Z a-z 0-9 . / _ -"
)
parse_callable = text_like(
    r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", 'does not name a callable; write "package.module:function"'
)
parse_variable = text_like(
    r"[A-Za-z_][A-Za-z0-9_]*", "is not the name of a variable; use A-Z, a-z, 0-9 and _, not starting with a digit"
)
_parse_header = text_like(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", "is not the name of a header; write a name such as X-Token")


def parse_channel_name(value: object) -> str:
    """The name of a channel, which is no word with a meaning of its own in `deliver`."""
    if (name := parse_name(value)) in (LOG_CHANNEL, LAST_TARGET, "none"):
        raise ValueError(f"{name} is reserved in deliver:; use another name")
    return name


def parse_calendar_name(value: object) -> str:
    if (name := parse_name(value)) == "none":
        raise ValueError("none is reserved in skip_on:; use another name")
    return name


def parse_header(value: object) -> str:
    """The name of a header that a request may have in addition to those that every request has."""
    if (name := _parse_header(value)).lower() in _OUR_HEADERS:
        raise ValueError("the daemon sets this header itself; remove it")
    return name


def parse_signature_header(value: object) -> str:
    """The name of a header that messages do not have yet."""
    if (name := parse_header(value)).lower() in _MESSAGE_HEADERS:
        raise ValueError(f"the daemon sets {name} itself; write another name, such as X-Heartbeatd-Signature")
    return name


def check_headers_differ(headers: dict[str, str]) -> dict[str, str]:
    seen: set[str] = set()
    for name in headers:
        if name.lower() in seen:
            raise ValueError(f"{name} is given twice; upper and lower case are the same; remove one of them")
        seen.add(name.lower())
    return headers


def parse_tokens(value: object) -> int:
    """An amount of tokens: a number, which may end with k for thousands or m for millions."""
    if type(value) is int:
        return value
    if isinstance(value, str) and (found := _TOKENS.fullmatch(value)):
        return int(found[1]) * (1_000_000 if found[2] == "m" else 1000)
    raise ValueError(f"{quote_value(value)} is not an amount of tokens; write 2000, 200k or 1m")


def parse_duration(value: object) -> timedelta:
    """A duration, zero or more."""
    found = _parse_span(value) if isinstance(value, str) else None
    if found is not None and found <= LONGEST_DURATION:
        return found
    if found is not None:
        raise ValueError(f"{quote_value(value)} is more than ten years; write at most 3660d")
    if type(value) in (int, float):
        raise ValueError(f"{value} has no unit; write 90s, 30m or 1h30m")
    raise ValueError(f"{quote_value(value)} is not a duration; write 90s, 30m or 1h30m")


def parse_positive_duration(value: object) -> timedelta:
    """A duration above zero."""
    if not (span := parse_duration(value)):
        raise ValueError(f"{quote_value(value)} is zero; write 90s, 30m or 1h30m")
    return span


def parse_duration_up_to_a_day(value: object) -> timedelta:
    """A duration above zero and of at most a day."""
    if (span := parse_positive_duration(value)) > timedelta(days=1):
        raise ValueError(f"{quote_value(value)} is too long; write 24h or less")
    return span


def parse_interval(value: object) -> timedelta | None:
    """The interval of a heartbeat; None for `none`, zero for a disabled heartbeat."""
    return None if value == "none" else parse_duration(value)


def parse_schedule(value: object) -> str:
    """A cron expression, a macro, or `@reboot`."""
    text = parse_nonempty_text(value)
    if not is_reboot(text):
        _check_expression(text)
    return text


def parse_share(value: object) -> Share:
    """A share of a period: a fraction from 0 to 1, or a duration."""
    if value == 0 and type(value) is int:
        return timedelta(0)
    if isinstance(value, str):
        if percent := _PERCENT.fullmatch(value):
            return int(percent[1]) / 100
        if (span := _parse_span(value)) is not None and span <= LONGEST_DURATION:
            return span
    raise ValueError(f"{quote_value(value)} is neither a percentage up to 100% nor a duration; write 10% or 90s")


def parse_rate(value: object) -> tuple[int, timedelta]:
    """A count and the duration in which it is allowed."""
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    within = _parse_span(found[2]) if found else None
    if found and int(found[1]) and within and within <= LONGEST_DURATION:
        return int(found[1]), within
    raise ValueError(f"{quote_value(value)} is not a rate; write 5 per 10m")


def parse_opening_time(value: object) -> int:
    """The start of a time window, in minutes from midnight."""
    if value == "24:00":
        raise ValueError('24:00 cannot be a start; write "00:00"')
    return _parse_minute(value, "08:00")


def parse_closing_time(value: object) -> int:
    """The end of a time window, in minutes from midnight."""
    return _parse_minute(value, "22:00")


def _parse_minute(value: object, example: str) -> int:
    if type(value) is str:
        with suppress(ValueError):
            return parse_time(value)
    problem = (
        "must be in quotes, because other programs read it as a number" if isinstance(value, AmbiguousText) else "is not a time"
    )
    raise ValueError(f'{quote_value(value)} {problem}; write "{example}", two digits each')


def split_window(value: str) -> dict[str, str]:
    """The text of a window as a map with its start and end."""
    start, dash, end = (part.strip() for part in value.partition("-"))
    if not dash:
        raise ValueError(f'{quote_value(value)} is not a window; write "08:00-22:00" or {{start: "08:00", end: "22:00"}}')
    return {"start": start, "end": end}


def parse_weekdays(value: object) -> frozenset[int]:
    """A day of the week or a range of days, 0 = Monday."""
    if isinstance(value, str):
        with suppress(ValueError):
            return parse_days(str(value))
    raise ValueError(f"{quote_value(value)} is not a day; write mon, tue, wed, thu, fri, sat or sun, or a range like mon-fri")


def parse_date_range(value: object) -> DateRange:
    """A date, or a range of dates."""
    if isinstance(value, str) and len(value) <= LONGEST_QUOTED:
        return parse_dates(str(value))
    raise ValueError(f"{quote_value(value)} is not a day; write 2026-12-25, or 2026-12-24..2026-12-31")


def parse_zone(value: object) -> ZoneInfo:
    return time_zones.find_zone(parse_text(value))


def parse_prefix(value: object) -> str:
    """The template of the prefix of messages; empty for `none`."""
    text = parse_nonempty_text(value)
    if text == "none":
        return ""
    if len(text) > MAX_PREFIX_LENGTH or not text.isprintable():
        raise ValueError(f'a prefix is one line of at most {MAX_PREFIX_LENGTH} characters; write "{DEFAULT_PREFIX}" or none')
    unknown = next((name for name in PREFIX_PLACEHOLDER.findall(text) if name not in PREFIX_PLACEHOLDERS), None)
    if unknown is not None:
        raise ValueError(f"{{{unknown}}} is not a placeholder; write {{agent}}, {{host}} or {{kind}}")
    return text


def as_items(value: object) -> object:
    """The items of a list; a single one may be written without brackets."""
    return tuple(value) if isinstance(value, list) else (value,)


def check_items_differ(items: tuple[Any, ...]) -> tuple[Any, ...]:
    for index, item in enumerate(items):
        if item in items[:index]:
            raise ValueError(f"{quote_value(item)} is listed twice; remove one of them")
    return items


def check_some(items: tuple[Any, ...]) -> tuple[Any, ...]:
    if not items:
        raise ValueError("the list is empty; write at least one item")
    return items


def check_program(value: object) -> tuple[object, ...]:
    """The words of a program with its arguments, not parsed yet."""
    if isinstance(value, list) and value and value[0]:
        return tuple(value)
    problem = "no program is named" if isinstance(value, list) else f"this must be a list, not {describe_type(value)}"
    raise ValueError(f"{problem}; write [program, argument]")


def parse_command(value: object) -> str | tuple[str, ...]:
    """A shell command, or a program with its arguments."""
    return tuple(map(parse_text, check_program(value))) if isinstance(value, list) else parse_nonempty_text(value)


def parse_state(value: object) -> str:
    """A database file, or the address of a PostgreSQL server."""
    text = parse_nonempty_text(value)
    if "${" in text or text.startswith("$"):
        problem = "variables are not substituted here, only in secrets, headers, env and the URLs of runners and channels"
        raise ValueError(f"{problem}; write the path or address, or set {STATE_OVERRIDE} in the environment")
    if is_server(text) and (wrong := address_problem(text)):
        raise ValueError(wrong)
    return text


def parse_workspace_file(value: object) -> str:
    """The name of a file inside its folder."""
    name = parse_nonempty_text(value)
    if name.startswith(("/", "~")) or ".." in name.split("/"):
        raise ValueError(f"{quote_value(name)} is outside the workspace; write the name of a file inside it")
    return name


def parse_checklist(value: object) -> str:
    """A file in the workspace, or, with a line break, the checklist itself."""
    return parse_text(value) if isinstance(value, str) and "\n" in value else parse_workspace_file(value)


@lru_cache(maxsize=4096)
def _parse_span(text: str) -> timedelta | None:
    """A duration, zero or more; None for any other text."""
    found = DURATION.fullmatch(text)
    if not found or not text:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(seconds=min(days * 86400 + hours * 3600 + minutes * 60 + seconds, MOST_SECONDS))


@lru_cache(maxsize=1024)  # many agents share their schedule
def _check_expression(text: str) -> None:
    parse_expression(text)
