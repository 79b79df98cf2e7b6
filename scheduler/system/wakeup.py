"""Wakes the main loop from its sleep, from other threads and from signal handlers."""

from __future__ import annotations

import os
import select
from math import ceil

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
