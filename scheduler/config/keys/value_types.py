"""Forms: how each kind of value is read, shown to an editor and called in the reference."""

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
class Form:
    """The form of one value: `parse` as in fields.py, `schema` for an editor, `called` in the reference.

    It takes the place of the type that it annotates, so that an empty value is never taken for a None that is meant.
    """

    parse: Callable[[Any], Any]
    schema: dict[str, Any]
    called: str

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.parse)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**self.schema, "x-form": self.called}


def text(parse: Callable[[Any], Any], called: str = "text", **schema: Any) -> Form:
    return Form(parse, {"type": "string", **schema}, called)


def choice(words: Any) -> Form:
    return Form(
        value_parsers.one_of(*get_args(words)),
        {"enum": [*get_args(words)]},
        " \\| ".join(f"`{word}`" for word in get_args(words)),
    )


def whole(least: int, most: int) -> Form:
    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Form(value_parsers.whole(least, most), schema, f"number, {least:,} to {most:,}")


def several(parse: Callable[[Any], Any], called: str) -> Form:
    return Form(parse, {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, called)


SPAN = r"^(?=.)(\d+d)?(\d+h)?(\d+m)?(\d+s)?$"

_SOME_TEXT, _PATH = text(value_parsers.some_text), text(value_parsers.path, "path")
_DURATION = text(value_parsers.duration, "duration", pattern=SPAN)
_SOME_DURATION = text(value_parsers.some_duration, "duration", pattern=SPAN)
_EVERY = text(value_parsers.every, "duration", pattern=SPAN)
_ZONE = text(value_parsers.zone, "time zone")
_AMOUNT = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^\d+[km]$"}]}
TOKENS = Form(value_parsers.tokens(1_000_000), _AMOUNT, "amount of tokens, at most 1,000k")
TOKENS_A_DAY = Form(value_parsers.tokens(1_000_000_000), _AMOUNT, "amount of tokens")
USD_A_DAY = Form(value_parsers.usd(0.0001), {"type": "number", "minimum": 0.0001}, "USD")
USD_A_RUN = Form(value_parsers.usd(0), {"type": "number", "minimum": 0}, "USD")
PRICE = Form(value_parsers.price, {"type": "number", "minimum": 0}, "USD per million tokens")
SECRET = text(value_parsers.secret, "text, may hold `${NAME}`, `${file:PATH}`")
_CALENDARS = several(value_parsers.targets, "calendar, list, `none`")
_TARGETS, _WORDS = several(value_parsers.targets, "channel, `last`, list, `none`"), several(value_parsers.names, "name or list")

Text = Annotated[str, _SOME_TEXT]
TextOrNone = Annotated[str | None, _SOME_TEXT]
AnyText = Annotated[str, text(value_parsers.text)]
PathText = Annotated[str, _PATH]
PathOrNone = Annotated[str | None, _PATH]
Truth = Annotated[bool, Form(value_parsers.truth, {"type": "boolean"}, "`true` \\| `false`")]
Duration = Annotated[timedelta, _DURATION]
DurationOrNone = Annotated[timedelta | None, _DURATION]
SomeDuration = Annotated[timedelta, _SOME_DURATION]
UpToADay = Annotated[timedelta, text(value_parsers.up_to_a_day, "duration, at most 24h", pattern=SPAN)]
SomeDurationOrNone = Annotated[timedelta | None, _SOME_DURATION]
EveryOrNone = Annotated[timedelta | None, _EVERY]
Zone = Annotated[ZoneInfo, _ZONE]
ZoneOrNone = Annotated[ZoneInfo | None, _ZONE]
Opening = Annotated[int, text(value_parsers.opening, '"HH:MM"', pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
Closing = Annotated[int, text(value_parsers.closing, '"HH:MM"', pattern=r"^([01]\d|2[0-3]):[0-5]\d$|^24:00$")]
Words = Annotated[tuple[str, ...], _WORDS]
WordsOrNone = Annotated[tuple[str, ...] | None, _WORDS]
Targets = Annotated[tuple[str, ...], _TARGETS]
Calendars = Annotated[tuple[str, ...], _CALENDARS]
TargetsOrNone = Annotated[tuple[str, ...] | None, _TARGETS]
SecretText = Annotated[str, SECRET]
Environment = Annotated[
    tuple[tuple[str, str], ...],
    Form(
        value_parsers.environment,
        {"type": "object", "additionalProperties": {"type": "string"}},
        "map of texts, may hold `${NAME}`, `${file:PATH}`",
    ),
]
Days = Annotated[
    frozenset[int],
    Form(
        value_parsers.days,
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "`mon` to `sun`, range, list",
    ),
]
Stagger = Annotated[
    value_parsers.Share,
    Form(value_parsers.share, {"anyOf": [{"type": "string"}, {"const": 0}]}, "percent of the period, or duration"),
]


def key(default: Any, about: str, *, written: Any = None, else_: str = "") -> Any:
    """One key: its default as a value and as `written` in a file, or in words (`else_`) where it is worked out."""

    def extra(schema: dict[str, Any]) -> None:
        schema.pop("default", None)
        if else_:
            schema["x-else"] = else_
        else:
            schema["default"] = default if written is None else written

    return Field(default=default, description=about, json_schema_extra=extra)


def needed(about: str) -> Any:
    """A key without a default."""
    return Field(description=about)
