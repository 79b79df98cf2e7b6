"""Fields: what a single value of the config may look like, and what it means.

Each function takes what the file holds and gives the value; ValueError with one line on what is wrong and what to write.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar, get_args
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from cron.expression import is_reboot, parse_expression
from heartbeat.calendars import DateRange, parse_dates
from heartbeat.hours import parse_days, parse_time
from scheduler.config.file.marked_yaml import Odd
from scheduler.config.file.message_parts import SHOWN, closest, kind, shown
from scheduler.config.file.remedies import Remedy, Wrong, as_yaml, instead, offered, surely, takes
from scheduler.config.keys import other_notations, time_zones
from scheduler.model.settings import May

Share = float | timedelta
Parsed = TypeVar("Parsed")

LONGEST = timedelta(days=3660)  # ten years
A_DAY = timedelta(days=1)
MOST_SECONDS = 10**9  # what is longer is as wrong as this
MOST_USD = 1_000_000
SPANS = ("90s", "30m", "1h30m")  # durations as they may be written
QUOTED = "put it in quotes"
NOTHING = ("no", "off", "false", "never", "nothing", "disabled", "null", "nobody")  # words that others have for none

_DURATION = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", re.ASCII)
_RATE = re.compile(r"(\d{1,9}) per (\S+)", re.ASCII)
_PERCENT = re.compile(r"(\d{1,3})%", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKENS = re.compile(r"(\d{1,9})([km])", re.ASCII)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CRON_FIELD = re.compile(r"[0-9*/,a-z#-]+", re.ASCII | re.IGNORECASE)
_CALLABLE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

_OUR_HEADERS = ("host", "connection", "content-length", "accept-encoding", "transfer-encoding")


def each(parse: Callable[[Any], Parsed], values: list[Any]) -> list[Parsed]:
    """Every item parsed; a fault names the item."""
    found = []
    for index, value in enumerate(values):
        try:
            found.append(parse(value))
        except Wrong as wrong:
            raise wrong.at(index) from None
        except ValueError as error:
            raise Wrong(str(error)).at(index) from None
    return found


def text(value: object) -> str:
    if type(value) is str:
        if "\0" in value:
            raise Wrong("a text cannot hold the character U+0000")
        return value
    if isinstance(value, Odd | int | float):
        raise Wrong(f"{str(value).lower()[:SHOWN]} does not read as text", Remedy(quote=True, means=True), words=QUOTED)
    if isinstance(value, list) and len(value) == 1 and type(value[0]) is str and value[0].strip():
        raise Wrong(f"a text is wanted here, not {kind(value)}", Remedy(value[0], means=True), words="remove the brackets")
    raise Wrong(f"a text is wanted here, not {kind(value)}")


def some_text(value: object) -> str:
    if not text(value).strip():
        raise Wrong("the text is empty; write one")
    return str(value)


def truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise offered(f"{shown(value)} is not true or false", truth, [other_notations.truth(value)], True, False)


def whole(least: int, most: int) -> Callable[[object], int]:
    """For whole numbers from `least` to `most`."""

    def parse(value: object) -> int:
        if type(value) is not int:
            problem = f"{shown(value)} is not a whole number"
            raise offered(problem, parse, [other_notations.number(value)], least, most, words=f"write one from {least} to {most}")
        if not least <= value <= most:
            raise instead(f"{value} is out of bounds", least, most, words=f"write a number from {least} to {most}")
        return value

    return parse


def even(least: int, most: int) -> Callable[[object], int]:
    """For even numbers from `least` to `most`: what comes in pairs."""
    number = whole(least, most)

    def parse(value: object) -> int:
        found = number(value)
        if found % 2:
            raise instead(f"{found} is odd, but question and answer come in pairs", found - 1, found + 1)
        return found

    return parse


def tokens(most: int) -> Callable[[object], int]:
    """For amounts of tokens from one to `most`, a multiple of 1,000."""

    def parse(value: object) -> int:
        found = _TOKENS.fullmatch(value) if isinstance(value, str) else None
        amount = int(found[1]) * (1_000_000 if found[2] == "m" else 1000) if found else value
        if type(amount) is not int:
            raise offered(
                f"{shown(value)} is not an amount of tokens", parse, [other_notations.tokens(value)], 2000, "200k", "1m"
            )
        if not 0 < amount <= most:
            raise instead(f"{value} is out of bounds", 1, f"{most // 1000}k", words=f"write an amount from 1 to {most // 1000}k")
        return amount

    return parse


def price(value: object) -> float:
    """USD for a million tokens, from zero on."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _of_money(f"{shown(value)} is not a price", price, value, 3.0, "write USD per million tokens, like 3.0")
    if value < 0:
        raise instead(f"{value} is less than nothing", 3.0, words="write USD per million tokens, like 3.0")
    if value > MOST_USD:
        raise instead(f"{value:g} is out of bounds", 3.0, words=f"write USD per million tokens, {MOST_USD:,} at most")
    return float(value)


def usd(least: float) -> Callable[[object], float]:
    """For amounts of USD, from `least` on."""

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise _of_money(f"{shown(value)} is not an amount of USD", parse, value, None, "write a number, like 0.50")
        if not least <= value <= MOST_USD:
            raise Wrong(f"{shown(value)} is out of bounds; write USD from {least:g} to {MOST_USD:,}")
        return float(value)

    return parse


def _of_money(problem: str, parse: Callable[[Any], object], value: object, example: float | None, words: str) -> Wrong:
    return offered(problem, parse, [other_notations.usd(value)], *([] if example is None else [example]), words=words)


def one_of(*words: str) -> Callable[[object], str]:
    """For one of a few words."""

    def parse(value: object) -> str:
        if isinstance(value, str) and value in words:
            return str(value)
        close = closest(value, words) if isinstance(value, str) else ()
        if len(close) == 1:
            raise surely(f"{shown(value)} is not known here", close[0], words=f"did you mean {close[0]}?")
        raise instead(f"{shown(value)} is not known here", *words)

    return parse


def duration(value: object) -> timedelta:
    """A length of time, zero or more."""
    return _length(value, duration)


def some_duration(value: object) -> timedelta:
    """A length of time above zero."""
    span = _length(value, some_duration)
    if not span:
        raise instead(f"{shown(value)} is no time at all", *SPANS)
    return span


def up_to_a_day(value: object) -> timedelta:
    """A length of time above zero, and no more than a day."""
    span = _length(value, up_to_a_day)
    if not span:
        raise instead(f"{shown(value)} is no time at all", *SPANS)
    if span > A_DAY:
        raise instead(f"{shown(value)} is too long", "24h", words="write 24h or less")
    return span


def interval(value: object) -> timedelta | None:
    """A heartbeat's interval; None for `none`, zero for a heartbeat that is switched off."""
    _refuse_cron(value)
    return None if value == "none" else _length(value, interval)


def every(value: object) -> timedelta:
    """A job's interval."""
    _refuse_cron(value)
    return some_duration(value)


def _refuse_cron(value: object) -> None:
    """An expression of cron in place of an interval, with the key that it belongs to."""
    if type(value) is str and len(value) <= SHOWN and _looks_like_cron(value.strip()):
        remedies = [Remedy(key="schedule", means=True)] if is_reboot(value) or takes(parse_expression, value) else []
        raise Wrong(f"{shown(value)} is a cron expression", *remedies, words=f"write schedule: {as_yaml(value)}")


def _length(value: object, parse: Callable[[Any], object]) -> timedelta:
    """A length of time. What is offered in place of another notation is what `parse`, the field itself, would take."""
    problem = f"{shown(value)} is not a duration"
    if isinstance(value, bool | None) or not isinstance(value, str | int | float):
        raise instead(problem, *SPANS)
    if isinstance(value, int | float) or value.strip().isdigit():
        raise _without_unit(value, parse)
    if span := _span(str(value)):
        if span > LONGEST:
            raise Wrong(f"{shown(value)} is more than ten years")
        return span
    if _DURATION.fullmatch(value) and value:
        return timedelta(0)
    if other_notations.below_a_second(value):
        raise offered(f"{shown(value)} is no whole number of seconds", parse, ["1s"], *SPANS)
    raise offered(problem, parse, [other_notations.duration(value)], *SPANS)


def _without_unit(value: str | float, parse: Callable[[Any], object]) -> Wrong:
    """A number alone could be of seconds, of minutes or, with a fraction, of hours."""
    text = str(value).strip()[:SHOWN]
    number = Fraction(text) if text.replace(".", "", 1).isdigit() else Fraction(0)
    spans = [text + unit for unit in ("s", "m")] if number.denominator == 1 else []
    spans = spans or list(filter(None, (other_notations.span(number * unit) for unit in (60, 3600))))
    problem = f"{shown(value)} is not a duration" if isinstance(value, str) else f"{text} has no unit"
    return offered(problem, parse, list(spans), *SPANS)


def _looks_like_cron(text: str) -> bool:
    return text.startswith("@") or (len(text.split()) == 5 and all(_CRON_FIELD.fullmatch(field) for field in text.split()))


def share(value: object) -> Share:
    """A part of a period: a fraction from 0 to 1, or a length of time."""
    problem = f"{shown(value)} is neither a percentage nor a duration"
    if value == 0 and type(value) is int:
        return timedelta(0)
    if not isinstance(value, str):
        part = [f"{value:g}%", f"{value * 100:g}%" if value < 1 else None] if isinstance(value, int | float) else []
        raise offered(problem, share, [] if isinstance(value, bool) else list(part), "10%", "90s")
    if percent := _PERCENT.fullmatch(value):
        if int(percent[1]) > 100:
            raise instead(f"{value} is more than the whole", "0%", "100%", words="write 0% to 100%")
        return int(percent[1]) / 100
    if (span := _span(value)) and span <= LONGEST:
        return span
    if _DURATION.fullmatch(value) and value:
        return timedelta(0)
    loose = value.strip().lower().replace(" ", "").removesuffix("percent").removesuffix("%") + "%"
    raise offered(problem, share, [loose if _PERCENT.fullmatch(loose) else other_notations.duration(value)], "10%", "90s")


def fits_period(value: object, period: timedelta) -> bool:
    """Whether a stagger is a share of the period, or no longer than it."""
    found = share(value)
    return isinstance(found, float) or found <= period


def rate(value: object) -> tuple[int, timedelta]:
    """How many within how long."""
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    within = _span(found[2]) if found else None
    if found and int(found[1]) and within and within <= LONGEST:
        return int(found[1]), within
    raise offered(f"{shown(value)} is not a rate", rate, [other_notations.rate(value)], "5 per 10m")


def opening(value: object) -> int:
    """When a window opens, in minutes from midnight."""
    if value == "24:00":
        raise surely("24:00 cannot be a start", "00:00")
    return _minute(value, opening, other_notations.opening)


def closing(value: object) -> int:
    """When a window closes, in minutes from midnight."""
    return _minute(value, closing, other_notations.closing)


def _minute(value: object, parse: Callable[[object], int], read: Callable[[object], str | None]) -> int:
    if type(value) is str and len(value) <= SHOWN:
        with suppress(ValueError):
            return parse_time(value)
    example = "08:00" if read is other_notations.opening else "22:00"
    if type(value) is Odd and read(value) == value:
        raise surely(f"a time stands in quotes, for others read {value} as a number", str(value))
    problem = f"{shown(value)} is a number, not a time" if type(value) in (int, float) else f"{shown(value)} is not a time"
    if isinstance(value, str) and len(value) <= SHOWN and (found := other_notations.zoned(value)):
        raise _zoned(problem, read(found[0]), found[1])
    words = f'write "{example}", two digits each, from "00:00" to "24:00"'
    raise offered(
        problem, parse, [read(value) if not isinstance(value, str) or len(value) <= SHOWN else None], example, words=words
    )


def _zoned(problem: str, time: str | None, name: str) -> Wrong:
    """A time with its zone behind it, which has a key of its own."""
    try:
        right = str(time_zones.zone(name))
    except Wrong as wrong:
        right = next((str(remedy.value) for remedy in wrong.remedies if remedy.means), "")
    if not right or not time:
        return Wrong(f"{problem}; the zone has a key of its own: write timezone: Europe/Berlin beside it")
    words = f"write {as_yaml(time)}, and timezone: {right} beside it"
    if right.startswith("Etc/"):
        words = f"{words} (the sign is reversed there), or better a place"
    return Wrong(problem, Remedy(time, beside=(("timezone", right),), means=True), words=words)


def windows(value: object) -> object:
    """The forms of active hours as one: a list of maps with start and end."""
    if value == "always":
        return []
    if isinstance(value, list):
        return each(_window, value)
    return [_window(value, or_always=True)]


def _window(value: object, *, or_always: bool = False) -> object:
    if isinstance(value, dict):
        return value
    problem = f"{shown(value)} is not a window"
    words = 'write "08:00-22:00" or {start: "08:00", end: "22:00"}'
    examples = ("08:00-22:00", {"start": "08:00", "end": "22:00"})
    if not isinstance(value, str) or len(value) > SHOWN:
        raise instead(problem, *examples, words=words)
    start, dash, end = (part.strip() for part in value.partition("-"))
    if dash and takes(parse_time, start) and takes(parse_time, end) and start not in (end, "24:00"):
        return {"start": start, "end": end}
    raise offered(problem, _window_or_always if or_always else _window, _windows_meant(value), *examples, words=words)


def _windows_meant(text: str) -> list[object]:
    """What a text must have meant that says when, perhaps with days and a zone around it."""
    if found := other_notations.window(text):
        return [found]
    around: dict[str, object] = {}
    rest = []
    for word in re.split(r"[\s,]+", text.strip()):
        if days := other_notations.days(word) if not word.isdigit() and other_notations.window(word) is None else None:
            around["days"] = days
        elif "/" in word and takes(time_zones.zone, word):
            around["timezone"] = word
        else:
            rest.append(word.removesuffix("Z").removesuffix("z") if re.search(r"\dz", word, re.IGNORECASE) else word)
            if re.search(r"\dz\b", word, re.IGNORECASE):
                around["timezone"] = "UTC"
    hours = other_notations.window(" ".join(re.sub(r"(?<=\d)[zZ]\b", "", word) for word in rest))
    if not hours or hours == "always" or not around:
        return []
    start, _, end = hours.partition("-")
    return [{"start": start, "end": end, **around}]


def _window_or_always(value: object) -> object:
    return value if value == "always" or isinstance(value, dict) else _window(value)


def days(value: object) -> frozenset[int]:
    """Days of the week, 0 = Monday."""
    if not isinstance(value, list):
        return _day(value)
    if not value:
        raise instead(
            "no day is named", "mon-fri", ["mon", "wed"], words="write mon-fri or [mon, wed], or leave the key out for every day"
        )
    return frozenset[int]().union(*each(_day_of_list, value))


def _day_of_list(value: object) -> frozenset[int]:
    return _day(value, in_list=True)


def dates(value: object) -> tuple[DateRange, ...]:
    """Days of the calendar, each alone or as a range; one may stand without brackets."""
    return tuple(each(_dates, value if isinstance(value, list) else [value]))


def _dates(value: object) -> DateRange:
    if isinstance(value, str) and len(value) <= SHOWN:
        with suppress(ValueError):
            return parse_dates(str(value))
    start, dots, end = value.partition("..") if isinstance(value, str) else ("", "", "")
    if dots and takes(parse_dates, start) and takes(parse_dates, end):
        raise surely(f"{shown(value)} runs backwards", f"{end}..{start}")
    problem = f"{shown(value)} is not a day"
    words = "write 2026-12-25, or 2026-12-24..2026-12-31"
    fits = not isinstance(value, str) or len(value) <= SHOWN
    raise offered(
        problem, _dates, [other_notations.dates(value) if fits else None], "2026-12-25", "2026-12-24..2026-12-31", words=words
    )


def zone(value: object) -> ZoneInfo:
    if not isinstance(value, str):
        raise instead(f"{shown(value)} is not a time zone", "Europe/Berlin", "UTC", words=time_zones.GENERAL)
    return time_zones.zone(str(value))


def name(value: str) -> str:
    """A name that may stand in metrics, file names and commands."""
    if _NAME.fullmatch(value):
        return value
    raise ValueError(
        f"{shown(value)} is not a name; use 1 to 63 of A-Z a-z 0-9 . _ -, and neither . nor - first",
    )


def names(value: object) -> tuple[str, ...]:
    """Several words, or one that stands without brackets. An empty list means none."""
    if isinstance(value, Odd | int | float):
        text(value)
    if isinstance(value, str):
        return (some_text(value),)
    if not isinstance(value, list):
        raise Wrong(f"a name or a list of names is wanted here, not {kind(value)}")
    found = tuple(each(some_text, value))
    for index, word in enumerate(found):
        if word in found[:index]:
            raise Wrong(
                f"{shown(word)} is named twice", Remedy(remove=True, means=True), words="remove one of them", steps=(index,)
            )
    return found


def rights(value: object) -> tuple[str, ...]:
    """What a token may do; at least one thing."""
    words = names(value)
    left = [right for right in get_args(May) if right not in words]
    found = tuple(each(lambda word: word if word in get_args(May) else one_of(*left)(word), list(words)))
    if not found:
        raise instead("a token without a right is of no use", ["read", "wake"])
    return found


def targets(value: object) -> tuple[str, ...]:
    """Channels by name; `none` and an empty list mean nobody."""
    return () if value == "none" else names(value)


def argv(value: object) -> tuple[str, ...]:
    """A program with its arguments."""
    if not isinstance(value, list):
        raise _no_list(value)
    words = tuple(each(text, value))
    if not words or not words[0]:
        raise Wrong("no program is named; write [program, argument]")
    return words


def _no_list(value: object) -> Wrong:
    """A text in place of a program with its arguments: its words, or a shell for what only a shell understands."""
    problem = f"a list is wanted here, not {kind(value)}"
    if type(value) is not str or not value.strip() or len(value) > SHOWN:
        return Wrong(f"{problem}; write [program, argument]")
    try:
        words = shlex.split(value)
    except ValueError:
        words = []
    if not words or set(value) & set("|&;<>$`*?()#~\n"):
        words = ["/bin/sh", "-c", value]
    return surely(problem, words)


def command(value: object) -> str | tuple[str, ...]:
    """A line for the shell, or a program with its arguments."""
    return argv(value) if isinstance(value, list) else some_text(value)


def environment(value: object) -> tuple[tuple[str, str], ...]:
    """Variables of a child, in the file's order; no message repeats a value."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise Wrong(f"a map is wanted here, not {kind(value)}; write {{NAME: value}}")
    for key, held in value.items():
        if not _VARIABLE.fullmatch(key):
            raise Wrong("this is not the name of a variable; use A-Z, a-z, 0-9 and _, no digit first", steps=(key,))
        _held_text(key, held)
    return tuple(value.items())


def _held_text(key: str, held: object) -> None:
    """A value of a map, which may be a secret, must be a text."""
    if type(held) is str and "\0" not in held:
        return
    if isinstance(held, dict | list | str) and not isinstance(held, Odd):
        raise Wrong("a text is wanted here", steps=(key,))
    raise Wrong("this does not read as text", Remedy(quote=True, means=True), words=QUOTED, steps=(key,))


def headers(value: object) -> tuple[tuple[str, str], ...]:
    """Headers of a request, in the file's order; no message repeats a value."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise Wrong(f'a map is wanted here, not {kind(value)}; write {{Authorization: "Bearer ${{NAME}}"}}')
    seen: set[str] = set()
    gone = Remedy(remove=True, means=True)
    for name, held in value.items():
        if not _HEADER.fullmatch(name):
            raise Wrong("this is not the name of a header; use letters, digits and -", steps=(name,))
        if name.lower() in _OUR_HEADERS:
            raise Wrong(
                "this header belongs to the connection, and is written by the daemon", gone, words="remove it", steps=(name,)
            )
        if name.lower() in seen:
            raise Wrong("this header is given twice; upper and lower case are the same", gone, words="remove it", steps=(name,))
        _held_text(name, held)
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
    module, dot, function = found.rpartition(".")
    candidates = [f"{module}:{function}"] if dot and ":" not in found and not found.endswith(".py") else []
    example = "package.module:function"
    raise offered(f"{shown(value)} does not name a callable", call, list(candidates), example, words=f'write "{example}"')


def no_or_map(value: object) -> object:
    """A map that the word `none` undoes; an empty value is the map without keys."""
    if value == "none":
        return None
    if value is False or (isinstance(value, str) and value.lower() in NOTHING):
        raise surely(f"{shown(value)} is not known here", "none")
    if isinstance(value, str):
        raise instead(f"{shown(value)} is not known here", "none", words="write none, or a map: keys with values")
    return {} if value is None else value


def budget(value: object) -> object:
    """A map of bounds that the word `unlimited` undoes; an empty value is the map without keys."""
    if value == "unlimited":
        return None
    if isinstance(value, str | int | float):
        amount = value if isinstance(value, int | float) else other_notations.usd(value)
        problem = f"{shown(value)} is not known here"
        if not isinstance(value, bool) and amount is not None and takes(usd(0.0001), amount):
            raise surely(problem, {"usd_per_day": amount})
        if (isinstance(value, str) and closest(value, ["unlimited"])) or str(value).lower() in (
            *NOTHING,
            "infinite",
            "unbounded",
        ):
            raise surely(problem, "unlimited")
        raise instead(problem, {"runs_per_day": 60}, "unlimited")
    return {} if value is None else value


def precheck(value: object) -> object:
    """The forms of a precheck as one: a map with its command, or nothing."""
    if isinstance(value, str):
        return None if value == "none" else {"command": some_text(value)}
    if isinstance(value, list) and value and all(type(word) is str for word in value):
        raise surely("a command or a map is wanted here, not a list", shlex.join(value), words="write the command as one text")
    return {} if value is None else value


def runner(value: object) -> object:
    """A map; an empty value is the one without keys. A program alone is no runner, for it may be a model or a URL as well."""
    if isinstance(value, list) and value and all(type(word) is str for word in value) and len(" ".join(value)) <= SHOWN:
        raise surely("a map is wanted here, not a list", {"kind": "command", "argv": list(value)})
    if isinstance(value, str) and value in ("anthropic", "command", "http", "openai", "python"):
        remedies = [Remedy({"kind": value}, means=True)] if value == "anthropic" else []  # the others need more keys
        raise Wrong("a map is wanted here, not a text", *remedies, words=f"write {{kind: {value}}}")
    if isinstance(value, list | str | int | float):
        raise Wrong(
            f"a map is wanted here, not {kind(value)}; write {{kind: anthropic}}, or {{kind: command, argv: [program, argument]}}"
        )
    return {} if value is None else value


def path(value: object) -> str:
    return some_text(value)


def inside(value: object) -> str:
    """A file's name that cannot leave its folder."""
    name = some_text(value)
    if name.startswith(("/", "~")) or ".." in name.split("/"):
        raise Wrong(f"{shown(name)} lies outside the workspace; name a file inside it")
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
    if isinstance(value, dict | list):
        raise Wrong("a text is wanted here" + ('; put "${NAME}" in quotes' if isinstance(value, dict) else ""))
    if value is None or (isinstance(value, str) and not value):
        raise Wrong("the text is empty")
    raise Wrong("this does not read as text", Remedy(quote=True, means=True), words=QUOTED)


def channel(value: object) -> object:
    """The forms of a channel as one: a map with its URL."""
    return {"url": value} if isinstance(value, str) else value


@lru_cache(maxsize=4096)
def _span(text: str) -> timedelta | None:
    """A length of time above zero; None for all else."""
    found = _DURATION.fullmatch(text)
    if not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(seconds=min(days * 86400 + hours * 3600 + minutes * 60 + seconds, MOST_SECONDS)) or None


def _day(value: object, *, in_list: bool = False) -> frozenset[int]:
    if isinstance(value, str) and len(value) <= SHOWN:
        with suppress(ValueError):
            return parse_days(str(value))
    fits = value if not isinstance(value, str) or len(value) <= SHOWN else None
    several = other_notations.some_days(fits) if isinstance(fits, str) and not in_list else None
    words = "write mon, tue, wed, thu, fri, sat or sun, or a range like mon-fri"
    raise offered(f"{shown(value)} is not a day", days, [other_notations.days(fits) or several], "mon-fri", words=words)


def _is_one_word(text: str) -> bool:
    return text.isprintable() and " " not in text
