"""A Sunday of the quiet month, with a clock change and an upgrade: no alert may fire. `make quiet-month` plays 30 days."""

from __future__ import annotations

from pathlib import Path

import pytest
import required_programs
from quiet_month import QuietMonth, needless

pytestmark = [pytest.mark.long_simulation, required_programs.needs("promtool")]


def test_no_warning_fires_on_a_day_with_a_clock_change_and_an_upgrade(tmp_path: Path) -> None:
    month = QuietMonth(tmp_path, "2026-10-25", days=1, first_event=3)
    month.play()
    assert month.samples == 721
    assert needless(month.alerts(levels=False)) == {}
