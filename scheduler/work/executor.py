"""The seam between deciding and doing: tasks go in, endings come out, and nothing here touches the database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from scheduler.work.process import Children, Why

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Done(Generic[T, R]):
    """A task that has ended: its result, or the exception that nobody expected."""

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
        """Ask a task to end; it still gives its result."""
        ...

    def give_up(self, number: int, done: Done[T, R]) -> None:
        """Take `done` for the result of a task that does not end; its own late one is dropped."""
        ...


class LocalExecutor(Generic[T, R]):
    """Threads of this process, as many as there are tasks at one time, kept for the next ones.

    `carry` gets the task and the scope in which it may start children. `notify` is called whenever a result is there.
    """

    def __init__(
        self, carry: Callable[[T, Children], R], mark: Callable[[T], str], notify: Callable[[], None], name: str
    ) -> None:
        self._carry = carry
        self._mark = mark
        self._notify = notify
        self._name = name
        self._lock = threading.Lock()
        self._tasks: dict[int, tuple[T, Children]] = {}
        self._results: dict[int, Done[T, R]] = {}
        self._queue: SimpleQueue[tuple[int, T, Children]] = SimpleQueue()
        self._idle = 0

    def submit(self, number: int, task: T) -> None:
        scope = Children(self._mark(task))
        with self._lock:
            self._tasks[number] = (task, scope)
            fresh = self._idle == 0
            self._idle -= 0 if fresh else 1
        try:
            if fresh:
                threading.Thread(target=self._work, name=f"heartbeatd-{self._name}", daemon=True).start()
        except RuntimeError as error:  # the machine has no thread left: this task fails, the others go on
            self._keep(number, scope, Done(task, None, error))
            return
        self._queue.put((number, task, scope))

    def results(self) -> list[tuple[int, Done[T, R]]]:
        with self._lock:
            return list(self._results.items())

    def ack(self, numbers: list[int]) -> None:
        with self._lock:
            for number in numbers:
                self._results.pop(number, None)

    def inflight(self) -> dict[int, T]:
        with self._lock:
            return {number: task for number, (task, _) in self._tasks.items()}

    def cancel(self, number: int, why: Why) -> None:
        with self._lock:
            found = self._tasks.get(number)
        if found:
            found[1].end(why)

    def give_up(self, number: int, done: Done[T, R]) -> None:
        with self._lock:
            if self._tasks.pop(number, None) is not None:
                self._results[number] = done

    def _work(self) -> None:
        while True:
            number, task, scope = self._queue.get()
            done = self._carried(task, scope)
            with self._lock:
                self._idle += 1
            self._keep(number, scope, done)

    def _keep(self, number: int, scope: Children, done: Done[T, R]) -> None:
        """Keep a result, unless its task was given up; the number may be another attempt's by now, the scope is not."""
        with self._lock:
            _, current = self._tasks.get(number, (None, None))
            if current is scope:
                del self._tasks[number]
                self._results[number] = done
        self._notify()

    def _carried(self, task: T, scope: Children) -> Done[T, R]:
        # The one broad handler: whatever a runner raises, SystemExit too, becomes a failed run and not a dead worker.
        try:
            return Done(task, self._carry(task, scope))
        except BaseException as surprise:  # noqa: BLE001
            return Done(task, None, surprise)
