"""A call: one request as the endpoints see it, its body and query read and checked."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from scheduler.model.settings import Permission
from scheduler.web.app_state import AppState
from scheduler.web.http_errors import HttpError, bad_request
from scheduler.web.middleware import Caller, unauthorized_error
from scheduler.web.request_bodies import Body, parse_body, parse_time

MAX_BODY_BYTES = 64 * 1024  # bytes

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """Who asks, for what. `path` holds the variable parts of the path."""

    app_state: AppState
    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Headers

    def allow_only(self, *known: str) -> None:
        """Raises HttpError when the query has a key that is none of these."""
        for key in self.query:
            if key not in known:
                raise bad_request(f"{key!r} is not known here; {', '.join(known) or 'nothing'} is")


def read_endpoint(app_state: AppState, may: Permission, answer: Callable[[ApiRequest], Any]) -> Endpoint:
    """An endpoint that reads, for a caller who may; `answer` runs in a thread of its own and gives plain data."""

    async def endpoint(request: Request) -> Response:
        api_request = ApiRequest(
            app_state, _authorized_caller(request, may), request.path_params, request.query_params, request.headers
        )
        return JSONResponse(await run_in_threadpool(answer, api_request))

    return endpoint


def write_endpoint(
    app_state: AppState,
    may: Permission,
    do: Callable[[ApiRequest, Body], Awaitable[Any]],
    *models: type[Body],
    largest: int = MAX_BODY_BYTES,
) -> Endpoint:
    """An endpoint that changes something, for a caller who may; of a body it reads at most `largest` bytes.

    The body is the first of `models` whose marker was sent. Not every client sends one with DELETE: there the query counts too.
    """

    async def endpoint(request: Request) -> Response:
        api_request = ApiRequest(
            app_state, _authorized_caller(request, may), request.path_params, request.query_params, request.headers
        )
        sent = await _read_json_object(request, largest)
        if request.method == "DELETE":
            sent = {**api_request.query, **sent}
        else:
            api_request.allow_only()
        model = next(model for model in models if model.marker_key in (None, *sent))
        return JSONResponse(await do(api_request, parse_body(sent, model)))

    return endpoint


def parse_time_parameter(key: str, value: object) -> datetime:
    """A time that was sent in the query under `key`. Raises HttpError unless it has its zone."""
    try:
        return parse_time(value)
    except ValueError as error:
        raise bad_request(f"{key}: {error}") from None


def _authorized_caller(request: Request, may: Permission) -> Caller:
    caller: Caller | None = request.scope["caller"]
    if caller is None:
        raise unauthorized_error()
    if may not in caller.may:
        raise HttpError(403, "forbidden", f"the token {caller.name!r} may not {may}; add it to server.tokens.{caller.name}.may")
    return caller


async def _read_json_object(request: Request, largest: int) -> Mapping[str, Any]:
    """The JSON object in the body; an empty body is an empty object."""
    sent = await _read_body_bytes(request, largest)
    try:
        body = json.loads(sent) if sent.strip() else {}
    except (ValueError, RecursionError) as error:
        raise bad_request("the body is not JSON") from error
    if not isinstance(body, dict):
        raise bad_request("the body has to be a JSON object")
    return body


async def _read_body_bytes(request: Request, largest: int) -> bytes:
    """The body, of which no more is taken than it may hold."""
    sent = bytearray()
    try:
        async for piece in request.stream():
            sent += piece
            if len(sent) > largest:
                raise HttpError(413, "too_large", f"the body is larger than {largest // 1024} KiB")
    except ClientDisconnect as error:
        raise bad_request("the request ended before its body did") from error
    return bytes(sent)
