"""Plays the engine in virtual time: a clock that only its owner moves, and executors that need no threads.

Nothing waits here. The clock jumps from one due time of the engine to the next, so a month takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from scheduler.engine.clock_adjustment import ClockReading
from scheduler.engine.delivery import Delivery
from scheduler.engine.tick import Engine
from scheduler.model.entry import Claim
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import AttemptResult
from scheduler.work.executor import Done

T = TypeVar("T")
R = TypeVar("R")

MAX_TICKS_AT_ONCE = 50  # without any progress of the clock; more of them mean that the engine never comes to rest


@dataclass
class VirtualClock:
    """The system clock, the monotonic clock, and how long the machine was suspended, all three at the same instant."""

    now: datetime
    monotonic: float = 1000.0
    slept: float = 0.0

    def advance(self, by: timedelta) -> None:
        """Let time pass on both clocks."""
        self.now += by
        self.monotonic += by.total_seconds()

    def read(self) -> ClockReading:
        """What the engine gets at each tick."""
        return ClockReading(self.now, self.monotonic, self.slept)


class VirtualExecutor(Generic[T, R]):
    """An `Executor` in virtual time. `execute` returns the result of a task, or its exception, and how long the task takes.

    The task is executed when it is submitted, and its result is handed out once that time has passed. `cancelled` makes the
    result of a task that the engine cancels from its own result and the reason.
    """

    def __init__(
        self,
        clock: VirtualClock,
        execute: Callable[[T], tuple[R | BaseException, timedelta]],
        cancelled: Callable[[R | BaseException, str], R | BaseException] = lambda result, _: result,
    ) -> None:
        self.cancelled_result = cancelled
        self._clock = clock
        self._execute = execute
        self._tasks: dict[int, tuple[Done[T, R], datetime]] = {}

    def submit(self, number: int, task: T) -> None:
        result, duration = self._execute(task)
        self._tasks[number] = (self.done_with(task, result), self._clock.now + duration)

    def results(self) -> list[tuple[int, Done[T, R]]]:
        return [(number, done) for number, (done, ends) in self._tasks.items() if ends <= self._clock.now]

    def ack(self, numbers: list[int]) -> None:
        for number in numbers:
            self._tasks.pop(number, None)

    def inflight(self) -> dict[int, T]:
        return {number: done.task for number, (done, ends) in self._tasks.items() if ends > self._clock.now}

    def cancel(self, number: int, why: str) -> None:
        if number in self._tasks:
            done, _ = self._tasks[number]
            outcome = done.exception or done.result
            assert outcome is not None
            result = self.cancelled_result(outcome, why)
            self._tasks[number] = (self.done_with(done.task, result), self._clock.now)

    def give_up(self, number: int, done: Done[T, R]) -> None:
        self._tasks[number] = (done, self._clock.now)

    def next_end(self) -> datetime | None:
        """When the next task ends; None if there is none."""
        return min([ends for _, ends in self._tasks.values()], default=None)

    def done_with(self, task: T, result: R | BaseException) -> Done[T, R]:
        """A task that has ended with this result, or with this exception."""
        return Done(task, None, result) if isinstance(result, BaseException) else Done(task, result)


@dataclass
class VirtualDaemon:
    """An engine with its clock and its executors: the main loop of the daemon in virtual time."""

    engine: Engine
    clock: VirtualClock
    runs: VirtualExecutor[Claim, AttemptResult]
    deliveries: VirtualExecutor[Delivery, DeliveryResult]

    def run_until(self, end: datetime) -> None:
        """Let time pass, with a tick whenever one is due or a task ends, and settle at the end."""
        clock = self.clock
        while True:
            again_at = self.engine.tick(clock.read())
            ran, sent = self.runs.next_end(), self.deliveries.next_end()
            following = max(min(again_at, ran or again_at, sent or again_at), clock.now)
            if following >= end:
                break
            if following == clock.now and ran is None and sent is None:
                following += timedelta(milliseconds=1)
            clock.advance(following - clock.now)
        clock.advance(end - clock.now)
        self.settle()

    def settle(self) -> None:
        """Tick until nothing more happens at the current time. Raises RuntimeError if that never ends."""
        for _ in range(MAX_TICKS_AT_ONCE):
            again_at = self.engine.tick(self.clock.read())
            if again_at > self.clock.now and not self.runs.results() and not self.deliveries.results():
                return
        raise RuntimeError("the engine does not settle")
