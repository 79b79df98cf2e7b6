"""Defines the types of values in the config. Each has its parser, its JSON Schema, and its name in the reference.

Where pydantic has a type and a constraint for a value, they are used as they are. The others are notations of the config:
durations, amounts of tokens, rates, times, days, names and programs. A parser takes the data of the file and returns the value,
or raises ValueError with the problem and what to write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Annotated, TypeVar, cast
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from cron.expression import is_reboot, parse_expression
from heartbeat import words
from heartbeat.hours import DateRange, parse_dates, parse_days, parse_time
from heartbeatd.operations import DURATION_PATTERN, LONGEST_DURATION, Permission
from heartbeatd.state_folder import STATE_OVERRIDE, is_server
from scheduler.channels import registry
from scheduler.config.file.marked_yaml import AmbiguousText, printable_key
from scheduler.config.file.message_parts import LONGEST_QUOTED, describe_type, quote_value
from scheduler.config.keys import time_zones
from scheduler.model.settings import LAST_TARGET, LOG_CHANNEL, PREFIX_PLACEHOLDER
from scheduler.model.state_address import address_problem

T = TypeVar("T")
Share = float | timedelta

MOST_USD = 1_000_000
MOST_TOKENS = 1_000_000_000
MOST_COUNT = 1000
MOST_OUTPUTS = 7  # that a job gets: together, they fit into one environment variable
DEFAULT_PREFIX = "[{agent}@{host}]"
PREFIX_PLACEHOLDERS = ("agent", "host", "kind")
MAX_PREFIX_LENGTH = 100

_RATE = re.compile(r"(\d{1,9}) per (\S+)", re.ASCII)
_PERCENT = re.compile(r"(\d{1,2}|100)%", re.ASCII)
_TOKENS = re.compile(r"(\d{1,9})([km])", re.ASCII)
_MESSAGE_HEADERS = ("user-agent", "content-type", "idempotency-key")
_OUR_HEADERS = ("host", "connection", "content-length", "accept-encoding", "transfer-encoding")


@dataclass(frozen=True, slots=True, eq=False)
class Notation:
    """A value in a notation of the config: its `parse` function, its JSON `schema`, and its `label` in the reference."""

    parse: Callable[[object], object]
    schema: JsonSchemaValue
    label: str

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.parse)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**self.schema, "x-form": self.label}


@dataclass(frozen=True, slots=True)
class _Unset:
    """A key that may be left out, but whose value may not be empty: its type accepts None only as the default."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return cast("core_schema.NullableSchema", handler(source))["schema"]


@dataclass(frozen=True, slots=True)
class OneOrList:
    """A list whose single item may be written without brackets. The word `nothing` means an empty list."""

    label: str
    nothing: str | None = None

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._as_items, handler(source))

    def _as_items(self, value: object) -> object:
        if value == self.nothing is not None:
            return ()
        return tuple(value) if isinstance(value, list) else (value,)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        items = handler(schema)["items"]
        one = [{"type": "string"}, items] if "$ref" in items else [{"type": "string"}]
        many = {"type": "array", "items": {"anyOf": one} if "$ref" in items else {"type": "string"}}
        return {"anyOf": [*one, many], "x-form": self.label}


@dataclass(frozen=True, slots=True)
class MapOr:
    """A map of keys, or this word in place of it, which means None. With `text`, the map may also be written as text."""

    word: str
    text: str = ""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._as_map, handler(source))

    def _as_map(self, value: object) -> object:
        return None if value == self.word else {} if value is None else value

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        as_map = next(part for part in handler(schema)["anyOf"] if "$ref" in part)
        word = {"type": "string"} if self.text else {"const": self.word}
        forms = [f"`{self.word}`", *filter(None, [self.text]), "map"]
        return {"anyOf": [word, as_map], "x-form": ", ".join(forms)}


@dataclass(frozen=True, slots=True)
class OrShort:
    """A map with a short form, which its model reads: adds this form to the JSON Schema."""

    short: JsonSchemaValue
    label: str = ""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [self.short, handler(schema)], **({"x-form": self.label} if self.label else {})}


@dataclass(frozen=True, slots=True)
class OrKind:
    """One of several maps, or its `kind` in place of it: adds the kinds that need no other key to the JSON Schema."""

    words: tuple[str, ...]

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler(schema)
        return {**made, "oneOf": [*made["oneOf"], {"enum": list(self.words)}]}


@dataclass(frozen=True, slots=True)
class _Words:
    """One of these words, which are known at run time."""

    words: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        return core_schema.literal_schema(list(self.words))


def parse_default(written: object, marks: Iterable[object]) -> object:
    """The value of a default, by the marks of its type."""
    for mark in marks:
        match mark:
            case Notation():
                return mark.parse(written)
            case BeforeValidator():
                return cast("Callable[[object], object]", mark.func)(written)
            case OneOrList(nothing=word) if word == written:
                return ()
            case MapOr(word=word) if word == written:
                return None
    return written


def text(parse: Callable[[object], object], label: str = "string", **schema: str) -> Notation:
    return Notation(parse, {"type": "string", **schema}, label)


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


def not_among(parse: Callable[[object], str], reserved: Collection[str], problem: str) -> Callable[[object], str]:
    """A parser of a name that is none of the `reserved` ones, in lower case. `problem` is the error for these, with {name}."""

    def parse_other(value: object) -> str:
        if (name := parse(value)).lower() in reserved:
            raise ValueError(problem.format(name=name))
        return name

    return parse_other


def parse_pattern(value: object) -> str:
    """A regular expression."""
    written = parse_nonempty_text(value)
    try:
        re.compile(written)
    except re.error as error:
        raise ValueError(f"{quote_value(written)} is not a regular expression: {error}") from None
    return written


# A name that is safe in metrics, file names and commands.
parse_name = text_like(
    r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}", "is not a name; use 1 to 63 characters from A-Z a-z 0-9 . _ -, not starting with . or -"
)
parse_callable = text_like(
    r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", 'does not name a callable; write "package.module:function"'
)
parse_json_path = text_like(
    r"([^\s.\[\]]+|\[(\d+|\*)\])(\.[^\s.\[\]]+|\[(\d+|\*)\])*",
    "is not a path in JSON; write names with dots, such as status.text or items[*].name",
)
parse_header = not_among(
    text_like(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", "is not the name of a header; write a name such as X-Token"),
    _OUR_HEADERS,
    "the daemon sets this header itself; remove it",
)


def check_headers_differ(headers: dict[str, str]) -> dict[str, str]:
    seen: set[str] = set()
    for name in headers:
        if name.lower() in seen:
            raise ValueError(f"{name} is given twice; upper and lower case are the same; remove one of them")
        seen.add(name.lower())
    return headers


def parse_outputs(value: object) -> bool | tuple[str, ...]:
    """The jobs whose last outputs a job gets; True for its own."""
    if isinstance(value, bool):
        return value
    names = tuple(parse_nonempty_text(each) for each in (value if isinstance(value, list) else [value]))
    if 0 < len(names) <= MOST_OUTPUTS:
        return check_items_differ(names)
    raise ValueError(f"this is a list of {len(names)}; write true, a job, or a list of 1 to {MOST_OUTPUTS} jobs")


def parse_tokens(value: object) -> int:
    """An amount of tokens: a number, which may end with k for thousands or m for millions."""
    if type(value) is int:
        return value
    if isinstance(value, str) and (found := _TOKENS.fullmatch(value)):
        return int(found[1]) * (1_000_000 if found[2] == "m" else 1000)
    raise ValueError(f"{quote_value(value)} is not an amount of tokens; write 2000, 200k or 1m")


def parse_duration(value: object) -> timedelta:
    """A duration, zero or more."""
    found = words.parse_duration(value) if isinstance(value, str) else None
    if found is not None and found <= LONGEST_DURATION:
        return found
    if found is not None:
        raise ValueError(f"{quote_value(value)} is more than ten years; write at most 3660d")
    has_unit = type(value) not in (int, float)
    raise ValueError(f"{quote_value(value)} {'is not a duration' if has_unit else 'has no unit'}; write 90s, 30m or 1h30m")


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
        if (span := words.parse_duration(value)) is not None and span <= LONGEST_DURATION:
            return span
    raise ValueError(f"{quote_value(value)} is neither a percentage up to 100% nor a duration; write 10% or 90s")


def parse_rate(value: object) -> tuple[int, timedelta]:
    """A count and the duration in which it is allowed."""
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    within = words.parse_duration(found[2]) if found else None
    if found and int(found[1]) and within and within <= LONGEST_DURATION:
        return int(found[1]), within
    raise ValueError(f"{quote_value(value)} is not a rate; write 5 per 10m")


def parse_opening_time(value: object) -> int:
    """The start of a time window, in minutes from midnight."""
    if value == "24:00":
        raise ValueError('24:00 cannot be a start; write "00:00"')
    return parse_closing_time(value, "08:00")


def parse_closing_time(value: object, example: str = "22:00") -> int:
    """The end of a time window, in minutes from midnight."""
    if type(value) is str:
        with suppress(ValueError):
            return parse_time(value)
    is_number = isinstance(value, AmbiguousText)
    problem = "must be in quotes, because other programs read it as a number" if is_number else "is not a time"
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


def check_items_differ(items: tuple[T, ...]) -> tuple[T, ...]:
    for index, item in enumerate(items):
        if item in items[:index]:
            raise ValueError(f"{quote_value(item)} is listed twice; remove one of them")
    return items


def check_some(items: tuple[object, ...]) -> tuple[object, ...]:
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


def parse_percent(value: object) -> int:
    """A percentage such as 90%."""
    found = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if found is None or not 0 < int(found[1]) < 100:
        raise ValueError(f"{quote_value(value)} is not a percentage from 1% to 99%; write 90%")
    return int(found[1])


def parse_count_or_none(value: object) -> int:
    """A number from 1 on; 0 for `none`."""
    if value == "none":
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_COUNT:
        raise ValueError(f"{quote_value(value)} is not a number from 1 to {MOST_COUNT:,}; write 2 or none")
    return value


def parse_workspace_file(value: object) -> str:
    """The name of a file inside its folder."""
    name = parse_nonempty_text(value)
    if name.startswith(("/", "~")) or ".." in name.split("/"):
        raise ValueError(f"{quote_value(name)} is outside the workspace; write the name of a file inside it")
    return name


END_CHECKLIST = 'to write the checklist here, end it with a line break, in double quotes: "- Look.\\n"'


def parse_checklist(value: object) -> str:
    """A file in the workspace, or, with a line break, the checklist itself."""
    if not isinstance(value, str) or "\n" not in value:
        name = parse_workspace_file(value)
        if name.startswith(("- ", "* ", "# ")):  # of Markdown, so this is hardly a name
            problem = f"{quote_value(name)} has no line break, so it would be the name of a file"
            raise ValueError(f"{problem}; {END_CHECKLIST}")
        return name
    return parse_text(value)


@lru_cache(maxsize=1024)  # many agents share their schedule
def _check_expression(text: str) -> None:
    parse_expression(text)


def _tokens(most: int, label: str) -> tuple[object, ...]:
    """The marks of an amount of tokens."""
    schema = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^\d+[km]$"}], "x-form": label}
    return BeforeValidator(parse_tokens), Field(ge=1, le=most), WithJsonSchema(schema)


def _usd(least: float, label: str) -> tuple[object, ...]:
    """The marks of an amount of money."""
    schema = {"type": "number", "minimum": least, "x-form": label}
    return Field(ge=least, le=MOST_USD, allow_inf_nan=False), WithJsonSchema(schema)


OrUnset = Annotated[T | None, _Unset()]
Text = Annotated[str, text(parse_nonempty_text)]
AnyText = Annotated[str, text(parse_text)]
Path = Annotated[str, text(parse_nonempty_text, "path")]
SECRET_FORM = "string with `${NAME}`"  # noqa: S105 - a form, not a secret
Secret = Annotated[str, text(parse_nonempty_text, SECRET_FORM)]
Name = Annotated[str, text(parse_name)]
ChannelName = Annotated[
    str, text(not_among(parse_name, (LOG_CHANNEL, LAST_TARGET, "none"), "{name} is reserved in deliver:; use another name"))
]
CalendarName = Annotated[str, text(not_among(parse_name, ("none",), "none is reserved in skip_on:; use another name"))]
Schedule = Annotated[str, text(parse_schedule)]
Zone = Annotated[ZoneInfo, text(lambda value: time_zones.find_zone(parse_text(value)), "time zone")]
Duration = Annotated[timedelta, text(parse_duration, "duration", pattern=DURATION_PATTERN)]
PositiveDuration = Annotated[timedelta, text(parse_positive_duration, "duration", pattern=DURATION_PATTERN)]
DurationUpToADay = Annotated[timedelta, text(parse_duration_up_to_a_day, "duration, at most 24h", pattern=DURATION_PATTERN)]
Interval = Annotated[timedelta | None, text(parse_interval, "duration, `none`", pattern=f"^none$|{DURATION_PATTERN}")]
Stagger = Annotated[
    Share, Notation(parse_share, {"anyOf": [{"type": "string"}, {"const": 0}]}, "percent of the period, or duration")
]
Rate = Annotated[tuple[int, timedelta], text(parse_rate, "rate", pattern=r"^\d+ per \S+$")]
OpeningTime = Annotated[int, text(parse_opening_time, '"HH:MM"', pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
ClosingTime = Annotated[int, text(parse_closing_time, '"HH:MM"', pattern=r"^([01]\d|2[0-3]):[0-5]\d$|^24:00$")]
TokensUpToAMillion = Annotated[int, *_tokens(1_000_000, "amount of tokens, at most 1m")]
Tokens = Annotated[int, *_tokens(MOST_TOKENS, "amount of tokens")]
PositiveUsd = Annotated[float, *_usd(0.0001, "USD")]
Usd = Annotated[float, *_usd(0, "USD")]
UsdPerMillion = Annotated[float, *_usd(0, "USD per million tokens")]
Retries = Annotated[int, Field(ge=0, le=10)]
AckLength = Annotated[int, Field(ge=0, le=10_000)]
Count = Annotated[int, Field(ge=1, le=1000)]
CountOrNone = Annotated[
    int,
    Notation(
        parse_count_or_none,
        {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST_COUNT}, {"const": "none"}]},
        f"number, 1 to {MOST_COUNT:,}, or `none`",
    ),
]
ChannelKindName = Annotated[str, _Words(tuple(kind.name for kind in registry.KINDS))]

_SOME = AfterValidator(check_some)
_ITEMS = AfterValidator(check_items_differ)
_FILE = text(parse_workspace_file)
WorkspaceFiles = Annotated[tuple[Annotated[str, _FILE], ...], _ITEMS, OneOrList("file in the workspace, or list")]
Checklist = Annotated[str, text(parse_checklist, "file in the workspace, or text with a line break")]
Pattern = Annotated[str, text(parse_pattern, "regular expression")]
Names = Annotated[tuple[Text, ...], _ITEMS, OneOrList("name or list")]
_PERSON = text(
    text_like(r"@?[A-Za-z0-9_]{1,32}", "is not a user name of Telegram; write @NAME, or the number of the user in quotes")
)
People = Annotated[tuple[Annotated[str, _PERSON], ...], _ITEMS, OneOrList("name or list")]
Outputs = Annotated[
    bool | tuple[str, ...],
    Notation(
        parse_outputs,
        {"anyOf": [{"type": "boolean"}, {"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        f"boolean, job, or list of up to {MOST_OUTPUTS}",
    ),
]
AgentNames = Annotated[tuple[Text, ...], _ITEMS, OneOrList("agent or list")]
Targets = Annotated[tuple[Text, ...], _ITEMS, OneOrList("channel, `last`, list, `none`", "none")]
Calendars = Annotated[tuple[Text, ...], _ITEMS, OneOrList("calendar, list, `none`", "none")]
_TOOL_NAME = text(
    text_like(r"[A-Za-z0-9./_-]{1,64}", "is not the name of a tool; use 1 to 64 characters from A-Z a-z 0-9 . / _ -")
)
ToolNames = Annotated[tuple[Annotated[str, _TOOL_NAME], ...], _ITEMS, _SOME, OneOrList("tool or list")]
_RULE = text(text_like(r"[A-Za-z].*", "is not a rule of Claude Code; write Read, or Bash(df:*)"))
Rules = Annotated[tuple[Annotated[str, _RULE], ...], _ITEMS, OneOrList("rule or list")]
Permissions = Annotated[tuple[Permission, ...], _ITEMS, _SOME, OneOrList("list of `read`, `wake`, `operate`, `edit`")]
Days = Annotated[tuple[Annotated[frozenset[int], text(parse_weekdays)], ...], _SOME, OneOrList("`mon` to `sun`, range, list")]
Dates = Annotated[tuple[Annotated[DateRange, text(parse_date_range)], ...], OneOrList("date, `FIRST..LAST`, list")]
Argv = Annotated[
    tuple[AnyText, ...],
    BeforeValidator(check_program),
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 1, "x-form": "list of strings"}),
]
Command = Annotated[
    str | tuple[str, ...],
    Notation(
        parse_command, {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, "shell command, or list"
    ),
]
SECRETS_FORM = "map of strings with `${NAME}`"
_STRINGS = WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}, "x-form": SECRETS_FORM})
_EMPTY = BeforeValidator(lambda written: {} if written is None else written)
_VARIABLE = text(
    text_like(r"[A-Za-z_][A-Za-z0-9_]*", "is not the name of a variable; use A-Z, a-z, 0-9 and _, not starting with a digit")
)
Environment = Annotated[dict[Annotated[str, _VARIABLE], AnyText], _EMPTY, _STRINGS]
Headers = Annotated[dict[Annotated[str, text(parse_header)], AnyText], AfterValidator(check_headers_differ), _EMPTY, _STRINGS]
# It is a part of the names of the server's tools for the model.
ToolServer = Annotated[
    str,
    text(
        text_like(r"[A-Za-z0-9_-]{1,32}", "is not a name for a server; use 1 to 32 characters from A-Z a-z 0-9 _ -"),
        "1 to 32 letters, digits, `_`, `-`",
    ),
]
SignatureHeader = Annotated[
    str,
    text(
        not_among(
            parse_header, _MESSAGE_HEADERS, "the daemon sets {name} itself; write another name, such as X-Heartbeatd-Signature"
        ),
        "name of a header",
    ),
]
