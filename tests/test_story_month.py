"""A month with forty events among thousands of quiet runs: each event is sent once, and quiet runs make no agent call."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path

from world import AgentCall, World, utc

DAYS, EVENTS, INTERVAL = 30, 40, timedelta(minutes=15)
START = "2026-10-10 00:00"  # Berlin's clocks go back on the 25th
CONFIG = """
history: {keep: 60d, runs: 10000}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat:
      {interval: 15m, stagger: 0s, timezone: Europe/Berlin, checklist: "- look\\n", precheck: {command: ./look, unchanged: skip}, deliver: log}
"""


class Month:
    """Forty events at random times. The precheck counts past events, and the agent reports the new ones."""

    def __init__(self, folder: Path, seed: int) -> None:
        chance = random.Random(seed)
        span = timedelta(days=DAYS) - 2 * INTERVAL
        self.events = sorted(utc(START) + INTERVAL + chance.random() * span for _ in range(EVENTS))
        self.told = 0
        self.world = World(folder, CONFIG, start=START, scripts={"ops": self._answer}, prechecks={"ops": self._look})

    def play(self) -> None:
        self.world.run(days=DAYS)

    def _happened(self, now: datetime) -> int:
        return sum(event <= now for event in self.events)

    def _look(self, call: AgentCall) -> str:
        return f"{self._happened(call.at)} so far"

    def _answer(self, call: AgentCall) -> str:
        news = range(self.told, self._happened(call.at))
        self.told = self._happened(call.at)
        return "; ".join(f"event {number} happened" for number in news) or "HEARTBEAT_OK"

    def told_at(self, number: int) -> list[datetime]:
        """The time at which an event was sent."""
        return [when for when, _, text in self.world.delivered if f"event {number} happened" in text.split("; ")]

    @property
    def share(self) -> float:
        """The share of runs with an agent call."""
        return len(self.world.calls) / sum(row["slots"] for row in self.world.records())


def test_each_of_forty_events_in_a_month_is_sent_once_and_within_one_interval(tmp_path: Path) -> None:
    month = Month(tmp_path, seed=4)
    month.play()
    for number, event in enumerate(month.events):
        told = month.told_at(number)
        assert len(told) == 1
        assert timedelta() <= told[0] - event <= INTERVAL
    assert len(month.world.calls) <= EVENTS + 1  # the first run has no earlier output to compare with
    assert sum(row["slots"] for row in month.world.records()) == DAYS * 96 + 1
    month.world.store.close()
