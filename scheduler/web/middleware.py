"""Rejects forged and unauthorized requests before they reach an endpoint, and adds security headers to every answer.

Any web page in the user's browser can send requests to loopback. It cannot choose their Host header, hide their Origin, send
JSON without a preflight request, or know a token. The checks use these four facts.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator

from starlette.datastructures import MutableHeaders
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heartbeatd.secret import Secret
from scheduler.model.settings import Settings
from scheduler.system.log import log_event
from scheduler.telemetry.metrics import Metrics
from scheduler.web import event_stream
from scheduler.web.api_request import find_caller
from scheduler.web.http_errors import HttpError, error_response, unauthorized_error
from scheduler.web.page.page_sessions import LOOPBACK_HOSTS, Session, is_page_path

MAX_HEADER_BYTES = 8 * 1024  # bytes, including the request line
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
ALL_INTERFACES = ("0.0.0.0", "::", "")  # noqa: S104 (addresses to listen on, not host names)

FORM_TYPE = b"application/x-www-form-urlencoded"
REFUSAL_LOG_SECONDS = 10.0  # between two log lines about refused tokens, so that a client cannot fill the log
UNKNOWN_ROUTE = "unknown"  # the route of rejected requests and of unknown paths: anyone can invent more of them

SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}

_HOST_PATTERN = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


class SecurityMiddleware:
    """Checks each request, finds its caller by the token, adds security headers to the answer, and counts both."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Callable[[], Settings],
        metrics: Metrics,
        port: int,
        token: Secret,
        find_session: Callable[[Scope], Session | None],
    ) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._port = port
        self._token = token
        self._find_session = find_session
        self._next_refusal_log = 0.0  # of the loop's clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hardened = self._harden_answer(scope, send)
        try:
            self._check_request(scope)
        except HttpError as problem:
            await error_response(problem)(scope, receive, hardened)
            return
        await self._app(scope, receive, hardened)

    def _harden_answer(self, scope: Scope, send: Send) -> Send:
        """Add the security headers that the answer lacks, and count it under the template of its path.

        All paths that do not exist count as one.
        """

        async def send_hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                route = scope.get("route")
                self._metrics.count_request(route.path if isinstance(route, Route) else UNKNOWN_ROUTE, message["status"])
            await send(message)

        return send_hardened

    def _report_refused_token(self, scope: Scope) -> None:
        """Count a request with a wrong token, and log the address of its sender."""
        self._metrics.count_refused_token()
        now = asyncio.get_running_loop().time()
        if now >= self._next_refusal_log:
            self._next_refusal_log = now + REFUSAL_LOG_SECONDS
            address = scope["client"][0] if scope.get("client") else None
            log_event(logging.WARNING, "token_refused", address=address, method=scope["method"], path=scope["path"])

    def _check_request(self, scope: Scope) -> None:
        """Raises HttpError. Otherwise `scope["caller"]` is the caller, or None if no valid token was sent.

        On the status page, and for its event stream, the cookie of a session takes the place of the token.
        """
        server = self._settings().server
        hosts = frozenset(_allowed_hosts(server.host, server.hosts, self._port))
        _check_length(scope)
        _check_host(scope, hosts)
        _check_size(scope)
        sent = _header_values(scope, b"authorization")
        if is_page_path(scope["path"]):
            if scope["method"] not in SAFE_METHODS:
                _check_page_form(scope, hosts)
            scope["session"] = session = self._find_session(scope)
            scope["caller"] = session.caller if session else None
            return
        if scope["path"] == event_stream.PATH and scope["method"] == "GET" and not sent:
            _check_origin(scope, hosts)  # a foreign page could not read the events, but it could use up the readers
            session = self._find_session(scope)
            scope["caller"] = session.caller if session else None
            return
        caller = find_caller(sent, self._token, server.tokens)
        if sent and caller is None:
            self._report_refused_token(scope)
        if scope["method"] not in SAFE_METHODS:
            _check_origin(scope, hosts)
            _check_content_type(scope)
            if caller is None:
                raise unauthorized_error()
        scope["caller"] = caller


def _allowed_hosts(host: str, hosts: tuple[str, ...], port: int) -> Iterator[str]:
    """The Host headers that are accepted. A configured name with a port is accepted as it is, as behind a proxy."""
    own = () if host in ALL_INTERFACES else (f"[{host}]" if ":" in host else host,)
    for name in (*LOOPBACK_HOSTS, *own):
        yield f"{name}:{port}".lower()
        if port == 80:
            yield name.lower()
    for name in hosts:
        yield name.lower()
        yield f"{name}:{port}".lower()


def _check_host(scope: Scope, hosts: frozenset[str]) -> None:
    """RFC 9110, section 7.4: a request for another host is misdirected."""
    if not scope["raw_path"].startswith(b"/"):
        raise HttpError(421, "host", "send only the path as the request's target, not a whole URL")
    said_hosts = _header_values(scope, b"host")
    if len(said_hosts) != 1:
        raise HttpError(421, "host", "send one Host header")
    host = said_hosts[0].decode("latin-1")
    if host.lower() in hosts:
        return
    if not _HOST_PATTERN.fullmatch(host):
        raise HttpError(421, "host", "the Host header is not a host name")
    line = f'server: {{hosts: ["{host}"]}}'
    raise HttpError(421, "host", f"{host!r} is not a name of this server; if it should be one, add to config.yaml: {line}")


def _check_length(scope: Scope) -> None:
    """RFC 9112, section 6.1: with both headers, a proxy may see another end of the request than we do (request smuggling)."""
    if _header_values(scope, b"transfer-encoding") and _header_values(scope, b"content-length"):
        problem = "send Content-Length or Transfer-Encoding, not both"
        raise HttpError(400, "bad_request", problem, {"Connection": "close"})


def _check_size(scope: Scope) -> None:
    size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(name) + len(value) for name, value in scope["headers"])
    if size > MAX_HEADER_BYTES:
        raise HttpError(431, "headers_too_large", f"the headers are larger than {MAX_HEADER_BYTES} bytes")


def _check_origin(scope: Scope, hosts: frozenset[str]) -> None:
    """Browsers send the origin of a request, and scripts cannot remove it. Other programs send no origin."""
    ours = {f"{scheme}://{host}".encode() for scheme in ("http", "https") for host in hosts}
    foreign = any(origin.lower() not in ours for origin in _header_values(scope, b"origin"))
    if foreign or any(site not in (b"same-origin", b"none") for site in _header_values(scope, b"sec-fetch-site")):
        raise HttpError(403, "cross_site", "this request comes from a page of another site")


def _check_page_form(scope: Scope, hosts: frozenset[str]) -> None:
    """Browsers send the origin of every form, and only the page itself can have its origin."""
    if not _header_values(scope, b"origin") and not _header_values(scope, b"sec-fetch-site"):
        raise HttpError(403, "cross_site", "a form of the status page must be sent by a browser; programs use the API")
    _check_origin(scope, hosts)
    if [each.partition(b";")[0].strip().lower() for each in _header_values(scope, b"content-type")] != [FORM_TYPE]:
        raise HttpError(415, "not_a_form", "send a form with `Content-Type: application/x-www-form-urlencoded`")


def _check_content_type(scope: Scope) -> None:
    """A form cannot send JSON. A script can, but the browser first sends a preflight request, which is never granted."""
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
