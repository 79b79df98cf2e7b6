"""Defines the JSON bodies of API requests as pydantic models, and words the error for a wrong one.

The `description` of a field says what to write there. It is part of the JSON schema and of the error message.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails

from heartbeat.findings import Report, parse_report
from heartbeat.words import format_duration, one_line
from scheduler.config.file.message_parts import join_with_or
from scheduler.config.keys import value_parsers, value_types
from scheduler.store import lane_holds
from scheduler.web.http_errors import bad_request, unknown_key

MAX_TEXT_LENGTH = 200
MAX_COUNT = 1_000_000
VERSION_HINT = '"4": only this version of Alertmanager\'s webhook body is supported'
HOLDER_PATTERN = r"^[A-Za-z0-9._:/@+-]{1,100}$"


def parse_time(value: object) -> datetime:
    """A time with its zone, in UTC. Raises ValueError for anything else."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
        if found is not None and found.tzinfo is not None:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError("write a time with its zone, as in 2027-03-28T01:00:00Z")


def _replace_control_characters(text: str | None) -> str | None:
    """The text with a blank in place of each control character."""
    return text and one_line(text)


def _parse_hold_span(value: object) -> timedelta:
    span = value_parsers.parse_positive_duration(value)
    if span > lane_holds.MAX_HOLD:
        raise ValueError(f"at most {format_duration(lane_holds.MAX_HOLD)}; send it again to prolong it")
    return span


_SPAN_SCHEMA = {"type": "string", "pattern": value_types.DURATION_PATTERN}

TrueOrFalse = Annotated[bool, Field(description="true or false")]
AnyText = Annotated[str, Field(description="a string in quotes")]
TextOrNone = Annotated[str | None, Field(description="a string in quotes")]
ShortTextOrNone = Annotated[
    str | None,
    Field(max_length=MAX_TEXT_LENGTH, description=f"a string in quotes, of at most {MAX_TEXT_LENGTH} characters"),
    AfterValidator(_replace_control_characters),
]
FindingsOrNone = Annotated[list[Any] | None, Field(description="a list of objects with key, text, severity and resolved")]
CountOrNone = Annotated[int | None, Field(ge=0, le=MAX_COUNT, description=f"a number from 0 to {MAX_COUNT}")]
HolderId = Annotated[str, Field(pattern=HOLDER_PATTERN, description="1 to 100 of A-Z a-z 0-9 . _ : / @ + -, as in chat:4711")]
SpanOrNone = Annotated[timedelta | None, PlainValidator(value_parsers.parse_positive_duration), WithJsonSchema(_SPAN_SCHEMA)]
HoldSpan = Annotated[
    timedelta,
    PlainValidator(_parse_hold_span),
    WithJsonSchema(_SPAN_SCHEMA),
    Field(description=join_with_or(value_parsers.DURATION_EXAMPLES)),
]
TimeOrNone = Annotated[datetime | None, PlainValidator(parse_time), WithJsonSchema({"type": "string", "format": "date-time"})]


class RequestBody(BaseModel):
    """A JSON object with these keys and no others."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    marker_key: ClassVar[str | None] = None  # the key that distinguishes this body from the others of a path

    @classmethod
    def allowed_keys(cls) -> list[str]:
        """The keys that may be sent."""
        return [field.alias or name for name, field in cls.model_fields.items()]


class EmptyBody(RequestBody):
    """No keys."""


class WakeBody(RequestBody):
    """The text for the agent that is woken."""

    text: AnyText = ""


class AlertmanagerBody(RequestBody):
    """Version 4 of the body of Alertmanager's webhook.

    Nothing else is checked, because Alertmanager does not repeat a rejected notification.
    """

    model_config = ConfigDict(extra="ignore")
    marker_key = "alerts"

    version: Annotated[Literal["4"], Field(description=VERSION_HINT)]
    alerts: Annotated[list[dict[str, Any]], Field(min_length=1, description="a list of at least one alert")]
    status: Any = None
    receiver: Any = None
    group_key: Any = Field(None, alias="groupKey")
    truncated_alerts: Any = Field(None, alias="truncatedAlerts")


class ResultBody(RequestBody):
    """The result of a run that ended `async`: a text or findings, which may be `truncated`, or an error."""

    text: TextOrNone = None
    findings: FindingsOrNone = None
    error: TextOrNone = None
    truncated: TrueOrFalse = False

    @model_validator(mode="after")
    def _check_one_result(self) -> Self:
        if (self.text is None and self.findings is None) == (self.error is None):
            raise ValueError("write either text or error, as a string in quotes, or findings, as a list")
        self.parse_findings()
        return self

    def parse_findings(self) -> Report | None:
        """The findings and the text without a key; None if there are no findings. Raises ValueError if they cannot be read."""
        return None if self.findings is None else parse_report({"findings": self.findings, "text": self.text})


class HoldBody(RequestBody):
    """Who holds an agent's lane, and for how long."""

    id: HolderId
    span: HoldSpan = Field(alias="for")


class ReleaseBody(RequestBody):
    """Who releases an agent's lane."""

    id: HolderId


class ActivityBody(RequestBody):
    """The target that an agent has just talked with, and how much work waits for the agent."""

    channel: ShortTextOrNone = None
    target: ShortTextOrNone = None
    title: ShortTextOrNone = None
    queue: CountOrNone = None
    pending_approvals: CountOrNone = None

    @model_validator(mode="after")
    def _check_completeness(self) -> Self:
        if (self.channel is None) != (self.target is None) or (self.title is not None and self.target is None):
            raise ValueError("write channel and target together, and a title only with them")
        if self.target is None and self.queue is None and self.pending_approvals is None:
            raise ValueError("write channel and target, or queue, or pending_approvals")
        return self


class PauseBody(RequestBody):
    """How long a pause lasts; without either key until `resume`."""

    span: SpanOrNone = Field(None, alias="for")
    until: TimeOrNone = None

    @model_validator(mode="after")
    def _check_one_end(self) -> Self:
        if self.span is not None and self.until is not None:
            raise ValueError("write either for or until")
        return self


class MuteBody(PauseBody):
    """How long a mute lasts; without a key until `unmute`."""

    until_changed: TrueOrFalse = False


class ReloadBody(RequestBody):
    """Whether the config is only compared and not applied."""

    dry_run: TrueOrFalse = False


class CloseConditionBody(RequestBody):
    """The agent and the key of the condition to close."""

    agent: AnyText
    key: AnyText


class AcknowledgeBody(RequestBody):
    """The open conditions to acknowledge, or to report again: one of an agent by its key, or those of a run."""

    agent: TextOrNone = None
    key: TextOrNone = None
    run: Annotated[int | None, Field(ge=1, description="the number of a run")] = None

    @model_validator(mode="after")
    def _check_one_subject(self) -> Self:
        if (self.agent is None) != (self.key is None) or (self.key is None) == (self.run is None):
            raise ValueError("write agent and key, or run")
        return self


class PingBody(RequestBody):
    """The channel to test; None for all of them."""

    channel: TextOrNone = None


class ChecklistBody(RequestBody):
    """A checklist, and the hash of the version that it replaces, unless a header names that."""

    text: Annotated[str, Field(description="the whole checklist as a string")]
    hash: TextOrNone = None


class EditBody(RequestBody):
    """Changes of the config as a JSON merge patch, and the hash of the version that they change, unless a header names that."""

    changes: Annotated[
        dict[str, Any], Field(description="an object with the keys to change; maps are merged, null removes a key")
    ]
    hash: TextOrNone = None
    dry_run: TrueOrFalse = False


Body = TypeVar("Body", bound=RequestBody)


def parse_body(sent: Mapping[str, Any], model: type[Body]) -> Body:
    """The body as a value of its model. Raises HttpError with one sentence on what is wrong."""
    try:
        return model.model_validate(sent)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        raise bad_request(_error_sentence(min(faults, key=lambda fault: fault["type"] != "extra_forbidden"), model)) from None


def _error_sentence(fault: ErrorDetails, model: type[RequestBody]) -> str:
    """Our wording of an error of pydantic, whose own messages name Python types."""
    key = str(fault["loc"][0]) if fault["loc"] else ""
    if fault["type"] == "extra_forbidden":
        return unknown_key(key, model.allowed_keys()).message
    if fault["type"] == "value_error":
        reason = str(fault["ctx"]["error"])
        return f"{key}: {reason}" if key else reason
    if not key:
        return f"a key of the body is not a string; write {', '.join(model.allowed_keys()) or 'no key'}"
    described = {field.alias or name: field.description for name, field in model.model_fields.items()}
    return f"{key}: write {described[key]}"
