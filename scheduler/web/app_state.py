"""Reach: all that the HTTP interface can do with the daemon, and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from scheduler.engine.config_reload import Reloaded, ReloadState
from scheduler.engine.inbox import Request
from scheduler.engine.loop import EngineHealth
from scheduler.model.settings import Settings
from scheduler.telemetry.metrics import Metrics


class ReloadConfig(Protocol):
    """Takes the config file as it is now, or says what would change. Raises ConfigError or Refused."""

    def __call__(self, *, dry: bool) -> Reloaded: ...


@dataclass(frozen=True, slots=True)
class AppState:
    """Callables answer at once and from any thread, except `reload`, which waits for the engine.

    `settings` gives the config in force and `health` how the engine does; `running` counts the runs in progress by kind;
    `state` is the database, beside which the token and the address are written. A request that the engine has not answered
    within `answer_within` seconds is told so.
    """

    settings: Callable[[], Settings]
    submit_request: Callable[[Request], Future[Any]]
    reload_config: ReloadConfig
    reload_state: Callable[[], ReloadState]
    metrics: Metrics
    health: EngineHealth
    count_running: Callable[[], Mapping[str, int]]
    clock: Callable[[], datetime]
    database_path: Path
    answer_timeout: float = 15.0
