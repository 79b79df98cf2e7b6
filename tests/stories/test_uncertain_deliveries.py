"""A daemon killed after a message was accepted and before that was recorded loses nothing and repeats messages with their key."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kill_simulation import KilledDaemon, KilledDeliveries
from simulation import seeds, size

pytestmark = [pytest.mark.process, pytest.mark.simulation]


@pytest.mark.parametrize("policy", ["resend", "hold"])
def test_a_message_accepted_but_not_recorded_is_never_lost_and_only_repeated_with_its_key(tmp_path: Path, policy: str) -> None:
    kills = KilledDeliveries(tmp_path, policy, size(1, 10))
    kills.loop()
    kills.check()


@seeds(1, 3)
def test_a_busy_daemon_killed_at_any_moment_loses_nothing_and_does_nothing_twice(tmp_path: Path, seed: int) -> None:
    storm = KilledDaemon(tmp_path, size(2, 10), random.Random(seed))
    storm.play()
    assert (storm.lost, storm.doubled) == ([], [])
    assert min(storm.counted.values()) > storm.number
