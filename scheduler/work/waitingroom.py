"""The waiting room: where work is that has been put aside, until what it waits for is there or its time is over."""

from __future__ import annotations

import math
import selectors
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from heartbeat.waiting import Until
from scheduler.bell import Bell

G = TypeVar("G")

LONGEST_SLEEP = 3600.0  # seconds; a selector counts milliseconds in 31 bits, and fails beyond 24 days


class WaitingRoom(Generic[G]):
    """One thread waits for all. `call(guest, came)` is called once for each that leaves; `came` is False if its time is over."""

    def __init__(self, call: Callable[[G, bool], None], name: str) -> None:
        self._call = call
        self._name = name
        self._lock = threading.Lock()
        self._guests: dict[G, Until] = {}
        self._ready = selectors.DefaultSelector()
        self._bell = Bell()
        self._ready.register(self._bell, selectors.EVENT_READ)
        self._looks_at = math.inf  # when the thread looks who is late, by the monotonic clock; never later than somebody is
        self._is_open = False

    def admit(self, guest: G, until: Until) -> None:
        """Let a guest wait; it may be called before this returns."""
        with self._lock:
            self._open()
            if isinstance(until.what, int):
                self._ready.register(until.what, until.events, (guest, until))
            self._guests[guest] = until
            is_first = until.late_at < self._looks_at
            self._looks_at = min(until.late_at, self._looks_at)
        if is_first:
            self._bell.ring()
        if isinstance(until.what, Future):
            until.what.add_done_callback(lambda _: self._show_out(guest, until, came=True))

    def hurry(self, guest: G) -> None:
        """Call a guest before its time, as if that were over; nothing happens if it is not here."""
        with self._lock:
            until = self._guests.get(guest)
        if until is not None:
            self._show_out(guest, until, came=False)

    def _open(self) -> None:
        if not self._is_open:
            threading.Thread(target=self._attend, name=f"heartbeatd-{self._name}-waiting", daemon=True).start()
            self._is_open = True

    def _attend(self) -> None:
        while True:
            seconds = self._looks_at - time.monotonic()
            for key, _ in self._ready.select(min(max(seconds, 0.0), LONGEST_SLEEP)):
                if key.data is None:
                    self._bell.silence()
                else:
                    self._show_out(*key.data, came=True)
            if time.monotonic() >= self._looks_at:
                self._show_out_the_late()

    def _show_out_the_late(self) -> None:
        with self._lock:
            now = time.monotonic()
            late = [(guest, until) for guest, until in self._guests.items() if until.late_at <= now]
            self._looks_at = min((until.late_at for until in self._guests.values() if until.late_at > now), default=math.inf)
        for guest, until in late:
            self._show_out(guest, until, came=False)

    def _show_out(self, guest: G, until: Until, *, came: bool) -> None:
        with self._lock:
            if self._guests.get(guest) is not until:
                return
            del self._guests[guest]
            if isinstance(until.what, int):
                self._ready.unregister(until.what)
        self._call(guest, came)
