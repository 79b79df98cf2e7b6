"""Tests the wakeup: notifications end the sleep of the main loop, from threads and from signal handlers."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import threading
import time

from scheduler.system.wakeup import Wakeup


def test_a_notification_before_the_sleep_ends_it_at_once() -> None:
    wakeup = Wakeup()
    wakeup.notify()
    sleeper = threading.Thread(target=wakeup.wait_for, args=(60,), daemon=True)
    sleeper.start()
    sleeper.join(20)
    assert not sleeper.is_alive()


def test_notifications_that_were_cleared_do_not_wake() -> None:
    wakeup = Wakeup()
    for _ in range(100_000):
        wakeup.notify()
    wakeup.clear()
    woke = threading.Event()
    sleeper = threading.Thread(target=lambda: (wakeup.wait_for(60), woke.set()))
    sleeper.start()
    assert not woke.wait(0.05)
    wakeup.notify()
    sleeper.join(10)
    assert woke.is_set()


def test_a_signal_handler_can_notify_while_it_interrupts_anything() -> None:
    """With a lock, a handler that interrupts the thread which holds it would wait for ever."""
    wakeup, notified = Wakeup(), []

    def handler(number: int, frame: object) -> None:
        notified.append(number)
        wakeup.notify()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for _ in range(2_000):
            wakeup.clear()
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGUSR1)
            began = time.monotonic()
            wakeup.wait_for(60)
            assert time.monotonic() - began < 30
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(notified) >= 2_000


def test_the_number_of_a_descriptor_may_be_above_1023() -> None:
    wakeup = Wakeup()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        wakeup._read_end = fcntl.fcntl(wakeup.fileno(), fcntl.F_DUPFD_CLOEXEC, 1500)
        wakeup.notify()
        wakeup.wait_for(60)
        os.close(wakeup.fileno())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
