"""Sends every HTTP request of the daemon: to providers, gateways, channels and the dead man's switch, over aiohttp."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from base64 import b64encode
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from ipaddress import IPv6Address
from socket import AF_UNSPEC, AddressFamily, gaierror, getaddrinfo, socket
from types import SimpleNamespace
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from heartbeat.runners import Failure, HttpReply
from heartbeat.runners.call_errors import INVALID_ADDRESS, CallError
from heartbeat.threads import in_daemon_thread
from scheduler.model.settings import Network
from scheduler.net import address_guard, proxies
from scheduler.net.address_guard import AddressRefused

MAX_BODY = 1024 * 1024  # bytes; an answer of 64 KiB may need so much in JSON, if every character is escaped
MAX_PAGE = 4 * 1024 * 1024  # bytes of a page, such as a calendar
MAX_BODY_START = 64 * 1024  # bytes of a body that only adds to the status
CONNECT_TIMEOUT = 10.0  # seconds for name, connection and TLS together
MAX_BYTES_BODY = 512 * 1024  # bytes; aiohttp warns of larger bodies that are passed as bytes

PATH_SAFE = "/?&=%:@!$'()*+,;~[]|"
NO_ANSWER = "its answer was not valid HTTP"
INCOMPLETE_ANSWER = "it closed the connection before its answer was complete"
# Set by the client only.
CLIENT_HEADERS = frozenset({"content-length", "transfer-encoding", "host", "connection", "accept-encoding"})

Method = Literal["GET", "POST", "DELETE"]
ResolveName = Callable[..., Iterable[tuple[Any, ...]]]
Wait = Callable[[], Awaitable[None]]
PendingReply = Coroutine[Any, Any, HttpReply]  # a request to await, which returns its reply

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HOST = re.compile(r"[!-~]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class RequestUrl:
    """A URL that can be requested: without its login, and with the parts that errors and checks need."""

    url: URL
    scheme: str
    host: str
    login: str | None = field(repr=False)


@dataclass(slots=True, eq=False)
class _Exchange:
    """One request, how it is sent, and what is known of it while it is in progress.

    The request of an agent or a provider uses a kept connection and reads the whole body of a success; that of a message uses a
    connection of its own and reads the first 64 KiB of any answer. `public_only`: private addresses are refused. `wait` is
    awaited until the request may be sent. `sent`: the headers may have left, so it is no longer certain that the
    request did not arrive. `reused`: it went over a kept connection. `head` is the status and the headers of an answer whose
    body only adds to them, and `body_start` is what has been read of that body.
    """

    method: Method
    target: RequestUrl
    headers: Mapping[str, str]
    body: bytes
    seconds: float
    wait: Wait
    proxy: URL | None
    is_message: bool = False
    public_only: bool = False
    resolving: bool = False
    reused: bool = False
    sent: bool = False
    refused: AddressRefused | None = None
    head: tuple[int, Mapping[str, str]] | None = None
    body_start: bytearray = field(default_factory=bytearray)

    def make_error(self, failure: Failure, error: str, *, transient: bool = True) -> CallError:
        return CallError(failure, error, transient=transient, not_sent=not self.sent)

    def tls_error(self, reason: str) -> CallError:
        return self.make_error(Failure.TLS, f"no TLS connection{self.via_proxy()} ({reason})", transient=False)

    def timeout_error(self) -> CallError:
        """The error of a request whose time is over, by what it was waiting for."""
        if self.resolving:
            return self.make_error(Failure.DNS, "its name was not resolved in time")
        if not self.sent and self.seconds > CONNECT_TIMEOUT:
            return self.make_error(Failure.CONNECT, f"no connection{self.via_proxy()} within {CONNECT_TIMEOUT:g} s")
        return self.make_error(Failure.TIMEOUT, f"no answer within {self.seconds:g} s")

    def via_proxy(self) -> str:
        """Names the proxy in an error, without its login."""
        return f" through the proxy {proxies.host_and_port(str(self.proxy))}" if self.proxy else ""


async def _no_wait() -> None:
    """A request may be sent at any time."""


class HttpClient:
    """The HTTP client of one event loop. Connections to providers and gateways are kept; each message gets a new one.

    `network` is called for each request, so that a reload takes effect at once. `resolve` is called like `socket.getaddrinfo`,
    in a thread. `wait` is awaited before each request, and again after connecting, until it may be sent. If it raises CallError,
    the request is not sent. Cookies, redirects, decompression and netrc are not used. `async with` closes all connections at the
    end.
    """

    def __init__(self, network: Callable[[], Network], resolve: ResolveName = getaddrinfo, wait: Wait = _no_wait) -> None:
        self._network = network
        self._wait = wait
        self._resolver = _Resolver(resolve)
        self._pool: _ConnectionPool | None = None

    @property
    def network(self) -> Network:
        """The network settings that apply now."""
        return self._network()

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; the client can be used again."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    def with_wait(self, wait: Wait) -> HttpClient:
        """This client, over the same connections, with another `wait`."""
        return _WaitingClient(self, wait)

    def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> PendingReply:
        """Post `body` to an agent or a provider; the reply, whatever its status, within `seconds`.

        The body of a success is read to its end, at most 1 MiB; otherwise the first 64 KiB. If the server has closed a kept
        connection without sending a byte, the request is repeated once over a new connection. Raises CallError, which says
        whether the request can have arrived, in words that contain neither the address nor the value of a header.
        """
        return self._exchange("POST", url, headers, body, seconds)

    def get(self, url: str, headers: Mapping[str, str], seconds: float, *, public_only: bool) -> PendingReply:
        """Fetch a page of at most 4 MiB; otherwise as `post`. With `public_only`, AddressRefused for a private address."""
        return self._exchange("GET", url, headers, b"", seconds, public_only=public_only)

    def delete(self, url: str, headers: Mapping[str, str], seconds: float) -> PendingReply:
        """Send a DELETE request without a body; otherwise as `post`."""
        return self._exchange("DELETE", url, headers, b"", seconds)

    def send_message(
        self, url: str, headers: Mapping[str, str], body: bytes, seconds: float, *, allow_private: bool
    ) -> PendingReply:
        """Post a message to its channel, over a new connection. The first 64 KiB of the answer are read.

        Unless `allow_private`, AddressRefused for a private address. A name that a proxy resolves cannot be checked. Raises
        CallError as `post` does.
        """
        return self._exchange("POST", url, headers, body, seconds, is_message=True, public_only=not allow_private)

    async def _exchange(
        self,
        method: Method,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        seconds: float,
        *,
        is_message: bool = False,
        public_only: bool = False,
    ) -> HttpReply:
        target, pool = parse_url(url), self._current_pool()
        found = proxies.proxy_for(target.scheme, target.host, target.url.port or 0, pool.network)
        sent, proxy = request_headers(target, headers), URL(found) if found else None
        exchange = _Exchange(method, target, sent, body, seconds, self._wait, proxy, is_message, public_only)
        if public_only:
            address_guard.check_literal(target.host) if proxy else address_guard.check_host(target.host)
        pool.load_certificates(target)  # this takes a while, and must not count as the request's time
        await exchange.wait()
        with pool.in_use():
            try:
                async with asyncio.timeout(seconds):
                    return await self._send_with_repeat(pool, exchange)
            except TimeoutError:
                if exchange.head is None:
                    raise exchange.timeout_error() from None
                return HttpReply(*exchange.head, bytes(exchange.body_start[:MAX_BODY_START]))
            except asyncio.CancelledError:
                # The task ends anyway. Its result says whether the request was sent, which decides what is charged.
                raise exchange.make_error(Failure.EXIT, "the call was interrupted", transient=False) from None

    async def _send_with_repeat(self, pool: _ConnectionPool, exchange: _Exchange) -> HttpReply:
        """Send a request; once more, over a new connection, if the server had closed the kept one."""
        try:
            return await self._send_request(pool, exchange, keep=not exchange.is_message)
        except aiohttp.ServerDisconnectedError as error:
            if not exchange.reused or error.message != "Server disconnected":  # otherwise a part of an answer has arrived
                raise _translate_error(exchange, error) from None
        except aiohttp.ClientOSError as error:
            if not exchange.reused or not isinstance(error.__cause__ or error, ConnectionError):
                raise _translate_error(exchange, error) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _translate_error(exchange, error) from None
        exchange.reused = False
        try:
            return await self._send_request(pool, exchange, keep=False)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _translate_error(exchange, error) from None

    async def _send_request(self, pool: _ConnectionPool, exchange: _Exchange, *, keep: bool) -> HttpReply:
        token = _current_exchange.set(exchange)
        try:
            async with pool.get_session(keep, exchange.public_only and exchange.proxy is None).request(
                exchange.method,
                exchange.target.url,
                data=BytesIO(exchange.body) if len(exchange.body) > MAX_BYTES_BODY else exchange.body,
                headers=exchange.headers,
                allow_redirects=False,
                proxy=exchange.proxy,
                ssl=pool.trust or True,
                trace_request_ctx=exchange,
            ) as response:
                codings = [coding.lower() for coding in response.headers.getall("transfer-encoding", [])]
                if response.status == 101 or codings not in ([], ["chunked"]):  # otherwise the end of the body is unknown
                    raise CallError(Failure.BAD_ANSWER, NO_ANSWER)
                reply_headers = {name.lower(): value for name, value in response.headers.items()}
                if 200 <= response.status < 300 and not exchange.is_message:
                    most = MAX_PAGE if exchange.method == "GET" else MAX_BODY
                    return HttpReply(response.status, reply_headers, await _read_whole_body(response, most))
                exchange.head = response.status, reply_headers
                return HttpReply(response.status, reply_headers, await _read_body_start(response, exchange.body_start))
        finally:
            _current_exchange.reset(token)

    def _current_pool(self) -> _ConnectionPool:
        network = self._network()
        if self._pool is None or self._pool.network != network:
            old, self._pool = self._pool, _ConnectionPool(network, self._resolver)
            if old is not None:
                old.close_when_unused()
                proxies.set_proxies_for_libraries(
                    network
                )  # else the environment would still name the proxy of the former settings
        return self._pool


class _WaitingClient(HttpClient):
    def __init__(self, client: HttpClient, wait: Wait) -> None:
        super().__init__(client._network, wait=wait)
        self._client = client

    def _current_pool(self) -> _ConnectionPool:
        return self._client._current_pool()


_current_exchange: ContextVar[_Exchange | None] = ContextVar("exchange", default=None)


class _ConnectionPool:
    """The aiohttp sessions for one value of the network settings. An outdated pool is closed after its last request."""

    def __init__(self, network: Network, names: _Resolver) -> None:
        self.network = network
        self._resolver = names
        self.trust: ssl.SSLContext | None = None
        self._sessions: dict[tuple[bool, bool], aiohttp.ClientSession] = {}
        self._users = 0
        self._retired = False
        self._closing: asyncio.Task[None] | None = None

    def load_certificates(self, target: RequestUrl) -> None:
        """Load the trusted certificates before the first request that needs them."""
        if target.scheme == "https" and self.trust is None:
            self.trust = ssl.create_default_context()
            if self.network.ca_file is not None:
                self.trust.load_verify_locations(self.network.ca_file)

    def get_session(self, kept: bool, guarded: bool) -> aiohttp.ClientSession:
        """The session that keeps its connections, or not, and whose addresses are checked, or not. Opened at its first use."""
        if (opened := self._sessions.get((kept, guarded))) is not None:
            return opened
        connector = _Connector(
            resolver=self._resolver,
            use_dns_cache=False,
            limit=0,  # `limits.concurrency` is the limit
            force_close=not kept,
            socket_factory=_guarded_socket if guarded else None,
        )
        self._sessions[kept, guarded] = session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT, sock_connect=CONNECT_TIMEOUT),
            trace_configs=[_trace_requests()],
            skip_auto_headers=("accept", "accept-encoding", "user-agent", "content-type"),
        )
        return session

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Count a request as a user of this pool."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._close_if_unused()

    def close_when_unused(self) -> None:
        self._retired = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._retired and self._users == 0 and self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self.close())

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()


class _Connector(aiohttp.TCPConnector):
    """Waits after connecting until the request may be sent, because connecting may have taken longer than a lease.

    A trace hook could wait too, but aiohttp 3.14 leaves the connection open if a hook raises or is cancelled.

    It also remembers each connection until it is closed. aiohttp forgets a connection that is not kept when it begins to close
    it, but TLS ends only with an answer of the server, which may come late or never.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._open: dict[asyncio.Future[None], asyncio.Transport] = {}

    async def close(self, *, abort_ssl: bool = True) -> None:
        await super().close(abort_ssl=abort_ssl)
        for transport in self._open.values():
            with suppress(AttributeError):  # raised by Python 3.11.2 (Debian 12) if the server has already ended TLS
                transport.abort()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _forget(self, closed: asyncio.Future[None]) -> None:
        del self._open[closed]
        if not closed.cancelled():
            closed.exception()  # how a connection ends concerns only its request, so asyncio need not log it

    async def connect(self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> Connection:
        connection, exchange = await super().connect(req, traces, timeout), _current_exchange.get()
        if exchange is None or exchange.reused:
            return connection
        try:
            protocol = connection.protocol
            closed, transport = (protocol.closed, protocol.transport) if protocol is not None else (None, None)
            if closed is not None and transport is not None:
                self._open[closed] = transport
                closed.add_done_callback(self._forget)
            await exchange.wait()
        except BaseException:
            connection.close()
            raise
        return connection


class _Resolver(AbstractResolver):
    """Resolves names in daemon threads, since the C library has no timeout. Simultaneous requests share a query."""

    def __init__(self, resolve: ResolveName) -> None:
        self._resolve = resolve
        self._queries: dict[tuple[str, int], asyncio.Future[list[ResolveResult]]] = {}

    async def resolve(self, host: str, port: int = 0, family: AddressFamily = AF_UNSPEC) -> list[ResolveResult]:
        question = self._queries.get((host, port))
        if question is None or question.done():
            question = asyncio.ensure_future(in_daemon_thread(self._resolve_now, host, port))
            self._queries[host, port] = question
            # Without a waiting task, asyncio would log its error as never retrieved.
            question.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        return await asyncio.shield(question)

    async def close(self) -> None:
        """Nothing is open."""

    def _resolve_now(self, host: str, port: int) -> list[ResolveResult]:
        try:
            found = list(self._resolve(host, port, type=1))  # SOCK_STREAM
        except UnicodeError as error:
            raise gaierror(str(error)) from None
        if not found:
            raise gaierror("no address")
        return [
            ResolveResult(hostname=host, host=address[0], port=port, family=kind, proto=0, flags=0)
            for kind, _, _, _, address in found
        ]


def _guarded_socket(info: aiohttp.AddrInfoType) -> socket:
    """A socket for an address that aiohttp connects to; AddressRefused if messages must not go there."""
    exchange = _current_exchange.get()
    host = exchange.target.host if exchange else ""
    try:
        address_guard.check_address(host, info[4][0])
    except AddressRefused as refused:
        if exchange:
            exchange.refused = refused
        raise
    return socket(info[0], info[1], info[2])


def _trace_requests() -> aiohttp.TraceConfig:
    """Keeps in the `_Exchange` of each request how far it has come."""

    def note(fact: str, value: bool) -> Callable[..., Awaitable[None]]:
        async def hook(_session: object, context: SimpleNamespace, _params: object) -> None:
            setattr(context.trace_request_ctx, fact, value)

        return hook

    tracing = aiohttp.TraceConfig()
    tracing.on_dns_resolvehost_start.append(note("resolving", True))
    tracing.on_dns_resolvehost_end.append(note("resolving", False))
    tracing.on_connection_reuseconn.append(note("reused", True))
    tracing.on_request_headers_sent.append(note("sent", True))
    return tracing


@lru_cache(maxsize=64)
def parse_url(url: str) -> RequestUrl:
    """The parts of an http(s) URL. CallError, which shows none of them, if it cannot be requested."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host = str(IPv6Address(host)) if ":" in host else host.encode("idna").decode("ascii")
    except ValueError:
        raise CallError(Failure.BAD_REQUEST, INVALID_ADDRESS) from None
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host):
        raise CallError(Failure.BAD_REQUEST, INVALID_ADDRESS)
    path = quote(parts.path or "/", safe=PATH_SAFE) + (f"?{quote(parts.query, safe=PATH_SAFE)}" if parts.query else "")
    place = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username is not None else None
    try:
        return RequestUrl(URL(f"{parts.scheme}://{place}{path}", encoded=True), parts.scheme, host, login)
    except ValueError:
        raise CallError(Failure.BAD_REQUEST, INVALID_ADDRESS) from None


def request_headers(target: RequestUrl, given: Mapping[str, str]) -> dict[str, str]:
    """The headers of a request, names in lower case. CallError for a header that HTTP does not allow.

    The body is JSON unless a header says otherwise. A login in the URL becomes a header.
    """
    headers = {"user-agent": "heartbeatd", "content-type": "application/json", "accept-encoding": "identity"}
    headers |= {name.lower(): value for name, value in given.items() if name.lower() not in CLIENT_HEADERS}
    if target.login is not None and "authorization" in headers:
        raise CallError(Failure.BAD_REQUEST, "its address holds a login, but there is a key as well; write only one of them")
    if target.login is not None:
        headers["authorization"] = "Basic " + b64encode(target.login.encode()).decode()
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise CallError(
                Failure.BAD_REQUEST, f"the header {name!r} contains a character that headers cannot contain (a line break?)"
            )
    return headers


async def _read_whole_body(response: aiohttp.ClientResponse, most: int) -> bytes:
    if response.headers.get("content-encoding", "identity") != "identity":  # decompression would need a limit of its own
        raise CallError(Failure.BAD_ANSWER, "its answer is compressed, although the request did not allow that")
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most:
            response.close()
            raise CallError(Failure.BAD_ANSWER, f"its answer is larger than {most // 1024} KiB")
    return bytes(body)


async def _read_body_start(response: aiohttp.ClientResponse, body: bytearray) -> bytes:
    """The first 64 KiB of a body. The status is known already, so a broken connection changes nothing."""
    with suppress(aiohttp.ClientError, OSError):
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) >= MAX_BODY_START:
                response.close()
                break
    return bytes(body[:MAX_BODY_START])


def _translate_error(exchange: _Exchange, error: Exception) -> Exception:
    """The error for an error of aiohttp, in words that contain no address and no secret."""
    if exchange.refused is not None:
        return exchange.refused
    through = exchange.via_proxy()
    match error:
        case aiohttp.ConnectionTimeoutError():
            return exchange.timeout_error()
        case aiohttp.ClientHttpProxyError():
            return _proxy_error(exchange, error.status)
        case aiohttp.ClientProxyConnectionError():
            proxy = proxies.host_and_port(str(exchange.proxy))
            return exchange.make_error(
                Failure.CONNECT, f"no connection to the proxy {proxy}: {_connect_reason(error) or 'failed'}"
            )
        case aiohttp.ClientConnectorCertificateError():
            return exchange.make_error(Failure.TLS, untrusted_certificate(error.certificate_error), transient=False)
        case aiohttp.ClientConnectorDNSError():
            return exchange.make_error(Failure.DNS, "its name cannot be resolved")
        case aiohttp.ClientSSLError():
            cause = getattr(error, "os_error", None)
            return exchange.tls_error(getattr(cause, "reason", None) or "handshake failed")
        case aiohttp.ClientConnectorError():
            reason = _connect_reason(error)
            return exchange.make_error(
                Failure.CONNECT, f"no connection{through}: {reason}" if reason else f"it broke the connection{through}"
            )
        case aiohttp.InvalidURL():
            return exchange.make_error(Failure.BAD_REQUEST, INVALID_ADDRESS, transient=False)
        case aiohttp.ClientPayloadError():
            return _body_error(error)
        case aiohttp.ClientOSError() if isinstance(error.__cause__, ssl.SSLError):
            return exchange.tls_error(error.__cause__.reason or "broken")
        case aiohttp.ServerDisconnectedError() if exchange.sent:
            return exchange.make_error(Failure.CONNECT, INCOMPLETE_ANSWER)
        case ssl.SSLCertVerificationError():
            return exchange.make_error(Failure.TLS, untrusted_certificate(error), transient=False)
        case ssl.SSLError():
            return exchange.tls_error(error.reason or "handshake failed")
        case aiohttp.ServerDisconnectedError() | OSError():
            return exchange.make_error(Failure.CONNECT, f"it broke the connection{through}")
        case _:
            return exchange.make_error(Failure.BAD_ANSWER, NO_ANSWER, transient=False)


def _proxy_error(exchange: _Exchange, status: int) -> CallError:
    proxy = proxies.host_and_port(str(exchange.proxy))
    if status == 407:
        where = "in its URL, in network.proxy or HTTPS_PROXY, as http://USER:PASSWORD@HOST:PORT"
        return exchange.make_error(
            Failure.CONNECT, f"the proxy {proxy} requires a login (407); write it {where}", transient=False
        )
    return exchange.make_error(Failure.CONNECT, f"the proxy {proxy} answered {status}", transient=status >= 500 or status == 429)


def _body_error(error: aiohttp.ClientPayloadError) -> CallError:
    """An incomplete body is a broken connection; a malformed body is a bad answer."""
    cause = error.__cause__
    if isinstance(cause, aiohttp.http_exceptions.BadHttpMessage) and "Not enough data" not in str(cause):
        return CallError(Failure.BAD_ANSWER, NO_ANSWER)
    return CallError(Failure.CONNECT, INCOMPLETE_ANSWER, transient=True)


def _connect_reason(error: aiohttp.ClientConnectorError) -> str:
    """The system's reason why there is no connection; empty if the other side closed it."""
    hung_up = isinstance(error.os_error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError)
    number = error.os_error.errno
    return os.strerror(number) if number and not hung_up else ""


def untrusted_certificate(error: BaseException) -> str:
    """That the certificate of a server is not trusted, with the reason and with what to write."""
    message = getattr(error, "verify_message", None) or "it cannot be verified"
    return f"its certificate is not trusted ({message}); if your own authority signed it, write network: {{ca_file: PATH}}"
