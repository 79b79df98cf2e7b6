"""A proxy in front of a PostgreSQL server that loses the answer to a commit, as a failing network does."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

COMMIT = b"Q\0\0\0\x0bcommit\0"  # the message of the protocol


class PostgresProxy:
    """Forwards connections. After `lose_commits = N`, the next N commits reach the server, and their connections then end.

    With `before` True they end before the commit reaches it.
    """

    def __init__(self, dsn: str, folder: Path) -> None:
        self._target = parse_qs(urlsplit(dsn).query)["host"][0] + "/.s.PGSQL.5432"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self.dsn = dsn.replace(self._target.rpartition("/")[0], str(folder))
        self.lose_commits = 0
        self.before = False
        self.lost = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
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

    @staticmethod
    def _answer(server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError), server, client:
            while content := server.recv(65536):
                with suppress(OSError):
                    client.sendall(content)
            client.shutdown(socket.SHUT_RDWR)
