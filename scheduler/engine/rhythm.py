"""The rhythm in which one thread takes its turns: when the next one is due, or when the bell rings."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.system.wakeup import Wakeup

BREATH = 0.02  # seconds between turns that nothing due asks for: what comes in within it is booked together, which is cheaper
BLINK = 0.001  # seconds between turns that are due at once: who was given work can come for the baton

Tick = Callable[[], float]
"""Takes a turn; gives the seconds until the next one is due."""


class Rhythm:
    """Between two turns it sleeps on the bell. `clock` is a steady one, in seconds; `sleep` sleeps for so many."""

    def __init__(self, bell: Wakeup, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._bell = bell
        self._clock = clock
        self._sleep = sleep

    def keep(self, tick: Tick, over: Callable[[], bool], until: float | None) -> None:
        """Take turns until it is over, and sleep no longer than `until`; a turn may end it, so it is asked before a sleep too."""
        while not over():
            self._bell.clear()
            begun = self._clock()
            wait = tick()
            if not over():
                self._rest(begun, wait if until is None else min(wait, until - self._clock()))

    def _rest(self, begun: float, wait: float) -> None:
        """Sleep so long, or until something stirs; what stirs within the same breath comes along."""
        if wait <= 0:
            self._sleep(BLINK)
            return
        due = self._clock() + wait
        self._bell.wait_for(wait)
        self._sleep(max(min(begun + BREATH, due) - self._clock(), 0.0))
