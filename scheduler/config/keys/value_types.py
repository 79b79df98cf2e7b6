"""Defines the types of values in the config. Each has its parser, its JSON Schema, and its name in the reference.

Where pydantic has a type and a constraint for a value, they are used as they are. The others are notations of the config.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeVar
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from heartbeat.calendars import DateRange
from heartbeatd.operations import DURATION_PATTERN
from scheduler.channels import registry
from scheduler.config.keys import value_parsers
from scheduler.model.settings import Permission

T = TypeVar("T")

MOST_USD = 1_000_000
MOST_TOKENS = 1_000_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Notation:
    """A value in a notation of the config: its `parse` function, its JSON `schema`, and its `label` in the reference."""

    parse: Callable[[Any], Any]
    schema: dict[str, Any]
    label: str

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.parse)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**self.schema, "x-form": self.label}


@dataclass(frozen=True, slots=True)
class _Unset:
    """A key that may be left out, but whose value may not be empty: its type accepts None only as the default."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema: Any = handler(source)
        inner: CoreSchema = schema["schema"]
        return inner


@dataclass(frozen=True, slots=True)
class OneOrList:
    """A list whose single item may be written without brackets. The word `nothing` means an empty list."""

    label: str
    nothing: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._as_items, handler(source))

    def _as_items(self, value: object) -> object:
        return () if value == self.nothing is not None else value_parsers.as_items(value)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        items = handler(schema)["items"]
        one = [{"type": "string"}, items] if "$ref" in items else [{"type": "string"}]
        many = {"type": "array", "items": {"anyOf": one} if "$ref" in items else {"type": "string"}}
        return {"anyOf": [*one, many], "x-form": self.label}


@dataclass(frozen=True, slots=True)
class MapOr:
    """A map of keys, or this word in place of it, which means None. With `text`, the map may also be written as text."""

    word: str
    text: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._as_map, handler(source))

    def _as_map(self, value: object) -> object:
        return None if value == self.word else {} if value is None else value

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        as_map = next(part for part in handler(schema)["anyOf"] if "$ref" in part)
        word = {"type": "string"} if self.text else {"const": self.word}
        forms = [f"`{self.word}`", *filter(None, [self.text]), "map"]
        return {"anyOf": [word, as_map], "x-form": ", ".join(forms)}


@dataclass(frozen=True, slots=True)
class OrShort:
    """A map with a short form, which its model reads: adds this form to the JSON Schema."""

    short: dict[str, Any]
    label: str = ""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [self.short, handler(schema)], **({"x-form": self.label} if self.label else {})}


@dataclass(frozen=True, slots=True)
class _Words:
    """One of these words, which are known at run time."""

    words: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        return core_schema.literal_schema(list(self.words))


def text(parse: Callable[[Any], Any], label: str = "string", **schema: Any) -> Notation:
    return Notation(parse, {"type": "string", **schema}, label)


_AMOUNT = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^\d+[km]$"}]}

OrUnset = Annotated[T | None, _Unset()]
Text = Annotated[str, text(value_parsers.parse_nonempty_text)]
AnyText = Annotated[str, text(value_parsers.parse_text)]
Path = Annotated[str, text(value_parsers.parse_nonempty_text, "path")]
Secret = Annotated[str, text(value_parsers.parse_nonempty_text, "string, may contain `${NAME}`, `${file:PATH}`")]
Name = Annotated[str, text(value_parsers.parse_name)]
ChannelName = Annotated[str, text(value_parsers.parse_channel_name)]
CalendarName = Annotated[str, text(value_parsers.parse_calendar_name)]
Schedule = Annotated[str, text(value_parsers.parse_schedule)]
Zone = Annotated[ZoneInfo, text(value_parsers.parse_zone, "time zone")]
Duration = Annotated[timedelta, text(value_parsers.parse_duration, "duration", pattern=DURATION_PATTERN)]
PositiveDuration = Annotated[timedelta, text(value_parsers.parse_positive_duration, "duration", pattern=DURATION_PATTERN)]
DurationUpToADay = Annotated[
    timedelta, text(value_parsers.parse_duration_up_to_a_day, "duration, at most 24h", pattern=DURATION_PATTERN)
]
Interval = Annotated[
    timedelta | Literal["missing"] | None,
    text(value_parsers.parse_interval, "duration, `none`", pattern=f"^none$|{DURATION_PATTERN}"),
]
Stagger = Annotated[
    value_parsers.Share,
    Notation(value_parsers.parse_share, {"anyOf": [{"type": "string"}, {"const": 0}]}, "percent of the period, or duration"),
]
Rate = Annotated[tuple[int, timedelta], text(value_parsers.parse_rate, "rate", pattern=r"^\d+ per \S+$")]
OpeningTime = Annotated[int, text(value_parsers.parse_opening_time, '"HH:MM"', pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
ClosingTime = Annotated[int, text(value_parsers.parse_closing_time, '"HH:MM"', pattern=r"^([01]\d|2[0-3]):[0-5]\d$|^24:00$")]
Tokens = Annotated[
    int,
    BeforeValidator(value_parsers.parse_tokens),
    Field(ge=1, le=1_000_000),
    WithJsonSchema({**_AMOUNT, "x-form": "amount of tokens, at most 1,000k"}),
]
TokensADay = Annotated[
    int,
    BeforeValidator(value_parsers.parse_tokens),
    Field(ge=1, le=MOST_TOKENS),
    WithJsonSchema({**_AMOUNT, "x-form": "amount of tokens"}),
]
UsdADay = Annotated[
    float,
    Field(ge=0.0001, le=MOST_USD, allow_inf_nan=False),
    WithJsonSchema({"type": "number", "minimum": 0.0001, "x-form": "USD"}),
]
UsdARun = Annotated[
    float, Field(ge=0, le=MOST_USD, allow_inf_nan=False), WithJsonSchema({"type": "number", "minimum": 0, "x-form": "USD"})
]
UsdPerMillion = Annotated[
    float,
    Field(ge=0, le=MOST_USD, allow_inf_nan=False),
    WithJsonSchema({"type": "number", "minimum": 0, "x-form": "USD per million tokens"}),
]
Retries = Annotated[int, Field(ge=0, le=10)]
AckLength = Annotated[int, Field(ge=0, le=10_000)]
Count = Annotated[int, Field(ge=1, le=1000)]
ChannelKindName = Annotated[str, _Words(tuple(kind.name for kind in registry.KINDS))]

_SOME = AfterValidator(value_parsers.check_some)
_ITEMS = AfterValidator(value_parsers.check_items_differ)
_FILE = text(value_parsers.parse_workspace_file)
WorkspaceFiles = Annotated[tuple[Annotated[str, _FILE], ...], _ITEMS, OneOrList("file in the workspace, or list")]
Checklist = Annotated[str, text(value_parsers.parse_checklist, "file in the workspace, or text with a line break")]
Names = Annotated[tuple[Text, ...], _ITEMS, OneOrList("name or list")]
AgentNames = Annotated[tuple[Text, ...], _ITEMS, OneOrList("agent or list")]
Urls = Annotated[tuple[Text, ...], _ITEMS, OneOrList("URL or list")]
Targets = Annotated[tuple[Text, ...], _ITEMS, OneOrList("channel, `last`, list, `none`", "none")]
Calendars = Annotated[tuple[Text, ...], _ITEMS, OneOrList("calendar, list, `none`", "none")]
ToolNames = Annotated[tuple[Annotated[str, text(value_parsers.parse_tool_name)], ...], _ITEMS, _SOME, OneOrList("tool or list")]
Permissions = Annotated[tuple[Permission, ...], _ITEMS, _SOME, OneOrList("list of `read`, `wake`, `operate`, `edit`")]
Days = Annotated[
    tuple[Annotated[frozenset[int], text(value_parsers.parse_weekdays)], ...], _SOME, OneOrList("`mon` to `sun`, range, list")
]
Dates = Annotated[tuple[Annotated[DateRange, text(value_parsers.parse_date_range)], ...], OneOrList("date, `FIRST..LAST`, list")]
Argv = Annotated[
    tuple[AnyText, ...],
    BeforeValidator(value_parsers.check_program),
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 1, "x-form": "list of strings"}),
]
Command = Annotated[
    str | tuple[str, ...],
    Notation(
        value_parsers.parse_command,
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "shell command, or list",
    ),
]
_STRINGS = WithJsonSchema(
    {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "x-form": "map of strings, may contain `${NAME}`, `${file:PATH}`",
    }
)
_EMPTY = BeforeValidator(lambda written: {} if written is None else written)
Environment = Annotated[dict[Annotated[str, text(value_parsers.parse_variable)], AnyText], _EMPTY, _STRINGS]
Headers = Annotated[
    dict[Annotated[str, text(value_parsers.parse_header)], AnyText],
    AfterValidator(value_parsers.check_headers_differ),
    _EMPTY,
    _STRINGS,
]
