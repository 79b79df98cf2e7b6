"""Defines the parts of the daemon that the HTTP interface can read, and the functions that it can call."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from anyio import CapacityLimiter

from scheduler.engine.config_reload import Reloader
from scheduler.engine.tick_items import Request
from scheduler.model.daemon_health import EngineHealth
from scheduler.model.settings import Settings
from scheduler.store.locations import open_read_only
from scheduler.telemetry.event_feed import EventFeed
from scheduler.telemetry.metrics import Metrics

# How many GET requests of the API, and how many views of the status page, are processed at the same time. Others wait. The engine
# shares the interpreter with them. In `bench.pages` with 4 instead of 2, runs started more than twice as late, and with 40 eight
# times.
READ_THREADS = 2


@dataclass(frozen=True, slots=True)
class AppState:
    """What endpoints use. The callables may be called in any thread, and return at once. The `reloader` waits for the engine.

    `feed` has the events for readers of the event stream.
    `settings` returns the active config, `count_running` the number of runs in progress by kind. The token file and the
    address file are written next to `database_path`. If the engine does not answer a request within `answer_timeout` seconds,
    the client gets 503. `server` is the address of the server that has the database instead of the file.
    The first two limiters keep many readers from delaying runs, and the users of the page from delaying programs. With the last
    one, one config is played at a time.
    """

    settings: Callable[[], Settings]
    submit_request: Callable[[Request], Future[object]]
    reloader: Reloader
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
