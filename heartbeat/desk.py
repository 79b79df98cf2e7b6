"""The desk: one worker thinks at a time, and who waits for somebody else gets up from it.

Python runs one thread at a time anyway. Before there was a desk, a thousand beats that came due together pushed each other aside
at every system call, and a good third of their time went into changing places (`bench/beats.py` shows what is left).
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

PATIENCE = 1.0  # seconds; then a worker goes on without, so that one which hangs at the desk delays nobody for longer

_seat = threading.Lock()
_mine = threading.local()


@contextmanager
def sitting(patience: float = PATIENCE) -> Generator[bool]:
    """Work at the desk, once it is free or the `patience` (seconds) is over; gives whether it came free."""
    _mine.seated = _seat.acquire(timeout=patience)
    try:
        yield _mine.seated
    finally:
        leave()


def leave() -> None:
    """Get up for good, before anything that waits for the world outside; nothing happens to who does not sit there."""
    if getattr(_mine, "seated", False):
        _mine.seated = False
        _seat.release()
