"""Fields: what a single value of the config may look like, and what it means.

Each function takes what the file holds and gives the value; ValueError with one line on what is wrong and what to write.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar, get_args
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from heartbeat.calendars import Dates, parse_dates
from heartbeat.hours import parse_days, parse_time
from scheduler.config import zones
from scheduler.config.tree import Odd
from scheduler.config.wording import SHOWN, either, kind, shown
from scheduler.settings import May

Share = float | timedelta
Parsed = TypeVar("Parsed")

LONGEST = timedelta(days=3660)  # ten years
A_DAY = timedelta(days=1)
MOST_USD = 1_000_000

_DURATION = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", re.ASCII)
_LOOSE = re.compile(r"(\d{1,9}) *(s|sec|second|m|min|minute|h|hr|hour|d|day|w|week)s?", re.ASCII | re.IGNORECASE)
_RATE = re.compile(r"(\d{1,9}) per (\S+)", re.ASCII)
_PERCENT = re.compile(r"(\d{1,3})%", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKENS = re.compile(r"(\d{1,9})([km])", re.ASCII)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CALLABLE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

_OUR_HEADERS = ("host", "connection", "content-length", "accept-encoding", "transfer-encoding")


class Inside(ValueError):
    """A fault of one part of a value; `steps` lead to the part."""

    def __init__(self, message: str, *steps: str | int) -> None:
        super().__init__(message)
        self.steps = steps


def each(parse: Callable[[object], Parsed], values: list[Any]) -> list[Parsed]:
    """Every item parsed; a fault names the item."""
    found = []
    for index, value in enumerate(values):
        try:
            found.append(parse(value))
        except ValueError as error:
            raise Inside(str(error), index) from None
    return found


def text(value: object) -> str:
    if type(value) is str:
        if "\0" in value:
            raise ValueError("a text cannot hold the character U+0000")
        return value
    if isinstance(value, Odd | int | float):
        raise ValueError(f"{str(value).lower()[:SHOWN]} does not read as text; put it in quotes")
    raise ValueError(f"a text is wanted here, not {kind(value)}")


def some_text(value: object) -> str:
    if not text(value).strip():
        raise ValueError("the text is empty; write one or remove the key")
    return str(value)


def truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"{shown(value)} is not true or false; write true or false")


def whole(least: int, most: int) -> Callable[[object], int]:
    """For whole numbers from `least` to `most`."""

    def parse(value: object) -> int:
        if type(value) is not int:
            raise ValueError(f"{shown(value)} is not a whole number; write one from {least} to {most}")
        if not least <= value <= most:
            raise ValueError(f"{value} is out of bounds; write a number from {least} to {most}")
        return value

    return parse


def even(least: int, most: int) -> Callable[[object], int]:
    """For even numbers from `least` to `most`: what comes in pairs."""
    number = whole(least, most)

    def parse(value: object) -> int:
        found = number(value)
        if found % 2:
            raise ValueError(f"{found} is odd, but question and answer come in pairs; write {found - 1} or {found + 1}")
        return found

    return parse


def tokens(most: int) -> Callable[[object], int]:
    """For amounts of tokens from one to `most`, a multiple of 1,000."""

    def parse(value: object) -> int:
        found = _TOKENS.fullmatch(value) if isinstance(value, str) else None
        amount = int(found[1]) * (1_000_000 if found[2] == "m" else 1000) if found else value
        if type(amount) is not int:
            raise ValueError(f"{shown(value)} is not an amount of tokens; write 2000, 200k or 1m")
        if not 0 < amount <= most:
            raise ValueError(f"{value} is out of bounds; write an amount from 1 to {most // 1000}k")
        return amount

    return parse


def price(value: object) -> float:
    """USD for a million tokens, from zero on."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{shown(value)} is not a price; write USD per million tokens, like 3.0")
    if value < 0:
        raise ValueError(f"{value} is less than nothing; write USD per million tokens, like 3.0")
    if value > MOST_USD:
        raise ValueError(f"{value:g} is out of bounds; write USD per million tokens, {MOST_USD:,} at most")
    return float(value)


def usd(least: float) -> Callable[[object], float]:
    """For amounts of USD, from `least` on."""

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{shown(value)} is not an amount of USD; write 0.50")
        if not least <= value <= MOST_USD:
            raise ValueError(f"{shown(value)} is out of bounds; write USD from {least:g} to {MOST_USD:,}")
        return float(value)

    return parse


def one_of(*words: str) -> Callable[[object], str]:
    """For one of a few words."""

    def parse(value: object) -> str:
        if isinstance(value, str) and value in words:
            return str(value)
        raise ValueError(f"{shown(value)} is not known here; write {either(words)}")

    return parse


def duration(value: object) -> timedelta:
    """A length of time, zero or more."""
    if isinstance(value, bool | None) or not isinstance(value, str | int | float):
        raise ValueError(f"{shown(value)} is not a duration; write 90s, 30m or 1h30m")
    if isinstance(value, int | float) or value.isdigit():
        raise ValueError(f"{str(value)[:SHOWN]} has no unit; write {str(value)[:9]}s or {str(value)[:9]}m")
    return _duration(value)


def some_duration(value: object) -> timedelta:
    """A length of time above zero."""
    span = duration(value)
    if not span:
        raise ValueError(f"{shown(value)} is no time at all; write 90s, 30m or 1h30m")
    return span


def up_to_a_day(value: object) -> timedelta:
    """A length of time above zero, and no more than a day."""
    span = some_duration(value)
    if span > A_DAY:
        raise ValueError(f"{shown(value)} is too long; write 24h or less")
    return span


def interval(value: object) -> timedelta | None:
    """A heartbeat's interval; None for `none`, zero for a heartbeat that is switched off."""
    if value == "none":
        return None
    if isinstance(value, str):
        return _duration(value)
    return duration(value)


def share(value: object) -> Share:
    """A part of a period: a fraction from 0 to 1, or a length of time."""
    if not isinstance(value, str):
        if value == 0 and type(value) is int:
            return timedelta(0)
        raise ValueError(f"{shown(value)} is neither a percentage nor a duration; write 10% or 90s")
    if percent := _PERCENT.fullmatch(value):
        if int(percent[1]) > 100:
            raise ValueError(f"{value} is more than the whole; write 0% to 100%")
        return int(percent[1]) / 100
    try:
        return _duration(value)
    except ValueError:
        raise ValueError(f"{shown(value)} is neither a percentage nor a duration; write 10% or 90s") from None


def rate(value: object) -> tuple[int, timedelta]:
    """How many within how long."""
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    if not found or not int(found[1]):
        raise ValueError(f"{shown(value)} is not a rate; write 5 per 10m")
    return int(found[1]), some_duration(found[2])


def minute(value: object) -> int:
    """A time of the day in minutes from midnight."""
    if isinstance(value, Odd):
        raise ValueError(f'a time stands in quotes, for others read this as a number: write "{value[:SHOWN]}"')
    if (isinstance(value, str) and len(value) <= SHOWN) or type(value) is int:
        return parse_time(value)
    raise ValueError(f'{shown(value)} is not a time; write "08:00"')


def windows(value: object) -> object:
    """The forms of active hours as one: a list of maps with start and end."""
    if value == "always":
        return []
    if isinstance(value, list):
        return each(_window, value)
    return [_window(value)]


def _window(value: object) -> object:
    if isinstance(value, dict):
        return value
    start, dash, end = value.partition("-") if type(value) is str else ("", "", "")
    if not dash:
        raise ValueError(f'{shown(value)} is not a window; write "08:00-22:00" or {{start: "08:00", end: "22:00"}}')
    return {"start": start.strip(), "end": end.strip()}


def days(value: object) -> frozenset[int]:
    """Days of the week, 0 = Monday."""
    if not isinstance(value, list):
        return _day(value)
    if not value:
        raise ValueError("no day is named; write mon-fri or [mon, wed], or leave the key out for every day")
    return frozenset[int]().union(*each(_day, value))


def dates(value: object) -> tuple[Dates, ...]:
    """Days of the calendar, each alone or as a range; one may stand without brackets."""
    return tuple(each(_dates, value if isinstance(value, list) else [value]))


def _dates(value: object) -> Dates:
    if not isinstance(value, str) or len(value) > SHOWN:
        raise ValueError(f"{shown(value)} is not a day; write 2026-12-25, or 2026-12-24..2026-12-31")
    return parse_dates(str(value))


def zone(value: object) -> ZoneInfo:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a time zone; write a name of the IANA list, like Europe/Berlin or UTC")
    return zones.zone(value)


def name(value: str) -> str:
    """A name that may stand in metrics, file names and commands."""
    if _NAME.fullmatch(value):
        return value
    raise ValueError(
        f"{shown(value)} is not a name; use 1 to 63 of A-Z a-z 0-9 . _ -, and neither . nor - first",
    )


def names(value: object) -> tuple[str, ...]:
    """Several words, or one that stands without brackets. An empty list means none."""
    if isinstance(value, str):
        return (some_text(value),)
    if not isinstance(value, list):
        raise ValueError(f"a name or a list of names is wanted here, not {kind(value)}")
    found = tuple(each(some_text, value))
    for index, word in enumerate(found):
        if word in found[:index]:
            raise Inside(f"{shown(word)} is named twice", index)
    return found


def rights(value: object) -> tuple[str, ...]:
    """What a token may do; at least one thing."""
    found = tuple(each(one_of(*get_args(May)), list(names(value))))
    if not found:
        raise ValueError("a token without a right is of no use; write [read, wake]")
    return found


def targets(value: object) -> tuple[str, ...]:
    """Channels by name; `none` and an empty list mean nobody."""
    return () if value == "none" else names(value)


def argv(value: object) -> tuple[str, ...]:
    """A program with its arguments."""
    if not isinstance(value, list):
        raise ValueError(f"a list is wanted here, not {kind(value)}; write [program, argument]")
    words = tuple(each(text, value))
    if not words or not words[0]:
        raise ValueError("no program is named; write [program, argument]")
    return words


def command(value: object) -> str | tuple[str, ...]:
    """A line for the shell, or a program with its arguments."""
    return argv(value) if isinstance(value, list) else some_text(value)


def environment(value: object) -> tuple[tuple[str, str], ...]:
    """Variables of a child, in the file's order; no message repeats a value."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise ValueError(f"a map is wanted here, not {kind(value)}; write {{NAME: value}}")
    for key, held in value.items():
        if not _VARIABLE.fullmatch(key):
            raise Inside("this is not the name of a variable; use A-Z, a-z, 0-9 and _, no digit first", key)
        if type(held) is not str or "\0" in held:
            raise Inside("this does not read as text; put it in quotes", key)
    return tuple(value.items())


def headers(value: object) -> tuple[tuple[str, str], ...]:
    """Headers of a request, in the file's order; no message repeats a value."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise ValueError(f'a map is wanted here, not {kind(value)}; write {{Authorization: "Bearer ${{NAME}}"}}')
    seen: set[str] = set()
    for name, held in value.items():
        if not _HEADER.fullmatch(name):
            raise Inside("this is not the name of a header; use letters, digits and -", name)
        if name.lower() in _OUR_HEADERS:
            raise Inside("this header belongs to the connection, and is written by the daemon; remove it", name)
        if name.lower() in seen:
            raise Inside("this header is given twice; upper and lower case are the same", name)
        if type(held) is not str or "\0" in held:
            raise Inside("this does not read as text; put it in quotes", name)
        seen.add(name.lower())
    return tuple(value.items())


def is_web_address(url: str) -> bool:
    """Whether this is http or https with a host."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0 and _is_one_word(url)
    except ValueError:
        return False


def call(value: object) -> str:
    """A callable of Python."""
    if _CALLABLE.fullmatch(found := text(value)):
        return found
    raise ValueError(f'{shown(value)} does not name a callable; write "package.module:function"')


def no_or_map(value: object) -> object:
    """A map that the word `none` undoes; an empty value is the map without keys."""
    if value == "none":
        return None
    if isinstance(value, str):
        raise ValueError(f"{shown(value)} is not known here; write none, or a map: keys with values")
    return {} if value is None else value


def budget(value: object) -> object:
    """A map of bounds that the word `unlimited` undoes; an empty value is the map without keys."""
    if value == "unlimited":
        return None
    if isinstance(value, str | int | float):
        raise ValueError(f"{shown(value)} is not known here; write {{usd_per_day: 0.50}}, or unlimited")
    return {} if value is None else value


def precheck(value: object) -> object:
    """The forms of a precheck as one: a map with its command, or nothing."""
    if isinstance(value, str):
        return None if value == "none" else {"command": value}
    return {} if value is None else value


def empty_or_map(value: object) -> object:
    """A map; an empty value is the one without keys."""
    return {} if value is None else value


def path(value: object) -> str:
    return some_text(value)


def inside(value: object) -> str:
    """A file's name that cannot leave its folder."""
    name = some_text(value)
    if name.startswith(("/", "~")) or ".." in name.split("/"):
        raise ValueError(f"{shown(name)} lies outside the workspace; name a file inside it")
    return name


def checklist(value: object) -> str:
    """A file inside the workspace, or, with a line break, the list itself."""
    return text(value) if isinstance(value, str) and "\n" in value else inside(value)


def files(value: object) -> tuple[str, ...]:
    """Names of files inside the workspace."""
    return tuple(each(inside, list(names(value))))


def secret(value: object) -> str:
    """Text that may hold references; no message repeats it."""
    if type(value) is str and value and "\0" not in value:
        return value
    raise ValueError("a text in quotes is wanted here" if not isinstance(value, str) or value else "the text is empty")


def channel(value: object) -> object:
    """The forms of a channel as one: a map with its URL."""
    return {"url": value} if isinstance(value, str) else value


@lru_cache(maxsize=4096)
def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if not found or not text:
        raise ValueError(f"{shown(text)} is not a duration; write {_nearest(text)}")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    if days * 86400 + hours * 3600 + minutes * 60 + seconds > LONGEST.total_seconds():
        raise ValueError(f"{shown(text)} is more than ten years")
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


def _nearest(text: str) -> str:
    if found := _LOOSE.fullmatch(text.strip()):
        number, unit = int(found[1]), found[2][0].lower()
        return f"{number * 7}d" if unit == "w" else f"{number}{unit}"
    if text.strip().isdigit():
        return f"{text.strip()[:9]}s or {text.strip()[:9]}m"
    return "90s, 30m or 1h30m"


def _day(value: object) -> frozenset[int]:
    if not isinstance(value, str) or len(value) > SHOWN:
        raise ValueError(f"{shown(value)} is not a day; write mon-fri or [mon, wed]")
    return parse_days(value)


def _is_one_word(text: str) -> bool:
    return text.isprintable() and " " not in text
