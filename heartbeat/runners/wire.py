"""One HTTP request to the world outside: a connection of its own, one deadline, an answer of bounded size.

No proxy, no redirect, no password file and no kept connection: the environment has no say in where a request goes, and a
thousand requests in flight share nothing that one of them could hold up.
"""

from __future__ import annotations

import re
import socket
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv6Address
from ssl import SSLContext
from urllib.parse import SplitResult, quote, unquote, urlsplit

import httpcore2

from heartbeat import desk
from heartbeat.runners import Failure
from heartbeat.runners.line import Line, Names
from heartbeat.runners.trouble import Reply, Trouble

MAX_BODY = 1024 * 1024  # bytes; room for an answer of 64 KiB in JSON's most wasteful spelling
MAX_REFUSAL = 64 * 1024  # bytes of the body of an answer that is not a success

PATH_SAFE = "/?&=%:@!$'()*+,;~[]|"
MALFORMED = "its address is none that can be posted to; write http(s)://host[:port]/path"

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_NAMES = Names(lambda *question, **more: socket.getaddrinfo(*question, **more))


@dataclass(frozen=True, slots=True)
class _Target:
    """A URL taken apart."""

    scheme: str
    host: str
    port: int | None
    path: str
    login: str | None


def post(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    seconds: float,
    *,
    names: Names = _NAMES,
    tls: SSLContext | None = None,
) -> Reply:
    """Post `body`, as JSON unless `headers` say otherwise, and read the answer, whatever its status, within `seconds`.

    A login in the URL becomes a header. `tls` replaces the system's trust in certificates. Raises Trouble, in words of
    ours alone, that name neither the address nor a header's value.
    """
    target = _take_apart(url)
    address, sent = _address(target), _headers(target, headers, body)
    line = Line(seconds, names)
    desk.leave()
    trust = (tls or _trust()) if target.scheme == "https" else None
    try:
        with (
            httpcore2.HTTPConnection(address.origin, ssl_context=trust, network_backend=line) as connection,
            connection.stream("POST", address, headers=sent, content=body) as response,
        ):
            return _read(response)
    except (httpcore2.NetworkError, httpcore2.ProtocolError):
        if line.ended:
            raise Trouble(Failure.CONNECT, "it closed the connection before its answer was complete", transient=True) from None
        raise Trouble(Failure.BAD_ANSWER, "it ended without a proper HTTP answer") from None


def warm() -> None:
    """Load the certificates that the system trusts ahead of the first request."""
    _trust()


def _take_apart(url: str) -> _Target:
    try:
        parts = urlsplit(url)
        host, port = _host(parts), parts.port
    except ValueError:
        raise Trouble(Failure.BAD_REQUEST, MALFORMED) from None
    if parts.scheme not in ("http", "https") or not host:
        raise Trouble(Failure.BAD_REQUEST, MALFORMED)
    path = quote(parts.path or "/", safe=PATH_SAFE) + (f"?{quote(parts.query, safe=PATH_SAFE)}" if parts.query else "")
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username is not None else None
    return _Target(parts.scheme, host, port, path, login)


def _host(parts: SplitResult) -> str:
    """The host as it is resolved: other scripts in their ASCII spelling, an IPv6 address without brackets."""
    host = parts.hostname or ""
    return str(IPv6Address(host)) if ":" in host else host.encode("idna").decode("ascii")


def _address(target: _Target) -> httpcore2.URL:
    return httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)


def _headers(target: _Target, given: Mapping[str, str], body: bytes) -> list[tuple[str, str]]:
    ours = {"user-agent": "heartbeatd", "content-type": "application/json"}
    headers = ours | {name.lower(): value for name, value in given.items()}
    if target.login is not None and "authorization" in headers:
        raise Trouble(Failure.BAD_REQUEST, "its address holds a login, but there is a key as well; write only one of them")
    if target.login is not None:
        headers["authorization"] = "Basic " + b64encode(target.login.encode()).decode()
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Trouble(Failure.BAD_REQUEST, f"the header {name!r} holds a character that no header may hold (a line break?)")
    host = f"[{target.host}]" if ":" in target.host else target.host
    headers |= {"host": f"{host}:{target.port}" if target.port else host, "connection": "close"}
    return list((headers | {"accept-encoding": "identity", "content-length": str(len(body))}).items())


def _read(response: httpcore2.Response) -> Reply:
    headers = _legible(response.headers)
    if not 200 <= response.status < 300:
        return Reply(response.status, headers, _beginning(response))
    if headers.get("content-encoding", "identity") != "identity":  # unpacking would need a limit of its own
        raise Trouble(Failure.BAD_ANSWER, "it compressed its answer, though it was asked not to")
    body = bytearray()
    for chunk in response.iter_stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise Trouble(Failure.BAD_ANSWER, f"its answer is larger than {MAX_BODY // 1024} KiB")
    return Reply(response.status, headers, bytes(body))


def _beginning(response: httpcore2.Response) -> bytes:
    """As much of a refusal as is kept; the status has said all, so a body that breaks off changes nothing."""
    body = bytearray()
    try:
        for chunk in response.iter_stream():
            body += chunk
            if len(body) >= MAX_REFUSAL:
                break
    except (Trouble, httpcore2.NetworkError, httpcore2.ProtocolError):
        return bytes(body)
    return bytes(body[:MAX_REFUSAL])


def _legible(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


@cache
def _trust() -> SSLContext:
    return httpcore2.default_ssl_context()
