"""The remote executor keeps what every executor promises: the tests of the local one, with a queue and a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import required_programs
from remote_bench import RemoteBench
from servers.postgres import PostgresServer
from test_executor import *  # noqa: F403

from scheduler.system.boot_clock import BootClock

pytestmark = required_programs.needs("initdb")


@pytest.fixture
def make(postgres: PostgresServer) -> Iterator[object]:
    with RemoteBench(postgres, BootClock()) as bench:
        yield bench.make
