"""Runs the main loop, and wakes it from its sleep: from other threads, and by the signals that a daemon gets."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from math import ceil
from types import FrameType

TICK_INTERVAL = 0.02  # seconds between ticks that only a wakeup asks for: what arrives within it shares one transaction
MIN_PAUSE = 0.001  # seconds between ticks that are due at once: other threads get the interpreter
MAX_PENDING = 4096  # bytes: more notifications than can arrive between two sleeps


class Wakeup:
    """A pipe that the main loop sleeps on.

    It is not a lock or an event, because a signal handler may interrupt anything: if it needed a lock that the interrupted code
    holds, both would wait for ever.
    """

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor that is readable after a notification, for callers that wait for other things as well."""
        return self._read_end

    def notify(self) -> None:
        """End the sleep in progress, or the next one."""
        try:
            os.write(self._write_end, b"!")
        except BlockingIOError:
            return  # the pipe is full of notifications

    def clear(self) -> None:
        """Forget the notifications so far."""
        try:
            while len(os.read(self._read_end, MAX_PENDING)) == MAX_PENDING:
                pass
        except BlockingIOError:
            return

    def wait_for(self, seconds: float) -> None:
        """Sleep until a notification, at most this long."""
        poll = select.poll()  # unlike select(), it accepts descriptors above 1023
        poll.register(self._read_end, select.POLLIN)
        poll.poll(ceil(max(seconds, 0.0) * 1000))


class MainLoop:
    """Runs tick after tick. In between it sleeps until the next tick is due, or until a wakeup.

    `clock` is a monotonic clock, in seconds; `sleep` sleeps for so many.
    """

    def __init__(self, wakeup: Wakeup, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._wakeup = wakeup
        self._clock = clock
        self._sleep = sleep

    def run(self, tick: Callable[[], float], is_over: Callable[[], bool], until: float | None) -> None:
        """Run ticks until `is_over`, and sleep no longer than `until`. A tick returns the seconds until the next one is due.

        A tick may end the loop, so `is_over` is asked before the sleep too.
        """
        while not is_over():
            self._wakeup.clear()
            started_at = self._clock()
            wait = tick()
            if not is_over():
                self._wait_for_next_tick(started_at, wait if until is None else min(wait, until - self._clock()))

    def _wait_for_next_tick(self, started_at: float, wait: float) -> None:
        """Sleep `wait` seconds, or until a wakeup. All wakeups within TICK_INTERVAL are handled in one tick."""
        if wait <= 0:
            self._sleep(MIN_PAUSE)
            return
        due = self._clock() + wait
        self._wakeup.wait_for(wait)
        self._sleep(max(min(started_at + TICK_INTERVAL, due) - self._clock(), 0.0))


class Signals:
    """Counts the signals that a daemon gets. Each of them ends the sleep of its main loop.

    `stops` is how many signals have asked the process to stop. `wants_reload`: SIGHUP has asked for a reload.

    `on_continue` is called after another signal had stopped the process for a while (SIGSTOP, SIGCONT). `before` are the handlers
    until `install`: the stop signals that they still get are for these.
    """

    def __init__(self, wakeup: Wakeup, on_continue: Callable[[], None], before: Signals | None) -> None:
        self.stops = 0
        self._before = before
        self.wants_reload = False
        self._wakeup = wakeup
        self._on_continue = on_continue

    def install(self) -> None:
        """Handle the signals from now on."""
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_hangup)
        signal.signal(signal.SIGCONT, self._on_continued)
        if self._before is not None:
            self.stops += self._before.stops
            self._before = None

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1
        self._wakeup.notify()

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        self.wants_reload = True
        self._wakeup.notify()

    def _on_continued(self, number: int, frame: FrameType | None) -> None:
        self._on_continue()
        self._wakeup.notify()
