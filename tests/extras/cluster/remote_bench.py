"""A remote executor and its worker in one process, over a real PostgreSQL, whose tasks are plain texts."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any

from patience import PATIENCE
from servers.postgres import PostgresServer

from heartbeatd.secret import Secret
from scheduler.extras.cluster.job_queue import JobQueue, NewAttempt
from scheduler.extras.cluster.payloads import ClaimCodec
from scheduler.extras.cluster.remote_executor import RemoteExecutor
from scheduler.extras.cluster.remote_worker import RemoteWorker
from scheduler.model.daemon_health import QueueState
from scheduler.model.settings import Settings
from scheduler.system.boot_clock import BootClock
from scheduler.system.process import Children
from scheduler.work.executor import WorkerLoop
from scheduler.work.run_extras import DaemonLinks, Tracing

QUEUES = itertools.count(1)
DATABASES: dict[str, str] = {}  # one for each server: creating the tables takes a while


class TextCodec(ClaimCodec):
    """Tasks and results are texts instead of claims. Each task has a lock of its own, and `seconds` until its deadline."""

    def __init__(self, prefix: str, seconds: float = 3600.0) -> None:
        super().__init__(dict, Path(), "worker")
        self._prefix = prefix
        self._seconds = seconds

    def key(self, number: int, task: str) -> str:
        return f"{self._prefix}/{number}/{task}"

    def new_attempt(self, key: str, owner: str, task: str, server: str | None) -> NewAttempt:
        return NewAttempt(key, owner, f"{self._prefix}/{task}", self.write_task(task), self._seconds, server)

    def task_to_json(self, task: str) -> Mapping[str, Any]:
        return {"task": task}

    def task_from_json(self, data: Mapping[str, Any]) -> str:
        return str(data["task"])

    def read_leftover(self, payload: str) -> str:
        return self.read_task(payload)

    def result_to_json(self, result: str) -> Any:
        return result

    def result_from_json(self, data: Any) -> str:
        return str(data)

    def is_success(self, result: str) -> bool:
        return False

    def block_task(self, task: str, held_by: str) -> str:
        return f"{task}: {held_by}"

    def refusal(self, problem: str) -> str:
        return f"refused: {problem}"


def no_settings() -> Settings:
    raise AssertionError("a test of texts has no settings")


def links_of_texts(
    owner: str,
    loop: WorkerLoop,
    notify: Callable[[], object],
    may_submit: Callable[[], bool] = lambda: True,
    report_state: Callable[[QueueState], None] = lambda _: None,
) -> DaemonLinks:
    """The daemon of an executor whose tasks are texts: it has no agents and no jobs."""
    return DaemonLinks(dict, owner, loop, notify, may_submit, report_state, lambda _: None, Tracing(no_settings))


class RemoteBench:
    """Makes executors, each with a queue and a worker of its own. All are stopped at the end of the context."""

    def __init__(self, server: PostgresServer, clock: BootClock) -> None:
        self._clock = clock
        folder = str(server.folder)
        if folder not in DATABASES:
            DATABASES[folder] = server.database()
        self.dsn = Secret(DATABASES[folder])
        self._closers: list[Callable[[], None]] = []

    def __enter__(self) -> RemoteBench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for close in reversed(self._closers):
            close()

    def make(
        self, carry: Callable[[str, Children], Coroutine[Any, Any, str]], notify: Callable[[], None], places: int = 8
    ) -> RemoteExecutor:
        """A remote executor with a worker that carries tasks out with `carry`, at most `places` at a time."""
        queue = f"queue{next(QUEUES)}"
        self.start_worker(queue, carry, places)
        return self.make_executor(queue, notify)

    def make_executor(
        self,
        queue: str,
        notify: Callable[[], None],
        *,
        owner: str | None = None,
        lease: float = 60.0,
        seconds: float = 3600.0,
        may_submit: Callable[[], bool] = lambda: True,
        report_state: Callable[[QueueState], None] = lambda _: None,
        kind: type[JobQueue] = JobQueue,
    ) -> RemoteExecutor:
        """A remote executor without a worker."""
        loop = WorkerLoop(self._clock, "scheduler")
        name = owner or queue
        links = links_of_texts(name, loop, notify, may_submit, report_state)
        executor = RemoteExecutor(kind(self.dsn, queue), TextCodec(name, seconds), links, lease)
        self._closers += [loop.close, executor.close]  # called in reverse
        return executor

    def start_worker(
        self,
        queue: str,
        carry: Callable[[str, Children], Coroutine[Any, Any, str]],
        places: int = 8,
        *,
        name: str = "worker",
        lease: float = 60.0,
        offset: Callable[[], float] = float,
        codec: TextCodec | None = None,
        kind: type[JobQueue] = JobQueue,
        locked_lanes: Callable[[], Collection[str]] = tuple,
        note_lease: Callable[[float], None] = lambda _: None,
        reload: Callable[[], None] = lambda: None,
        grace: float = 0.0,
        hurry: asyncio.Event | None = None,
    ) -> RemoteWorker:
        """A worker in a thread of this process. Its clock is ahead by `offset`."""
        loop = WorkerLoop(self._clock, "worker")

        worker = RemoteWorker(
            kind(self.dsn, queue), codec or TextCodec(queue), carry, str, loop, name=name, concurrency=places, lease=lease,
            clock=lambda: self._clock.read() + offset(), locked_lanes=locked_lanes, note_lease=note_lease,
            reload=reload,
        )  # fmt: skip

        def run() -> None:
            with asyncio.Runner(loop_factory=self._clock.new_loop) as runner:
                runner.run(worker.run(grace, hurry))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def stop() -> None:
            worker.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()
            loop.close()

        self._closers.append(stop)
        return worker
