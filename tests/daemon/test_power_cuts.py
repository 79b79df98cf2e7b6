"""After a power cut at any moment, every run that was reported as done is recorded, and the database is intact."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

import pytest
import required_programs
from power_cut_simulation import cuts, watched
from simulation import SEED, size

from scheduler.store.database import Store, StoreError

pytestmark = [
    pytest.mark.process,
    pytest.mark.simulation,
    required_programs.needs("strace"),
]

CUTS = size(40, 600)
MINUTES = size(30, 120)


def lost(folder: Path, files: dict[str, bytes], reported: set[int]) -> set[int]:
    """The reported runs that are missing after the cut. All of them, and 0, if the database cannot be opened."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    try:
        store = Store.open(folder / "heartbeatd.db", check=True)
        kept = {row[0] for row in store.connection.execute("select id from run where state = 'closed'")}
        store.close()
    except (StoreError, sqlite3.DatabaseError, UnicodeDecodeError):
        return reported | {0}
    return reported - kept


def losses(folder: Path, synchronous: str) -> list[set[int]]:
    found = (
        lost(folder / "cut", files, reported)
        for files, reported in cuts(watched(folder, synchronous, MINUTES), CUTS, random.Random(int(SEED or 5)))
    )
    return [each for each in found if each]


def test_no_power_cut_loses_a_run_that_was_reported_as_done(tmp_path: Path) -> None:
    assert losses(tmp_path, "full") == []


def test_with_weaker_synchronous_settings_power_cuts_lose_runs(tmp_path: Path) -> None:
    """Shows that the test above can fail."""
    assert len(losses(tmp_path, "normal")) > CUTS / 2
