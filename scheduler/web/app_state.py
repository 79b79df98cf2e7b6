"""Defines the parts of the daemon that the HTTP interface can read, and the functions that it can call."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from anyio import CapacityLimiter

from scheduler.engine.config_reload import EditedConfig, Reloaded
from scheduler.engine.inbox import Request
from scheduler.model.config_changes import Undo
from scheduler.model.daemon_health import EngineHealth, ReloadState
from scheduler.model.settings import Settings
from scheduler.store.locations import open_read_only
from scheduler.telemetry.event_feed import EventFeed
from scheduler.telemetry.metrics import Metrics

# How many GET requests of the API, and how many views of the status page, are processed at the same time. Others wait. The engine
# shares the interpreter with them. In `bench.pages` with 4 instead of 2, runs started more than twice as late, and with 40 eight
# times.
READ_THREADS = 2


class ReloadConfig(Protocol):
    """Applies the config file as it is now; with `dry` it only returns what would change. Raises ConfigError or Refused.

    `by` is who requests it.
    """

    def __call__(self, *, by: str, dry: bool) -> Reloaded: ...


class EditConfig(Protocol):
    """Changes the text of the config file and applies it, as `Reloader.edit` does."""

    def __call__(
        self,
        change: Callable[[str], str],
        expected_hash: str,
        *,
        by: str,
        dry: bool = ...,
        alone: bool = ...,
        undo: Undo | None = ...,
    ) -> EditedConfig: ...


@dataclass(frozen=True, slots=True)
class AppState:
    """What endpoints use. The callables may be called in any thread. They return at once; `reload_config` and `edit_config` wait.

    `feed` has the events for readers of the event stream.
    `settings` returns the active config, `count_running` the number of runs in progress by kind. The token file and the
    address file are written next to `database_path`. If the engine does not answer a request within `answer_timeout` seconds,
    the client gets 503. `server` is the address of the server that has the database instead of the file.
    The first two limiters keep many readers from delaying runs, and the users of the page from delaying programs. With the last
    one, one config is played at a time.
    """

    settings: Callable[[], Settings]
    submit_request: Callable[[Request], Future[Any]]
    reload_config: ReloadConfig
    edit_config: EditConfig
    reload_state: Callable[[], ReloadState]
    metrics: Metrics
    health: EngineHealth
    count_running: Callable[[], Mapping[str, int]]
    clock: Callable[[], datetime]
    database_path: Path
    feed: EventFeed
    answer_timeout: float = 15.0
    server: str | None = None
    read_limiter: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(READ_THREADS))
    view_limiter: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(READ_THREADS))
    play_limiter: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))


@contextmanager
def open_reader(app_state: AppState) -> Iterator[sqlite3.Connection]:
    """A read-only connection in one transaction, so that it sees one state of the database. Raises StoreError."""
    db = open_read_only(app_state.server or app_state.database_path)
    try:
        db.execute("begin")
        yield db
    finally:
        db.close()
