"""The spec of an agent's heartbeat with all defaults."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from heartbeat.hours import Hours
from heartbeat.spec import CommandRunner, Heartbeat

AGENT = Heartbeat(
    name="ops",
    enabled=True,
    interval=timedelta(minutes=30),
    stagger=timedelta(),
    hours=Hours(),
    zone=ZoneInfo("UTC"),
    grace=timedelta(minutes=10),
    workspace=Path("agents/ops"),
    runner=CommandRunner(("true",), {}),
    model=None,
    checklist="HEARTBEAT.md",
    retries=2,
    timeout=timedelta(minutes=5),
    deliver=("log",),
)
