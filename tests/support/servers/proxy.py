"""A forward proxy on loopback for CONNECT tunnels and http URLs, with optional login."""

from __future__ import annotations

import base64
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Proxy:
    """A context manager. `asked` has the request lines, `answers` gives statuses instead of tunnels."""

    login: str | None = None
    answers: int | None = None
    request_lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._listen)]

    @property
    def url(self) -> str:
        return f"http://{self.login + '@' if self.login else ''}127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(10)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(65536)
            line = head.split(b"\r\n", 1)[0].decode("ascii")
            self.request_lines.append(line)
            if self.login and base64.b64encode(self.login.encode()) not in head:
                connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                return
            if self.answers:
                connection.sendall(f"HTTP/1.1 {self.answers} No\r\nContent-Length: 0\r\n\r\n".encode())
                return
            self._forward(connection, line, head)

    @staticmethod
    def _forward(connection: socket.socket, line: str, head: bytes) -> None:
        method, target, _ = line.split(" ")
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
        else:
            parts = urlsplit(target)
            host, port = parts.hostname or "", str(parts.port)
        with socket.create_connection((host, int(port)), 10) as there:
            if method == "CONNECT":
                connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                path = urlsplit(target).path or "/"
                there.sendall(head.replace(target.encode(), path.encode(), 1))
            back = threading.Thread(target=_copy, args=(there, connection))
            back.start()
            _copy(connection, there)
            back.join(10)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while chunk := source.recv(65536):
            target.sendall(chunk)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
