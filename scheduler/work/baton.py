"""The baton: who has it thinks, and the others wait until it is handed on.

Python runs one thread at a time anyway. Two that think at once take it from each other at every system call, which costs more
than the calls do: where the engine and the workers did, a thousand beats took half as much CPU again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

STINT = 0.1  # seconds that one may think while another waits
PATIENCE = 0.2  # seconds; who keeps it for longer loses it, so that nobody waits for work that hangs


class Baton:
    """Goes from thread to thread, to who has waited longest. A courtesy and no lock: it protects nothing.

    `with` it a thread thinks for as long as that takes. `clock` is a steady one, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._passed = threading.Condition()
        self._queue: deque[int] = deque()
        self._holder: int | None = None
        self._since = 0.0

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.give()

    def take(self) -> None:
        """Wait for the baton; nothing happens to a thread that has it."""
        me = threading.get_ident()
        if self._holder == me:
            return
        with self._passed:
            self._queue.append(me)
            try:
                while self._queue[0] != me or not self._can_be_had():
                    self._passed.wait(max(self._since + PATIENCE - self._clock(), STINT))
                self._holder, self._since = me, self._clock()
            finally:
                self._queue.remove(me)

    def give(self) -> None:
        """Hand the baton on; nothing happens if somebody else has it by now."""
        with self._passed:
            if self._holder == threading.get_ident():
                self._holder = None
                self._passed.notify_all()

    def share(self) -> None:
        """Take the baton, or keep it for another stint; but if one is over, those who have waited meanwhile come first."""
        if self._holder == threading.get_ident():
            if not self._queue:
                self._since = self._clock()
            elif self._clock() - self._since >= STINT:
                self.give()
        self.take()

    def _can_be_had(self) -> bool:
        return self._holder is None or self._clock() - self._since >= PATIENCE
