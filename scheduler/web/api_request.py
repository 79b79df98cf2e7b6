"""Reads and checks an API request: the caller's permission, the query and the JSON body."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from heartbeatd.operations import AnOperation, Permission, parse_operation
from scheduler.model.entry import Key
from scheduler.web.app_state import AppState
from scheduler.web.callers import Caller, check_permission
from scheduler.web.http_errors import HttpError, bad_request, unknown_key
from scheduler.web.middleware import unauthorized_error

MAX_BODY_BYTES = 64 * 1024  # bytes

HttpHandler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request whose caller is known. `path` holds the variable parts of the path, and `subject` what they name.

    The subject is known while an operation is performed: an entry, or the number of a run, wake or message.
    """

    app_state: AppState
    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Headers
    subject: Key | int | None = None

    @property
    def key(self) -> Key:
        """The entry that the path names."""
        assert isinstance(self.subject, tuple)
        return self.subject

    @property
    def number(self) -> int:
        """The number of the run, wake or message that the path names."""
        assert isinstance(self.subject, int)
        return self.subject

    def allow_only(self, known: Collection[str]) -> None:
        """Raises HttpError if the query has a key that is not one of these."""
        for key in self.query:
            if key not in known:
                raise unknown_key(key, known)


def authorized_caller(request: Request, may: Permission | None) -> Caller:
    """The caller of a request. Raises HttpError without a token that has the permission `may`; None: without any valid token."""
    caller: Caller | None = request.scope["caller"]
    if caller is None:
        raise unauthorized_error()
    check_permission(caller, may)
    return caller


def parse_sent(operation: type[AnOperation], sent: Mapping[str, object], *, are_texts: bool = False) -> AnOperation:
    """The operation with these keys. In a query and in a form all values are texts. Raises HttpError."""
    try:
        return parse_operation(operation, sent, is_query=are_texts)
    except ValueError as error:
        raise bad_request(str(error)) from None


async def read_json_object(request: Request, largest: int) -> Mapping[str, object]:
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
