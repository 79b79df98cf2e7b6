"""The bell that ends the engine's sleep: rung by threads and by signal handlers, whatever the sleeper is at."""

from __future__ import annotations

import os
import signal
import threading
import time

from scheduler.system.wakeup import Wakeup


def test_a_ring_before_the_sleep_ends_it_at_once() -> None:
    bell = Wakeup()
    bell.notify()
    sleeper = threading.Thread(target=bell.wait_for, args=(60,), daemon=True)
    sleeper.start()
    sleeper.join(20)
    assert not sleeper.is_alive()


def test_rings_that_were_silenced_do_not_wake() -> None:
    bell = Wakeup()
    for _ in range(100_000):
        bell.notify()
    bell.clear()
    woke = threading.Event()
    sleeper = threading.Thread(target=lambda: (bell.wait_for(60), woke.set()))
    sleeper.start()
    assert not woke.wait(0.05)
    bell.notify()
    sleeper.join(10)
    assert woke.is_set()


def test_a_signal_handler_may_ring_in_the_middle_of_anything() -> None:
    """With a lock in the bell a handler that interrupts its holder would wait for itself for ever."""
    bell, heard = Wakeup(), []

    def handler(number: int, frame: object) -> None:
        heard.append(number)
        bell.notify()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for _ in range(2_000):
            bell.clear()
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGUSR1)
            began = time.monotonic()
            bell.wait_for(60)
            assert time.monotonic() - began < 30
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(heard) >= 2_000
