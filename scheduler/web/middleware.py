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
from scheduler.model.settings import Permission, Settings, Token
from scheduler.web.http_errors import HttpError, error_response

MAX_HEADER_BYTES = 8 * 1024  # bytes, the request line among them
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
ALL_INTERFACES = ("0.0.0.0", "::", "")  # noqa: S104 (what is listened on, not a name to be called by)

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_HOST_PATTERN = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


class SecurityMiddleware:
    """Refuses what is not meant for us, finds out who calls, and hardens every answer."""

    def __init__(self, app: ASGIApp, settings: Callable[[], Settings], port: int, token: Secret) -> None:
        self._app = app
        self._settings = settings
        self._port = port
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hardened = _add_security_headers(send)
        try:
            self._check_request(scope)
        except HttpError as problem:
            await error_response(problem)(scope, receive, hardened)
            return
        await self._app(scope, receive, hardened)

    def _check_request(self, scope: Scope) -> None:
        """Raises HttpError; otherwise the scope holds the caller, None where no good token was shown."""
        server = self._settings().server
        hosts = frozenset(_allowed_hosts(server.host, server.hosts, self._port))
        _check_length(scope)
        _check_host(scope, hosts)
        _check_size(scope)
        caller = find_caller(_header_values(scope, b"authorization"), self._token, server.tokens)
        if scope["method"] not in SAFE_METHODS:
            _check_origin(scope, hosts)
            _check_content_type(scope)
            if caller is None:
                raise unauthorized_error()
        scope["caller"] = caller


def unauthorized_error() -> HttpError:
    """Whoever asks has to show a token first."""
    return HttpError(401, "unauthorized", "send `Authorization: Bearer TOKEN`; one is in the file `token` beside the database")


def _allowed_hosts(host: str, hosts: tuple[str, ...], port: int) -> Iterator[str]:
    """What a Host header may hold. A name given with a port stands as it is, as behind a proxy."""
    own = () if host in ALL_INTERFACES else (f"[{host}]" if ":" in host else host,)
    for name in (*LOOPBACK_NAMES, *own):
        yield f"{name}:{port}".lower()
        if port == 80:
            yield name.lower()
    for name in hosts:
        yield name.lower()
        yield f"{name}:{port}".lower()


def _check_host(scope: Scope, hosts: frozenset[str]) -> None:
    """RFC 9110, 7.4: a request for a host that is not ours is misdirected."""
    if not scope["raw_path"].startswith(b"/"):
        raise HttpError(421, "host", "send a path as the request's target, not a whole address")
    said_hosts = _header_values(scope, b"host")
    if len(said_hosts) != 1:
        raise HttpError(421, "host", "send one Host header")
    host = said_hosts[0].decode("latin-1")
    if host.lower() in hosts:
        return
    if not _HOST_PATTERN.fullmatch(host):
        raise HttpError(421, "host", "the Host header holds no host name")
    line = f'server: {{hosts: ["{host}"]}}'
    raise HttpError(421, "host", f"{host!r} is not a name of this server; if it is meant to be, add to config.yaml: {line}")


def _check_length(scope: Scope) -> None:
    """RFC 9112, 6.1: with both lengths, a proxy may see another end of the request than we do, so what follows is not trusted."""
    if _header_values(scope, b"transfer-encoding") and _header_values(scope, b"content-length"):
        said = "send Content-Length or Transfer-Encoding, not both"
        raise HttpError(400, "bad_request", said, {"Connection": "close"})


def _check_size(scope: Scope) -> None:
    size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(name) + len(value) for name, value in scope["headers"])
    if size > MAX_HEADER_BYTES:
        raise HttpError(431, "headers_too_large", f"the headers are larger than {MAX_HEADER_BYTES} bytes")


def _check_origin(scope: Scope, hosts: frozenset[str]) -> None:
    """Browsers say where a request comes from, and scripts cannot hide it; other programs say nothing."""
    ours = {f"{scheme}://{host}".encode() for scheme in ("http", "https") for host in hosts}
    foreign = any(origin.lower() not in ours for origin in _header_values(scope, b"origin"))
    if foreign or any(site not in (b"same-origin", b"none") for site in _header_values(scope, b"sec-fetch-site")):
        raise HttpError(403, "cross_site", "this request comes from the page of another site")


def _check_content_type(scope: Scope) -> None:
    """A form cannot be sent as JSON: only a script can, and a browser asks us first, in vain."""
    types = _header_values(scope, b"content-type")
    empty = not _header_values(scope, b"transfer-encoding") and all(
        length == b"0" for length in _header_values(scope, b"content-length")
    )
    if not types and empty:
        return
    if [each.partition(b";")[0].strip().lower() for each in types] != [b"application/json"]:
        raise HttpError(415, "not_json", "send a JSON body with `Content-Type: application/json`")


def _header_values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


def _add_security_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
        await send(message)

    return send_with_headers


EVERYTHING: frozenset[Permission] = frozenset(get_args(Permission))


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request. `agents` None means all of them, and the jobs too; `local` is our own command line."""

    name: str
    may: frozenset[Permission]
    agents: frozenset[str] | None = None
    is_local: bool = False

    def may_access(self, kind: Kind, name: str) -> bool:
        """Whether the token is good for this entry."""
        return self.agents is None or (kind is Kind.HEARTBEAT and name in self.agents)


def find_caller(authorization: list[bytes], local: Secret, tokens: Iterable[Token]) -> Caller | None:
    """The caller whose token the one Authorization header holds; None when there is none, or two, or a wrong one."""
    scheme, _, shown = authorization[0].partition(b" ") if len(authorization) == 1 else (b"", b"", b"")
    if scheme.lower() != b"bearer":
        return None
    # Every token is compared, and each in constant time: how long it takes tells nothing.
    known = [(local, Caller("local", EVERYTHING, is_local=True))]
    known += [(token.value, Caller(token.name, token.may, token.agents)) for token in tokens]
    matches = [caller for secret, caller in known if hmac.compare_digest(secret.reveal().encode(), shown.strip())]
    return matches[0] if matches else None
