"""A clock of leases whose time passes only when a test says so, with threads and event loops that wait by it."""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from patience import PATIENCE

from scheduler.extras.cluster.job_queue import STATEMENT_TIMEOUT
from scheduler.system.boot_clock import BootClock

LOOK_EVERY = 0.002


class SimulatedClock(BootClock):
    """Tests read and set `now`, in seconds, and call `wait_until`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.server_hangs = False  # then time passes although something waits for an answer of the database
        self._moving = threading.Lock()  # held by one of the threads that let time pass
        self._loops: list[_Loop] = []
        self._waits: dict[threading.Thread, float | None] = {}  # until when; None: it does something else at the moment

    def read(self) -> float:
        return self.now

    def wait(self, event: threading.Event, seconds: float) -> bool:
        thread, until = threading.current_thread(), self.now + seconds
        self._waits[thread] = until
        while self.now < until and not event.wait(LOOK_EVERY):
            pass
        self._waits[thread] = None
        return event.is_set()

    def new_loop(self) -> asyncio.AbstractEventLoop:
        self._loops.append(_Loop(self.read))
        return self._loops[-1]

    @property
    def waiting(self) -> int:
        """The number of threads that wait."""
        return sum(until is not None for until in self._waits.values())

    def advance(self, seconds: float) -> None:
        """Let so much time pass at once, as if the machine had been suspended."""
        self.now += seconds
        for loop in self._loops:
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(int)

    def wait_until(self, is_true: Callable[[], object]) -> None:
        """Let time pass until this is true: from one end of a wait to the next, while the database has nothing to answer."""
        deadline = time.monotonic() + PATIENCE
        with self.passing():
            while not is_true():
                assert time.monotonic() < deadline
                time.sleep(LOOK_EVERY)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Let time pass within the context, as in `wait_until`, for a call that waits."""
        over = threading.Event()
        thread = threading.Thread(target=self._pass_time, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(PATIENCE)

    def _pass_time(self, over: threading.Event) -> None:
        while not over.wait(LOOK_EVERY):
            with self._moving:
                if (until := self._next_end()) is not None:
                    self.advance(max(until - self.now, 0.0))

    def _next_end(self) -> float | None:
        """The next time at which a wait ends; None if something is in progress, or nothing waits."""
        waits = {thread: until for thread, until in list(self._waits.items()) if thread.is_alive()}
        loops = [loop for loop in self._loops if not loop.is_closed()]
        if not self.server_hangs and (None in waits.values() or not all(loop.is_idle() for loop in loops)):
            return None
        ends = [end for loop in loops for end in loop.timers()] + [end for end in waits.values() if end is not None]
        return min(ends, default=None)


class _Selector(selectors.DefaultSelector):
    is_waiting = False

    def select(self, timeout: float | None = None) -> Any:
        self.is_waiting = timeout is None or timeout > 0
        found = super().select(timeout)
        self.is_waiting = False
        return found


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose timers end by a given clock."""

    _ready: Any  # of the base class
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._timeouts: list[asyncio.TimerHandle] = []  # of statements
        self._waiting = _Selector()
        super().__init__(self._waiting)

    def time(self) -> float:
        return self._clock()

    def call_at(self, when: float, callback: Any, *args: Any, **more: Any) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, **more)
        if when == self._clock() + STATEMENT_TIMEOUT:
            self._timeouts = [each for each in self._timeouts if self._is_pending(each)] + [handle]
        return handle

    def is_idle(self) -> bool:
        """Whether it waits for a time, or for a message of the database, and for no answer."""
        return self._waiting.is_waiting and not self._ready and not any(self._is_pending(each) for each in self._timeouts)

    def timers(self) -> list[float]:
        """When its waits end."""
        return [handle.when() for handle in list(self._scheduled) if not handle.cancelled()]

    def _is_pending(self, handle: asyncio.TimerHandle) -> bool:
        return not handle.cancelled() and handle.when() > self._clock()
