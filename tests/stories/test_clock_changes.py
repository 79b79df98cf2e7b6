"""After any sequence of system clock changes, every slot is recorded exactly once and no agent stops running."""

from __future__ import annotations

from pathlib import Path

import pytest
from clock_change_simulation import ClockChanges
from simulation import seeds


@pytest.mark.simulation
@seeds(2, 40)
def test_every_slot_is_recorded_exactly_once_over_random_clock_changes(tmp_path: Path, seed: int) -> None:
    jumps = ClockChanges(tmp_path, seed, 10)
    jumps.play()
    jumps.close()
    assert jumps.faults == []
    assert jumps.forward
    assert jumps.back
    assert 0 < jumps.longest_gap <= jumps.interval + 1
