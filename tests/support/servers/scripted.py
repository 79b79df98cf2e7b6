"""A server on loopback that gives scripted answers and records the requests."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11

CERTIFICATE = Path(__file__).parent / "localhost.pem"  # with its key; self-signed, for the name localhost

TLS = b"\x16"  # its first bytes

Act = Callable[[socket.socket, threading.Event], None]


@dataclass(frozen=True, slots=True)
class Request:
    """A recorded request. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def reply(body: object = b"", status: int = 200, kind: str = "application/json", **headers: str) -> Act:
    """A valid answer. A body that is not bytes becomes JSON. `retry_after="7"` adds the header Retry-After."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    lines = {"Content-Type": kind, "Content-Length": str(len(data)), **named}
    return raw(f"HTTP/1.1 {status} Scripted\r\n".encode() + _lines(lines) + data)


def page(status: int = 200) -> Act:
    """An HTML page, as a proxy might answer."""
    return reply(b"<html><body><h1>Please log in</h1></body></html>", status, "text/html")


def raw(data: bytes) -> Act:
    """Send exactly these bytes and close the connection."""

    def act(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(data)

    return act


def half(body: object) -> Act:
    """Send the first half of an answer and nothing more."""
    data = json.dumps(body).encode()
    lines = {"Content-Type": "application/json", "Content-Length": str(len(data))}
    return raw(b"HTTP/1.1 200 OK\r\n" + _lines(lines) + data[: len(data) // 2])


def hang_up() -> Act:
    """Close the connection without an answer."""
    return raw(b"")


def reset() -> Act:
    """Reset the connection without an answer."""

    def act(connection: socket.socket, over: threading.Event) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return act


def silence() -> Act:
    """Send nothing while the server runs."""

    def act(connection: socket.socket, over: threading.Event) -> None:
        over.wait(30)

    return act


def silent_until_closed(closed: threading.Event) -> Act:
    """Send nothing, and set `closed` when the client has closed the connection."""

    def act(connection: socket.socket, over: threading.Event) -> None:
        connection.settimeout(30)
        if connection.recv(1) == b"":
            closed.set()

    return act


def kept_open(act: Act) -> Act:
    """The same action, and then neither read nor close the connection while the server runs."""

    def keep(connection: socket.socket, over: threading.Event) -> None:
        act(connection, over)
        over.wait(30)

    return keep


def with_end_of_tls(act: Act) -> Act:
    """The same action. Its bytes and the end of TLS arrive together."""

    def end(connection: socket.socket, over: threading.Event) -> None:
        assert isinstance(connection, ssl.SSLSocket)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # sends what is written within 0.2 s at once
        act(connection, over)
        connection.unwrap()

    return end


def drip(status: int = 200) -> Act:
    """Send one byte of an endless answer every 10 ms."""

    def act(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(f"HTTP/1.1 {status} OK\r\nContent-Type: application/json\r\n\r\n".encode())
        while not over.wait(0.01):
            connection.sendall(b" ")

    return act


def after(seconds: float, act: Act) -> Act:
    """The same action after a delay."""

    def late(connection: socket.socket, over: threading.Event) -> None:
        over.wait(seconds)
        act(connection, over)

    return late


@dataclass
class Server:
    """A context manager. Each request gets the next act of the script, and the last act repeats. With `tls` it speaks HTTPS."""

    script: list[Act]
    tls: bool = False
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._listen)]

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}" if self.tls else f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Server:
        self._threads[0].start()
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()
        assert failed or not self.refused, self.refused

    def _listen(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        plain.settimeout(10)
        try:
            if not self.tls and plain.recv(1, socket.MSG_PEEK) == TLS:
                raise ConnectionResetError
            with _secured(plain) if self.tls else plain as connection:
                request = _request(connection)
                self._next(request)(connection, self._over)
        except OSError:
            plain.close()
        except (AssertionError, h11.RemoteProtocolError) as wrong:
            self.refused.append(str(wrong))
            plain.close()

    def _next(self, request: Request) -> Act:
        with self._lock:
            self.requests.append(request)
            return self.script.pop(0) if len(self.script) > 1 else self.script[0]


@dataclass
class Imitation(Server):
    """A server that behaves like a real one: `_answer` gives its answers. Answers from `script` come first."""

    script: list[Act] = field(default_factory=list)

    def _answer(self, request: Request) -> Act:
        raise NotImplementedError

    def _next(self, request: Request) -> Act:
        with self._lock:
            self.requests.append(request)
            return self.script.pop(0) if self.script else self._answer(request)


def _secured(plain: socket.socket) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context.wrap_socket(plain, server_side=True)


def _request(connection: socket.socket) -> Request:
    """Read a request strictly. Duplicate headers are an error."""
    strict = h11.Connection(h11.SERVER)
    head, body = _event(strict, connection), b""
    assert isinstance(head, h11.Request)
    names = [name for name, _ in head.headers]
    assert len(set(names)) == len(names), names
    while isinstance(more := _event(strict, connection), h11.Data):
        body += more.data
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    return Request(head.method.decode("ascii"), head.target.decode("ascii"), headers, body)


def _event(strict: h11.Connection, connection: socket.socket) -> h11.Event:
    while (event := strict.next_event()) is h11.NEED_DATA:
        strict.receive_data(_receive(connection))
    assert isinstance(event, h11.Event)
    return event


def _receive(connection: socket.socket) -> bytes:
    chunk = connection.recv(65536)
    if not chunk:
        raise ConnectionResetError
    return chunk


def _lines(headers: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1") + b"\r\n"
