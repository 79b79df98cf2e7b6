"""A connection that ends by its deadline, however slowly the other side resolves, accepts or drips."""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from heartbeat import waiting
from heartbeat.runners import Failure
from heartbeat.runners.trouble import Trouble

T = TypeVar("T")

Resolve = Callable[..., Iterable[tuple[Any, ...]]]
Addresses = list[tuple[Any, ...]]
Check = Callable[[str, Addresses], None]  # raises to refuse a host with these addresses

CHUNK = 64 * 1024  # bytes
CONNECT = 10.0  # seconds, name and TLS included


class Names:
    """Resolves names. Those who ask for the same one at the same time share a single question to the resolver."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._lock = threading.Lock()
        self._asked: dict[tuple[str, int], Future[Addresses]] = {}
        self._written: dict[tuple[str, int], Addresses] = {}

    async def find(self, host: str, port: int, seconds: float) -> Addresses:
        """The addresses of a host; TimeoutError, OSError or UnicodeError. The resolver knows no timeout: a thread waits."""
        if _is_address(host):
            if (host, port) not in self._written:
                self._written[host, port] = self._find(host, port)
            return self._written[host, port]
        question = self._question(host, port)
        if not await waiting.done(question, seconds):
            raise TimeoutError
        return question.result()

    def _question(self, host: str, port: int) -> Future[Addresses]:
        with self._lock:
            question = self._asked.get((host, port))
            if question is None:
                question = Future()
                threading.Thread(target=self._ask, args=(host, port, question), name="resolve", daemon=True).start()
                self._asked[host, port] = question
            return question

    def _find(self, host: str, port: int) -> Addresses:
        return list(self._resolve(host, port, type=socket.SOCK_STREAM))

    def _ask(self, host: str, port: int, question: Future[Addresses]) -> None:
        try:
            question.set_result(self._find(host, port))
        except (OSError, UnicodeError) as error:
            question.set_exception(error)
        finally:
            with self._lock:
                del self._asked[host, port]


class Line:
    """Connects once and keeps the deadline: `seconds` from now for the whole, at most 10 of them until the request can be sent.

    Whatever fails is a Trouble of its class. A name is resolved once, and connected to is what `check` has seen. `ended` turns
    True when the other side has closed the connection.
    """

    def __init__(self, seconds: float, names: Names, check: Check | None = None) -> None:
        self._names = names
        self._check = check
        self._seconds = seconds
        now = time.monotonic()
        self._connected_by = now + min(CONNECT, seconds)
        self._done_by = now + seconds
        self._sent = False
        self.ended = False

    async def connect(self, host: str, port: int, trust: ssl.SSLContext | None) -> Stream:
        """A stream to the host, by TLS if there is somebody to `trust`; to be closed by whoever gets it."""
        addresses = await self._addresses(host, port)
        if self._check:
            self._check(host, addresses)
        stream = await self._stream(addresses)
        try:
            if trust:
                await stream.start_tls(trust, host)
        except BaseException:
            stream.close()
            raise
        return stream

    @property
    def sent(self) -> bool:
        """True once the first byte of the request may be out: from then on nobody can say that it did not arrive."""
        return self._sent

    def left(self) -> float:
        """Seconds until the deadline of what is being done; Trouble if there are none."""
        left = (self._done_by if self._sent else self._connected_by) - time.monotonic()
        if left <= 0:
            raise self.late()
        return left

    def sending(self) -> None:
        """The request is on its way: from now on the whole time counts."""
        self._sent = True

    def late(self) -> Trouble:
        if not self._sent and self._seconds > CONNECT:
            return self.trouble(Failure.CONNECT, f"no connection within {CONNECT:g} s")
        return self.trouble(Failure.TIMEOUT, f"no answer within {self._seconds:g} s")

    def trouble(self, failure: Failure, error: str, *, transient: bool = True) -> Trouble:
        """Why there is no answer; nobody has heard a question that had not left."""
        return Trouble(failure, error, transient=transient, unheard=not self._sent)

    async def _addresses(self, host: str, port: int) -> Addresses:
        try:
            found = await self._names.find(host, port, self.left())
        except TimeoutError:
            raise self.trouble(Failure.DNS, "its name was not resolved in time") from None
        except (OSError, UnicodeError):
            found = []
        if not found:
            raise self.trouble(Failure.DNS, "its name cannot be resolved")
        return found

    async def _stream(self, addresses: Addresses) -> Stream:
        """The first that answers; each gets an equal share of the time that is left."""
        failure = OSError("no address")
        for position, (family, kind, protocol, _, address) in enumerate(addresses):
            try:
                return Stream(self, await _dial(family, kind, protocol, address, self.left() / (len(addresses) - position)))
            except OSError as error:
                failure = error
        if isinstance(failure, TimeoutError):
            raise self.late()
        raise self.trouble(Failure.CONNECT, f"no connection: {failure.strerror or 'failed'}")


class Stream:
    """One socket whose every read and write ends by the line's deadline."""

    def __init__(self, line: Line, connection: socket.socket) -> None:
        self._line = line
        self._socket = connection

    async def start_tls(self, trust: ssl.SSLContext, host: str) -> None:
        """Speak TLS from now on, with a host that can prove its name."""
        try:
            tls = trust.wrap_socket(self._socket, server_hostname=host, do_handshake_on_connect=False)
            self._socket = tls
            await self._in_time(tls.do_handshake)
        except OSError as error:
            raise self._broken(error) from None

    async def read(self) -> bytes:
        """What has arrived, once something has; nothing where the other side has closed the connection."""
        try:
            data = await self._in_time(partial(self._socket.recv, CHUNK))
        except OSError as error:
            raise self._broken(error) from None
        self._line.ended = self._line.ended or not data
        return data

    async def write(self, data: bytes) -> None:
        """Send all of `data`, as far as the other side takes it: it may have answered all the same."""
        self._line.sending()
        unsent = memoryview(data)
        with suppress(OSError):
            while unsent:
                sent = await self._in_time(partial(self._socket.send, unsent), waiting.writable)
                unsent = unsent[sent:]

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()

    async def _in_time(self, act: Callable[[], T], wait: Callable[[int, float], Awaitable[bool]] = waiting.readable) -> T:
        """What the socket does, once it can; TLS may want to read for what it writes, and the other way round."""
        while True:
            left = self._line.left()
            try:
                return act()
            except BlockingIOError:
                came = await wait(self._socket.fileno(), left)
            except ssl.SSLWantReadError:
                came = await waiting.readable(self._socket.fileno(), left)
            except ssl.SSLWantWriteError:
                came = await waiting.writable(self._socket.fileno(), left)
            if not came:
                raise self._line.late()

    def _broken(self, error: OSError) -> Trouble:
        if isinstance(error, ssl.SSLCertVerificationError):
            return self._line.trouble(Failure.TLS, f"its certificate is not trusted ({error.verify_message})", transient=False)
        # Hung up on: which of the two says so differs between patch releases of Python 3.11.
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) or not isinstance(error, ssl.SSLError):
            return self._line.trouble(Failure.CONNECT, "it broke the connection")
        return self._line.trouble(Failure.TLS, f"no TLS with it ({error.reason or 'handshake failed'})", transient=False)


def _is_address(host: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except OSError:
        return False
    return True


async def _dial(family: int, kind: int, protocol: int, address: Any, timeout: float) -> socket.socket:
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        error = connection.connect_ex(address)
        if error == errno.EINPROGRESS:
            error = await _outcome(connection, timeout)
        if error:
            raise OSError(error, os.strerror(error))
    except BaseException:
        connection.close()
        raise
    return connection


async def _outcome(connection: socket.socket, timeout: float) -> int:
    """Wait for what becomes of a connection: 0, or its error. On this machine that is known at once.

    Nothing has failed yet looks the same as connected; so whoever is called looks for himself, for the call may be late and
    have been meant for a former owner of the descriptor's number.
    """
    while not _is_known(connection):
        if not await waiting.writable(connection.fileno(), timeout):
            raise TimeoutError
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def _is_known(connection: socket.socket) -> bool:
    now = select.poll()
    now.register(connection, select.POLLOUT)
    return bool(now.poll(0))
