"""The daemon as a whole, in one process with its test: who thinks when."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from scheduler.app import Daemon, now
from scheduler.events import Event
from scheduler.tables.boots import Boot

CONFIG = """\
state: state/h.db
cron:
  hello: {schedule: "@reboot", command: "echo hello", deliver: log}
"""


def test_the_engine_and_the_workers_take_turns_in_thinking(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    daemon = Daemon(tmp_path / "config.yaml", dict(os.environ), listen=False)
    thinking: list[tuple[str, bool]] = []
    carry = daemon.runs._carry

    def note(who: str) -> None:
        thinking.append((who, daemon._baton._holder == threading.get_ident()))

    def hear(happened: Event) -> None:
        note("engine")

    def work(*given):  # type: ignore[no-untyped-def]
        note("worker")
        return carry(*given)

    daemon.engine._listeners.append(hear)
    daemon.runs._carry = work
    daemon.engine.begin(now(), Boot(daemon.instance, os.getpid(), "0", "0"), {})
    daemon._loop(lambda: daemon.engine.at_rest(now().now), time.monotonic() + 20)
    daemon.store.close()
    assert [each for each in thinking if not each[1]] == []
    assert {who for who, _ in thinking} == {"engine", "worker"}
