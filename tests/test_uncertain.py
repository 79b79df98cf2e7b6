"""A daemon killed after a channel has accepted a message and before that is noted: nothing is lost, and repeats are known as such."""

from __future__ import annotations

from pathlib import Path

import pytest
from kills import Kills

pytestmark = pytest.mark.process


@pytest.mark.parametrize("policy", ["resend", "hold"])
def test_what_was_accepted_but_not_noted_is_never_lost_and_repeated_under_its_key_alone(tmp_path: Path, policy: str) -> None:
    kills = Kills(tmp_path, policy, 4)
    kills.loop()
    kills.check()
