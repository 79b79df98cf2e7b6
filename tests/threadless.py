"""A machine that has no thread left, for a moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

MORE_THAN_THERE_IS = 1 << 46  # bytes; no machine has room for a stack of that size


@contextmanager
def no_thread_left() -> Iterator[None]:
    """Within this no thread of the process can be started, which is a RuntimeError as on a machine at its limit."""
    threading.stack_size(MORE_THAN_THERE_IS)
    try:
        yield
    finally:
        threading.stack_size(0)
