"""Tests that a daemon asks for a permit before each start of a program: it may have been frozen, and another one may lead."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from pathlib import Path

from config_file import read
from patience import PATIENCE
from world import utc

from scheduler.engine.clock_adjustment import ClockReading
from scheduler.engine.daemon_executors import DaemonExecutors
from scheduler.engine.delivery import Delivery
from scheduler.engine.standby import Standby
from scheduler.model.entry import Claim, OpenRun
from scheduler.model.outcome import Kind, Trigger
from scheduler.store.outbox import OutboxMessage
from scheduler.system.boot_clock import BootClock
from scheduler.work.plan import make_plan

NOW = utc("2026-03-02 08:00")
CONFIG = """\
channels: {pager: {kind: command, argv: [touch, sent]}}
cron: {measure: {every: 1h, command: [touch, measured]}}
"""


class LosingTwice(Standby):
    """Leads whenever it is waited for, but twice no longer when a program is about to be started."""

    def __init__(self) -> None:
        self.asked = 0

    def allows_start(self) -> bool:
        self.asked += 1
        return self.asked > 2


def test_a_program_of_a_run_and_of_a_message_is_started_only_while_the_daemon_leads(tmp_path: Path) -> None:
    settings = read(tmp_path, CONFIG).settings
    plan = make_plan(settings)
    has_ended = threading.Semaphore(0)
    executors = DaemonExecutors(
        settings,
        lambda: plan,
        "me",
        BootClock(),
        lambda: ClockReading(NOW, time.monotonic()),
        has_ended.release,
        lambda _: None,
        lambda _: None,
        lambda _: Future(),
    )
    claim = Claim(plan.entries[Kind.CRON, "measure"], OpenRun(7, "running", NOW, Trigger.EVERY, 1, 0, 1, "me", NOW))
    message = OutboxMessage(
        key="k-1", kind="cron", name="measure", trigger="every", planned_at=NOW, part=1, parts=1, text="text", title="title", id=1,
        channel="pager", recipient="", run_id=7, attempts=1, created_at=NOW, doubted=False,
    )  # fmt: skip
    run_permit = executors.standby = LosingTwice()
    executors.runs.submit(1, claim)
    assert has_ended.acquire(timeout=PATIENCE)
    message_permit = executors.standby = LosingTwice()
    executors.deliveries.submit(1, Delivery(message, settings.channels["pager"]))
    assert has_ended.acquire(timeout=PATIENCE)
    executors.close(release_lease=True)
    assert (run_permit.asked, message_permit.asked) == (3, 3)
    assert {file.name for file in tmp_path.iterdir()} >= {"measured", "sent"}
