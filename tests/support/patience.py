"""How long the tests wait for something that takes moments on an idle machine. Only a test that hangs reaches it."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 600.0  # seconds; with 60 and with 200, whole files failed at a load of 30


def wait_until(is_true: Callable[[], object]) -> None:
    """Wait for another process or thread."""
    deadline = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
