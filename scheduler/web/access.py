"""Decides who may see and do what: `authorize` checks each request, and `cut` removes from each answer what a token may not see.

A function that `guard` decorates does both, whoever calls it: the HTTP API, a form or a view of the page, or a tool of MCP.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, update_wrapper
from inspect import iscoroutinefunction
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from starlette.concurrency import run_in_threadpool

from heartbeatd.answers import SHARED, EntryBody, EntryPart, ResponseBody, SharedBody
from scheduler.config.file.diagnostics import ConfigError, Diagnostic
from scheduler.config.file.marked_yaml import dotted_path
from scheduler.config.keys.models import Agent
from scheduler.model.entry import Key
from scheduler.model.outcome import Kind
from scheduler.model.settings import Permission
from scheduler.store import outbox, run_history, wakes
from scheduler.store.database import parse_row_id
from scheduler.web.api_request import ApiRequest
from scheduler.web.app_state import open_reader
from scheduler.web.callers import Caller, check_permission
from scheduler.web.http_errors import HttpError, not_found

HIDDEN_ERRORS = "the config has errors in parts that this token may not see; ask for a token without `agents:`, or read the log"


class Concern(StrEnum):
    """What a request concerns. A token that is limited to some agents may only send requests that concern these."""

    AGENT = "the agent in the path"
    JOB = "the job in the path"
    NAMED = "the agent that the body names, or that of the run in the body"
    RUN = "the agent or job of the run in the path"
    WAKE = "the agent of the wake in the path"
    MESSAGE = "the agent or job of the message in the path"
    PART = "any number of agents and jobs: a limited token gets its part of the answer"
    ALL = "the whole daemon"


Handler = Callable[..., Any]


class Guarded:
    """A request of the API with its permission (None: any token), what it concerns, and the models of its answers.

    A call authorizes the request, handles it, and cuts the answer. It returns an awaitable if the handler does.
    """

    __name__: str

    def __init__(
        self, handler: Handler, may: Permission | None, concern: Concern, answers: tuple[type[ResponseBody], ...]
    ) -> None:
        self.handler = handler
        self.may = may
        self.concern = concern
        self.answers = answers
        update_wrapper(self, handler)

    def __call__(self, request: ApiRequest, *body: Any) -> Any:
        if iscoroutinefunction(self.handler):
            return self._change(request, *body)
        authorize(request, self.may, self.concern)
        try:
            return cut(self.answers, self.handler(request, *body), request.caller)
        except ConfigError as error:
            raise cut_errors(error, request.caller) from None

    async def _change(self, request: ApiRequest, *body: Any) -> Any:
        await run_in_threadpool(authorize, request, self.may, self.concern, *body)
        try:
            return cut(self.answers, await self.handler(request, *body), request.caller)
        except ConfigError as error:
            raise cut_errors(error, request.caller) from None


def guard(may: Permission | None, concern: Concern, *answers: type[ResponseBody]) -> Callable[[Handler], Guarded]:
    """Decorates the function that handles a request of the API. Its answer is data of one of the models."""
    return lambda handler: Guarded(handler, may, concern, answers)


def authorize(request: ApiRequest, may: Permission | None, concern: Concern, body: Any = None) -> None:
    """Raises HttpError unless the caller has the permission, and may access what the request concerns. It reads the database."""
    check_permission(request.caller, may)
    if concern is Concern.PART:
        return
    if concern is Concern.ALL:
        if request.caller.agents is not None:
            raise HttpError(
                403,
                "forbidden",
                f"the token {request.caller.name!r} is limited to some agents, and this request concerns all of them",
            )
        return
    check_access(request.caller, *_find_subject(request, concern, body))


def check_access(caller: Caller, kind: Kind, name: str) -> None:
    """Raises HttpError if the caller's token is not valid for this entry."""
    if not caller.may_access(kind, name):
        allowed = ", ".join(sorted(caller.agents or ()))
        raise HttpError(403, "forbidden", f"the token {caller.name!r} is only for the agents {allowed}")


def _find_subject(request: ApiRequest, concern: Concern, body: Any) -> Key:
    """The entry that the request concerns. Raises HttpError if the path names a run, wake or message that does not exist."""
    if concern is Concern.AGENT:
        return Kind.HEARTBEAT, request.path["name"]
    if concern is Concern.JOB:
        return Kind.CRON, request.path["name"]
    if concern is Concern.NAMED and body.agent is not None:
        return Kind.HEARTBEAT, body.agent
    number = body.run if concern is Concern.NAMED else row_in_path(request, concern)
    with open_reader(request.app_state) as db:
        if concern is Concern.MESSAGE:
            found = outbox.sender_of_message(db, number)
        elif concern is Concern.WAKE:
            found = wakes.entry_of_wake(db, number)
        else:
            found = run_history.entry_of_run(db, number)
    if found is None or (concern is Concern.NAMED and found[0] != Kind.HEARTBEAT):
        raise not_found(f"run {number} of an agent" if concern is Concern.NAMED else f"{concern.name.lower()} {number}")
    return Kind(found[0]), found[1]


def row_in_path(request: ApiRequest, concern: Concern) -> int:
    """The number of the run, wake or message in the path. Raises HttpError if it is not a number."""
    number = parse_row_id(request.path["id"])
    if number is None:
        raise not_found(f"{concern.name.lower()} of this number")
    return number


def cut(models: Sequence[type[ResponseBody]], answer: Any, caller: Caller) -> Any:
    """The answer without the parts that the caller may not see. Raises HttpError if it belongs to another agent or to a job.

    `models` are those of the answer: the one that has all its keys counts, or else the first, which hides unknown keys.
    """
    if caller.agents is None or not models:
        return answer
    if isinstance(answer, ResponseBody):
        name = _name_of(type(answer), dict(answer))
        if name is not None:
            check_access(caller, *name)
        return _cut_model(answer, caller)
    model = next((each for each in models if answer.keys() <= _fields(each).keys()), models[0])
    name = _name_of(model, answer)
    if name is not None:
        check_access(caller, *name)
    return _cut_object(model, answer, caller)


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of an answer: whether every token may see it, the model of the objects in it, and its value for the others."""

    name: str
    is_shared: bool
    model: type[ResponseBody] | None
    empty: Any


@cache
def _fields(model: type[ResponseBody]) -> Mapping[str, _Field]:
    """The fields of a model by their keys in JSON."""
    hints = get_type_hints(model, include_extras=True)
    return {info.serialization_alias or name: _read_field(name, hints[name]) for name, info in model.model_fields.items()}


def _read_field(name: str, hint: Any) -> _Field:
    is_shared = get_origin(hint) is Annotated and SHARED in get_args(hint)[1:]
    bare = _without_marks(hint)
    empty: Any = [] if get_origin(bare) is list else {} if get_origin(bare) is dict else None
    inner = [each for each in _types_in(bare) if isinstance(each, type) and issubclass(each, ResponseBody)]
    return _Field(name, is_shared, inner[0] if inner else None, empty)


def _without_marks(hint: Any) -> Any:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint


def _types_in(hint: Any) -> list[Any]:
    """The types in a type hint, such as A and B in `list[A] | B`."""
    hint = _without_marks(hint)
    if get_origin(hint) in (list, dict, Union, types.UnionType):
        return [found for part in get_args(hint) for found in _types_in(part)]
    return [hint]


def _cut_model(value: ResponseBody, caller: Caller) -> ResponseBody:
    """The model with empty values in the fields that the caller may not see."""
    model, found = type(value), dict(value)
    is_own = issubclass(model, SharedBody | EntryPart) or (issubclass(model, EntryBody) and _name_of(model, found) is not None)
    kept = {
        field.name: _cut_part(found[field.name], caller) if is_own or field.is_shared else field.empty
        for field in _fields(model).values()
        if field.name in value.model_fields_set
    }
    return model.model_construct(value.model_fields_set, **kept)


def _cut_part(value: Any, caller: Caller) -> Any:
    if isinstance(value, list):
        return [_cut_part(each, caller) for each in value if not _is_foreign(each, caller)]
    if isinstance(value, dict):
        return {key: _cut_part(each, caller) for key, each in value.items() if not _is_foreign(each, caller)}
    if isinstance(value, ResponseBody):
        return None if _is_foreign(value, caller) else _cut_model(value, caller)
    return value


def _is_foreign(value: Any, caller: Caller) -> bool:
    return isinstance(value, ResponseBody) and not _may_see(type(value), dict(value), caller)


def _cut_object(model: type[ResponseBody], value: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
    fields = _fields(model)
    is_own = issubclass(model, SharedBody | EntryPart) or (issubclass(model, EntryBody) and _name_of(model, value) is not None)
    return {
        key: _cut_value(field.model, inner, caller) if is_own or field.is_shared else field.empty
        for key, inner in value.items()
        if (field := fields.get(key)) is not None
    }


def _cut_value(model: type[ResponseBody] | None, value: Any, caller: Caller) -> Any:
    if model is None:
        return value
    if isinstance(value, list):
        return [_cut_object(model, each, caller) for each in value if _may_see(model, each, caller)]
    if isinstance(value, dict) and not value.keys() <= _fields(model).keys():  # a map from names to objects
        return {key: _cut_object(model, each, caller) for key, each in value.items() if _may_see(model, each, caller)}
    if isinstance(value, dict):
        return _cut_object(model, value, caller) if _may_see(model, value, caller) else None
    return value


def _may_see(model: type[ResponseBody], value: Mapping[str, Any], caller: Caller) -> bool:
    key = _name_of(model, value)
    return key is None or caller.may_access(*key)


def _name_of(model: type[ResponseBody], value: Mapping[str, Any]) -> Key | None:
    """The entry to which an object belongs; None if it is a part of something else, or concerns all entries."""
    name = value.get(model.named_by) if issubclass(model, EntryBody) else None
    return None if name is None else (Kind(value.get("kind", Kind.HEARTBEAT)), name)


def cut_errors(error: ConfigError, caller: Caller) -> ConfigError:
    """The errors and warnings of the config at the caller's own agents. If others are left out, one line says so."""
    if caller.agents is None:
        return error
    own = [each for each in error.errors if concerns(each, caller)]
    if len(own) < len(error.errors):
        own.append(Diagnostic(0, 0, "", HIDDEN_ERRORS))
    return ConfigError(own, [each for each in error.warnings if concerns(each, caller)])


def concerns(problem: Diagnostic, caller: Caller) -> bool:
    """Whether a problem of the config is at a key of an agent of the caller.

    A name may have dots: agents.ops.night is another agent than agents.ops, and so no key of it.
    """
    if caller.agents is None:
        return True
    own = {dotted_path(("agents", name)) for name in caller.agents}
    keys = {f"{agent}.{key}" for agent in own for key in Agent.model_fields}
    return problem.path in own or any(problem.path == key or problem.path.startswith((f"{key}.", f"{key}[")) for key in keys)
