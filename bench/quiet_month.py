"""Plays a quiet month by a virtual clock, and evaluates the alert rules over its metrics: which alerts fire without need."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from quiet_month import QuietMonth, needless


def main(days: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        month, begun = QuietMonth(Path(folder), "2026-10-10", days), time.monotonic()
        month.play()
        alerts = month.alerts()
        bad = needless(alerts)
        print(
            f"{days} days, {month.samples:,} pages, {len(month.series)} series: {len(bad)} alerts of severity warning or"
            f" critical, {len(alerts) - len(bad)} of severity info, in {time.monotonic() - begun:.0f} s"
        )
        for (name, severity), count in alerts.items():
            print(f"  {severity}: {name} ({count} evaluations)")
        sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
