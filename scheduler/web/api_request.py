"""Reads and checks an API request: the caller's permission, the query and the JSON body."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from heartbeatd.answers import ResponseBody
from scheduler.model.settings import Permission
from scheduler.web.app_state import AppState
from scheduler.web.callers import Caller, check_permission
from scheduler.web.http_errors import HttpError, bad_request, unknown_key
from scheduler.web.middleware import unauthorized_error
from scheduler.web.request_bodies import Body, parse_body, parse_time

_HASH_PATTERN = re.compile(r'"?([0-9a-f]{64})"?')
MAX_BODY_BYTES = 64 * 1024  # bytes

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request whose caller is known and permitted. `path` holds the variable parts of the path."""

    app_state: AppState
    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Headers

    def allow_only(self, known: Collection[str]) -> None:
        """Raises HttpError if the query has a key that is not one of these."""
        for key in self.query:
            if key not in known:
                raise unknown_key(key, known)


class ApiHandler(Protocol):
    """Handles a request. `may` is the permission that it needs (None: any token); it checks this and the access itself."""

    @property
    def may(self) -> Permission | None: ...

    def __call__(self, request: ApiRequest, *body: Any) -> Any: ...


def read_endpoint(app_state: AppState, answer: ApiHandler, parameters: Collection[str] = ()) -> Endpoint:
    """An endpoint that only reads.

    `answer` runs in a thread and returns plain data, or a response. `parameters` are the keys that the query may have.
    """

    async def endpoint(request: Request) -> Response:
        api_request = ApiRequest(
            app_state, authorized_caller(request, answer.may), request.path_params, request.query_params, request.headers
        )
        api_request.allow_only(parameters)
        found = await to_thread.run_sync(answer, api_request, limiter=app_state.read_limiter)
        return found if isinstance(found, Response) else _json_response(found)

    return endpoint


def write_endpoint(
    app_state: AppState,
    do: ApiHandler,
    *models: type[Body],
    largest: int = MAX_BODY_BYTES,
) -> Endpoint:
    """An endpoint that changes something. The body may have at most `largest` bytes.

    The body is parsed as the first of `models` whose `marker_key` was sent. Some clients cannot send a body with DELETE, so the
    query of a DELETE counts as part of the body.
    """

    async def endpoint(request: Request) -> Response:
        api_request = ApiRequest(
            app_state, authorized_caller(request, do.may), request.path_params, request.query_params, request.headers
        )
        sent = await _read_json_object(request, largest)
        if request.method == "DELETE":
            sent = {**api_request.query, **sent}
        else:
            api_request.allow_only(())
        model = next(model for model in models if model.marker_key in (None, *sent))
        return _json_response(await do(api_request, parse_body(sent, model)))

    return endpoint


def _json_response(answer: Any) -> JSONResponse:
    return JSONResponse(answer.as_data() if isinstance(answer, ResponseBody) else answer)


def parse_hash(named: str, how: str) -> str:
    """The SHA-256 by which a caller names the version that it has read. Raises HttpError; `how` says how to send it."""
    if found := _HASH_PATTERN.fullmatch(named):
        return found[1]
    raise bad_request(f"hash: this is not a hash; {how}")


def caller_of_change(request: ApiRequest) -> str:
    """Who asks for a change, as records show it: command, or token NAME."""
    if request.caller.is_local and request.headers.get("x-heartbeatd-source") == "cli":
        return "command"
    return f"{request.caller.noun} {request.caller.name}"


def parse_time_parameter(key: str, value: object) -> datetime:
    """The time in the query parameter `key`. Raises HttpError if it is not a time with a zone."""
    try:
        return parse_time(value)
    except ValueError as error:
        raise bad_request(f"{key}: {error}") from None


def authorized_caller(request: Request, may: Permission | None) -> Caller:
    """The caller of a request. Raises HttpError without a token that has the permission `may`; None: without any valid token."""
    caller: Caller | None = request.scope["caller"]
    if caller is None:
        raise unauthorized_error()
    check_permission(caller, may)
    return caller


async def _read_json_object(request: Request, largest: int) -> Mapping[str, Any]:
    """The JSON object in the body; an empty body is an empty object."""
    sent = await read_body_bytes(request, largest)
    try:
        body = json.loads(sent) if sent.strip() else {}
    except (ValueError, RecursionError) as error:
        raise bad_request("the body is not JSON") from error
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    return body


async def read_body_bytes(request: Request, largest: int) -> bytes:
    """The body. Raises HttpError as soon as it is larger than `largest` bytes."""
    sent = bytearray()
    try:
        async for piece in request.stream():
            sent += piece
            if len(sent) > largest:
                raise HttpError(413, "too_large", f"the body is larger than {largest // 1024} KiB")
    except ClientDisconnect as error:
        raise bad_request("the connection was closed before the whole body was sent") from error
    return bytes(sent)
