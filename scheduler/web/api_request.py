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

from scheduler.model.settings import May
from scheduler.web.app_state import Reach
from scheduler.web.http_errors import Problem, bad
from scheduler.web.middleware import Caller, unknown_caller
from scheduler.web.request_bodies import Body, parse_body, parse_instant

LARGEST_BODY = 64 * 1024  # bytes

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Call:
    """Who asks, for what. `path` holds the variable parts of the path."""

    reach: Reach
    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Headers

    def only(self, *known: str) -> None:
        """Raises Problem when the query has a key that is none of these."""
        for key in self.query:
            if key not in known:
                raise bad(f"{key!r} is not known here; {', '.join(known) or 'nothing'} is")


def answering(reach: Reach, may: May, answer: Callable[[Call], Any]) -> Endpoint:
    """An endpoint that reads, for a caller who may; `answer` runs in a thread of its own and gives plain data."""

    async def endpoint(request: Request) -> Response:
        call = Call(reach, _caller(request, may), request.path_params, request.query_params, request.headers)
        return JSONResponse(await run_in_threadpool(answer, call))

    return endpoint


def doing(
    reach: Reach,
    may: May,
    do: Callable[[Call, Body], Awaitable[Any]],
    *models: type[Body],
    largest: int = LARGEST_BODY,
) -> Endpoint:
    """An endpoint that changes something, for a caller who may; of a body it reads at most `largest` bytes.

    The body is the first of `models` whose marker was sent. Not every client sends one with DELETE: there the query counts too.
    """

    async def endpoint(request: Request) -> Response:
        call = Call(reach, _caller(request, may), request.path_params, request.query_params, request.headers)
        sent = await _body(request, largest)
        if request.method == "DELETE":
            sent = {**call.query, **sent}
        else:
            call.only()
        model = next(model for model in models if model.marker in (None, *sent))
        return JSONResponse(await do(call, parse_body(sent, model)))

    return endpoint


def instant(key: str, value: object) -> datetime:
    """A time that was sent in the query under `key`. Raises Problem unless it has its zone."""
    try:
        return parse_instant(value)
    except ValueError as error:
        raise bad(f"{key}: {error}") from None


def _caller(request: Request, may: May) -> Caller:
    caller: Caller | None = request.scope["caller"]
    if caller is None:
        raise unknown_caller()
    if may not in caller.may:
        raise Problem(403, "forbidden", f"the token {caller.name!r} may not {may}; add it to server.tokens.{caller.name}.may")
    return caller


async def _body(request: Request, largest: int) -> Mapping[str, Any]:
    """The JSON object in the body; an empty body is an empty object."""
    sent = await _read(request, largest)
    try:
        body = json.loads(sent) if sent.strip() else {}
    except (ValueError, RecursionError) as error:
        raise bad("the body is not JSON") from error
    if not isinstance(body, dict):
        raise bad("the body has to be a JSON object")
    return body


async def _read(request: Request, largest: int) -> bytes:
    """The body, of which no more is taken than it may hold."""
    sent = bytearray()
    try:
        async for piece in request.stream():
            sent += piece
            if len(sent) > largest:
                raise Problem(413, "too_large", f"the body is larger than {largest // 1024} KiB")
    except ClientDisconnect as error:
        raise bad("the request ended before its body did") from error
    return bytes(sent)
