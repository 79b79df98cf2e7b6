"""The seam between deciding and doing: tasks go in, endings come out, and nothing here touches the database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from heartbeat.waiting import Cut
from scheduler.work.baton import Baton
from scheduler.work.desk import Desk
from scheduler.work.process import Children, Why
from scheduler.work.waitingroom import WaitingRoom

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Done(Generic[T, R]):
    """A task that has ended: its result, or the exception that nobody expected; Cut for one that was ended before it began."""

    task: T
    result: R | None
    surprise: BaseException | None = None


class Executor(Protocol[T, R]):
    """Carries tasks through somewhere else: local threads, or machines behind a distributed queue.

    A result stays among `results` until it is acknowledged, so that one that could not be written down is not lost.
    """

    def submit(self, number: int, task: T) -> None:
        """Take a task under its number; returns at once."""
        ...

    def results(self) -> list[tuple[int, Done[T, R]]]:
        """What has ended and is not acknowledged yet."""
        ...

    def ack(self, numbers: list[int]) -> None:
        """These results are written down."""
        ...

    def inflight(self) -> dict[int, T]:
        """What has been taken and not ended."""
        ...

    def cancel(self, number: int, why: Why) -> None:
        """Ask a task to end; it still gives its result. One that has not begun does not begin any more."""
        ...

    def give_up(self, number: int, done: Done[T, R]) -> None:
        """Take `done` for the result of a task that does not end; its own late one is dropped."""
        ...


@dataclass(eq=False, slots=True)
class _Job(Generic[T, R]):
    """A task under its number; `work` once it has begun, `cut` once somebody wants its end."""

    number: int
    task: T
    scope: Children
    work: Coroutine[Any, Any, R] | None = None
    cut: bool = False


class LocalExecutor(Generic[T, R]):
    """Threads of this process: one thinks at a time, more wait where one must, and work that is put aside needs none.

    `carry` gets the task and the scope in which it may start children. `notify` is called whenever a result is there.
    Who thinks has the `baton`.
    """

    def __init__(
        self,
        carry: Callable[[T, Children], Coroutine[Any, Any, R]],
        mark: Callable[[T], str],
        notify: Callable[[], None],
        name: str,
        baton: Baton,
    ) -> None:
        self._carry = carry
        self._mark = mark
        self._notify = notify
        self._lock = threading.Lock()
        self._jobs: dict[int, _Job[T, R]] = {}
        self._results: dict[int, Done[T, R]] = {}
        self._desk = Desk(name, baton)
        self._room: WaitingRoom[_Job[T, R]] = WaitingRoom(self._take_up, name)

    def submit(self, number: int, task: T) -> None:
        job: _Job[T, R] = _Job(number, task, Children(self._mark(task)))
        with self._lock:
            self._jobs[number] = job
        try:
            self._desk.bring(partial(self._begin, job))
        except RuntimeError as error:  # the machine has no thread left: this task fails, the others go on
            self._keep(job, Done(task, None, error))

    def results(self) -> list[tuple[int, Done[T, R]]]:
        with self._lock:
            return list(self._results.items())

    def ack(self, numbers: list[int]) -> None:
        with self._lock:
            for number in numbers:
                self._results.pop(number, None)

    def inflight(self) -> dict[int, T]:
        with self._lock:
            return {number: job.task for number, job in self._jobs.items()}

    def cancel(self, number: int, why: Why) -> None:
        with self._lock:
            job = self._jobs.get(number)
        if job is None:
            return
        job.scope.end(why)
        if why != "timeout":  # what waits for an answer keeps its own time, and says better what it was late for
            self._cut(job)

    def give_up(self, number: int, done: Done[T, R]) -> None:
        with self._lock:
            job = self._jobs.pop(number, None)
            if job is None:
                return
            self._results[number] = done
        self._cut(job)

    def _cut(self, job: _Job[T, R]) -> None:
        job.cut = True
        self._room.hurry(job)

    def _begin(self, job: _Job[T, R]) -> None:
        """Begin what is still wanted: while it lay on the pile it may have been ended, or given up for another attempt."""
        if job.scope.has_ended:
            self._keep(job, Done(job.task, None, Cut()))
        elif self._is_wanted(job):
            job.work = self._carry(job.task, job.scope)
            self._go_on(job, None)

    def _take_up(self, job: _Job[T, R], came: bool) -> None:
        self._desk.bring_back(partial(self._go_on, job, came))

    def _go_on(self, job: _Job[T, R], came: bool | None) -> None:
        """Work on until the end, or until there is something to wait for."""
        assert job.work is not None
        # The one broad handler: whatever a runner raises, SystemExit too, becomes a failed run and not a dead worker.
        try:
            self._room.admit(job, job.work.throw(Cut()) if job.cut and came is False else job.work.send(came))
            if job.cut:
                self._room.hurry(job)
        except StopIteration as end:
            self._keep(job, Done(job.task, end.value))
        except BaseException as surprise:  # noqa: BLE001
            job.work.close()
            self._keep(job, Done(job.task, None, surprise))

    def _keep(self, job: _Job[T, R], done: Done[T, R]) -> None:
        """Keep a result, unless its task was given up; the number may be another attempt's by now, the job is not."""
        with self._lock:
            if self._is_wanted(job):
                del self._jobs[job.number]
                self._results[job.number] = done
        self._notify()

    def _is_wanted(self, job: _Job[T, R]) -> bool:
        return self._jobs.get(job.number) is job
