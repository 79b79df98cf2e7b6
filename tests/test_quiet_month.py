"""Two days of the quiet month, with a weekend, a clock change and a restart: no alert may fire. `make quiet-month` plays 30 days."""

from __future__ import annotations

from pathlib import Path

import required_programs
from quiet_month import QuietMonth, needless

pytestmark = required_programs.needs("promtool")


def test_no_warning_fires_on_a_quiet_weekend(tmp_path: Path) -> None:
    month = QuietMonth(tmp_path, "2026-10-24", days=2)
    month.play()
    assert month.samples == 2 * 720 + 1
    assert needless(month.alerts(levels=False)) == {}
