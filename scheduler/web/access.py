"""Decides who may see and do what: `authorize` checks a request, and `cut` removes from an answer what a token may not see."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, TypeVar, get_args, get_origin, get_type_hints

from heartbeatd.answers import SHARED, EntryBody, EntryPart, Problem, ResponseBody, RunSummary, SharedBody
from heartbeatd.operations import Concern, Permission
from scheduler.config.file.diagnostics import ConfigError, Diagnostic
from scheduler.config.file.marked_yaml import dotted_path
from scheduler.config.keys.models import Agent
from scheduler.model.outcome import Key, Kind, Skip
from scheduler.store import overviews
from scheduler.store.database import parse_row_id
from scheduler.web.api_request import ApiRequest, Caller, check_permission
from scheduler.web.app_state import open_reader
from scheduler.web.http_errors import HttpError, not_found

AnAnswer = TypeVar("AnAnswer", bound=ResponseBody)

TABLES = {
    Concern.RUN: "run",
    Concern.WAKE: "wake",
    Concern.MESSAGE: "outbox",
    Concern.PROBLEM: "problem",
    Concern.QUESTION: "question",
}
EMPTY: Mapping[object, object] = {list: [], dict: {}}  # what a hidden field has in place of such a value; any other has None
HIDDEN_ERRORS = "the config has errors in parts that this token may not see; ask for a token without `agents:`, or read the log"


def authorize(request: ApiRequest, may: Permission | None, concern: Concern) -> None:
    """Raises HttpError unless the caller has the permission, and may access what the request concerns. It reads the database."""
    check_permission(request.caller, may)
    if concern is Concern.PART:
        return
    key = None if concern is Concern.ALL else _find_entry(request, concern)
    if key is not None:
        check_access(request.caller, *key)
    elif request.caller.agents is not None:
        raise HttpError(
            403,
            "forbidden",
            f"the token {request.caller.name!r} is limited to some agents, and this request concerns all of them",
        )


def check_access(caller: Caller, kind: str, name: str) -> None:
    """Raises HttpError if the caller's token is not valid for this entry."""
    if not caller.may_access(kind, name):
        allowed = ", ".join(sorted(caller.agents or ()))
        raise HttpError(403, "forbidden", f"the token {caller.name!r} is only for the agents {allowed}")


def _find_entry(request: ApiRequest, concern: Concern) -> Key | None:
    """The entry that the request concerns. Raises HttpError if the run, wake, message or problem in the path does not exist.

    None: it is a problem of a provider or a channel, or a problem or message of the daemon itself, which concern all of it.
    """
    if concern is Concern.AGENT:
        return Kind.HEARTBEAT, request.path["name"]
    if concern is Concern.JOB:
        return Kind.CRON, request.path["name"]
    number = row_in_path(request, concern)
    with open_reader(request.app_state) as db:
        found = overviews.entry_of_row(db, TABLES[concern], number)
    if found is None:
        raise not_found(f"{concern.name.lower()} {'p' if concern is Concern.PROBLEM else ''}{number}")
    return (Kind(found[0]), found[1]) if found[0] in tuple(Kind) else None


def row_in_path(request: ApiRequest, concern: Concern) -> int:
    """The number of the run, wake, message or problem in the path. Raises HttpError if it is not a number."""
    number = parse_row_id(request.path["id"].removeprefix("p" if concern is Concern.PROBLEM else ""))
    if number is None:
        raise not_found(f"{concern.name.lower()} of this number")
    return number


def cut(answer: AnAnswer, caller: Caller) -> AnAnswer:
    """The answer without the parts that the caller may not see. Raises HttpError if it belongs to another agent or to a job."""
    if caller.agents is None:
        return answer
    name = _name_of(answer)
    if name is not None:
        check_access(caller, *name)
    return _cut_model(answer, caller)


@cache
def _hidden_values(model: type[ResponseBody]) -> Mapping[str, object]:
    """The fields of a model that not every token may see, each with its value for the others."""
    hints = get_type_hints(model, include_extras=True)
    is_shared = {name for name, hint in hints.items() if get_origin(hint) is Annotated and SHARED in get_args(hint)[1:]}
    plain = get_type_hints(model)
    return {name: EMPTY.get(get_origin(plain[name])) for name in model.model_fields.keys() - is_shared}


def _cut_model(value: AnAnswer, caller: Caller) -> AnAnswer:
    """The model with empty values in the fields that the caller may not see."""
    is_own = isinstance(value, SharedBody | EntryPart) or _name_of(value) is not None
    hidden = _hidden_values(type(value))
    kept = {
        name: _cut_part(getattr(value, name), caller) if is_own or name not in hidden else hidden[name]
        for name in type(value).model_fields
        if name in value.model_fields_set
    }
    if isinstance(value, RunSummary) and value.why == Skip.MISSED:  # the error names the runs that were in progress
        kept["error"] = None
    return type(value).model_construct(value.model_fields_set, **kept)


def _cut_part(value: object, caller: Caller) -> object:
    if isinstance(value, list):
        return [_cut_part(each, caller) for each in value if not _is_foreign(each, caller)]
    if isinstance(value, dict):
        return {key: _cut_part(each, caller) for key, each in value.items() if not _is_foreign(each, caller)}
    if isinstance(value, ResponseBody):
        return None if _is_foreign(value, caller) else _cut_model(value, caller)
    return value


def _is_foreign(value: object, caller: Caller) -> bool:
    key = _name_of(value) if isinstance(value, ResponseBody) else None
    if key is None and isinstance(value, Problem):  # of a provider, a channel or the daemon
        return not any(caller.may_access(each.kind, each.name) for each in value.affects)
    return key is not None and not caller.may_access(*key)


def _name_of(value: ResponseBody) -> tuple[str, str] | None:
    """The entry to which an object belongs; None if it is a part of something else, or concerns all entries."""
    name = getattr(value, value.named_by) if isinstance(value, EntryBody) else None
    return None if name is None else (getattr(value, "kind", Kind.HEARTBEAT), name)


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
