"""A connection to no other address than one that was resolved, checked and allowed, and for no longer than allowed."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from queue import Empty, SimpleQueue
from typing import Any

from httpcore2 import (
    SOCKET_OPTION,
    ConnectError,
    ConnectTimeout,
    NetworkBackend,
    NetworkStream,
    ReadError,
    ReadTimeout,
    WriteError,
    WriteTimeout,
)

Address = IPv4Address | IPv6Address
Resolve = Callable[..., Iterable[tuple[Any, ...]]]

NAT64 = IPv6Network("64:ff9b::/96")


class Refused(Exception):
    """An address that is not to be connected to; the text says which and what would allow it."""


class Guard(NetworkBackend):
    """Connects for one request: resolves once, checks every address, connects to what it checked, keeps the deadline.

    `resolve` is called like `socket.getaddrinfo`. `connect` and `total` are seconds, counted from now. `sent` turns True with
    the first byte of the request: from then on nobody can say that it did not arrive.
    """

    def __init__(self, *, allow_private: bool, resolve: Resolve, connect: float, total: float) -> None:
        self._allow_private = allow_private
        self._resolve = resolve
        now = time.monotonic()
        self._connected_by = now + min(connect, total)
        self._done_by = now + total
        self.sent = False

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> NetworkStream:
        addresses = self._addresses(host, port)
        if not self._allow_private:
            _check(host, addresses)
        return _Stream(self, self._connect(addresses))

    def left(self) -> float:
        """Seconds until the deadline of what is being done: of the connection before the request, of the whole after."""
        return max((self._done_by if self.sent else self._connected_by) - time.monotonic(), 0.0)

    def _addresses(self, host: str, port: int) -> list[tuple[Any, ...]]:
        """What the name resolves to. The resolver knows no timeout, so it is waited for from outside."""
        answers: SimpleQueue[list[tuple[Any, ...]] | OSError | UnicodeError] = SimpleQueue()

        def ask() -> None:
            try:
                answers.put(list(self._resolve(host, port, type=socket.SOCK_STREAM)))
            except (OSError, UnicodeError) as error:
                answers.put(error)

        threading.Thread(target=ask, name="resolve", daemon=True).start()
        try:
            answer = answers.get(timeout=self.left())
        except Empty:
            raise ConnectTimeout("its name was not resolved in time") from None
        if isinstance(answer, Exception) or not answer:
            raise ConnectError("its name cannot be resolved")
        return answer

    def _connect(self, addresses: list[tuple[Any, ...]]) -> socket.socket:
        """The first that answers; each gets an equal share of the time that is left."""
        failure: OSError = TimeoutError("timed out")
        for position, (family, kind, protocol, _, address) in enumerate(addresses):
            share = self.left() / (len(addresses) - position)
            try:
                return _dial(family, kind, protocol, address, share)
            except OSError as error:
                failure = error
        if isinstance(failure, TimeoutError):
            raise ConnectTimeout("timed out")
        raise ConnectError(_reason(failure))


class _Stream(NetworkStream):
    """One socket whose every read and write ends by the guard's deadline, however slowly the other side drips."""

    def __init__(self, guard: Guard, connection: socket.socket) -> None:
        self._guard = guard
        self._socket = connection

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with self._in_time(ReadTimeout, ReadError):
            return self._socket.recv(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._guard.sent = True
        unsent = memoryview(buffer)
        while unsent:
            with self._in_time(WriteTimeout, WriteError):
                unsent = unsent[self._socket.send(unsent) :]

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> NetworkStream:
        try:
            with self._in_time(ConnectTimeout, ConnectError):
                self._socket = ssl_context.wrap_socket(self._socket, server_hostname=server_hostname)
        except (ConnectTimeout, ConnectError):
            self.close()
            raise
        return self

    def close(self) -> None:
        self._socket.close()

    def get_extra_info(self, info: str) -> Any:
        return None  # asked for the negotiated protocol and for idle connections: we offer HTTP/1.1 alone and keep none

    @contextmanager
    def _in_time(self, late: type[Exception], broken: type[Exception]) -> Generator[None]:
        left = self._guard.left()
        if not left:
            raise late("timed out")
        self._socket.settimeout(left)
        try:
            yield
        except TimeoutError:
            raise late("timed out") from None
        except OSError as error:
            raise broken(_reason(error)) from None


def is_public(address: Address) -> bool:
    """True for an address out in the internet; one that wraps an IPv4 address (mapped, 6to4, NAT64) is judged by that."""
    inner = _unwrapped(address)
    if isinstance(inner, IPv6Address) and inner.is_site_local:
        return False
    return inner.is_global and not (inner.is_multicast or inner.is_reserved or inner.is_unspecified or inner.is_link_local)


def _unwrapped(address: Address) -> Address:
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _check(host: str, addresses: list[tuple[Any, ...]]) -> None:
    """Refuse the host if any of its addresses is not public, or if it is a number in disguise (decimal, octal, hex)."""
    if _is_disguised(host):
        raise Refused(f"{host} is a number in disguise; write the address with four plain decimal parts, or allow_private: true")
    for *_, address in addresses:
        if not is_public(ip_address(address[0])):
            raise Refused(f"{host} is the private address {address[0]}; write allow_private: true if that is meant")


def _is_disguised(host: str) -> bool:
    """True for what the C library takes for an IPv4 address but nobody else does: 2130706433, 0177.0.0.1, 0x7f.1, 127.1."""
    try:
        socket.inet_aton(host)
    except OSError:
        return False
    return not _is_plain(host)


def _is_plain(host: str) -> bool:
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with it ({error.reason or 'handshake failed'})"
    return error.strerror or str(error)


def _dial(family: int, kind: int, protocol: int, address: Any, timeout: float) -> socket.socket:
    connection = socket.socket(family, kind, protocol)
    try:
        connection.settimeout(timeout)
        connection.connect(address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        connection.close()
        raise
    return connection
