"""The gate: which requests are let in at all, whatever they ask for.

A page in the user's browser can send requests to loopback; it cannot choose their Host, hide their Origin, send JSON without
being asked about first, or know a token.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import get_args

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler.model.outcome import Kind
from scheduler.model.secret import Secret
from scheduler.model.settings import May, Settings, Token
from scheduler.web.http_errors import Problem, said

MOST_HEADERS = 8 * 1024  # bytes, the request line among them
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
ANYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 (what is listened on, not a name to be called by)

HARDENING = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


class Gate:
    """Refuses what is not meant for us, finds out who calls, and hardens every answer."""

    def __init__(self, app: ASGIApp, settings: Callable[[], Settings], port: int, token: Secret) -> None:
        self._app = app
        self._settings = settings
        self._port = port
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hardened = _hardened(send)
        try:
            self._admit(scope)
        except Problem as problem:
            await said(problem)(scope, receive, hardened)
            return
        await self._app(scope, receive, hardened)

    def _admit(self, scope: Scope) -> None:
        """Raises Problem; otherwise the scope holds the caller, None where no good token was shown."""
        server = self._settings().server
        hosts = frozenset(_names(server.host, server.hosts, self._port))
        _check_length(scope)
        _check_host(scope, hosts)
        _check_size(scope)
        caller = find(_values(scope, b"authorization"), self._token, server.tokens)
        if scope["method"] not in SAFE:
            _check_origin(scope, hosts)
            _check_type(scope)
            if caller is None:
                raise unknown_caller()
        scope["caller"] = caller


def unknown_caller() -> Problem:
    """Whoever asks has to show a token first."""
    return Problem(401, "unauthorized", "send `Authorization: Bearer TOKEN`; one is in the file `token` beside the database")


def _names(host: str, hosts: tuple[str, ...], port: int) -> Iterator[str]:
    """What a Host header may hold. A name given with a port stands as it is, as behind a proxy."""
    own = () if host in ANYWHERE else (f"[{host}]" if ":" in host else host,)
    for name in (*LOOPBACK, *own):
        yield f"{name}:{port}".lower()
        if port == 80:
            yield name.lower()
    for name in hosts:
        yield name.lower()
        yield f"{name}:{port}".lower()


def _check_host(scope: Scope, hosts: frozenset[str]) -> None:
    """RFC 9110, 7.4: a request for a host that is not ours is misdirected."""
    if not scope["raw_path"].startswith(b"/"):
        raise Problem(421, "host", "send a path as the request's target, not a whole address")
    said_hosts = _values(scope, b"host")
    if len(said_hosts) != 1:
        raise Problem(421, "host", "send one Host header")
    host = said_hosts[0].decode("latin-1")
    if host.lower() in hosts:
        return
    if not _HOST.fullmatch(host):
        raise Problem(421, "host", "the Host header holds no host name")
    line = f'server: {{hosts: ["{host}"]}}'
    raise Problem(421, "host", f"{host!r} is not a name of this server; if it is meant to be, add to config.yaml: {line}")


def _check_length(scope: Scope) -> None:
    """RFC 9112, 6.1: with both lengths, a proxy may see another end of the request than we do, so what follows is not trusted."""
    if _values(scope, b"transfer-encoding") and _values(scope, b"content-length"):
        said = "send Content-Length or Transfer-Encoding, not both"
        raise Problem(400, "bad_request", said, {"Connection": "close"})


def _check_size(scope: Scope) -> None:
    size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(name) + len(value) for name, value in scope["headers"])
    if size > MOST_HEADERS:
        raise Problem(431, "headers_too_large", f"the headers are larger than {MOST_HEADERS} bytes")


def _check_origin(scope: Scope, hosts: frozenset[str]) -> None:
    """Browsers say where a request comes from, and scripts cannot hide it; other programs say nothing."""
    ours = {f"{scheme}://{host}".encode() for scheme in ("http", "https") for host in hosts}
    foreign = any(origin.lower() not in ours for origin in _values(scope, b"origin"))
    if foreign or any(site not in (b"same-origin", b"none") for site in _values(scope, b"sec-fetch-site")):
        raise Problem(403, "cross_site", "this request comes from the page of another site")


def _check_type(scope: Scope) -> None:
    """A form cannot be sent as JSON: only a script can, and a browser asks us first, in vain."""
    types = _values(scope, b"content-type")
    empty = not _values(scope, b"transfer-encoding") and all(length == b"0" for length in _values(scope, b"content-length"))
    if not types and empty:
        return
    if [each.partition(b";")[0].strip().lower() for each in types] != [b"application/json"]:
        raise Problem(415, "not_json", "send a JSON body with `Content-Type: application/json`")


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


def _hardened(send: Send) -> Send:
    async def harden(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HARDENING]
        await send(message)

    return harden


EVERYTHING: frozenset[May] = frozenset(get_args(May))


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request. `agents` None means all of them, and the jobs too; `local` is our own command line."""

    name: str
    may: frozenset[May]
    agents: frozenset[str] | None = None
    local: bool = False

    def reaches(self, kind: Kind, name: str) -> bool:
        """Whether the token is good for this entry."""
        return self.agents is None or (kind is Kind.HEARTBEAT and name in self.agents)


def find(authorization: list[bytes], local: Secret, tokens: Iterable[Token]) -> Caller | None:
    """The caller whose token the one Authorization header holds; None when there is none, or two, or a wrong one."""
    scheme, _, shown = authorization[0].partition(b" ") if len(authorization) == 1 else (b"", b"", b"")
    if scheme.lower() != b"bearer":
        return None
    # Every token is compared, and each in constant time: how long it takes tells nothing.
    known = [(local, Caller("local", EVERYTHING, local=True))]
    known += [(token.value, Caller(token.name, token.may, token.agents)) for token in tokens]
    matches = [caller for secret, caller in known if hmac.compare_digest(secret.reveal().encode(), shown.strip())]
    return matches[0] if matches else None
