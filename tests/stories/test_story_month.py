"""A quarter with 120 events and a mediocre agent, or nine days of it, with the config that the README prints and a nightly job."""

from __future__ import annotations

from pathlib import Path

import pytest
from month_simulation import DAYS, EVENTS, Month, habits_of_level, readme_config
from simulation import size
from world import ON_SERVER, DatabaseOf

pytestmark = pytest.mark.simulation


@pytest.mark.long_on_server("a quarter of simulated time")
@pytest.mark.parametrize("seed", range(1, 1 + size(1, 1 if ON_SERVER else 3)))  # the limits below hold for these seeds
def test_nearly_every_event_is_reported_once_with_few_calls(tmp_path: Path, database_of: DatabaseOf, seed: int) -> None:
    days, events = size(9, DAYS), size(12, EVENTS)
    month = Month(tmp_path, readme_config(), seed, habits_of_level("0/0/0"), days, events, server=database_of(tmp_path))
    score = month.score()
    assert score.once >= 0.95 * events
    assert score.repeated <= 1
    assert score.never == 0
    assert score.late <= 1
    assert score.wrong_ends == 0
    assert score.calls <= 5
    assert score.needless_a_day <= 0.3
    assert sum(row["planned_runs"] for row in month.world.records("ops") if row["trigger"] == "interval") >= days * 96 - 1
    month.close()
