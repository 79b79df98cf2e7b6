"""Counts the signals that a daemon gets. Each of them ends the sleep of its main loop."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

from scheduler.system.wakeup import Wakeup


class Signals:
    """`stops` is how many signals have asked the process to stop. `wants_reload`: SIGHUP has asked for a reload.

    `on_continue` is called after another signal had stopped the process for a while (SIGSTOP, SIGCONT). `before` are the handlers
    until `install`: the stop signals that they still get are for these.
    """

    def __init__(self, wakeup: Wakeup, on_continue: Callable[[], None], before: Signals | None) -> None:
        self.stops = 0
        self._before = before
        self.wants_reload = False
        self._wakeup = wakeup
        self._on_continue = on_continue

    def install(self) -> None:
        """Handle the signals from now on."""
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_hangup)
        signal.signal(signal.SIGCONT, self._on_continued)
        if self._before is not None:
            self.stops += self._before.stops
            self._before = None

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1
        self._wakeup.notify()

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        self.wants_reload = True
        self._wakeup.notify()

    def _on_continued(self, number: int, frame: FrameType | None) -> None:
        self._on_continue()
        self._wakeup.notify()
