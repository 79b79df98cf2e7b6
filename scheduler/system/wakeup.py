"""A bell: wakes the one thread that sleeps on it, rung by other threads and by signal handlers."""

from __future__ import annotations

import os
import select

MAX_PENDING = 4096  # bytes: more rings than can have piled up between two sleeps that matter


class Wakeup:
    """A pipe, because a handler may run in the middle of anything: a lock that the sleeper holds would stop both for ever."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """What can be read once it has rung, for who waits for other things as well."""
        return self._read_end

    def notify(self) -> None:
        """End the sleep in progress, or the next one."""
        try:
            os.write(self._write_end, b"!")
        except BlockingIOError:
            return  # it has been rung often enough

    def clear(self) -> None:
        """Forget the rings so far."""
        try:
            while len(os.read(self._read_end, MAX_PENDING)) == MAX_PENDING:
                pass
        except BlockingIOError:
            return

    def wait_for(self, seconds: float) -> None:
        """Sleep until it rings, at most so long."""
        select.select([self._read_end], [], [], max(seconds, 0.0))
