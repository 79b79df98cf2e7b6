"""The desk: one worker thinks at a time, and threads come only where somebody must wait in one.

Python runs one thread at a time anyway; a thousand beats in threads of their own would push each other aside at every system
call, and spend a good third of their time on it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from heartbeat import waiting
from scheduler.work.baton import Baton

PATIENCE = 1.0  # seconds; then another sits down as well, so that work which hangs at the desk delays nobody for longer
IN_A_ROW = 20  # pieces of work that has begun, before new work has its turn: a call takes a handful, unless its answer drips

Step = Callable[[], None]
"""A piece of work that ends, or is put aside, by itself. It raises nothing."""


class Desk:
    """A pile of work and the threads that see to it: one has the seat, one stands behind it while anything lies on the pile.

    What has begun lies on top, for somebody waits for its answer: a connection would be over its time while a thousand begin.
    """

    def __init__(self, name: str, baton: Baton, patience: float = PATIENCE) -> None:
        self._name = name
        self._baton = baton
        self._patience = patience
        self._lock = threading.Lock()
        self._behind = threading.Condition(self._lock)
        self._rest = threading.Condition(self._lock)
        self._new: deque[Step] = deque()
        self._begun: deque[Step] = deque()
        self._in_a_row = 0
        self._seat: int | None = None  # the thread that has it
        self._since = 0.0
        self._coming = False  # somebody has been called who is not here yet
        self._watched = False  # somebody stands behind the seat
        self._resting = 0
        self._threads = 0

    def bring(self, step: Step) -> None:
        """Put new work on the pile; returns at once. RuntimeError if there is nobody, and the machine has no thread left."""
        with self._lock:
            self._new.append(step)
            self._see_to_it()

    def bring_back(self, step: Step) -> None:
        """Put work on the pile that was put aside and can go on; returns at once."""
        with self._lock:
            self._begun.append(step)
            self._see_to_it()

    def leave(self) -> None:
        """Get up from the seat, to wait for something; nothing happens to a thread that does not have it."""
        self._baton.give()
        with self._lock:
            self._get_up()
            self._see_to_it()

    def _work(self) -> None:
        waiting.tell_of_blocks(self.leave)
        step = self._next(has_come=True)
        while True:
            self._baton.share()
            step()
            step = self._next()

    def _next(self, *, has_come: bool = False) -> Step:
        with self._lock:
            if has_come:
                self._coming = False
            self._get_up()
            while not self._may_sit():
                self._stand_by()
            self._seat, self._since = threading.get_ident(), time.monotonic()
            step = self._take()
            self._see_to_it()
            return step

    def _take(self) -> Step:
        if self._begun and (self._in_a_row < IN_A_ROW or not self._new):
            self._in_a_row += 1
            return self._begun.popleft()
        self._in_a_row = 0
        return self._new.popleft()

    def _is_work_there(self) -> bool:
        return bool(self._begun or self._new)

    def _get_up(self) -> None:
        if self._seat == threading.get_ident():
            self._seat = None

    def _may_sit(self) -> bool:
        return self._is_work_there() and self._seat_is_free()

    def _seat_is_free(self) -> bool:
        return self._seat is None or time.monotonic() - self._since >= self._patience

    def _stand_by(self) -> None:
        """Stand behind the seat while there is work and nobody else does so; else rest until called."""
        self._baton.give()
        if self._is_work_there() and not self._watched:
            self._watched = True
            self._behind.wait(self._since + self._patience - time.monotonic())
            self._watched = False
        else:
            self._resting += 1
            self._rest.wait()
            self._coming = False

    def _see_to_it(self) -> None:
        """See that somebody comes to the pile, and only one."""
        if not self._is_work_there() or self._coming:
            return
        if self._watched:
            if self._seat_is_free():
                self._behind.notify()
        elif self._resting:
            self._resting -= 1
            self._coming = True
            self._rest.notify()
        else:
            self._hire()

    def _hire(self) -> None:
        try:
            threading.Thread(target=self._work, name=f"heartbeatd-{self._name}", daemon=True).start()
        except RuntimeError:  # the machine has no thread left: those who are here will come to it
            if not self._threads:
                self._new.clear()
                raise
            return
        self._coming = True
        self._threads += 1
