"""One HTTP request to the world outside: a connection of its own, one deadline, an answer of bounded size.

No proxy, no redirect, no password file and no kept connection: the environment has no say in where a request goes, and a
thousand requests in flight share nothing that one of them could hold up.
"""

from __future__ import annotations

import re
import socket
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from ipaddress import IPv6Address
from ssl import SSLContext, create_default_context
from urllib.parse import SplitResult, quote, unquote, urlsplit

from heartbeat import waiting
from heartbeat.runners import Failure
from heartbeat.runners.arriving import Arriving, Malformed
from heartbeat.runners.line import Line, Names, Stream
from heartbeat.runners.trouble import Reply, Trouble

MAX_BODY = 1024 * 1024  # bytes; room for an answer of 64 KiB in JSON's most wasteful spelling
MAX_BEGINNING = 64 * 1024  # bytes of a body that only adds to its status

PATH_SAFE = "/?&=%:@!$'()*+,;~[]|"
MALFORMED = "its address is none that can be posted to; write http(s)://host[:port]/path"

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HOST = re.compile(r"[!-~]+")  # it goes into the head as it is
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_NAMES = Names(lambda *question, **more: socket.getaddrinfo(*question, **more))


FRAMING = ("content-length", "transfer-encoding")  # where a body ends is said once, and by us
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """A URL taken apart, its host as it is resolved."""

    scheme: str
    host: str
    port: int | None
    path: str
    login: str | None


@dataclass(frozen=True, slots=True)
class Coming:
    """An answer whose head has arrived; header names in lower case. `more` gives its body bit by bit, then nothing."""

    status: int
    headers: Mapping[str, str]
    more: Callable[[], Awaitable[bytes]]


async def post(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    seconds: float,
    *,
    names: Names = _NAMES,
    tls: SSLContext | None = None,
) -> Reply:
    """Post `body` within `seconds`, as `send` does, and read the answer, whatever its status."""
    target = take_apart(url)
    return await send(target, _kept_head(target, tuple(headers.items())), body, Line(seconds, names), whole, tls)


async def send(
    target: Target,
    head: bytes,
    body: bytes,
    line: Line,
    read: Callable[[Coming], Awaitable[bytes]],
    tls: SSLContext | None = None,
) -> Reply:
    """Post `body` under the `head` made for this target; `read`, which is `whole` or `beginning`, reads the answer's body.

    `tls` replaces the system's trust in certificates. Raises Trouble, in words of ours alone, that name neither the address
    nor a header's value.
    """
    request = head + b"content-length: %d\r\n\r\n" % len(body) + body
    trust = (tls or _trust()) if target.scheme == "https" else None
    try:
        with closing(await line.connect(target.host, target.port or PORTS[target.scheme], trust)) as stream:
            await stream.write(request)
            answer = await _coming(stream)
            return Reply(answer.status, answer.headers, await read(answer))
    except waiting.Cut:
        raise line.trouble(Failure.EXIT, "the call was cut short", transient=False) from None
    except Malformed:
        if line.ended:
            raise Trouble(Failure.CONNECT, "it closed the connection before its answer was complete", transient=True) from None
        raise Trouble(Failure.BAD_ANSWER, "it ended without a proper HTTP answer") from None


def warm() -> None:
    """Load the certificates that the system trusts ahead of the first request."""
    _trust()


@lru_cache(maxsize=64)
def take_apart(url: str) -> Target:
    """The parts of an http(s) URL; Trouble that shows none of them if it is not one that can be posted to."""
    try:
        parts = urlsplit(url)
        host, port = _host(parts), parts.port
    except ValueError:
        raise Trouble(Failure.BAD_REQUEST, MALFORMED) from None
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host):
        raise Trouble(Failure.BAD_REQUEST, MALFORMED)
    path = quote(parts.path or "/", safe=PATH_SAFE) + (f"?{quote(parts.query, safe=PATH_SAFE)}" if parts.query else "")
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username is not None else None
    return Target(parts.scheme, host, port, path, login)


def _host(parts: SplitResult) -> str:
    """The host as it is resolved: other scripts in their ASCII spelling, an IPv6 address without brackets."""
    host = parts.hostname or ""
    return str(IPv6Address(host)) if ":" in host else host.encode("idna").decode("ascii")


def head(target: Target, given: Iterable[tuple[str, str]]) -> bytes:
    """The head of a request, but for the length of its body, with which it ends. Trouble for a header that none can hold.

    The body is JSON unless a header says otherwise. A login in the URL becomes a header.
    """
    ours = {"user-agent": "heartbeatd", "content-type": "application/json"}
    headers = ours | {name.lower(): value for name, value in given if name.lower() not in FRAMING}
    if target.login is not None and "authorization" in headers:
        raise Trouble(Failure.BAD_REQUEST, "its address holds a login, but there is a key as well; write only one of them")
    if target.login is not None:
        headers["authorization"] = "Basic " + b64encode(target.login.encode()).decode()
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Trouble(Failure.BAD_REQUEST, f"the header {name!r} holds a character that no header may hold (a line break?)")
    host = f"[{target.host}]" if ":" in target.host else target.host
    headers |= {"host": f"{host}:{target.port}" if target.port else host, "connection": "close", "accept-encoding": "identity"}
    lines = (f"POST {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "")
    return "\r\n".join(lines).encode("ascii")


_kept_head = lru_cache(maxsize=256)(head)  # an agent's is always the same


async def _coming(stream: Stream) -> Coming:
    arriving = Arriving()
    while arriving.status is None:
        arriving.feed(await stream.read())
    return Coming(arriving.status, arriving.headers, partial(_more, arriving, stream))


async def _more(arriving: Arriving, stream: Stream) -> bytes:
    while (part := arriving.take()) == b"":
        arriving.feed(await stream.read())
    return part or b""


async def whole(response: Coming) -> bytes:
    """The body of a success to its end, which is Trouble if it is too large; of a refusal the beginning."""
    if not 200 <= response.status < 300:
        return await beginning(response)
    if response.headers.get("content-encoding", "identity") != "identity":  # unpacking would need a limit of its own
        raise Trouble(Failure.BAD_ANSWER, "it compressed its answer, though it was asked not to")
    body = bytearray()
    while chunk := await response.more():
        body += chunk
        if len(body) > MAX_BODY:
            raise Trouble(Failure.BAD_ANSWER, f"its answer is larger than {MAX_BODY // 1024} KiB")
    return bytes(body)


async def beginning(response: Coming) -> bytes:
    """The first 64 KiB of a body whose status has said all, so that where it breaks off nothing changes."""
    body = bytearray()
    try:
        while chunk := await response.more():
            body += chunk
            if len(body) >= MAX_BEGINNING:
                break
    except (Trouble, Malformed):
        return bytes(body)
    return bytes(body[:MAX_BEGINNING])


@cache
def _trust() -> SSLContext:
    return create_default_context()
