"""Runs the HTTP server (uvicorn) in a thread of its own, which uses no CPU while no request comes.

The files `token` and `daemon.json` beside the database tell local clients the token and the address.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from socket import SOCK_STREAM, create_server, getaddrinfo, socket
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from heartbeatd.answers import time_as_json
from heartbeatd.secret import Secret
from heartbeatd.state_folder import address_file
from scheduler.model.expected_error import ExpectedError
from scheduler.system.file_limits import is_scarcity
from scheduler.system.files import write_private_file
from scheduler.system.state_lock import StateFolderError, raise_state_folder_error
from scheduler.web.app_state import AppState
from scheduler.web.connection_timeouts import ClientTimeouts, TimeoutConfig, TimeoutProtocol
from scheduler.web.middleware import MAX_HEADER_BYTES, SecurityMiddleware
from scheduler.web.page.page_sessions import Sessions
from scheduler.web.routes import build_application

# Above this number idle connections are closed. If none is idle, further requests are answered with 503. An open status page has
# a stream of events and one connection for its parts. Two fifths may be streams. This is enough for 256 pages and 128 programs.
MAX_CONNECTIONS = 640
MIN_CONNECTIONS = 128  # where the system allows few open files: runs need them more than readers
ACCEPT_BACKLOG = 128
KEEP_ALIVE_SECONDS = 5  # seconds
SHUTDOWN_SECONDS = 2  # seconds for answers in progress when the server stops

_TOKEN_PATTERN = re.compile(r"[A-Za-z0-9_-]{43}")  # 256 bits


class CannotListen(ExpectedError):
    """Listening on the address failed; the message says why and what to write instead."""


def connections_that_fit(spare_files: int) -> int:
    """How many connections the server may have if the rest of the daemon leaves so many files (see `file_limits`)."""
    return min(MIN_CONNECTIONS + spare_files, MAX_CONNECTIONS)


class HttpServer:
    """The HTTP server of one daemon, at the address that the settings name when it starts."""

    def __init__(
        self,
        app_state: AppState,
        timeouts: ClientTimeouts = ClientTimeouts(),  # noqa: B008 (frozen)
        report_scarcity: Callable[[str], None] | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """`report_scarcity` is called (often) when a connection cannot be accepted for lack of file descriptors.

        At most `max_connections` are open at the same time.
        """
        self._report_scarcity = report_scarcity
        self._app_state = app_state
        self._timeouts = timeouts
        self._max_connections = max_connections
        self._listening: ServerThread | None = None

    @property
    def url(self) -> str:
        """The URL for clients on this machine, once started."""
        assert self._listening is not None
        return self._listening.url

    def start(self) -> None:
        """Listen, and write the token and the address into the folder of the database. Returns as soon as it listens.

        Raises CannotListen and StateFolderError.
        """
        server = self._app_state.settings().server
        listener = bind_socket(server.host, server.port)
        port = listener.getsockname()[1]
        token = load_or_create_token(self._app_state.database_path)
        sessions = Sessions(self._app_state.settings, token, self._app_state.clock)
        application = build_application(self._app_state, sessions)
        gate = SecurityMiddleware(application, self._app_state.settings, self._app_state.metrics, port, token, sessions.find)
        self._app_state.feed.max_readers = self._max_connections * 2 // 5
        url = _local_url(server.host, port)
        self._listening = ServerThread(gate, listener, url, self._timeouts, self._report_scarcity, self._max_connections)
        try:
            write_address_file(self._app_state.database_path, self.url, self._app_state.clock())
        except StateFolderError:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop listening. Answers in progress get SHUTDOWN_SECONDS to finish."""
        if self._listening is not None:
            remove_address_file(self._app_state.database_path)
            self._app_state.feed.close()
            self._listening.stop()
            self._listening = None


class ServerThread(uvicorn.Server):
    """Runs uvicorn in an event loop in a thread of its own, from its creation until `stop`.

    It waits for an event until it stops. uvicorn's own server wakes up ten times a second to check whether it should stop.
    """

    def __init__(
        self,
        app: ASGIApp,
        listener: socket,
        url: str,
        timeouts: ClientTimeouts,
        report_scarcity: Callable[[str], None] | None,
        max_connections: int = MIN_CONNECTIONS,
    ) -> None:
        config = TimeoutConfig(
            app,
            timeouts,
            max_connections=max_connections,
            http=TimeoutProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            loop="asyncio",
            log_config=None,
            log_level="error",
            backlog=ACCEPT_BACKLOG,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            limit_concurrency=max_connections + 1,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        )
        super().__init__(config)
        self.url = url
        self._report_scarcity = report_scarcity
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._over = asyncio.Event()
        run = partial(asyncio.run, self.serve(sockets=[listener]))
        self._thread = threading.Thread(target=run, name="heartbeatd-web", daemon=True)
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Stop listening. Answers in progress get SHUTDOWN_SECONDS to finish."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def main_loop(self) -> None:  # not documented: if uvicorn calls it no more, no test of tests/web can start a server
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._handle_loop_error)
        self._ready.set()
        await self._over.wait()

    def _handle_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report a lack of file descriptors once instead of once for each connection that asyncio cannot accept."""
        if self._report_scarcity and is_scarcity(context.get("exception")):
            self._report_scarcity("no connection is accepted")
        else:
            loop.default_exception_handler(context)


def bind_socket(host: str, port: int) -> socket:
    """A socket that listens on this address. Raises CannotListen."""
    try:
        family = getaddrinfo(host, port, type=SOCK_STREAM)[0][0]
        return create_server((host, port), family=family, backlog=ACCEPT_BACKLOG)
    except OSError as error:
        problem = str(error.strerror or error).partition(" (while ")[0]  # Python repeats the address
        stop = "stop the program that listens there, or " if error.errno == errno.EADDRINUSE else ""
        raise CannotListen(
            f"cannot listen on {_host_and_port(host, port)}: {problem}; {stop}choose another address in config.yaml:"
            f' server: {{listen: "127.0.0.1:{7858 if port != 7858 else 7859}"}}'
        ) from error


def _local_url(host: str, port: int) -> str:
    """The URL for clients on this machine; a server on all interfaces also listens on loopback."""
    near = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://{_host_and_port(near, port)}"


def _host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# --- the private files for local clients ------------------------------------------------------------------------------


def load_or_create_token(state: Path) -> Secret:
    """The token for local clients. It survives restarts, and is replaced if it is missing or other users could have read it.

    It exists even if the config declares tokens: a user who can read this file can also read and write the database.
    """
    path = state.with_name("token")
    text = _read_private_token(path)
    if text is None:
        text = secrets.token_urlsafe(32)
        _write_line(path, text)
    return Secret(text)


def _read_private_token(path: Path) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        private = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
        text = file.read(64).decode("ascii", "replace").strip() if private else ""
    return text if _TOKEN_PATTERN.fullmatch(text) else None


def write_address_file(state: Path, url: str, started_at: datetime) -> None:
    """Write where this daemon listens."""
    _write_line(address_file(state), json.dumps({"pid": os.getpid(), "url": url, "started_at": time_as_json(started_at)}))


def remove_address_file(state: Path) -> None:
    """Remove the address file, when the daemon no longer listens."""
    address_file(state).unlink(missing_ok=True)


def _write_line(path: Path, text: str) -> None:
    """Raises StateFolderError; then the file is unchanged."""
    try:
        write_private_file(path, f"{text}\n".encode())
    except OSError as error:
        raise_state_folder_error(path, error)
