"""A power cut at any moment: what the daemon has told as done is on record after it, and the database is sound."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

import pytest
import tools
from powercut import cuts, watched

from scheduler.store.database import Store, StoreError

pytestmark = [
    pytest.mark.process,
    tools.needs("strace"),
]

CUTS = 200


def lost(folder: Path, files: dict[str, bytes], told: set[int]) -> set[int]:
    """The runs that were told of and are not there; all of them where the database cannot be opened."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    try:
        store = Store.open(folder / "heartbeatd.db", check=True)
        kept = {row[0] for row in store.connection.execute("select id from run where state = 'closed'")}
        store.close()
    except (StoreError, sqlite3.DatabaseError):
        return told
    return told - kept


def losses(folder: Path, synchronous: str) -> list[set[int]]:
    found = (lost(folder / "cut", files, told) for files, told in cuts(watched(folder, synchronous), CUTS, random.Random(5)))
    return [each for each in found if each]


def test_no_cut_takes_what_was_told_as_done(tmp_path: Path) -> None:
    assert losses(tmp_path, "full") == []


def test_with_less_than_full_sync_cuts_would_take_some_of_it(tmp_path: Path) -> None:
    """That the test above can fail."""
    assert len(losses(tmp_path, "normal")) > CUTS / 2
