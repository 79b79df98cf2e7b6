"""A daemon killed after a channel has accepted a message and before that is noted: nothing is lost, and repeats are known as such."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kills import Kills, Storm

pytestmark = pytest.mark.process


@pytest.mark.parametrize("policy", ["resend", "hold"])
def test_what_was_accepted_but_not_noted_is_never_lost_and_repeated_under_its_key_alone(tmp_path: Path, policy: str) -> None:
    kills = Kills(tmp_path, policy, 4)
    kills.loop()
    kills.check()


def test_a_busy_daemon_that_is_killed_at_any_moment_loses_nothing_and_does_nothing_twice(tmp_path: Path) -> None:
    storm = Storm(tmp_path, 6, random.Random(1))
    storm.play()
    assert (storm.lost, storm.doubled) == ([], [])
    assert min(storm.counted.values()) > 6
