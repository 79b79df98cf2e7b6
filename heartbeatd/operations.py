"""Defines what a request of the HTTP API is: an operation with its path, its permission, its fields and its answer.

Each class in verbs.py and questions.py is an operation, and the list at the end of the file has its paths. From them come the
routes, openapi.json, the arguments of the tools of MCP, the methods of the client, what the forms of the page send, and the table
of permissions. The commands send them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from inspect import Parameter, Signature, cleandoc
from types import GenericAlias, MethodType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    cast,
    get_args,
    get_origin,
    overload,
)
from urllib.parse import quote

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from typing_extensions import TypeVar  # with a default; typing has it from Python 3.13 on

from heartbeatd.answers import ResponseBody

Permission = Literal["read", "wake", "operate", "edit"]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Answer = TypeVar("Answer", bound=ResponseBody, default=ResponseBody, covariant=True)
P = ParamSpec("P")
AnOperation = TypeVar("AnOperation", bound="Operation")

DURATION = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", re.ASCII)
DURATION_PATTERN = r"^(?=.)(\d+d)?(\d+h)?(\d+m)?(\d+s)?$"  # the same in the language of JSON Schema
LONGEST_DURATION = timedelta(days=3660)  # ten years
MAX_SHOWN = 60  # characters of a wrong value in a message
MAX_TEXT_LENGTH = 200
MAX_COUNT = 1_000_000
MAX_PAGE = 1000  # items
MAX_OPTIONS = 8  # of a question
FORMER_KEYS = {"outcome": "result", "reason": "why"}


class Concern(StrEnum):
    """What a request concerns. A token that is limited to some agents may only send requests that concern these."""

    AGENT = "the agent in the path"
    JOB = "the job in the path"
    RUN = "the agent or job of the run in the path"
    WAKE = "the agent of the wake in the path"
    MESSAGE = "the agent or job of the message in the path"
    QUESTION = "the agent or job of the question in the path"
    PROBLEM = "the agent or job that has the problem in the path"
    PART = "any number of agents and jobs: a limited token gets its part of the answer"
    ALL = "the whole daemon"


_CONCERN_OF_PATH = (
    ("/agents/{name}", Concern.AGENT),
    ("/cron/{name}", Concern.JOB),
    ("/runs/{id}", Concern.RUN),
    ("/wakes/{id}", Concern.WAKE),
    ("/outbox/{id}", Concern.MESSAGE),
    ("/questions/{id}", Concern.QUESTION),
    ("/problems/{id}", Concern.PROBLEM),
)


class Operation(BaseModel, Generic[Answer]):
    """A request of the API, without its sender and without the agent, job, run, message or problem that its path names.

    The fields are the keys of the body, or of the query of a GET request. A trailing underscore is not part of the key. The first
    sentence of the docstring is the summary in openapi.json. `Answer` is the type of the answer.
    """

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        defer_build=True,
        alias_generator=lambda name: name.rstrip("_"),
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    method: ClassVar[Method]
    may: ClassVar[Permission | None]  # the permission that a token needs; None: any token is enough
    concern: ClassVar[Concern] = Concern.PART  # of a path that names nothing
    tool: ClassVar[str] = ""  # the name of the tool of MCP that is this request; empty: there is none
    may_be_refused_by_config: ClassVar[bool] = False  # the answer may be a list of the errors of the config

    # The answer is no field. Pydantic would make a model for each `Verb[...]`: a quarter of the import time of the verbs.
    @classmethod
    def __class_getitem__(cls, answer: object) -> GenericAlias:  # type: ignore[override]
        return GenericAlias(cls, answer)

    @classmethod
    def of(cls, **keys: object) -> Self:
        """The operation with these keys, without those that are None. Raises ValueError with one sentence on what is wrong."""
        return parse_operation(cls, {key.rstrip("_"): value for key, value in keys.items() if value is not None})

    @classmethod
    def answer_type(cls) -> Any:
        """The type of the answer: a model, or a union of models."""
        bases = (base for each in cls.__mro__ for base in each.__dict__.get("__orig_bases__", ()))
        return next(arg for base in bases for arg in get_args(base) if not isinstance(arg, TypeVar))

    @classmethod
    def answers(cls) -> tuple[type[ResponseBody], ...]:
        """The models of the answer."""
        return get_args(cls.answer_type()) or (cls.answer_type(),)

    @classmethod
    def read_answer(cls, content: bytes) -> Answer:
        """The answer to a request. Raises ValueError if this is none."""
        answer: Answer = TypeAdapter(cls.answer_type()).validate_json(content)
        return answer

    def as_json(self) -> dict[str, object]:
        """The keys that were sent, as JSON data."""
        return self.model_dump(mode="json", exclude_unset=True, exclude_none=True)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One request of the API: an operation on one kind of thing. An operation on agents and on jobs has two."""

    name: str
    path: str
    operation: type[Operation]

    @property
    def method(self) -> Method:
        return self.operation.method

    @property
    def may(self) -> Permission | None:
        return self.operation.may

    @property
    def concern(self) -> Concern:
        return next((concern for part, concern in _CONCERN_OF_PATH if part in self.path), self.operation.concern)

    def path_for(self, subject: str | int | None) -> str:
        """The path with the name or the number of what it is for, which may contain any character.

        Raises ValueError for a name that would lead to another request: /agents/../pause pauses everything.
        """
        if subject in ("", ".", ".."):
            raise ValueError(f"name: {subject!r} is not a name; write that of an agent or a job")
        return re.sub(r"\{\w+\}", lambda _: quote(str(subject), safe=""), self.path)

    @property
    def subject(self) -> str | None:
        """What the path contains: the `name` of an agent or a job, or the `id` of a run, a wake, a message or a problem."""
        found = re.search(r"\{(\w+)\}", self.path)
        return found and found[1]

    @property
    def describes(self) -> tuple[str, str]:
        """The summary without a full stop, and the other sentences."""
        summary, _, details = cleandoc(self.operation.__doc__ or "").partition(". ")
        return summary.rstrip("."), details


class AwaitedClient(Protocol):
    """A client whose methods are awaited."""

    async def _perform(self, endpoint: Endpoint, subject: str | int | None, keys: Mapping[str, object]) -> ResponseBody: ...


class WaitingClient(Protocol):
    """A client whose methods wait for the answer."""

    def _perform_and_wait(self, endpoint: Endpoint, subject: str | int | None, keys: Mapping[str, object]) -> ResponseBody: ...


class RequestMethod(Generic[P, Answer]):
    """A method of both clients: it sends the request with its own name, which is the one in openapi.json.

    The parameters are the subject of the path, and the fields of the operation by their names.
    """

    endpoint: Endpoint

    def __init__(self, operation: object, path: str) -> None:
        self._operation = cast("type[Operation]", operation)
        self._path = path

    def __set_name__(self, owner: type, name: str) -> None:
        self.endpoint = Endpoint(name, self._path, self._operation)

    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., object]: ...
    @overload
    def __get__(self, client: AwaitedClient, owner: type) -> Callable[P, Coroutine[object, None, Answer]]: ...
    @overload
    def __get__(self, client: WaitingClient, owner: type) -> Callable[P, Answer]: ...
    def __get__(self, client: object, owner: type) -> object:
        endpoint, subject = self.endpoint, self.endpoint.subject

        def method(self: Any, /, *named: str | int, **keys: object) -> object:
            if len(named) != (subject is not None):
                takes = f"{subject} and then" if subject else "only"
                raise TypeError(f"{endpoint.name}() takes {takes} parameters with their names")
            perform = getattr(self, "_perform_and_wait", None) or self._perform
            return perform(endpoint, named[0] if named else None, keys)

        method.__name__, method.__doc__ = endpoint.name, self._operation.__doc__
        method.__signature__ = self._signature()  # type: ignore[attr-defined]
        return method if client is None else MethodType(method, client)

    def _signature(self) -> Signature:
        first = ["self", self.endpoint.subject] if self.endpoint.subject else ["self"]
        parameters = [Parameter(name, Parameter.POSITIONAL_ONLY) for name in first]
        parameters += [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if field.is_required() else field.default,
                annotation=field.annotation,
            )
            for name, field in self._operation.model_fields.items()
        ]
        return Signature(parameters, return_annotation=self._operation.answer_type())


def of_name(operation: Callable[P, Operation[Answer]], path: str) -> RequestMethod[Concatenate[str, P], Answer]:
    """The method for a request whose path names an agent or a job."""
    return RequestMethod(operation, path)


def of_number(operation: Callable[P, Operation[Answer]], path: str) -> RequestMethod[Concatenate[int, P], Answer]:
    """The method for a request whose path has the number of a run, a wake, a message or a problem."""
    return RequestMethod(operation, path)


def of_all(operation: Callable[P, Operation[Answer]], path: str) -> RequestMethod[P, Answer]:
    """The method for a request whose path names nothing."""
    return RequestMethod(operation, path)


def endpoints_of(methods: type) -> dict[str, Endpoint]:
    """The requests of these methods by their names."""
    return {name: each.endpoint for name, each in vars(methods).items() if isinstance(each, RequestMethod)}


def operations_of(endpoints: Mapping[str, Endpoint]) -> tuple[type[Operation], ...]:
    """The operations of these requests, each once."""
    return tuple(dict.fromkeys(each.operation for each in endpoints.values()))


def parse_operation(operation: type[AnOperation], sent: Mapping[str, object], *, is_query: bool = False) -> AnOperation:
    """The operation with these keys. In a query all values are texts. Raises ValueError with one sentence on what is wrong."""
    try:
        return operation.model_validate(sent, strict=not is_query, by_alias=True, by_name=False)
    except ValidationError as error:
        raise ValueError(error_sentence(error, operation)) from None


def keys_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model by the keys that may be sent."""
    return {(field.alias or name).rstrip("_"): field for name, field in model.model_fields.items()}


def description_of(field: FieldInfo) -> str:
    """What may be written for a field. In `Text | None` it stands in the type Text."""
    inner = (mark for part in get_args(field.annotation) for mark in get_args(part)[1:])
    return str(field.description or next(mark.description for mark in inner if isinstance(mark, FieldInfo)))


def choices_of(field: FieldInfo) -> tuple[str, ...]:
    """The only values of a field, in their order; empty if it may have others."""
    return get_args(field.annotation) if get_origin(field.annotation) is Literal else ()


def error_sentence(error: ValidationError, model: type[BaseModel]) -> str:
    """What is wrong, and what to write instead, in one sentence. The messages of pydantic itself name Python types."""
    faults = error.errors(include_url=False, include_input=False)
    fault: ErrorDetails = min(faults, key=lambda fault: fault["type"] != "extra_forbidden")
    key = str(fault["loc"][0]) if fault["loc"] else ""
    known = keys_of(model)
    if fault["type"] == "extra_forbidden" and FORMER_KEYS.get(key) in known:
        return f"{key!r} is now {FORMER_KEYS[key]!r}"
    if fault["type"] == "extra_forbidden":
        return f"{key!r} is not allowed here; write {', '.join(known) or 'no key'}"
    if fault["type"] == "value_error":
        reason = str(fault["ctx"]["error"])
        return f"{key}: {reason}" if key else reason
    if not key:
        return f"a key of the body is not a string; write {', '.join(known) or 'no key'}"
    return f"{key}: write {description_of(known[key])}"


def query_of(sent: Mapping[str, object]) -> dict[str, str]:
    """The JSON data of a question as the keys of a query."""
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in sent.items()}


def parse_time(value: object) -> datetime:
    """A time with its zone, in UTC. Raises ValueError for anything else."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(found, datetime) and found.tzinfo is not None:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError("write a time with its zone, as in 2027-03-28T01:00:00Z")


def parse_span(value: object) -> timedelta:
    """A duration above zero, such as `1h30m`. Raises ValueError for anything else."""
    if isinstance(value, timedelta):
        span = value
    else:
        found = DURATION.fullmatch(value) if isinstance(value, str) and value else None
        if found is None:
            shown = "null" if value is None else repr(value)
            raise ValueError(f"{shown if len(shown) <= MAX_SHOWN else 'this'} is not a duration; write 90s, 30m or 1h30m")
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        try:
            span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        except OverflowError:
            span = timedelta.max
    if span > LONGEST_DURATION:
        raise ValueError(f"{value!r} is more than ten years; write at most 3660d")
    if span <= timedelta(0):
        raise ValueError(f"{value!r} is zero; write 90s, 30m or 1h30m")
    return span


def _parse_switch(value: object) -> bool:
    if value not in (True, False, "true", "false"):
        raise ValueError("write true or false")
    return value in (True, "true")


def _parse_digits(value: object) -> object:
    """A number of a query. Pydantic itself would read `1_0` and `5.0` too."""
    if isinstance(value, str) and not (value.isascii() and value.isdecimal() and len(value) <= MAX_SHOWN):
        raise ValueError(f"write a number from 1 to {MAX_PAGE}")
    return value


def _described(description: str, parse: Callable[[object], object], **schema: object) -> tuple[object, ...]:
    """The marks of a type that is parsed from a text. The description is part of error messages and of the JSON schema."""
    return BeforeValidator(parse), WithJsonSchema(schema | {"description": description}), Field(description=description)


_TIME = _described("a time with its zone, as in 2027-03-28T01:00:00Z", parse_time, type="string", format="date-time")
_SPAN = (
    *_described("90s, 30m or 1h30m", parse_span, type="string", pattern=DURATION_PATTERN),
    PlainSerializer(lambda span: f"{span.total_seconds():.0f}s", when_used="json-unless-none"),
)
Time = Annotated[datetime, *_TIME]
TimeOrNone = Annotated[datetime | None, *_TIME]
Span = Annotated[timedelta, *_SPAN]
SpanOrNone = Annotated[timedelta | None, *_SPAN]  # null is rejected: a pause without an end must not be a slip
DayWord = Annotated[
    str,
    BeforeValidator(lambda value: value.isoformat() if isinstance(value, date) else value),
    Field(description="today, yesterday, a weekday such as monday, or a date"),
]
Switch = Annotated[bool, *_described("true or false", _parse_switch, type="string", enum=["true", "false"])]
TrueOrFalse = Annotated[bool, Field(description="true or false")]
Text = Annotated[str, Field(description="a string in quotes")]
ShortText = Annotated[
    str,
    Field(max_length=MAX_TEXT_LENGTH, description=f"a string in quotes, of at most {MAX_TEXT_LENGTH} characters"),
]
QuestionText = Annotated[str, Field(pattern=r"\S", max_length=1000, description="a text of 1 to 1000 characters")]


def _split_options(value: object) -> object:
    found = value.split(",") if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        return found
    options = [" ".join(each.split()) for each in found]
    if not 1 <= len(options) <= MAX_OPTIONS or len({each.casefold() for each in options}) < len(options):
        raise ValueError(f"write 1 to {MAX_OPTIONS} different answers, such as yes,no")
    return options


Option = Annotated[str, Field(min_length=1, max_length=40)]
Options = Annotated[
    list[Option], BeforeValidator(_split_options), Field(description="texts of 1 to 40 characters, such as yes,no")
]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT, description=f"a number from 0 to {MAX_COUNT}")]
HolderId = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9._:/@+-]{1,100}$", description="1 to 100 of A-Z a-z 0-9 . _ : / @ + -, as in chat:4711"),
]
PageSize = Annotated[int, BeforeValidator(_parse_digits), Field(ge=1, le=MAX_PAGE, description=f"a number from 1 to {MAX_PAGE}")]
