"""Jumps of the clock, one after the other: every slot is accounted for exactly once, and no agent falls silent."""

from __future__ import annotations

from pathlib import Path

import pytest
from jumps import Jumps


@pytest.mark.parametrize("seed", range(8))
def test_however_the_clock_jumps_every_slot_is_accounted_for_exactly_once(tmp_path: Path, seed: int) -> None:
    jumps = Jumps(tmp_path, seed, 10)
    jumps.play()
    jumps.close()
    assert jumps.faults == []
    assert jumps.forward
    assert jumps.back
    assert 0 < jumps.longest_gap <= jumps.interval + 1
