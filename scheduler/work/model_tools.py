"""Imports what runners need. Connects models to their tools, by an extra that is loaded at the first use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from heartbeat.runners import HttpReply, OpenTools, Toolbox
from heartbeat.runners import dispatch as runners
from heartbeat.spec import ModelRunner, Tools
from scheduler.model.settings import Settings
from scheduler.system import extras
from scheduler.system.process import Conversation


class Converse(Protocol):
    """Starts a program and exchanges lines with it: `process.Children.converse`."""

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, object], cwd: Path
    ) -> AbstractAsyncContextManager[Conversation]: ...


class ToolHttp(Protocol):
    """Sends the requests to servers: `http_client.HttpClient`."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> HttpReply: ...

    async def delete(self, url: str, headers: Mapping[str, str], seconds: float) -> HttpReply: ...


async def _no_wait() -> None:
    """Programs may be started at any time."""


@dataclass(frozen=True, slots=True)
class ModelTools:
    """Opens the tools of a model: an `OpenTools` for the programs of one run and for the HTTP client.

    `wait` is awaited before a program is started, and before each message to it, until it may be sent. It raises CallError if
    it may not be sent any more.
    """

    converse: Converse
    http: ToolHttp
    wait: Callable[[], Awaitable[None]] = _no_wait

    def __call__(self, tools: Tools, agent: str, workspace: Path, seconds: float) -> AbstractAsyncContextManager[Toolbox]:
        """See `OpenTools`. Raises MissingExtra."""
        return load_tools()(self)(tools, agent, workspace, seconds)


def load_tools() -> Callable[[ModelTools], OpenTools]:
    """Import the extra, which takes a second of CPU once. Raises MissingExtra."""
    return cast("Callable[[ModelTools], OpenTools]", extras.load("executors", "tools"))


def import_runner_libraries(settings: Settings) -> None:
    """Import what the runners of these settings need, so that it does not count as a run's time."""
    enabled = [beat.runner for beat in settings.heartbeats.values() if beat.enabled]
    deciding = [beat.decide.runner for beat in settings.heartbeats.values() if beat.enabled and beat.decide]
    used = [*enabled, *deciding, *(agent.runner for agent in settings.job_agents.values())]
    runners.import_libraries(used)
    if any(isinstance(runner, ModelRunner) and runner.tools for runner in used):
        load_tools()
