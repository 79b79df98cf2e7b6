"""A cluster whose parts are killed and frozen at random loses nothing and repeats nothing; `make cluster-kills` takes longer."""

from __future__ import annotations

from pathlib import Path

import pytest
import required_programs
from cluster_chaos import ClusterChaos

pytestmark = [required_programs.needs("initdb"), pytest.mark.process, pytest.mark.long_simulation]


def test_nothing_is_lost_and_nothing_doubled_when_parts_of_a_cluster_are_killed(tmp_path: Path) -> None:
    found = ClusterChaos(tmp_path, seed=7, agents=3, jobs=2, workers=2, every=3, state="postgresql").play(seconds=10)
    assert (found.lost, found.doubled) == ([], [])
    assert found.counted["runs"] > 0
