"""Shows in a terminal that a command still works."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

DELAY = 2.0  # seconds
INTERVAL = 1.0  # seconds
CLEAR_LINE = "\x1b[K"  # ECMA-48


@contextmanager
def show_progress(what: str, stream: TextIO | None = None, delay: float = DELAY) -> Iterator[None]:
    """Show what is being done and for how long, on standard error or `stream`, until the block ends. Then the line is cleared.

    Nothing is written within the first `delay` seconds, or if the stream is not a terminal.
    """
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield
        return
    over = threading.Event()
    reporter = threading.Thread(target=_report, args=(what, stream, delay, over), name="progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()


def _report(what: str, stream: TextIO, delay: float, over: threading.Event) -> None:
    begun = time.monotonic()
    is_shown = False
    while not over.wait(INTERVAL if is_shown else delay):
        is_shown = True
        stream.write(f"\r{CLEAR_LINE}{what}: {time.monotonic() - begun:.0f} s")
        stream.flush()
    if is_shown:
        stream.write(f"\r{CLEAR_LINE}")
        stream.flush()
