"""Defines the types of values in the config: their parser, their JSON Schema and their name in the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, get_args
from zoneinfo import ZoneInfo

from pydantic import Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from scheduler.config.keys import value_parsers


@dataclass(frozen=True, slots=True, eq=False)
class ValueType:
    """The type of one value: its `parse` function, its JSON `schema`, and its `label` in the reference.

    It replaces the validation of the annotated type, so that an empty value is not read as None.
    """

    parse: Callable[[Any], Any]
    schema: dict[str, Any]
    label: str

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.parse)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**self.schema, "x-form": self.label}


def text_type(parse: Callable[[Any], Any], label: str = "string", **schema: Any) -> ValueType:
    return ValueType(parse, {"type": "string", **schema}, label)


def choice_type(words: Any) -> ValueType:
    """One of these words, given as a tuple or as a Literal."""
    choices = words if isinstance(words, tuple) else get_args(words)
    return ValueType(value_parsers.one_of(*choices), {"enum": [*choices]}, " \\| ".join(f"`{word}`" for word in choices))


def integer_type(least: int, most: int) -> ValueType:
    schema = {"type": "integer", "minimum": least, "maximum": most}
    return ValueType(value_parsers.integer_between(least, most), schema, f"number, {least:,} to {most:,}")


def list_type(parse: Callable[[Any], Any], label: str) -> ValueType:
    return ValueType(parse, {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, label)


DURATION_PATTERN = r"^(?=.)(\d+d)?(\d+h)?(\d+m)?(\d+s)?$"

_SOME_TEXT, _PATH = text_type(value_parsers.parse_nonempty_text), text_type(value_parsers.parse_path, "path")
_DURATION = text_type(value_parsers.parse_duration, "duration", pattern=DURATION_PATTERN)
_SOME_DURATION = text_type(value_parsers.parse_positive_duration, "duration", pattern=DURATION_PATTERN)
_EVERY = text_type(value_parsers.parse_job_interval, "duration", pattern=DURATION_PATTERN)
_ZONE = text_type(value_parsers.parse_zone, "time zone")
_AMOUNT = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^\d+[km]$"}]}
TOKENS = ValueType(value_parsers.tokens_up_to(1_000_000), _AMOUNT, "amount of tokens, at most 1,000k")
TOKENS_A_DAY = ValueType(value_parsers.tokens_up_to(1_000_000_000), _AMOUNT, "amount of tokens")
USD_A_DAY = ValueType(value_parsers.usd_from(0.0001), {"type": "number", "minimum": 0.0001}, "USD")
USD_A_RUN = ValueType(value_parsers.usd_from(0), {"type": "number", "minimum": 0}, "USD")
PRICE = ValueType(value_parsers.parse_price, {"type": "number", "minimum": 0}, "USD per million tokens")
SECRET = text_type(value_parsers.parse_secret, "string, may contain `${NAME}`, `${file:PATH}`")
_CALENDARS = list_type(value_parsers.parse_targets, "calendar, list, `none`")
_TARGETS, _WORDS = (
    list_type(value_parsers.parse_targets, "channel, `last`, list, `none`"),
    list_type(value_parsers.parse_names, "name or list"),
)

Text = Annotated[str, _SOME_TEXT]
TextOrNone = Annotated[str | None, _SOME_TEXT]
AnyText = Annotated[str, text_type(value_parsers.parse_text)]
PathText = Annotated[str, _PATH]
StateText = Annotated[str, text_type(value_parsers.parse_state, "path or address")]
PathOrNone = Annotated[str | None, _PATH]
Boolean = Annotated[bool, ValueType(value_parsers.parse_bool, {"type": "boolean"}, "`true` \\| `false`")]
Duration = Annotated[timedelta, _DURATION]
DurationOrNone = Annotated[timedelta | None, _DURATION]
PositiveDuration = Annotated[timedelta, _SOME_DURATION]
DurationUpToADay = Annotated[
    timedelta, text_type(value_parsers.parse_duration_up_to_a_day, "duration, at most 24h", pattern=DURATION_PATTERN)
]
PositiveDurationOrNone = Annotated[timedelta | None, _SOME_DURATION]
EveryOrNone = Annotated[timedelta | None, _EVERY]
Zone = Annotated[ZoneInfo, _ZONE]
ZoneOrNone = Annotated[ZoneInfo | None, _ZONE]
OpeningTime = Annotated[int, text_type(value_parsers.parse_opening_time, '"HH:MM"', pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
ClosingTime = Annotated[int, text_type(value_parsers.parse_closing_time, '"HH:MM"', pattern=r"^([01]\d|2[0-3]):[0-5]\d$|^24:00$")]
NameList = Annotated[tuple[str, ...], _WORDS]
NameListOrNone = Annotated[tuple[str, ...] | None, _WORDS]
Targets = Annotated[tuple[str, ...], _TARGETS]
Calendars = Annotated[tuple[str, ...], _CALENDARS]
TargetsOrNone = Annotated[tuple[str, ...] | None, _TARGETS]
SecretText = Annotated[str, SECRET]
Environment = Annotated[
    tuple[tuple[str, str], ...],
    ValueType(
        value_parsers.parse_environment,
        {"type": "object", "additionalProperties": {"type": "string"}},
        "map of strings, may contain `${NAME}`, `${file:PATH}`",
    ),
]
Headers = Annotated[
    tuple[tuple[str, str], ...],
    ValueType(
        value_parsers.parse_headers,
        {"type": "object", "additionalProperties": {"type": "string"}},
        "map of strings, may contain `${NAME}`, `${file:PATH}`",
    ),
]
Days = Annotated[
    frozenset[int],
    ValueType(
        value_parsers.parse_weekdays,
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "`mon` to `sun`, range, list",
    ),
]
Stagger = Annotated[
    value_parsers.Share,
    ValueType(value_parsers.parse_share, {"anyOf": [{"type": "string"}, {"const": 0}]}, "percent of the period, or duration"),
]


def optional_key(default: Any, description: str, *, written_default: Any = None, default_in_words: str = "") -> Any:
    """A key with a default: the value, its text in a file (`written_default`), or a description if it is computed."""

    def extra(schema: dict[str, Any]) -> None:
        schema.pop("default", None)
        if default_in_words:
            schema["x-else"] = default_in_words
        else:
            schema["default"] = default if written_default is None else written_default

    return Field(default=default, description=description, json_schema_extra=extra)


def required_key(description: str) -> Any:
    """A key without a default."""
    return Field(description=description)
