"""A daemon killed after a message was accepted and before that was recorded loses nothing and repeats messages with their key."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kill_simulation import KilledDaemon, KilledDeliveries

pytestmark = [pytest.mark.process, pytest.mark.once]


@pytest.mark.parametrize("policy", ["resend", "hold"])
def test_a_message_accepted_but_not_recorded_is_never_lost_and_only_repeated_with_its_key(tmp_path: Path, policy: str) -> None:
    kills = KilledDeliveries(tmp_path, policy, 4)
    kills.loop()
    kills.check()


def test_a_busy_daemon_killed_at_any_moment_loses_nothing_and_does_nothing_twice(tmp_path: Path) -> None:
    storm = KilledDaemon(tmp_path, 6, random.Random(1))
    storm.play()
    assert (storm.lost, storm.doubled) == ([], [])
    assert min(storm.counted.values()) > 6
