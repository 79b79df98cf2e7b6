"""Parses the single values of the config.

Each function takes the data of the file and returns the value, or raises ValueError with the problem and what to write.
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
from zoneinfo import ZoneInfo

from cron.expression import is_reboot, parse_expression
from heartbeat.calendars import DateRange, parse_dates
from heartbeat.hours import parse_days, parse_time
from scheduler.config.file.lenient_reading import STATE_OVERRIDE
from scheduler.config.file.marked_yaml import AmbiguousText
from scheduler.config.file.message_parts import LONGEST_QUOTED, describe_type, find_closest, quote_value
from scheduler.config.file.remedies import (
    InvalidValue,
    Remedy,
    as_yaml,
    is_accepted,
    suggest_candidates,
    suggest_correction,
    suggest_examples,
)
from scheduler.config.keys import other_notations, time_zones
from scheduler.model.settings import PREFIX_PLACEHOLDER, Permission
from scheduler.model.state_address import MAX_SHARDS, address_problem, is_server

Share = float | timedelta
Parsed = TypeVar("Parsed")

LONGEST_DURATION = timedelta(days=3660)  # ten years
A_DAY = timedelta(days=1)
MOST_SECONDS = 10**9  # longer durations are treated like this one
MOST_USD = 1_000_000
DURATION_EXAMPLES = ("90s", "30m", "1h30m")  # as messages suggest them
DEFAULT_PREFIX = "[{agent}@{host}]"
PREFIX_PLACEHOLDERS = ("agent", "host", "kind")
MAX_PREFIX_LENGTH = 100
PUT_IN_QUOTES = "put it in quotes"
ANSWER_FORMS = {
    **dict.fromkeys(("structured", "json", "json_schema", "schema", "tool", "findings", "object"), "structured"),
    **dict.fromkeys(("text", "plain", "plaintext", "markdown", "string"), "text"),
}  # what `answer` is called in other systems
WORDS_FOR_NONE = ("no", "off", "false", "never", "nothing", "disabled", "null", "nobody")  # other words for `none`

_DURATION = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", re.ASCII)
_RATE = re.compile(r"(\d{1,9}) per (\S+)", re.ASCII)
_PERCENT = re.compile(r"(\d{1,3})%", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_TOKENS = re.compile(r"(\d{1,9})([km])", re.ASCII)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CRON_FIELD = re.compile(r"[0-9*/,a-z#-]+", re.ASCII | re.IGNORECASE)
_TOOL_SERVER = re.compile(r"[A-Za-z0-9_-]{1,32}", re.ASCII)
_TOOL_NAME = re.compile(r"[A-Za-z0-9./_-]{1,64}", re.ASCII)
_CALLABLE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

_MESSAGE_HEADERS = ("user-agent", "content-type", "idempotency-key")
_OUR_HEADERS = ("host", "connection", "content-length", "accept-encoding", "transfer-encoding")


def parse_items(parse: Callable[[Any], Parsed], values: list[Any]) -> list[Parsed]:
    """Parse every item; an error has the index of its item."""
    found = []
    for index, value in enumerate(values):
        try:
            found.append(parse(value))
        except InvalidValue as wrong:
            raise wrong.inside_step(index) from None
        except ValueError as error:
            raise InvalidValue(str(error)).inside_step(index) from None
    return found


def parse_text(value: object) -> str:
    if type(value) is str:
        if "\0" in value:
            raise InvalidValue("a string cannot contain the character U+0000")
        return value
    if isinstance(value, AmbiguousText | int | float):
        raise InvalidValue(
            f"{str(value).lower()[:LONGEST_QUOTED]} is not read as text",
            Remedy(quote=True, is_certain=True),
            advice=PUT_IN_QUOTES,
        )
    if isinstance(value, list) and len(value) == 1 and type(value[0]) is str and value[0].strip():
        raise InvalidValue(
            f"this must be a string, not {describe_type(value)}", Remedy(value[0], is_certain=True), advice="remove the brackets"
        )
    raise InvalidValue(f"this must be a string, not {describe_type(value)}")


def parse_nonempty_text(value: object) -> str:
    if not parse_text(value).strip():
        raise InvalidValue("the string is empty; write a value")
    return str(value)


def parse_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise suggest_candidates(
        f"{quote_value(value)} is not true or false", parse_bool, [other_notations.normalize_bool(value)], True, False
    )


def integer_between(least: int, most: int) -> Callable[[object], int]:
    """A parser of whole numbers from `least` to `most`."""

    def parse(value: object) -> int:
        if type(value) is not int:
            problem = f"{quote_value(value)} is not a whole number"
            raise suggest_candidates(
                problem, parse, [other_notations.normalize_number(value)], least, most, advice=f"write one from {least} to {most}"
            )
        if not least <= value <= most:
            raise suggest_examples(f"{value} is out of range", least, most, advice=f"write a number from {least} to {most}")
        return value

    return parse


def even_integer_between(least: int, most: int) -> Callable[[object], int]:
    """A parser of even numbers from `least` to `most`."""
    number = integer_between(least, most)

    def parse(value: object) -> int:
        found = number(value)
        if found % 2:
            raise suggest_examples(f"{found} is odd, but messages are kept in pairs", found - 1, found + 1)
        return found

    return parse


def tokens_up_to(most: int) -> Callable[[object], int]:
    """A parser of token amounts from 1 to `most`, which is a multiple of 1,000."""

    def parse(value: object) -> int:
        found = _TOKENS.fullmatch(value) if isinstance(value, str) else None
        amount = int(found[1]) * (1_000_000 if found[2] == "m" else 1000) if found else value
        if type(amount) is not int:
            raise suggest_candidates(
                f"{quote_value(value)} is not an amount of tokens",
                parse,
                [other_notations.normalize_tokens(value)],
                2000,
                "200k",
                "1m",
            )
        if not 0 < amount <= most:
            raise suggest_examples(
                f"{value} is out of range", 1, f"{most // 1000}k", advice=f"write an amount from 1 to {most // 1000}k"
            )
        return amount

    return parse


def parse_price(value: object) -> float:
    """USD per million tokens, zero or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _invalid_amount(
            f"{quote_value(value)} is not a price", parse_price, value, 3.0, "write USD per million tokens, like 3.0"
        )
    if value < 0:
        raise suggest_examples(f"{value} is negative", 3.0, advice="write USD per million tokens, like 3.0")
    if value > MOST_USD:
        raise suggest_examples(f"{value:g} is out of range", 3.0, advice=f"write USD per million tokens, {MOST_USD:,} at most")
    return float(value)


def usd_from(least: float) -> Callable[[object], float]:
    """A parser of amounts in USD, `least` or more."""

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise _invalid_amount(
                f"{quote_value(value)} is not an amount of USD", parse, value, None, "write a number, like 0.50"
            )
        if not least <= value <= MOST_USD:
            raise InvalidValue(f"{quote_value(value)} is out of range; write USD from {least:g} to {MOST_USD:,}")
        return float(value)

    return parse


def _invalid_amount(
    problem: str, parse: Callable[[Any], object], value: object, example: float | None, words: str
) -> InvalidValue:
    return suggest_candidates(
        problem, parse, [other_notations.normalize_usd(value)], *([] if example is None else [example]), advice=words
    )


def one_of(*words: str) -> Callable[[object], str]:
    """A parser of a fixed set of words."""

    def parse(value: object) -> str:
        if isinstance(value, str) and value in words:
            return str(value)
        close = find_closest(value, words) if isinstance(value, str) else ()
        if len(close) == 1:
            raise suggest_correction(f"{quote_value(value)} is not allowed here", close[0], advice=f"did you mean {close[0]}?")
        raise suggest_examples(f"{quote_value(value)} is not allowed here", *words)

    return parse


def parse_duration(value: object) -> timedelta:
    """A duration, zero or more."""
    return _parse_length(value, parse_duration)


def parse_positive_duration(value: object) -> timedelta:
    """A duration above zero."""
    span = _parse_length(value, parse_positive_duration)
    if not span:
        raise suggest_examples(f"{quote_value(value)} is zero", *DURATION_EXAMPLES)
    return span


def parse_duration_up_to_a_day(value: object) -> timedelta:
    """A duration above zero and of at most a day."""
    span = _parse_length(value, parse_duration_up_to_a_day)
    if not span:
        raise suggest_examples(f"{quote_value(value)} is zero", *DURATION_EXAMPLES)
    if span > A_DAY:
        raise suggest_examples(f"{quote_value(value)} is too long", "24h", advice="write 24h or less")
    return span


def parse_interval(value: object) -> timedelta | None:
    """The interval of a heartbeat; None for `none`, zero for a disabled heartbeat."""
    _reject_cron_expression(value)
    return None if value == "none" else _parse_length(value, parse_interval)


def parse_job_interval(value: object) -> timedelta:
    """The interval of a job."""
    _reject_cron_expression(value)
    return parse_positive_duration(value)


def _reject_cron_expression(value: object) -> None:
    """Raise an error for a cron expression in place of an interval; it suggests the key `schedule`."""
    if type(value) is str and len(value) <= LONGEST_QUOTED and _looks_like_cron(value.strip()):
        remedies = [Remedy(key="schedule", is_certain=True)] if is_reboot(value) or is_accepted(parse_expression, value) else []
        raise InvalidValue(f"{quote_value(value)} is a cron expression", *remedies, advice=f"write schedule: {as_yaml(value)}")


def _parse_length(value: object, parse: Callable[[Any], object]) -> timedelta:
    """A duration. For other notations the error suggests values that `parse`, the parser of the key, accepts."""
    problem = f"{quote_value(value)} is not a duration"
    if isinstance(value, bool | None) or not isinstance(value, str | int | float):
        raise suggest_examples(problem, *DURATION_EXAMPLES)
    if isinstance(value, int | float) or value.strip().isdigit():
        raise _missing_unit(value, parse)
    if span := _parse_span(str(value)):
        if span > LONGEST_DURATION:
            raise InvalidValue(f"{quote_value(value)} is more than ten years")
        return span
    if _DURATION.fullmatch(value) and value:
        return timedelta(0)
    if other_notations.has_fraction_of_second(value):
        raise suggest_candidates(f"{quote_value(value)} is not a whole number of seconds", parse, ["1s"], *DURATION_EXAMPLES)
    raise suggest_candidates(problem, parse, [other_notations.normalize_duration(value)], *DURATION_EXAMPLES)


def _missing_unit(value: str | float, parse: Callable[[Any], object]) -> InvalidValue:
    """The error for a number without a unit: it may be seconds, minutes or, with a fraction, hours."""
    text = str(value).strip()[:LONGEST_QUOTED]
    number = Fraction(text) if text.replace(".", "", 1).isdigit() else Fraction(0)
    spans = [text + unit for unit in ("s", "m")] if number.denominator == 1 else []
    spans = spans or list(filter(None, (other_notations.format_seconds(number * unit) for unit in (60, 3600))))
    problem = f"{quote_value(value)} is not a duration" if isinstance(value, str) else f"{text} has no unit"
    return suggest_candidates(problem, parse, list(spans), *DURATION_EXAMPLES)


def _looks_like_cron(text: str) -> bool:
    return text.startswith("@") or (len(text.split()) == 5 and all(_CRON_FIELD.fullmatch(field) for field in text.split()))


def parse_share(value: object) -> Share:
    """A share of a period: a fraction from 0 to 1, or a duration."""
    problem = f"{quote_value(value)} is neither a percentage nor a duration"
    if value == 0 and type(value) is int:
        return timedelta(0)
    if not isinstance(value, str):
        part = [f"{value:g}%", f"{value * 100:g}%" if value < 1 else None] if isinstance(value, int | float) else []
        raise suggest_candidates(problem, parse_share, [] if isinstance(value, bool) else list(part), "10%", "90s")
    if percent := _PERCENT.fullmatch(value):
        if int(percent[1]) > 100:
            raise suggest_examples(f"{value} is more than 100%", "0%", "100%", advice="write 0% to 100%")
        return int(percent[1]) / 100
    if (span := _parse_span(value)) and span <= LONGEST_DURATION:
        return span
    if _DURATION.fullmatch(value) and value:
        return timedelta(0)
    loose = value.strip().lower().replace(" ", "").removesuffix("percent").removesuffix("%") + "%"
    raise suggest_candidates(
        problem, parse_share, [loose if _PERCENT.fullmatch(loose) else other_notations.normalize_duration(value)], "10%", "90s"
    )


def fits_period(value: object, period: timedelta) -> bool:
    """Whether a stagger is a share of the period, or no longer than it."""
    found = parse_share(value)
    return isinstance(found, float) or found <= period


def parse_rate(value: object) -> tuple[int, timedelta]:
    """A count and the duration in which it is allowed."""
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    within = _parse_span(found[2]) if found else None
    if found and int(found[1]) and within and within <= LONGEST_DURATION:
        return int(found[1]), within
    raise suggest_candidates(
        f"{quote_value(value)} is not a rate", parse_rate, [other_notations.normalize_rate(value)], "5 per 10m"
    )


def parse_opening_time(value: object) -> int:
    """The start of a time window, in minutes from midnight."""
    if value == "24:00":
        raise suggest_correction("24:00 cannot be a start", "00:00")
    return _parse_minute(value, parse_opening_time, other_notations.normalize_opening)


def parse_closing_time(value: object) -> int:
    """The end of a time window, in minutes from midnight."""
    return _parse_minute(value, parse_closing_time, other_notations.normalize_closing)


def _parse_minute(value: object, parse: Callable[[object], int], read: Callable[[object], str | None]) -> int:
    if type(value) is str and len(value) <= LONGEST_QUOTED:
        with suppress(ValueError):
            return parse_time(value)
    example = "08:00" if read is other_notations.normalize_opening else "22:00"
    if type(value) is AmbiguousText and read(value) == value:
        raise suggest_correction(f"a time must be in quotes, because other programs read {value} as a number", str(value))
    problem = (
        f"{quote_value(value)} is a number, not a time" if type(value) in (int, float) else f"{quote_value(value)} is not a time"
    )
    if isinstance(value, str) and len(value) <= LONGEST_QUOTED and (found := other_notations.split_time_and_zone(value)):
        raise _time_with_zone(problem, read(found[0]), found[1])
    words = f'write "{example}", two digits each, from "00:00" to "24:00"'
    raise suggest_candidates(
        problem,
        parse,
        [read(value) if not isinstance(value, str) or len(value) <= LONGEST_QUOTED else None],
        example,
        advice=words,
    )


def _time_with_zone(problem: str, time: str | None, name: str) -> InvalidValue:
    """The error for a time with a time zone, which belongs under a key of its own."""
    try:
        right = str(time_zones.find_zone(name))
    except InvalidValue as wrong:
        right = next((str(remedy.value) for remedy in wrong.remedies if remedy.is_certain), "")
    if not right or not time:
        return InvalidValue(f"{problem}; the zone has a key of its own: write timezone: Europe/Berlin beside it")
    words = f"write {as_yaml(time)}, and timezone: {right} beside it"
    if right.startswith("Etc/"):
        words = f"{words} (the sign is reversed there), or better a place"
    return InvalidValue(problem, Remedy(time, beside=(("timezone", right),), is_certain=True), advice=words)


def parse_windows(value: object) -> object:
    """All forms of active hours as a list of maps with start and end."""
    if value == "always":
        return []
    if isinstance(value, list):
        return parse_items(_parse_window, value)
    return [_parse_window(value, or_always=True)]


def _parse_window(value: object, *, or_always: bool = False) -> object:
    if isinstance(value, dict):
        return value
    problem = f"{quote_value(value)} is not a window"
    words = 'write "08:00-22:00" or {start: "08:00", end: "22:00"}'
    examples = ("08:00-22:00", {"start": "08:00", "end": "22:00"})
    if not isinstance(value, str) or len(value) > LONGEST_QUOTED:
        raise suggest_examples(problem, *examples, advice=words)
    start, dash, end = (part.strip() for part in value.partition("-"))
    if dash and is_accepted(parse_time, start) and is_accepted(parse_time, end) and start not in (end, "24:00"):
        return {"start": start, "end": end}
    raise suggest_candidates(
        problem, _parse_window_or_always if or_always else _parse_window, _guess_windows(value), *examples, advice=words
    )


def _guess_windows(text: str) -> list[object]:
    """The windows that a text may mean, with days and a time zone if it contains them."""
    if found := other_notations.normalize_window(text):
        return [found]
    around: dict[str, object] = {}
    rest = []
    for word in re.split(r"[\s,]+", text.strip()):
        if (
            days := other_notations.normalize_days(word)
            if not word.isdigit() and other_notations.normalize_window(word) is None
            else None
        ):
            around["days"] = days
        elif "/" in word and is_accepted(time_zones.find_zone, word):
            around["timezone"] = word
        else:
            rest.append(word.removesuffix("Z").removesuffix("z") if re.search(r"\dz", word, re.IGNORECASE) else word)
            if re.search(r"\dz\b", word, re.IGNORECASE):
                around["timezone"] = "UTC"
    hours = other_notations.normalize_window(" ".join(re.sub(r"(?<=\d)[zZ]\b", "", word) for word in rest))
    if not hours or hours == "always" or not around:
        return []
    start, _, end = hours.partition("-")
    return [{"start": start, "end": end, **around}]


def _parse_window_or_always(value: object) -> object:
    return value if value == "always" or isinstance(value, dict) else _parse_window(value)


def parse_weekdays(value: object) -> frozenset[int]:
    """Days of the week, 0 = Monday."""
    if not isinstance(value, list):
        return _parse_day(value)
    if not value:
        raise suggest_examples(
            "no day is named", "mon-fri", ["mon", "wed"], advice="write mon-fri or [mon, wed], or leave the key out for every day"
        )
    return frozenset[int]().union(*parse_items(_parse_listed_day, value))


def _parse_listed_day(value: object) -> frozenset[int]:
    return _parse_day(value, in_list=True)


def parse_calendar_dates(value: object) -> tuple[DateRange, ...]:
    """Dates and ranges of dates; a single one may be written without brackets."""
    return tuple(parse_items(_parse_date_range, value if isinstance(value, list) else [value]))


def _parse_date_range(value: object) -> DateRange:
    if isinstance(value, str) and len(value) <= LONGEST_QUOTED:
        with suppress(ValueError):
            return parse_dates(str(value))
    start, dots, end = value.partition("..") if isinstance(value, str) else ("", "", "")
    if dots and is_accepted(parse_dates, start) and is_accepted(parse_dates, end):
        raise suggest_correction(f"{quote_value(value)} ends before it starts", f"{end}..{start}")
    problem = f"{quote_value(value)} is not a day"
    words = "write 2026-12-25, or 2026-12-24..2026-12-31"
    fits = not isinstance(value, str) or len(value) <= LONGEST_QUOTED
    raise suggest_candidates(
        problem,
        _parse_date_range,
        [other_notations.normalize_dates(value) if fits else None],
        "2026-12-25",
        "2026-12-24..2026-12-31",
        advice=words,
    )


def parse_zone(value: object) -> ZoneInfo:
    if not isinstance(value, str):
        raise suggest_examples(f"{quote_value(value)} is not a time zone", "Europe/Berlin", "UTC", advice=time_zones.WRITE_A_ZONE)
    return time_zones.find_zone(str(value))


def parse_name(value: str) -> str:
    """A name that is safe in metrics, file names and commands."""
    if _NAME.fullmatch(value):
        return value
    raise ValueError(
        f"{quote_value(value)} is not a name; use 1 to 63 characters from A-Z a-z 0-9 . _ -, not starting with . or -",
    )


def parse_host(value: object) -> str:
    """The name of a machine, as messages show it."""
    return parse_name(parse_text(value))


def parse_prefix(value: object) -> str:
    """The template of the prefix of messages; empty for `none`."""
    text = parse_nonempty_text(value)
    if text == "none":
        return ""
    if len(text) > MAX_PREFIX_LENGTH or not text.isprintable():
        problem = f"a prefix is one line of at most {MAX_PREFIX_LENGTH} characters"
        raise suggest_examples(problem, DEFAULT_PREFIX, "none")
    unknown = next((name for name in PREFIX_PLACEHOLDER.findall(text) if name not in PREFIX_PLACEHOLDERS), None)
    if unknown is not None:
        known = "{agent}, {host} or {kind}"
        raise suggest_examples(f"{{{unknown}}} is not a placeholder; write {known}", DEFAULT_PREFIX, "none")
    return text


def parse_header_name(value: object) -> str:
    """The name of a header that the daemon does not set for another purpose."""
    name = parse_text(value)
    if _HEADER.fullmatch(name) and name.lower() not in (*_OUR_HEADERS, *_MESSAGE_HEADERS):
        return name
    example = "X-Heartbeatd-Signature"
    problem = "is not the name of a header" if not _HEADER.fullmatch(name) else "is a header that the daemon sets itself"
    raise suggest_examples(f"{quote_value(value)} {problem}", example)


def parse_names(value: object) -> tuple[str, ...]:
    """A list of names; a single one may be written without brackets."""
    if isinstance(value, AmbiguousText | int | float):
        parse_text(value)
    if isinstance(value, str):
        return (parse_nonempty_text(value),)
    if not isinstance(value, list):
        raise InvalidValue(f"this must be a name or a list of names, not {describe_type(value)}")
    found = tuple(parse_items(parse_nonempty_text, value))
    for index, word in enumerate(found):
        if word in found[:index]:
            raise InvalidValue(
                f"{quote_value(word)} is listed twice",
                Remedy(remove=True, is_certain=True),
                advice="remove one of them",
                steps=(index,),
            )
    return found


def parse_token_rights(value: object) -> tuple[str, ...]:
    """The permissions of a token, at least one."""
    words = parse_names(value)
    left = [right for right in get_args(Permission) if right not in words]
    found = tuple(parse_items(lambda word: word if word in get_args(Permission) else one_of(*left)(word), list(words)))
    if not found:
        raise suggest_examples("a token needs at least one permission", ["read", "wake"])
    return found


def parse_targets(value: object) -> tuple[str, ...]:
    """Names of channels; `none` and an empty list mean no channel."""
    return () if value == "none" else parse_names(value)


def parse_argv(value: object) -> tuple[str, ...]:
    """A program with its arguments."""
    if not isinstance(value, list):
        raise _text_instead_of_list(value)
    words = tuple(parse_items(parse_text, value))
    if not words or not words[0]:
        raise InvalidValue("no program is named; write [program, argument]")
    return words


def _text_instead_of_list(value: object) -> InvalidValue:
    """The error for a text in place of [program, argument]: it suggests the words of the text, or a shell if it needs one."""
    problem = f"this must be a list, not {describe_type(value)}"
    if type(value) is not str or not value.strip() or len(value) > LONGEST_QUOTED:
        return InvalidValue(f"{problem}; write [program, argument]")
    try:
        words = shlex.split(value)
    except ValueError:
        words = []
    if not words or set(value) & set("|&;<>$`*?()#~\n"):
        words = ["/bin/sh", "-c", value]
    return suggest_correction(problem, words)


def parse_command(value: object) -> str | tuple[str, ...]:
    """A shell command, or a program with its arguments."""
    return parse_argv(value) if isinstance(value, list) else parse_nonempty_text(value)


def parse_environment(value: object) -> tuple[tuple[str, str], ...]:
    """Environment variables in the order of the file; messages never show their values."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise InvalidValue(f"this must be a map, not {describe_type(value)}; write {{NAME: value}}")
    for key, held in value.items():
        if not _VARIABLE.fullmatch(key):
            raise InvalidValue(
                "this is not the name of a variable; use A-Z, a-z, 0-9 and _, not starting with a digit", steps=(key,)
            )
        _check_map_text(key, held)
    return tuple(value.items())


def _check_map_text(key: str, held: object) -> None:
    """Check that a value of a map is a text, without showing it: it may be a secret."""
    if type(held) is str and "\0" not in held:
        return
    if isinstance(held, dict | list | str) and not isinstance(held, AmbiguousText):
        raise InvalidValue("this must be a string", steps=(key,))
    raise InvalidValue("this is not read as text", Remedy(quote=True, is_certain=True), advice=PUT_IN_QUOTES, steps=(key,))


def parse_headers(value: object) -> tuple[tuple[str, str], ...]:
    """Request headers in the order of the file; messages never show their values."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise InvalidValue(f'this must be a map, not {describe_type(value)}; write {{Authorization: "Bearer ${{NAME}}"}}')
    seen: set[str] = set()
    gone = Remedy(remove=True, is_certain=True)
    for name, held in value.items():
        if not _HEADER.fullmatch(name):
            raise InvalidValue("this is not the name of a header; use letters, digits and -", steps=(name,))
        if name.lower() in _OUR_HEADERS:
            raise InvalidValue("the daemon sets this header itself", gone, advice="remove it", steps=(name,))
        if name.lower() in seen:
            raise InvalidValue(
                "this header is given twice; upper and lower case are the same", gone, advice="remove it", steps=(name,)
            )
        _check_map_text(name, held)
        seen.add(name.lower())
    return tuple(value.items())


def parse_tool_server(value: object) -> str:
    """The name of a server of tools, which is a part of the names of its tools for the model."""
    if _TOOL_SERVER.fullmatch(name := parse_text(value)):
        return name
    raise InvalidValue(f"{quote_value(name)} is not a name for a server; use 1 to 32 characters from A-Z a-z 0-9 _ -")


def parse_tool_names(value: object) -> tuple[str, ...]:
    """Names of tools, at least one."""
    names = parse_names(value)
    if not names:
        raise InvalidValue("no tool is allowed; write the names of the tools that the model may use")
    return tuple(parse_items(_parse_tool_name, list(names)))


def _parse_tool_name(value: object) -> str:
    name = parse_nonempty_text(value)
    if _TOOL_NAME.fullmatch(name):
        return name
    wrong = "a tool is named in full; * is not a pattern" if "*" in name else f"{quote_value(name)} is not the name of a tool"
    raise InvalidValue(f"{wrong}; use 1 to 64 characters from A-Z a-z 0-9 . / _ -")


def parse_callable(value: object) -> str:
    """The name of a Python callable."""
    if _CALLABLE.fullmatch(found := parse_text(value)):
        return found
    module, dot, function = found.rpartition(".")
    candidates = [f"{module}:{function}"] if dot and ":" not in found and not found.endswith(".py") else []
    example = "package.module:function"
    raise suggest_candidates(
        f"{quote_value(value)} does not name a callable", parse_callable, list(candidates), example, advice=f'write "{example}"'
    )


def parse_none_or_map(value: object) -> object:
    """A map, or None for the word `none`; an empty value is a map without keys."""
    if value == "none":
        return None
    if value is False or (isinstance(value, str) and value.lower() in WORDS_FOR_NONE):
        raise suggest_correction(f"{quote_value(value)} is not allowed here", "none")
    if isinstance(value, str):
        raise suggest_examples(
            f"{quote_value(value)} is not allowed here", "none", advice="write none, or a map: keys with values"
        )
    return {} if value is None else value


def parse_budget(value: object) -> object:
    """A map of limits, or None for the word `unlimited`; an empty value is a map without keys."""
    if value == "unlimited":
        return None
    if isinstance(value, str | int | float):
        amount = value if isinstance(value, int | float) else other_notations.normalize_usd(value)
        problem = f"{quote_value(value)} is not allowed here"
        if not isinstance(value, bool) and amount is not None and is_accepted(usd_from(0.0001), amount):
            raise suggest_correction(problem, {"usd_per_day": amount})
        if (isinstance(value, str) and find_closest(value, ["unlimited"])) or str(value).lower() in (
            *WORDS_FOR_NONE,
            "infinite",
            "unbounded",
        ):
            raise suggest_correction(problem, "unlimited")
        raise suggest_examples(problem, {"runs_per_day": 60}, "unlimited")
    return {} if value is None else value


def parse_precheck(value: object) -> object:
    """All forms of a precheck as a map with its command, or None."""
    if isinstance(value, str):
        return None if value == "none" else {"command": parse_nonempty_text(value)}
    if isinstance(value, list) and value and all(type(word) is str for word in value):
        raise suggest_correction(
            "this must be a command or a map, not a list", shlex.join(value), advice="write the command as one string"
        )
    return {} if value is None else value


def parse_unchanged(value: object) -> object:
    """Both forms of `unchanged` as a map: `skip`, `run`, or the map itself."""
    if isinstance(value, dict):
        return value
    if isinstance(value, str) and is_accepted(parse_positive_duration, value):
        raise suggest_correction(f"{quote_value(value)} is not allowed here", {"skip": True, "max_age": str(value)})
    return {"skip": one_of("skip", "run")(value) == "skip"}


def parse_answer_form(value: object) -> str:
    """The form of an answer. Other names of the two forms get the right name as a suggestion."""
    meant = ANSWER_FORMS.get(value.strip().lower()) if isinstance(value, str) else None
    if meant is not None and meant != value:
        raise suggest_correction(f"{quote_value(value)} is not allowed here", meant)
    return one_of("structured", "text")(value)


def parse_runner(value: object) -> object:
    """A map; an empty value is a map without keys. A text alone is rejected, because it may be a program, a model or a URL."""
    if isinstance(value, list) and value and all(type(word) is str for word in value) and len(" ".join(value)) <= LONGEST_QUOTED:
        raise suggest_correction("this must be a map, not a list", {"kind": "command", "argv": list(value)})
    if isinstance(value, str) and value in ("anthropic", "command", "http", "openai", "python"):
        remedies = [Remedy({"kind": value}, is_certain=True)] if value == "anthropic" else []  # the others need more keys
        raise InvalidValue("this must be a map, not a string", *remedies, advice=f"write {{kind: {value}}}")
    if isinstance(value, list | str | int | float):
        raise InvalidValue(
            f"this must be a map, not {describe_type(value)};"
            " write {kind: anthropic}, or {kind: command, argv: [program, argument]}"
        )
    return {} if value is None else value


def parse_path(value: object) -> str:
    return parse_nonempty_text(value)


def parse_state(value: object) -> str:
    """A database file, or the address of a PostgreSQL server."""
    text = parse_nonempty_text(value)
    if "${" in text or text.startswith("$"):
        words = "variables are not substituted here, only in secrets, headers, env and the URLs of runners and channels"
        raise InvalidValue(words, advice=f"write the path or address, or set {STATE_OVERRIDE} in the environment")
    if is_server(text) and (problem := address_problem(text)):
        raise InvalidValue(problem)
    return text


def parse_shard_index(value: object) -> int | str:
    """The number of a shard, or a reference to the environment variable that has it."""
    if isinstance(value, str) and _VARIABLE_REFERENCE.fullmatch(value):
        return value
    if type(value) is int and 0 <= value < MAX_SHARDS:
        return value
    problem = f"{quote_value(value)} is not the number of a shard"
    raise suggest_examples(problem, 0, "${HEARTBEATD_SHARD}")


def parse_workspace_file(value: object) -> str:
    """The name of a file inside its folder."""
    name = parse_nonempty_text(value)
    if name.startswith(("/", "~")) or ".." in name.split("/"):
        raise InvalidValue(f"{quote_value(name)} is outside the workspace; write the name of a file inside it")
    return name


def parse_checklist(value: object) -> str:
    """A file in the workspace, or, with a line break, the checklist itself."""
    return parse_text(value) if isinstance(value, str) and "\n" in value else parse_workspace_file(value)


def parse_workspace_files(value: object) -> tuple[str, ...]:
    """Names of files inside the workspace."""
    return tuple(parse_items(parse_workspace_file, list(parse_names(value))))


def parse_secret(value: object) -> str:
    """A text that may contain references; messages never show it."""
    if type(value) is str and value and "\0" not in value:
        return value
    if isinstance(value, dict | list):
        raise InvalidValue("this must be a string" + ('; put "${NAME}" in quotes' if isinstance(value, dict) else ""))
    if value is None or (isinstance(value, str) and not value):
        raise InvalidValue("the string is empty")
    raise InvalidValue("this is not read as text", Remedy(quote=True, is_certain=True), advice=PUT_IN_QUOTES)


def parse_channel(value: object) -> object:
    """All forms of a channel as a map with its URL."""
    return {"url": value} if isinstance(value, str) else value


@lru_cache(maxsize=4096)
def _parse_span(text: str) -> timedelta | None:
    """A duration above zero; None for any other text."""
    found = _DURATION.fullmatch(text)
    if not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(seconds=min(days * 86400 + hours * 3600 + minutes * 60 + seconds, MOST_SECONDS)) or None


def _parse_day(value: object, *, in_list: bool = False) -> frozenset[int]:
    if isinstance(value, str) and len(value) <= LONGEST_QUOTED:
        with suppress(ValueError):
            return parse_days(str(value))
    fits = value if not isinstance(value, str) or len(value) <= LONGEST_QUOTED else None
    several = other_notations.normalize_day_list(fits) if isinstance(fits, str) and not in_list else None
    words = "write mon, tue, wed, thu, fri, sat or sun, or a range like mon-fri"
    raise suggest_candidates(
        f"{quote_value(value)} is not a day",
        parse_weekdays,
        [other_notations.normalize_days(fits) or several],
        "mon-fri",
        advice=words,
    )
