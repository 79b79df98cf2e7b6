"""What systemd is told by a daemon that waits for the queue of its workers."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from patience import PATIENCE
from test_systemd import Manager, Service, config, manager, service

__all__ = ["manager", "service"]


@pytest.mark.process
def test_a_daemon_that_waits_for_its_queue_is_ready_and_pings(service: Callable[[str], Service], manager: Manager) -> None:
    it = service(config(job="'true'") + "executor: {kind: procrastinate, dsn: 'postgresql://user:secret@127.0.0.1:1/none'}\n")
    seen = manager.until("STATUS=waiting for the queue: ")
    assert "READY=1" in seen
    assert "secret" not in seen[-1]
    manager.until("WATCHDOG=1")
    manager.until("WATCHDOG=1")
    it.process.send_signal(signal.SIGTERM)
    assert it.process.wait(PATIENCE) == 0
