"""Reads and checks an API request: the caller, who is found by a token, its permission, the query and the JSON body."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from heartbeatd.operations import AnOperation, Permission, parse_operation
from heartbeatd.secret import Secret
from scheduler.model.outcome import Key, Kind
from scheduler.model.settings import Token
from scheduler.web.app_state import AppState
from scheduler.web.http_errors import HttpError, bad_request, unauthorized_error, unknown_key

MAX_BODY_BYTES = 64 * 1024  # bytes

EVERYTHING: frozenset[Permission] = frozenset(get_args(Permission))

HttpHandler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. `agents` None means all agents and jobs; `is_local` is our own command line.

    Records name the sender by `noun` and name, such as: token NAME.
    """

    name: str
    may: frozenset[Permission]
    agents: frozenset[str] | None = None
    is_local: bool = False
    noun: str = "token"

    def may_access(self, kind: str, name: str) -> bool:
        """Whether the token is valid for this entry."""
        return self.agents is None or (kind == Kind.HEARTBEAT and name in self.agents)


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

    @classmethod
    def of(cls, app_state: AppState, request: Request) -> ApiRequest:
        """An HTTP request whose caller the middleware has found."""
        return cls(app_state, request.scope["caller"], request.path_params, request.query_params, request.headers)

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


def find_caller(authorization: list[bytes], local: Secret, tokens: Iterable[Token]) -> Caller | None:
    """The caller whose token is in the Authorization header; None without exactly one such header with a known token."""
    scheme, _, shown = authorization[0].partition(b" ") if len(authorization) == 1 else (b"", b"", b"")
    if scheme.lower() != b"bearer":
        return None
    # Every token is compared, each in constant time, so that the duration reveals nothing.
    known = known_callers(local, tokens)
    matches = [caller for caller, secret in known if hmac.compare_digest(secret.reveal().encode(), shown.strip())]
    return matches[0] if matches else None


def known_callers(local: Secret, tokens: Iterable[Token]) -> list[tuple[Caller, Secret]]:
    """Each caller with its token: our own command line, which has the `local` token, and those of the config."""
    declared = ((Caller(token.name, token.may, token.agents), token.value) for token in tokens)
    return [(Caller("local", EVERYTHING, is_local=True), local), *declared]


def check_permission(caller: Caller, may: Permission | None) -> None:
    """Raises HttpError if the caller's token does not have the permission `may`; None: any token is enough."""
    if may is not None and may not in caller.may:
        raise HttpError(
            403, "forbidden", f"the token {caller.name!r} may not {may}; add {may} to server.tokens.{caller.name}.may"
        )


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


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed the connection. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


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
