"""Runs the real HTTP server on a loopback port over a simulated world, for tests."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self
from urllib.parse import urlsplit

from patience import PATIENCE
from pydantic import TypeAdapter
from world import World

from heartbeatd.answers import ConfigErrors, ErrorBody
from scheduler.config.settings.load import load_config
from scheduler.engine.config_reload import Reloader
from scheduler.engine.tick_items import Request
from scheduler.telemetry.event_feed import EventFeed
from scheduler.telemetry.metrics import Metrics
from scheduler.web.app_state import AppState
from scheduler.web.connection_timeouts import ClientTimeouts
from scheduler.web.perform import ENDPOINTS
from scheduler.web.server import MAX_CONNECTIONS, HttpServer

TEXT = "the disk /srv is full"

CONFIG = """
server: {listen: "127.0.0.1:0", hosts: [beat.example, "proxy.example:8443"], tokens: {
  reader: {value: "reader-token-with-enough-bits-in-it", may: [read]},
  waker: {value: "waker-token-with-enough-bits-in-it-1", may: [wake], agents: [ops]},
  opsman: {value: "opsman-token-with-enough-bits-in-it", may: [read, wake, operate], agents: [ops]},
  chief: {value: "chief-token-with-enough-bits-in-it-1", may: [read, wake, operate]},
  editor: {value: "editor-token-with-enough-bits-in-it", may: [read, edit]}}}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}
  web:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}
cron:
  measure: {every: 6h, command: measure}
"""
TOKENS = {
    "reader": "reader-token-with-enough-bits-in-it",
    "waker": "waker-token-with-enough-bits-in-it-1",
    "opsman": "opsman-token-with-enough-bits-in-it",
    "editor": "editor-token-with-enough-bits-in-it",
    "chief": "chief-token-with-enough-bits-in-it-1",
}


@dataclass(frozen=True)
class Reply:
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of the problem."""
        return str(self.data["error"]["code"])


class WebDaemon:
    """`with WebDaemon(folder) as daemon: daemon.get(...)`. The world lives in one thread, as the engine does."""

    def __init__(
        self,
        folder: Path,
        yaml: str = CONFIG,
        timeouts: ClientTimeouts | None = None,
        start: str = "2026-03-02 08:00",
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.config = folder / "config.yaml"
        self._jobs: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._engine = threading.Thread(target=self._live, daemon=True)
        self._engine.start()
        self.feed = EventFeed("boot1")
        self.world: World = self.do(
            lambda: World(folder, yaml, start, scripts={"ops": lambda call: TEXT}, listeners=(self.feed.publish,))
        )
        self.do(self.world.settle)
        self.metrics = Metrics(self.settings, version="1.2.3", tzdata="2026a")
        self.reloader = Reloader(
            lambda content=None: load_config(self.config, {}, content=content),
            load_config(self.config, {}),
            lambda: self.world.engine.plan,
            _Inbox(self.ask),
            lambda: self.now,
        )  # type: ignore[arg-type]
        self.app_state = AppState(
            settings=lambda: self.settings,
            submit_request=self.ask,
            reloader=self.reloader,
            metrics=self.metrics,
            health=self.world.engine.health,
            count_running=lambda: {"heartbeat": 1},
            clock=lambda: self.now,
            database_path=self.world.state,
            feed=self.feed,
        )
        self.server = HttpServer(self.app_state, timeouts or ClientTimeouts(), max_connections=max_connections)

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        self.do(self.world.kill)
        self._jobs.put(None)
        self._engine.join(20)

    @property
    def now(self) -> Any:
        return self.world.clock.now

    @property
    def settings(self) -> Any:
        return self.world.engine.plan.settings

    @property
    def port(self) -> int:
        port = urlsplit(self.server.url).port
        assert port is not None
        return port

    @property
    def token(self) -> str:
        return self.world.state.with_name("token").read_text().strip()

    def do(self, job: Callable[[], Any]) -> Any:
        """Do something in the engine's thread."""
        future: Future[Any] = Future()
        self._jobs.put(lambda: _into(future, job))
        return future.result(timeout=PATIENCE)

    def ask(self, request: Request) -> Future[Any]:
        future = self.world.inbox.submit(request)
        self._jobs.put(self.world.settle)
        return future

    def rows(self) -> dict[str, int]:
        """The number of rows of each table."""
        return self.do(self._rows)

    def _rows(self) -> dict[str, int]:
        db = self.world.store.connection
        tables = ("entry", "run", "wake", "outbox", "boot")
        counts = {table: db.execute(f"select count(*) from {table}").fetchone()[0] for table in tables}
        return counts | {"paused": db.execute("select count(*) from entry where paused_until is not null").fetchone()[0]}

    def send(
        self, method: str, path: str, body: Any = None, token: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send a request when the engine is idle. A body that is neither text nor bytes is sent as JSON."""
        self.do(lambda: None)
        content = body if isinstance(body, str | bytes | None) else json.dumps(body)
        given = {"Host": f"127.0.0.1:{self.port}"}
        if body is not None and content is not body:
            given["Content-Type"] = "application/json"
        if token is not None:
            given["Authorization"] = f"Bearer {token}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, content, given | dict(headers or {}))
            response = connection.getresponse()
            is_stream = str(response.getheader("content-type")).startswith("text/event-stream")  # it would never end
            named = {name.lower(): value for name, value in response.getheaders()}
            reply = Reply(response.status, named, b"" if is_stream else response.read())
            check_as_declared(method, path, reply)
            return reply
        finally:
            connection.close()

    def get(self, path: str, token: str | None = None, **headers: str) -> Reply:
        return self.send("GET", path, token=token, headers=headers)

    def post(self, path: str, body: Any = None, token: str | None = None, **headers: str) -> Reply:
        return self.send("POST", path, body, token, {name.replace("_", "-"): value for name, value in headers.items()})

    def raw(self, request: bytes) -> bytes:
        """Send these bytes and return everything until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            connection.sendall(request)
            return b"".join(iter(lambda: _received(connection), b""))

    def _live(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class _Inbox:
    def __init__(self, submit: Callable[[Request], Future[Any]]) -> None:
        self.submit = submit


def check_as_declared(method: str, path: str, reply: Reply) -> None:
    """Assert that the answer of an operation of the API has exactly the keys and types that openapi.json declares.

    A new key of an answer belongs into its model in heartbeatd/answers.py.
    """
    for endpoint in ENDPOINTS.values():
        if endpoint.method == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", endpoint.path), path.partition("?")[0]):
            errors = ConfigErrors if reply.status == 422 else ErrorBody
            model = endpoint.operation.answer_type() if reply.status == 200 else errors
            TypeAdapter(model).validate_json(reply.body, extra="forbid")


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


def _into(future: Future[Any], job: Callable[[], Any]) -> None:
    try:
        future.set_result(job())
    except BaseException as error:  # noqa: BLE001 (every error belongs to the caller)
        future.set_exception(error)
