"""Simulates a machine that cannot start any more threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

MORE_THAN_THERE_IS = 1 << 46  # bytes; too large a stack for any machine


@contextmanager
def no_thread_left() -> Iterator[None]:
    """A context in which starting a thread raises RuntimeError, as on a machine at its limit."""
    threading.stack_size(MORE_THAN_THERE_IS)
    try:
        yield
    finally:
        threading.stack_size(0)
