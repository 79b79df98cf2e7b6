"""Tests the main loop: when it runs a tick, and how long it sleeps in between."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from scheduler.system.wakeup import MIN_PAUSE, TICK_INTERVAL, MainLoop, Wakeup

FAR = 20.0  # seconds


class LoopRun:
    """Runs a number of ticks on a simulated clock, and records the sleeps between them, except those on the wakeup."""

    def __init__(self, ticks: int = 2) -> None:
        self.wakeup = Wakeup()
        self.time = 1000.0
        self.ticks = 0
        self.slept: list[float] = []
        self._max_ticks = ticks
        self.loop = MainLoop(self.wakeup, lambda: self.time, self._sleep)

    def run(self, act: Callable[[], float], until: float | None = None) -> None:
        def tick() -> float:
            self.ticks += 1
            return act()

        self.loop.run(tick, lambda: self.ticks >= self._max_ticks, until)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


@pytest.fixture
def loop() -> LoopRun:
    return LoopRun()


def test_a_wakeup_right_after_a_tick_is_handled_at_the_end_of_the_tick_interval(loop: LoopRun) -> None:
    def wakes() -> float:
        loop.wakeup.notify()
        return FAR

    loop.run(wakes)
    assert (loop.ticks, loop.slept) == (2, [pytest.approx(TICK_INTERVAL)])


def test_after_a_slow_tick_a_wakeup_is_handled_at_once(loop: LoopRun) -> None:
    def is_slow() -> float:
        loop.time += 10 * TICK_INTERVAL
        loop.wakeup.notify()
        return FAR

    loop.run(is_slow)
    assert loop.slept == [0.0]


def test_a_wakeup_does_not_delay_a_tick_that_is_due_earlier(loop: LoopRun) -> None:
    def is_soon_due() -> float:
        loop.wakeup.notify()
        return TICK_INTERVAL / 4

    loop.run(is_soon_due)
    assert loop.slept == [pytest.approx(TICK_INTERVAL / 4)]


@pytest.mark.parametrize("wait", [0.0, -5.0])
def test_ticks_that_are_due_at_once_leave_other_threads_a_moment(loop: LoopRun, wait: float) -> None:
    loop.run(lambda: wait)
    assert (loop.ticks, loop.slept) == (2, [MIN_PAUSE])


def test_a_wakeup_before_a_tick_does_not_cause_another_tick() -> None:
    wakeup, waits, slept = Wakeup(), [0.05, 0.05], list[float]()
    wakeup.notify()
    MainLoop(wakeup, time.monotonic, slept.append).run(waits.pop, lambda: not waits, None)
    assert slept == [0.0]  # the sleep on the wakeup was longer than the tick interval


def test_the_loop_does_not_sleep_after_its_last_tick() -> None:
    loop = LoopRun(ticks=1)
    loop.run(lambda: FAR)
    assert (loop.ticks, loop.slept) == (1, [])


def test_the_loop_does_not_sleep_longer_than_until(loop: LoopRun) -> None:
    loop.run(lambda: FAR, until=loop.time - 1)
    assert loop.slept == [MIN_PAUSE]


def test_a_loop_that_is_over_at_its_start_runs_no_tick() -> None:
    loop = LoopRun(ticks=0)
    loop.run(lambda: FAR)
    assert loop.ticks == 0
