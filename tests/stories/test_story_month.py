"""A month with forty events and an agent of average quality, or a week of it, with the config that the README prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from month_simulation import Month, readme_config
from simulation import size
from world import ON_SERVER, DatabaseOf

pytestmark = pytest.mark.simulation

DAYS, EVENTS = size(9, 30), size(12, 40)


@pytest.mark.long_on_server("a month of simulated time")
@pytest.mark.parametrize("seed", range(1, 1 + size(1, 1 if ON_SERVER else 3)))  # the limits below hold for these seeds
def test_nearly_every_event_of_a_month_is_reported_once_with_few_calls(
    tmp_path: Path, database_of: DatabaseOf, seed: int
) -> None:
    month = Month(tmp_path, readme_config(), seed, DAYS, EVENTS, server=database_of(tmp_path))
    score = month.score()
    assert score.once >= 0.95 * EVENTS
    assert score.repeated <= 1
    assert score.never == 0
    assert score.late <= 1
    assert score.false_ends == 0
    assert score.share <= 0.05
    assert len(score.others) / DAYS <= 0.2
    assert sum(row["slots"] for row in month.world.records("ops") if row["trigger"] == "interval") >= DAYS * 96 - 1
    month.close()
