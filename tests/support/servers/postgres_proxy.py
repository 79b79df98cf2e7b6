"""A proxy in front of a PostgreSQL server that loses the answer to a commit, as a failing network does."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

from servers.postgres import PostgresServer

COMMIT = b"Q\0\0\0\x0bcommit\0"  # the message of the protocol


class PostgresProxy:
    """Forwards connections. After `lose_commits = N`, the next N commits reach the server, and their connections then end.

    With `before` True they end before the commit reaches it. With `delay`, in seconds, each answer comes late, and in two pieces.
    It listens on a socket in `folder`, or else on loopback.
    """

    def __init__(self, dsn: str, folder: Path | None = None) -> None:
        self._target = _socket_of(dsn)
        self.database = urlsplit(dsn).path.removeprefix("/")  # the name
        self._address: str | tuple[str, int] = str(folder / ".s.PGSQL.5432") if folder else ("127.0.0.1", 0)
        self._clients: list[socket.socket] = []
        self.listen()
        host = str(folder) if folder else f"127.0.0.1&port={self._listener.getsockname()[1]}"
        self.dsn = dsn.replace(self._target.rpartition("/")[0], host)
        self.lose_commits = 0
        self.before = False
        self.delay = 0.0
        self.lost = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_listening()

    def listen(self) -> None:
        """Accept connections, from the first or again after `cut_off`."""
        self._listener = socket.socket(socket.AF_UNIX if isinstance(self._address, str) else socket.AF_INET)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(self._address)
        self._address = self._listener.getsockname()
        self._listener.listen()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut_off(self) -> None:
        """Accept no more connections, and end those that there are."""
        self._stop_listening()
        for each in self._clients:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def lead_to(self, server: PostgresServer) -> None:
        """Forward new connections to this server instead, and end those that there are."""
        self._target = _socket_of(server.dsn_of(self.database))
        for each in self._clients:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _stop_listening(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._clients.append(client)
                server = socket.socket(socket.AF_UNIX)
                if server.connect_ex(self._target):  # it was killed at this moment
                    server.close()
                    client.close()
                    continue
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while content := client.recv(65536):
                if content.endswith(COMMIT) and self.lost < self.lose_commits:
                    self.lost += 1
                    with suppress(OSError):
                        client.shutdown(socket.SHUT_RDWR)  # the client sees the end; what the server answers is dropped
                    if not self.before:
                        server.sendall(content)
                    break
                server.sendall(content)
            server.shutdown(socket.SHUT_WR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError), server, client:
            while content := server.recv(65536):
                with suppress(OSError):
                    if self.delay:
                        half = len(content) // 2
                        time.sleep(self.delay)
                        client.sendall(content[:half])
                        time.sleep(self.delay)
                        content = content[half:]
                    client.sendall(content)
            client.shutdown(socket.SHUT_RDWR)


def _socket_of(dsn: str) -> str:
    return parse_qs(urlsplit(dsn).query)["host"][0] + "/.s.PGSQL.5432"
