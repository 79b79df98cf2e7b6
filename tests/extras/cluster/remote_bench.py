"""A remote executor and its worker in one process, over a real PostgreSQL, whose tasks are plain texts."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import patience
from heartbeat_specs import AGENT
from patience import PATIENCE
from servers.postgres import PostgresServer

from heartbeatd.secret import Secret
from scheduler.extras.cluster.executors import RemoteExecutor
from scheduler.extras.cluster.job_queue import JobQueue, QueueUnavailable, ask_queue
from scheduler.extras.cluster.payloads import ClaimCodec
from scheduler.extras.cluster.remote_worker import RemoteWorker
from scheduler.model.entry import Claim, HeartbeatEntry, OpenRun
from scheduler.model.outcome import AttemptResult, Key, Kind, Outcome, Trigger
from scheduler.model.settings import RemoteQueue, Settings
from scheduler.system.boot_clock import BootClock
from scheduler.system.process import Children
from scheduler.work.executor import Done, Interrupted, NeverBegun, WorkerLoop
from scheduler.work.run_extras import DaemonLinks, Tracing

T = TypeVar("T")
Carry = Callable[[str, Children], Coroutine[Any, Any, str]]
Call = Callable[[], Awaitable[Any]]

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
QUEUES = itertools.count(1)
DATABASES: dict[str, str] = {}  # one for each server: creating the tables takes a while


class TextEntries(dict[Key, HeartbeatEntry]):
    """A config with an agent of every name. Each has `seconds` from its submission to its deadline."""

    seconds = 3600.0

    def get(self, key: Key, default: object = None) -> HeartbeatEntry:  # type: ignore[override]
        return HeartbeatEntry(replace(AGENT, name=key[1], timeout=timedelta(seconds=self.seconds)))


class TextExecutor(RemoteExecutor):
    """An executor whose tasks and results are texts. The name of each task's agent, and thus of its lock, is its text after the owner."""

    def __init__(self, queue: JobQueue, entries: TextEntries, links: DaemonLinks) -> None:
        super().__init__(queue, ClaimCodec(lambda: entries, Path(), "host"), links)
        self._entries = entries
        self._owner = links.instance
        self._fences: Counter[int] = Counter()

    def submit(self, number: int, task: str) -> None:  # type: ignore[override]
        self._fences[number] += 1
        super().submit(number, self.claim(number, task))

    def claim(self, number: int, task: str) -> Claim:
        run = OpenRun(number, "running", NOW, Trigger.API, 1, 0, self._fences[number], self._owner, NOW)
        return Claim(self._entries.get((Kind.HEARTBEAT, f"{self._owner}/{task}")), run)

    def results(self) -> list[tuple[int, Done[str, str]]]:  # type: ignore[override]
        return [
            (number, Done(text_of(done.task), done.result and (done.result.text or done.result.error), done.exception))
            for number, done in super().results()
        ]

    def inflight(self) -> dict[int, str]:  # type: ignore[override]
        return {number: text_of(claim) for number, claim in super().inflight().items()}

    def give_up(self, number: int, done: Done[str, str]) -> None:  # type: ignore[override]
        super().give_up(number, Done(self.claim(number, done.task), AttemptResult(Outcome.OK, text=done.result), done.exception))


def text_of(claim: Claim) -> str:
    return claim.entry.name.partition("/")[2]


def carry_texts(
    carry: Carry, outcome: Outcome = Outcome.FAILED
) -> Callable[[Claim, Children], Coroutine[Any, Any, AttemptResult]]:
    """What a worker calls for a claim. The text that `carry` returns is the answer of a run with this outcome."""

    async def carry_claim(claim: Claim, children: Children) -> AttemptResult:
        return AttemptResult(outcome, text=await carry(text_of(claim), children))

    return carry_claim


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
        self.has_failed = False

    async def __call__(self, call: Call) -> Any:
        answer = await call() if self.has_failed or self._is_made else True
        if answer != [] and not self.has_failed:
            self.has_failed = True
            raise QueueUnavailable("the connection was lost")
        return answer


class HeldBack:
    """The first answer that is not empty is held back: it `has_come`, and arrives when the test says `go_on`."""

    def __init__(self) -> None:
        self.has_come, self.go_on = threading.Event(), threading.Event()

    async def __call__(self, call: Call) -> Any:
        answer = await call()
        if answer and not self.has_come.is_set():
            self.has_come.set()
            await wait_for_event(self.go_on)
        return answer


async def wait_for_event(event: threading.Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0.01)


def queue_in(dsn: str, name: str, lease: float = 60.0) -> RemoteQueue:
    """The queue with this name in a database."""
    return RemoteQueue(Secret(dsn), name, timedelta(seconds=lease))


def use_queue(dsn: str, name: str, act: Callable[[JobQueue], Awaitable[T]]) -> T:
    """The result of `act` over new connections. Raises QueueUnavailable."""
    return ask_queue(queue_in(dsn, name), act)


def no_settings() -> Settings:
    raise AssertionError("a test of texts has no settings")


def links_of_texts(
    owner: str,
    loop: WorkerLoop,
    notify: Callable[[], object],
    may_submit: Callable[[], bool] = lambda: True,
) -> DaemonLinks:
    """The daemon of an executor whose tasks are texts."""
    return DaemonLinks(dict, owner, loop, notify, may_submit, lambda _: None, lambda _: None, Tracing(no_settings))


class RemoteBench(ExitStack):
    """Makes executors and workers of one queue, which no other test uses. All are stopped at the end of the context.

    The clocks of the workers are ahead by `offset` seconds: a jump is what a worker sees that was frozen.
    """

    def __init__(
        self, server: PostgresServer, clock: BootClock, wait_until: Callable[[Callable[[], object]], None] = patience.wait_until
    ) -> None:
        super().__init__()
        self._clock = clock
        self._wait_until = wait_until
        self._server = server
        folder = str(server.folder)
        if folder not in DATABASES:
            DATABASES[folder] = server.database()
        self.dsn = DATABASES[folder]
        self.queue = f"queue{next(QUEUES)}"
        self.offset = 0.0
        self.entries = TextEntries()

    def query(self, statement: str) -> str:
        """The output of psql. {queue} stands for the name of the queue."""
        return self._server.query(self.dsn, statement.format(queue=self.queue))

    def use(self, act: Callable[[JobQueue], Awaitable[T]]) -> T:
        """The result of `act` for the queue, over new connections."""
        return use_queue(self.dsn, self.queue, act)

    def make(self, carry: Carry, notify: Callable[[], None], places: int = 8) -> TextExecutor:
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
        may_submit: Callable[[], bool] = lambda: True,
        kind: type[JobQueue] = JobQueue,
    ) -> TextExecutor:
        """A remote executor without a worker."""
        loop = WorkerLoop(self._clock)
        links = links_of_texts(owner or self.queue, loop, notify, may_submit)
        executor = TextExecutor(kind(queue_in(self.dsn, self.queue, lease)), self.entries, links)
        self.callback(loop.close)
        self.callback(executor.close)  # called first
        return executor

    def submit(self, *tasks: str, **options: Any) -> TextExecutor:
        """An executor that has submitted these tasks, with the numbers 1, 2 and so on."""
        executor = self.make_executor(**options)
        for number, task in enumerate(tasks, 1):
            executor.submit(number, task)
        return executor

    def submit_all(self, *tasks: str, **options: Any) -> TextExecutor:
        """As `submit`, when the queue has all of them."""
        executor = self.submit(*tasks, **options)
        self._wait_until(executor.is_flushed)
        return executor

    def ends(self, executor: TextExecutor, number: int = 1) -> list[str]:
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
        codec: type[ClaimCodec] = ClaimCodec,
        outcome: Outcome = Outcome.FAILED,
        kind: type[JobQueue] = JobQueue,
        grace: float = 0.0,
        **options: Any,
    ) -> RemoteWorker:
        """A worker in a thread of this process. `options` are passed to it."""
        loop = WorkerLoop(self._clock)
        worker = RemoteWorker(
            kind(queue_in(self.dsn, self.queue, lease)), codec(lambda: self.entries, Path(), name), carry_texts(carry or Work(), outcome), loop,
            name=name, concurrency=places, clock=lambda: self._clock.read() + self.offset, **options,
        )  # fmt: skip

        def run() -> None:
            with asyncio.Runner(loop_factory=self._clock.new_loop) as runner:
                runner.run(worker.run(grace))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def stop() -> None:
            worker.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()
            loop.close()

        self.callback(stop)
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
