"""What the core calls of the extras that take part in runs: traces, runs on workers, and models with tools."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, cast

from heartbeat.attempt import Elapsed, PendingResult
from heartbeat.runners import AskApproval, OpenTools, Resources, Toolbox
from heartbeat.runners import dispatch as runners
from heartbeat.spec import ModelRunner, Tools
from scheduler.model.daemon_health import QueueState
from scheduler.model.entry import Claim, Entry
from scheduler.model.outcome import AttemptResult, Key
from scheduler.model.settings import Settings
from scheduler.net.http_client import HttpClient
from scheduler.system import extras
from scheduler.system.extras import UnusableExtra
from scheduler.system.log import log_event
from scheduler.system.process import Children, Conversation
from scheduler.work.claimed_attempt import attempt
from scheduler.work.executor import Done, Executor, WorkerLoop
from scheduler.work.sources import SourceReader

TRACES = "otel"  # the name of the entry point in `heartbeatd.listeners`


class Tracer(Protocol):
    """What the entry point gives when it is called with the settings in force, and with the name of this worker or None."""

    async def run_attempt(
        self, claim: Claim, resources: Resources, carry_out: Callable[[Resources], Awaitable[AttemptResult]]
    ) -> AttemptResult:
        """Carry out an attempt with these resources, or with changed ones."""

    def begin_queueing(self, claim: Claim) -> str | None:
        """A worker will execute this attempt. Returns the trace that the worker continues, as a `traceparent`."""

    def end_queueing(self, done: Done[Claim, AttemptResult]) -> None:
        """The result of such an attempt has come."""

    def close(self) -> None:
        """The process ends."""


class Tracing:
    """Traces attempts while `telemetry.traces` is true. `worker` is the name of this worker; None: this is the daemon."""

    def __init__(self, settings: Callable[[], Settings], worker: str | None = None) -> None:
        self._settings = settings
        self._worker = worker
        self._lock = threading.Lock()
        self._tracer: Tracer | None = None

    def prepare(self, settings: Settings) -> None:
        """Load the extra if these settings need it, before they are in force. Takes up to a second of CPU once."""
        with self._lock:
            if settings.traces and self._tracer is None:
                try:
                    self._tracer = extras.load("listeners", TRACES)(self._settings, self._worker)
                except UnusableExtra as error:
                    log_event(logging.WARNING, "traces", problem=f"off: {error}")

    def run_attempt(self, claim: Claim, resources: Resources, elapsed: Elapsed) -> PendingResult:
        """Carry out an attempt."""
        if self._tracer is None or not self._settings().traces:
            return attempt(claim, resources, elapsed)
        return self._tracer.run_attempt(claim, resources, lambda used: attempt(claim, used, elapsed))

    def begin_queueing(self, claim: Claim) -> str | None:
        """A worker will execute this attempt. Returns the `traceparent` that it continues; None if traces are off."""
        return self._tracer.begin_queueing(claim) if self._tracer else None

    def end_queueing(self, done: Done[Claim, AttemptResult]) -> None:
        """The result of such an attempt has come."""
        if self._tracer:
            self._tracer.end_queueing(done)

    def close(self) -> None:
        """Send what is left."""
        if self._tracer:
            self._tracer.close()


def describe_traces(environ: Mapping[str, str]) -> tuple[str, str]:
    """What `doctor` says about traces that are on: "ok" or "warn", and a sentence."""
    try:
        level, text = extras.load("listeners", TRACES).describe(environ)
    except UnusableExtra as error:
        return "warn", str(error)
    return level, text


@dataclass(frozen=True, slots=True)
class DaemonLinks:
    """What the executor uses of the daemon. `report_state` and `report_workers` are called in the thread of `loop`."""

    entries: Callable[[], Mapping[Key, Entry]]  # of the plan in force
    instance: str  # names this process in the queue
    loop: WorkerLoop
    notify: Callable[[], None]  # there is a result
    may_start_runs: Callable[[], bool]  # nothing is submitted while it returns false
    report_state: Callable[[QueueState], None]
    report_workers: Callable[[Sequence[tuple[Claim, str]]], None]  # long runs in progress, with the names of their workers
    traces: Tracing


class RemoteExecutor(Executor[Claim, AttemptResult], Protocol):
    """An executor whose runs survive the end of the daemon."""

    @property
    def problem(self) -> str | None:
        """Why the queue cannot be used now; None if it can."""

    def adopt_runs(
        self, running: Collection[tuple[str, int, int]], past_instances: Collection[str], is_over: Callable[[], bool]
    ) -> bool:
        """Continue with the running attempts of earlier processes, given by instance, run and fence.

        Blocks until the queue has answered; False if it `is_over` before. All other attempts of `past_instances` are withdrawn
        by then, so that no worker begins one whose run gets another attempt.
        """

    def close(self) -> None:
        """Send what is left, if the queue can be reached. The loop still runs. Takes some seconds."""


class RemoteExecutors(Protocol):
    """The module that an entry point in `heartbeatd.executors` names. The name is the value of `executor.kind`."""

    def make_executor(self, settings: Settings, links: DaemonLinks) -> RemoteExecutor: ...

    def ask_state(self, settings: Settings) -> QueueState:
        """The state of the queues now, for `doctor` and `check`."""


def remote_executors() -> RemoteExecutors:
    """The extra for runs on workers. Raises UnusableExtra."""
    return cast("RemoteExecutors", extras.load("executors", "procrastinate"))


async def _no_wait() -> None:
    """Programs may be started at any time."""


@dataclass(frozen=True, slots=True)
class ModelTools:
    """Opens the tools of a model: an `OpenTools` for the programs of one run and for the HTTP client.

    `wait` is awaited before a program is started, and before each message to it, until it may be sent. It raises CallError if
    it may not be sent any more.
    """

    converse: Callable[..., AbstractAsyncContextManager[Conversation]]  # `Children.converse`
    http: HttpClient
    wait: Callable[[], Awaitable[None]] = _no_wait

    def __call__(self, tools: Tools, agent: str, workspace: Path, seconds: float) -> AbstractAsyncContextManager[Toolbox]:
        """See `OpenTools`. Raises UnusableExtra."""
        return load_tools()(self)(tools, agent, workspace, seconds)


def resources_of_run(
    children: Children, inherited: Sequence[int], http: HttpClient, approve: AskApproval | None = None
) -> Resources:
    """What a run reads and calls through, within its permit. Its programs keep the descriptors in `inherited` open."""
    start, permitted = partial(children.start, inherited=inherited), http.with_wait(children.permit.wait_until_allowed)
    tools = ModelTools(partial(children.converse, inherited=inherited), permitted, children.permit.wait_until_allowed)
    look = SourceReader(start, permitted, lambda: http.network.ca_file)
    return Resources(start, permitted, open_tools=tools, approve=approve, look=look)


def load_tools() -> Callable[[ModelTools], OpenTools]:
    """Import the extra, which takes a second of CPU once. Raises UnusableExtra."""
    return cast("Callable[[ModelTools], OpenTools]", extras.load("executors", "tools"))


def import_runner_libraries(settings: Settings) -> None:
    """Import what the runners of these settings need, so that it does not count as a run's time."""
    used = [runner for agent in settings.enabled_agents for runner, _ in agent.called]
    runners.import_libraries(used)
    if any(isinstance(runner, ModelRunner) and runner.tools for runner in used):
        load_tools()
