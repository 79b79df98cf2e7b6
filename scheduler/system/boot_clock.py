"""The clock by which leases are measured. It also counts the time in which the machine was suspended."""

from __future__ import annotations

import asyncio
import threading
import time


class BootClock:
    """The clock of this machine, and waits by it. Tests have another one, whose time they set."""

    def read(self) -> float:
        """Seconds since any time. On a system without such a clock, the time of a suspend is not counted."""
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for an event, at most so many seconds. Returns whether it is set."""
        return event.wait(seconds)

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop, for the waits of coroutines."""
        return asyncio.new_event_loop()
