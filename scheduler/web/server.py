"""The server: one thread in which the interface listens, answers, and is quiet while nobody asks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from socket import SOCK_STREAM, create_server, getaddrinfo, socket
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from scheduler.system.file_limits import is_scarcity
from scheduler.system.state_lock import Unusable
from scheduler.web import token_file
from scheduler.web.app_state import Reach
from scheduler.web.connection_timeouts import Patience, PatientConfig, PatientProtocol
from scheduler.web.middleware import MOST_HEADERS, Gate
from scheduler.web.routes import application

CONNECTIONS = 128  # above that idle ones are closed, and where there are none, whoever comes is told to come back later
BACKLOG = 128
KEEP_ALIVE = 5  # seconds
LAST_ANSWERS = 2  # seconds that answers in progress get at the end


class CannotListen(Exception):
    """The address cannot be listened on; the text says why and what to write instead."""


class Server:
    """The HTTP interface of one daemon, at the address that its settings name when it starts."""

    def __init__(
        self,
        reach: Reach,
        patience: Patience = Patience(),  # noqa: B008 (frozen)
        scarce: Callable[[str], None] | None = None,
    ) -> None:
        """`scarce` is called whenever no connection can be accepted, because no more files can be opened: often."""
        self._scarce = scarce
        self._reach = reach
        self._patience = patience
        self._listening: _Listening | None = None

    @property
    def url(self) -> str:
        """Where it is reached, once started."""
        assert self._listening is not None
        return self._listening.url

    def start(self) -> None:
        """Listen, and write token and address beside the database; gives back once it listens. Raises CannotListen, Unusable."""
        server = self._reach.settings().server
        listener = _bind(server.host, server.port)
        port = listener.getsockname()[1]
        token = token_file.local_token(self._reach.state)
        gate = Gate(application(self._reach), self._reach.settings, port, token)
        self._listening = _Listening(gate, listener, _url(server.host, port), self._patience, self._scarce)
        try:
            token_file.write_address(self._reach.state, self.url, self._reach.clock())
        except Unusable:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop listening; answers in progress get a moment to end."""
        if self._listening is not None:
            token_file.remove_address(self._reach.state)
            self._listening.end()
            self._listening = None


class _Listening:
    """The thread and its loop."""

    def __init__(
        self, app: ASGIApp, listener: socket, url: str, patience: Patience, scarce: Callable[[str], None] | None
    ) -> None:
        self.url = url
        self._listener = listener
        self._ready = threading.Event()
        self._uvicorn = _Quiet(_config(app, patience), self._ready, scarce)
        self._thread = threading.Thread(target=self._run, name="heartbeatd-web", daemon=True)
        self._thread.start()
        self._ready.wait()

    def end(self) -> None:
        self._uvicorn.end()
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._uvicorn.serve(sockets=[self._listener]))


class _Quiet(uvicorn.Server):
    """uvicorn looks ten times a second whether it should stop; this one is told."""

    def __init__(self, config: uvicorn.Config, ready: threading.Event, scarce: Callable[[str], None] | None) -> None:
        super().__init__(config)
        self._ready = ready
        self._scarce = scarce
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_error)
        self._ready.set()
        await self._over.wait()

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """asyncio accepts as many connections at a time as may wait, and complains of each that it cannot accept."""
        if self._scarce and is_scarcity(context.get("exception")):
            self._scarce("no connection is accepted")
        else:
            loop.default_exception_handler(context)

    def end(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._over.set)


def _config(app: ASGIApp, patience: Patience) -> PatientConfig:
    return PatientConfig(
        app,
        patience,
        most_connections=CONNECTIONS,
        http=PatientProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        loop="asyncio",
        log_config=None,
        log_level="error",
        backlog=BACKLOG,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=CONNECTIONS + 1,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=LAST_ANSWERS,
        h11_max_incomplete_event_size=MOST_HEADERS,
    )


def _bind(host: str, port: int) -> socket:
    try:
        family = getaddrinfo(host, port, type=SOCK_STREAM)[0][0]
        return create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise CannotListen(
            f"cannot listen on {_authority(host, port)}: {error.strerror or error}; end what listens there, or name another"
            f' address in config.yaml: server: {{listen: "127.0.0.1:{port + 1}"}}'
        ) from error


def _url(host: str, port: int) -> str:
    """How this machine reaches it: whoever listens anywhere listens on loopback too."""
    near = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://{_authority(near, port)}"


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
