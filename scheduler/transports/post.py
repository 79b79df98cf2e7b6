"""One POST over a guarded connection: what was answered, and what that means for the message."""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from ipaddress import IPv6Address
from ssl import SSLContext
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

import httpcore2

from heartbeat.runners.veil import Veil
from scheduler.transports import Sent, State
from scheduler.transports.guard import Guard, Refused, Resolve

CONNECT = 10.0  # seconds, name and TLS included
TOTAL = 30.0
READ_MAX = 64 * 1024  # bytes of an answer's body
SAID_MAX = 200  # characters of what a receiver says that an error repeats
LONGEST_WAIT = 10 * 365 * 24 * 3600  # seconds; a Retry-After beyond it is as good as this

MALFORMED = "the URL is not one that can be posted to; write http(s)://host[:port]/path"
PATH_SAFE = "/?&=%:@!$'()*+,;~[]|"

FAILURES = (
    httpcore2.TimeoutException,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
)


@dataclass(frozen=True, slots=True)
class Wire:
    """How a request may travel.

    Addresses that are not public need `allow_private`; `resolve` is called like `socket.getaddrinfo`; `connect` and `total`
    are seconds; `tls` replaces the system's trust in certificates.
    """

    allow_private: bool
    resolve: Resolve = socket.getaddrinfo
    connect: float = CONNECT
    total: float = TOTAL
    tls: SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: header names in lower case, the body as far as 64 KiB. `host` is all of the URL that an error may name."""

    host: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    def told(self) -> Mapping[str, Any]:
        """The body as a JSON object; empty if it is none."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class _Target:
    """A URL taken apart."""

    scheme: str
    host: str
    port: int | None
    path: str
    login: str | None


def post(url: str, content: Mapping[str, Any], wire: Wire, headers: Mapping[str, str] | None = None) -> Answer | Sent:
    """Post `content` as JSON to `url` once, following no redirect; what became of the message if there was no answer.

    Only http and https. Blocks for at most `wire.total` seconds and raises nothing of the network.
    """
    try:
        target = _take_apart(url)
    except ValueError as error:
        return Sent("dead", str(error), None)
    guard = Guard(allow_private=wire.allow_private, resolve=wire.resolve, connect=wire.connect, total=wire.total)
    try:
        with (
            httpcore2.ConnectionPool(ssl_context=wire.tls or _trust(), network_backend=guard) as pool,
            pool.stream(
                "POST", _address(target), headers=_headers(target, headers or {}), content=json.dumps(content).encode()
            ) as answer,
        ):
            return Answer(target.host, answer.status, _legible(answer.headers), _read(answer))
    except Refused as refusal:
        return Sent("dead", str(refusal), None)
    except FAILURES as failure:
        return _failed(failure, target.host, sent=guard.sent)


def judge(answer: Answer, *, said: str = "", wait: timedelta | None = None) -> Sent:
    """What an answer's status means for the message.

    `said` is what the receiver's body gives as the reason, fit to be shown; `wait` what it asks for before the next attempt,
    if not in its header.
    """
    status = answer.status
    if 200 <= status < 300:
        return Sent("delivered", "", None)
    error = f"{answer.host} answered {status} {_phrase(status)}".rstrip() + (f": {said}" if said else "")
    if status in (408, 429) or 500 <= status < 600:
        return Sent("retry", error, wait if wait is not None else retry_after(answer.headers))
    if 300 <= status < 400:
        return Sent("dead", f"{error}: redirects are not followed; write the URL it leads to", None)
    return Sent("dead", error, None)


def shown(text: object, secrets: Iterable[str]) -> str:
    """A receiver's own words on one short line, without the secrets that it was asked with."""
    if not isinstance(text, str):
        return ""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in Veil(secrets).over(text)).split())[:SAID_MAX]


def seconds(value: object) -> timedelta | None:
    """A wait that a receiver gives as a number of seconds, uncapped but finite; None if it makes no sense."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return None
    return timedelta(seconds=min(value, LONGEST_WAIT))


def retry_after(headers: Mapping[str, str]) -> timedelta | None:
    """How long the receiver asks us to wait, by its Retry-After header (names in lower case), never negative.

    Seconds, or an HTTP date that is compared with the receiver's own Date, so that nobody's clock need be right. None if
    there is none or it makes no sense.
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return seconds(int(text[:12]))
    until, now = _date(text), _date(headers.get("date", ""))
    if until is None or now is None:
        return None
    return min(max(until - now, timedelta(0)), timedelta(seconds=LONGEST_WAIT))


def _take_apart(url: str) -> _Target:
    """The URL's parts; a ValueError that shows none of them if it is not a URL that can be posted to."""
    try:
        parts = urlsplit(url)
        host = _host(parts)
        port = parts.port
    except ValueError:
        raise ValueError(MALFORMED) from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(MALFORMED)
    path = quote(parts.path or "/", safe=PATH_SAFE) + (f"?{quote(parts.query, safe=PATH_SAFE)}" if parts.query else "")
    return _Target(parts.scheme, host, port, path, _login(parts))


def _host(parts: SplitResult) -> str:
    """The host as it is resolved: other scripts in their ASCII spelling, an IPv6 address without brackets."""
    host = parts.hostname or ""
    if ":" in host:
        return str(IPv6Address(host))
    return host.encode("idna").decode("ascii")


def _login(parts: SplitResult) -> str | None:
    if parts.username is None:
        return None
    return f"{unquote(parts.username)}:{unquote(parts.password or '')}"


def _address(target: _Target) -> httpcore2.URL:
    return httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)


def _headers(target: _Target, further: Mapping[str, str]) -> list[tuple[str, str]]:
    host = f"[{target.host}]" if ":" in target.host else target.host
    headers = [
        ("Host", f"{host}:{target.port}" if target.port else host),
        ("User-Agent", f"heartbeatd/{_version()}"),
        ("Content-Type", "application/json"),
        ("Connection", "close"),
        *further.items(),
    ]
    if target.login is not None:
        headers.append(("Authorization", "Basic " + b64encode(target.login.encode()).decode()))
    return headers


def _read(answer: httpcore2.Response) -> bytes:
    """The body, as far as manners and we ask; where it breaks off the status has said enough."""
    body = b""
    try:
        for chunk in answer.iter_stream():
            body += chunk
            if len(body) >= READ_MAX:
                break
    except FAILURES:
        pass
    return body[:READ_MAX]


def _legible(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


def _phrase(status: int) -> str:
    """Our own words for a status: the receiver's could hold anything."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _failed(failure: Exception, host: str, *, sent: bool) -> Sent:
    """What a failure means: before the first byte it is surely not there, after it nobody knows.

    The wording is ours once the other side has spoken: what it said may repeat the URL.
    """
    state: State = "uncertain" if sent else "retry"
    if not sent:
        return Sent(state, f"no connection to {host}: {failure}", None)
    if isinstance(failure, httpcore2.TimeoutException):
        return Sent(state, f"{host} did not answer in time", None)
    if isinstance(failure, httpcore2.NetworkError):
        return Sent(state, f"{host} broke the connection", None)
    return Sent(state, f"{host} ended without a proper HTTP answer", None)


@cache
def _trust() -> SSLContext:
    return httpcore2.default_ssl_context()


@cache
def _version() -> str:
    try:
        return version("heartbeatd")
    except PackageNotFoundError:  # run from a checkout
        return "dev"
