"""A remote executor and its worker in one process, over a real PostgreSQL, whose tasks are plain texts."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import patience
from patience import PATIENCE
from servers.postgres import PostgresServer

from heartbeatd.secret import Secret
from scheduler.extras.cluster.executors import RemoteExecutor
from scheduler.extras.cluster.job_queue import JobQueue, NewAttempt, QueueUnavailable
from scheduler.extras.cluster.payloads import ClaimCodec
from scheduler.extras.cluster.remote_worker import RemoteWorker
from scheduler.model.daemon_health import QueueState
from scheduler.model.settings import Settings
from scheduler.system.boot_clock import BootClock
from scheduler.system.process import Children
from scheduler.work.executor import Done, Interrupted, NeverBegun, WorkerLoop
from scheduler.work.run_extras import DaemonLinks, Tracing

T = TypeVar("T")
Carry = Callable[[str, Children], Coroutine[Any, Any, str]]
Call = Callable[[], Awaitable[Any]]

QUEUES = itertools.count(1)
DATABASES: dict[str, str] = {}  # one for each server: creating the tables takes a while


class TextCodec(ClaimCodec):
    """Tasks and results are texts instead of claims. Each task has a lock of its own, and `seconds` until its deadline."""

    def __init__(self, prefix: str = "", seconds: float = 3600.0) -> None:
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


class Work:
    """What workers do: they note each task that they begin, wait while the gate is closed, and answer in capitals."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.begun: list[str] = []
        self.gate = threading.Event()
        if is_open:
            self.gate.set()

    async def __call__(self, task: str, children: Children) -> str:
        self.begun.append(task)
        while not self.gate.is_set():
            await asyncio.sleep(0.01)
        return task.upper()


def faulty(**faults: Callable[[Call], Awaitable[Any]]) -> type[JobQueue]:
    """A queue in which the calls of these methods pass through a fault, which gets the real call."""

    def through(name: str, fault: Callable[[Call], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        real = getattr(JobQueue, name)
        return lambda queue, *values, **named: fault(partial(real, queue, *values, **named))

    return type("FaultyQueue", (JobQueue,), {name: through(name, fault) for name, fault in faults.items()})


class Once:
    """The connection is lost once: before the server gets the call, or with `is_made` before an answer that is not empty arrives."""

    def __init__(self, *, is_made: bool = False) -> None:
        self._is_made = is_made
        self._has_failed = False

    async def __call__(self, call: Call) -> Any:
        answer = await call() if self._has_failed or self._is_made else True
        if answer != [] and not self._has_failed:
            self._has_failed = True
            raise QueueUnavailable("the connection was lost")
        return answer


async def wait_for_event(event: threading.Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0.01)


def use_queue(dsn: Secret, name: str, act: Callable[[JobQueue], Awaitable[T]], **options: Any) -> T:
    """The result of `act` over new connections. Raises QueueUnavailable."""

    async def connect_and_act() -> T:
        queue = JobQueue(dsn, name, **options)
        try:
            await queue.open()
            return await act(queue)
        finally:
            await queue.close()

    return asyncio.run(asyncio.wait_for(connect_and_act(), PATIENCE))


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
    """Makes executors and workers of one queue, which no other test uses. All are stopped at the end of the context.

    The clocks of the workers are ahead by `offset` seconds: a jump is what a worker sees that was frozen.
    """

    def __init__(
        self, server: PostgresServer, clock: BootClock, wait_until: Callable[[Callable[[], object]], None] = patience.wait_until
    ) -> None:
        self._clock = clock
        self._wait_until = wait_until
        self._server = server
        folder = str(server.folder)
        if folder not in DATABASES:
            DATABASES[folder] = server.database()
        self.dsn = Secret(DATABASES[folder])
        self.queue = f"queue{next(QUEUES)}"
        self.offset = 0.0
        self._closers: list[Callable[[], None]] = []

    def __enter__(self) -> RemoteBench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for close in reversed(self._closers):
            close()

    def query(self, statement: str) -> str:
        """The output of psql. {queue} stands for the name of the queue."""
        return self._server.query(self.dsn.reveal(), statement.format(queue=self.queue))

    def use(self, act: Callable[[JobQueue], Awaitable[T]]) -> T:
        """The result of `act` for the queue, over new connections."""
        return use_queue(self.dsn, self.queue, act)

    def make(self, carry: Carry, notify: Callable[[], None], places: int = 8) -> RemoteExecutor:
        """A remote executor with a queue and a worker of its own, which carries out at most `places` tasks at a time."""
        self.queue = f"queue{next(QUEUES)}"
        self.start_worker(carry, places)
        return self.make_executor(notify)

    def make_executor(
        self,
        notify: Callable[[], None] = lambda: None,
        *,
        owner: str | None = None,
        lease: float = 60.0,
        seconds: float = 3600.0,
        may_submit: Callable[[], bool] = lambda: True,
        report_state: Callable[[QueueState], None] = lambda _: None,
        kind: type[JobQueue] = JobQueue,
    ) -> RemoteExecutor:
        """A remote executor without a worker."""
        loop = WorkerLoop(self._clock)
        name = owner or self.queue
        links = links_of_texts(name, loop, notify, may_submit, report_state)
        executor = RemoteExecutor(kind(self.dsn, self.queue), TextCodec(name, seconds), links, lease)
        self._closers += [loop.close, executor.close]  # called in reverse
        return executor

    def submit(self, *tasks: str, **options: Any) -> RemoteExecutor:
        """An executor that has submitted these tasks, with the numbers 1, 2 and so on."""
        executor = self.make_executor(**options)
        for number, task in enumerate(tasks, 1):
            executor.submit(number, task)
        return executor

    def submit_all(self, *tasks: str, **options: Any) -> RemoteExecutor:
        """As `submit`, when the queue has all of them."""
        executor = self.submit(*tasks, **options)
        self._wait_until(executor.is_flushed)
        return executor

    def ends(self, executor: RemoteExecutor, number: int = 1) -> list[str]:
        """How so many tasks have ended: the result, `stopped` or `lost` with the worker, `never begun`, or the error."""
        self._wait_until(lambda: len(executor.results()) == number)
        return [_describe_end(done) for _, done in sorted(executor.results(), key=lambda each: each[0])]

    def start_worker(
        self,
        carry: Carry | None = None,
        places: int = 8,
        *,
        name: str = "worker",
        lease: float = 60.0,
        codec: TextCodec | None = None,
        kind: type[JobQueue] = JobQueue,
        grace: float = 0.0,
        hurry: asyncio.Event | None = None,
        **options: Any,
    ) -> RemoteWorker:
        """A worker in a thread of this process. `options` are passed to it."""
        loop = WorkerLoop(self._clock)
        worker = RemoteWorker(
            kind(self.dsn, self.queue), codec or TextCodec(), carry or Work(), str, loop, name=name, concurrency=places,
            lease=lease, clock=lambda: self._clock.read() + self.offset, **options,
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


def _describe_end(done: Done[str, str]) -> str:
    match done.exception:
        case None:
            return str(done.result)
        case Interrupted(was_stopped=was_stopped):
            return "stopped" if was_stopped else "lost"
        case NeverBegun():
            return str(done.exception) or "never begun"
        case error:
            return f"{type(error).__name__}: {error}"
