"""Tests what every executor promises, local or remote: results, cancellation, and tasks that do not end."""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import pytest
from patience import PATIENCE
from thread_limit import no_thread_left

from heartbeat.threads import in_daemon_thread
from scheduler.system.boot_clock import BootClock
from scheduler.system.process import MAX_SPAWN_THREADS, Children, EndReason
from scheduler.work.executor import Done, Executor, LocalExecutor, NeverBegun, WorkerLoop

HERE = Path(__file__).parent


Carry = Callable[[str, Children], Coroutine[Any, Any, str]]


class MakeExecutor(Protocol):
    """Makes an executor that carries tasks out with `carry`, at most `places` at a time if it is remote."""

    def __call__(self, carry: Carry, notify: Callable[[], None], places: int = ...) -> Executor[str, str]: ...


@pytest.fixture
def make() -> MakeExecutor:
    return lambda carry, notify, places=8: LocalExecutor(carry, str, notify, WorkerLoop(BootClock()))


def settle(executor: Executor[str, str]) -> None:
    """Wait until a remote executor has sent everything to its queue."""
    deadline = time.monotonic() + PATIENCE
    is_flushed: Callable[[], bool] = getattr(executor, "is_flushed", lambda: True)
    while not is_flushed():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Bench:
    """An executor whose tasks wait at gates, and the signal for a new result."""

    def __init__(self, make: MakeExecutor, *names: str) -> None:
        self.gates = {name: threading.Event() for name in names}
        self.finished = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.executor = make(self._carry, self.finished.release)

    async def _carry(self, task: str, children: Children) -> str:
        self.begun.release()
        if task in self.gates:
            assert await in_daemon_thread(self.gates[task].wait, PATIENCE)
        if task == "breaks":
            raise SystemExit("out of here")
        return task.upper()

    def open(self, name: str) -> None:
        """Let a task continue, and wait until the executor has signalled a result."""
        self.gates[name].set()
        assert self.finished.acquire(timeout=PATIENCE)

    def results(self) -> list[object]:
        return [done.result for _, done in self.executor.results()]


def test_a_result_stays_until_it_is_acknowledged(make: MakeExecutor) -> None:
    bench = Bench(make, "a")
    bench.executor.submit(1, "a")
    assert bench.executor.inflight() == {1: "a"}
    bench.open("a")
    assert (bench.results(), bench.results()) == (["A"], ["A"])
    bench.executor.ack([1])
    assert (bench.results(), bench.executor.inflight()) == ([], {})


def test_tasks_run_at_the_same_time(make: MakeExecutor) -> None:
    bench = Bench(make, "a", "b")
    bench.executor.submit(1, "a")
    bench.executor.submit(2, "b")
    bench.open("b")
    bench.open("a")
    bench.executor.submit(3, "c")
    assert bench.finished.acquire(timeout=PATIENCE)
    assert sorted(map(str, bench.results())) == ["A", "B", "C"]


def test_a_task_that_raises_system_exit_fails_and_the_next_one_runs(make: MakeExecutor) -> None:
    bench = Bench(make, "a")
    bench.executor.submit(1, "breaks")
    assert bench.finished.acquire(timeout=PATIENCE)
    assert str(bench.executor.results()[0][1].exception) == "SystemExit: out of here"
    bench.executor.submit(2, "a")
    bench.open("a")
    assert "A" in bench.results()


def test_the_late_result_of_an_attempt_that_was_given_up_does_not_replace_that_of_the_next(make: MakeExecutor) -> None:
    bench = Bench(make, "first", "second")
    bench.executor.submit(7, "first")
    assert bench.begun.acquire(timeout=PATIENCE)
    bench.executor.give_up(7, Done("first", "STUCK"))
    bench.executor.ack([7])
    bench.executor.submit(7, "second")  # the retry of the same run
    bench.open("first")
    assert (bench.executor.inflight(), bench.results()) == ({7: "second"}, [])
    bench.open("second")
    assert bench.results() == ["SECOND"]


def test_a_task_that_was_given_up_before_it_began_does_not_begin(make: MakeExecutor) -> None:
    begun: list[str] = []
    started = threading.Semaphore(0)  # a task has begun

    async def carry(task: str, children: Children) -> str:
        begun.append(task)
        started.release()
        if task == "first":  # the loop is busy with it, so nothing else begins
            executor.submit(2, "second")
            executor.give_up(2, Done("second", "STUCK"))
            settle(executor)
        return task

    executor = make(carry, lambda: None, places=1)
    executor.submit(1, "first")
    assert started.acquire(timeout=PATIENCE)
    executor.submit(3, "third")
    assert started.acquire(timeout=PATIENCE)
    assert begun == ["first", "third"]


@pytest.mark.parametrize("why", ["cancelled", "shutdown", "timeout"])
def test_a_task_that_was_cancelled_before_it_began_does_not_begin(make: MakeExecutor, why: EndReason) -> None:
    begun: list[str] = []
    started = threading.Semaphore(0)

    async def carry(task: str, children: Children) -> str:
        begun.append(task)
        executor.submit(2, "second")  # no other task begins in the meantime
        executor.cancel(2, why)
        settle(executor)
        return task

    executor = make(carry, started.release, places=1)
    executor.submit(1, "first")
    for _ in range(2):
        assert started.acquire(timeout=PATIENCE)
    assert begun == ["first"]
    assert [isinstance(done.exception, NeverBegun) for number, done in executor.results() if number == 2] == [True]


def test_cancelling_a_task_ends_its_programs(make: MakeExecutor) -> None:
    ended: list[bool] = []
    ready, stopped = threading.Event(), threading.Event()

    async def carry(task: str, children: Children) -> str:
        ready.set()
        result = await children.start(["sleep", "60"], stdin=b"", env={}, cwd=HERE)
        ended.append(result.ended_by == "cancelled")
        return task

    executor = make(carry, stopped.set)
    executor.submit(1, "a")
    assert ready.wait(PATIENCE)
    executor.cancel(1, "cancelled")
    assert stopped.wait(PATIENCE)
    assert ended == [True]


def test_many_simultaneous_programs_do_not_need_a_thread_each() -> None:
    """Each command writes a byte when it has begun, and ends when the gate is closed."""
    many, started = 60, threading.Semaphore(0)
    (begun, begins), (gate, closes) = os.pipe(), os.pipe()

    async def carry(task: str, children: Children) -> str:
        script = f"echo >/proc/self/fd/{begins}; read -r line </proc/self/fd/{gate}; echo {task}"
        argv = ["sh", "-c", script]
        ended = await children.start(argv, stdin=b"", env={}, cwd=HERE, inherited=(begins, gate))
        return ended.output.decode().strip()

    before = threading.active_count()
    executor: LocalExecutor[str, str] = LocalExecutor(carry, str, started.release, WorkerLoop(BootClock()))
    for number in range(many):
        executor.submit(number, f"job {number}")
    seen = 0
    while seen < many:
        assert select.select([begun], [], [], PATIENCE)[0], f"only {seen} commands have begun"
        seen += len(os.read(begun, many))
    assert len(executor.inflight()) == many
    assert threading.active_count() - before <= 1 + MAX_SPAWN_THREADS
    os.close(closes)
    for _ in range(many):
        assert started.acquire(timeout=PATIENCE)
    assert {done.result for _, done in executor.results()} == {f"job {number}" for number in range(many)}
    for fd in (begun, begins, gate):
        os.close(fd)


def waits_for_ever(events: list[str], begun: threading.Semaphore) -> Callable[[str, Children], Coroutine[Any, Any, str]]:
    """How a call is carried that is never answered."""

    async def carry(task: str, children: Children) -> str:
        begun.release()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            events.append("cut")
        return task

    return carry


def test_a_waiting_call_needs_no_thread_and_can_be_cancelled() -> None:
    events: list[str] = []
    begun, ended = threading.Semaphore(0), threading.Semaphore(0)
    before = threading.active_count()
    executor: LocalExecutor[str, str] = LocalExecutor(waits_for_ever(events, begun), str, ended.release, WorkerLoop(BootClock()))
    for number in range(100):
        executor.submit(number, "a")
        assert begun.acquire(timeout=PATIENCE)
    for number in range(100):
        executor.cancel(number, "cancelled")
    for _ in range(100):
        assert ended.acquire(timeout=PATIENCE)
    assert events == ["cut"] * 100
    assert threading.active_count() - before <= 3
    assert (len(executor.results()), executor.inflight()) == (100, {})


def test_a_call_ends_by_its_own_timeout(make: MakeExecutor) -> None:
    events: list[str] = []
    begun, ended = threading.Semaphore(0), threading.Semaphore(0)
    executor = make(waits_for_ever(events, begun), ended.release)
    for number, task in ((1, "a"), (2, "b")):
        executor.submit(number, task)
        assert begun.acquire(timeout=PATIENCE)
    executor.cancel(1, "timeout")
    executor.cancel(2, "cancelled")
    assert ended.acquire(timeout=PATIENCE)
    assert (executor.inflight(), events) == ({1: "a"}, ["cut"])
    executor.cancel(1, "cancelled")
    assert ended.acquire(timeout=PATIENCE)


def test_a_call_that_is_given_up_releases_its_resources(make: MakeExecutor) -> None:
    events: list[str] = []
    begun, ended = threading.Semaphore(0), threading.Semaphore(0)
    executor = make(waits_for_ever(events, begun), ended.release)
    executor.submit(1, "a")
    assert begun.acquire(timeout=PATIENCE)
    executor.cancel(1, "timeout")
    executor.give_up(1, Done("a", "STUCK"))
    assert ended.acquire(timeout=PATIENCE)
    assert (events, [done.result for _, done in executor.results()]) == (["cut"], ["STUCK"])


def test_a_closed_loop_cancels_its_tasks_and_then_awaits_the_last_call() -> None:
    order: list[str] = []
    begun, ended = threading.Semaphore(0), threading.Semaphore(0)
    loop = WorkerLoop(BootClock())
    executor: LocalExecutor[str, str] = LocalExecutor(waits_for_ever(order, begun), str, ended.release, loop)
    executor.submit(1, "a")
    assert begun.acquire(timeout=PATIENCE)

    async def last() -> None:
        order.append("last")

    loop.close(last)
    assert order == ["cut", "last"]


def test_without_a_free_thread_a_task_fails_and_the_next_one_runs() -> None:
    started = threading.Semaphore(0)

    async def carry(task: str, children: Children) -> str:
        return task.upper()

    executor: LocalExecutor[str, str] = LocalExecutor(carry, str, started.release, WorkerLoop(BootClock()))
    with no_thread_left():
        executor.submit(1, "first")
    executor.submit(2, "second")
    assert started.acquire(timeout=PATIENCE)
    assert started.acquire(timeout=PATIENCE)
    outcomes = {number: (done.result, type(done.exception)) for number, done in executor.results()}
    assert outcomes == {1: (None, RuntimeError), 2: ("SECOND", type(None))}
