"""Writes the three dashboards: `python grafana/write.py` writes dashboards/*.json."""

from __future__ import annotations

import sys
from pathlib import Path

import agent
import fleet
import operations

TARGET = Path(__file__).with_name("dashboards")


def write(folder: Path) -> None:
    """Write the dashboards into this folder."""
    for board in (fleet, agent, operations):
        (folder / f"{board.__name__}.json").write_text(board.dashboard(), "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
