"""What an executor for workers on other machines gets from the daemon, and offers it. It is an extra."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from scheduler.model.daemon_health import QueueState
from scheduler.model.entry import Claim, Entry, Key
from scheduler.model.outcome import AttemptResult
from scheduler.model.settings import Settings
from scheduler.system import extras
from scheduler.work.executor import Executor, WorkerLoop
from scheduler.work.tracing import Tracing


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
    """The extra for runs on workers. Raises MissingExtra."""
    return cast("RemoteExecutors", extras.load("executors", "procrastinate"))
