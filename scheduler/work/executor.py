"""Carries out tasks for the engine on an asyncio event loop in a worker thread, without the database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from scheduler.system.boot_clock import BootClock
from scheduler.system.process import Children, EndReason

T = TypeVar("T")
R = TypeVar("R")

CLOSE_TIMEOUT = 2.0  # seconds that tasks may take to end when the loop is closed


class NeverBegun(Exception):
    """The task was cancelled before it had begun."""


class NotTaken(NeverBegun):
    """No worker took the task in time. The message says so."""


class Interrupted(Exception):
    """The worker of the task was stopped or lost before the task ended. The message says what happened.

    `was_stopped`: the worker was asked to stop, so the task did not cause its end.
    """

    def __init__(self, message: str, *, was_stopped: bool) -> None:
        super().__init__(message)
        self.was_stopped = was_stopped


@dataclass(frozen=True, slots=True)
class Done(Generic[T, R]):
    """A task that has ended: with its result, or with an exception: NeverBegun, Interrupted, or an unexpected one.

    `worker` is the name of the worker that executed it on another machine. None: this process executed it, or it was not
    executed.
    """

    task: T
    result: R | None
    exception: BaseException | None = None
    worker: str | None = None


class Executor(Protocol[T, R]):
    """Carries tasks through somewhere else: local threads, or machines behind a distributed queue.

    A result stays among `results` until it is acknowledged, so that one that could not be written down is not lost.
    """

    def submit(self, number: int, task: T) -> None:
        """Take a task under its number; returns at once."""

    def results(self) -> list[tuple[int, Done[T, R]]]:
        """What has ended and is not acknowledged yet."""

    def ack(self, numbers: list[int]) -> None:
        """These results are written down."""

    def inflight(self) -> dict[int, T]:
        """What has been taken and not ended."""

    def cancel(self, number: int, why: EndReason) -> None:
        """Ask a task to end; it still gives its result. One that has not begun does not begin any more."""

    def give_up(self, number: int, done: Done[T, R]) -> None:
        """Take `done` for the result of a task that does not end; its own late one is dropped."""


class WorkerLoop:
    """An asyncio event loop in a daemon thread, which starts with the first call. All executors of a daemon share it."""

    def __init__(self, clock: BootClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Call `function` in the loop's thread; returns at once. RuntimeError if the machine has no thread left for the loop."""
        self._running_loop().call_soon_threadsafe(function, *args)

    def start(self, work: Callable[[], Coroutine[object, None, T]]) -> Future[T]:
        """Start a task in the loop's thread. Returns its result, for which another thread may wait. Raises as `call_soon`."""
        loop = self._running_loop()
        return asyncio.run_coroutine_threadsafe(work(), loop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = self._start_thread()
            return self._loop

    def close(self, last: Callable[[], Coroutine[object, None, None]] | None = None) -> None:
        """Cancel the remaining tasks, await `last` and end the thread. Tasks that do not end within 2 s are left behind."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: loop.create_task(self._cancel_and_stop(loop, last)))
        self._thread.join(2 * CLOSE_TIMEOUT)

    def _start_thread(self) -> asyncio.AbstractEventLoop:
        loop = self._clock.new_loop()
        self._thread = threading.Thread(target=self._run_loop, args=(loop,), name="heartbeatd-work", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            loop.close()
            raise
        return loop

    @staticmethod
    def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    @staticmethod
    async def _cancel_and_stop(loop: asyncio.AbstractEventLoop, last: Callable[[], Coroutine[object, None, None]] | None) -> None:
        others = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=CLOSE_TIMEOUT)
        if last is not None:
            await last()
        loop.stop()


@dataclass(eq=False, slots=True)
class _SubmittedTask(Generic[T, R]):
    """A task that was submitted under its number; `running` is set when the loop has begun it."""

    number: int
    task: T
    children: Children
    running: asyncio.Task[R] | None = None


class LocalExecutor(Generic[T, R]):
    """Carries out tasks on a worker loop of this process.

    `carry` is called with the task and with the `Children` by which it may start programs. `mark` gives the mark of these
    programs, and `worker` the ID of this process in them if it is a worker. `notify` is called, in the loop's thread, whenever
    there is a result.
    """

    def __init__(
        self,
        carry: Callable[[T, Children], Coroutine[object, None, R]],
        mark: Callable[[T], str],
        notify: Callable[[], None],
        loop: WorkerLoop,
        worker: str | None = None,
    ) -> None:
        self._carry = carry
        self._mark = mark
        self._worker = worker
        self._notify = notify
        self._loop = loop
        self._lock = threading.Lock()
        self._submitted: dict[int, _SubmittedTask[T, R]] = {}
        self._results: dict[int, Done[T, R]] = {}

    def submit(self, number: int, task: T) -> None:
        job: _SubmittedTask[T, R] = _SubmittedTask(number, task, Children(self._mark(task), self._worker))
        with self._lock:
            self._submitted[number] = job
        try:
            self._loop.call_soon(self._begin_task, job)
        except RuntimeError as error:  # the machine has no thread left: this task fails; the next one tries again
            self._keep_result(job, Done(task, None, error))

    def results(self) -> list[tuple[int, Done[T, R]]]:
        with self._lock:
            return list(self._results.items())

    def ack(self, numbers: list[int]) -> None:
        with self._lock:
            for number in numbers:
                self._results.pop(number, None)

    def inflight(self) -> dict[int, T]:
        with self._lock:
            return {number: job.task for number, job in self._submitted.items()}

    def cancel(self, number: int, why: EndReason) -> None:
        with self._lock:
            job = self._submitted.get(number)
        if job is not None:
            self._loop.call_soon(self._end_task, job, why)

    def give_up(self, number: int, done: Done[T, R]) -> None:
        with self._lock:
            job = self._submitted.pop(number, None)
            if job is None:
                return
            self._results[number] = done
        self._loop.call_soon(self._end_task, job, "cancelled")

    def _begin_task(self, job: _SubmittedTask[T, R]) -> None:
        """Begin a task, unless it has been given up in the meantime."""
        if self._is_wanted(job):
            job.running = asyncio.get_running_loop().create_task(self._run_guarded(job))
            job.running.add_done_callback(partial(self._on_task_done, job))

    async def _run_guarded(self, job: _SubmittedTask[T, R]) -> R:
        if job.children.was_ended:
            raise NeverBegun
        # Whatever a runner raises, even SystemExit, becomes a failed run and does not end the loop.
        try:
            return await self._carry(job.task, job.children)
        except (KeyboardInterrupt, SystemExit) as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def _end_task(self, job: _SubmittedTask[T, R], why: EndReason) -> None:
        """End its programs and cancel its call; but not after a timeout, because a call has its own, with a better error."""
        job.children.end_all(why)
        if job.running is not None and why != "timeout":
            job.running.cancel()

    def _on_task_done(self, job: _SubmittedTask[T, R], work: asyncio.Task[R]) -> None:
        error = NeverBegun() if work.cancelled() else work.exception()
        self._keep_result(job, Done(job.task, work.result() if error is None else None, error))

    def _keep_result(self, job: _SubmittedTask[T, R], done: Done[T, R]) -> None:
        """Keep a result, unless its task was given up. By then, the same number may belong to another attempt."""
        with self._lock:
            if self._is_wanted(job):
                del self._submitted[job.number]
                self._results[job.number] = done
        self._notify()

    def _is_wanted(self, job: _SubmittedTask[T, R]) -> bool:
        return self._submitted.get(job.number) is job
