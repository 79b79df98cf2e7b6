"""An object is read from the columns that have the names of its fields."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from heartbeatd.answers import Time
from scheduler.model.outcome import Kind
from scheduler.store.rows import read_row


@dataclass(frozen=True)
class Note:
    kind: Kind
    at: datetime
    seen_at: Time | None
    is_new: bool
    text: str | None
    parts: int = 1


def test_the_type_of_a_field_says_how_its_column_is_read() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.row_factory = sqlite3.Row
        row = db.execute("select 'cron' as kind, 1500 as at, null as seen_at, 1 as is_new, 7 as other, 'x' as body").fetchone()
    at = datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    assert read_row(Note, row, text=row["body"]) == Note(Kind.CRON, at, None, True, "x")
    with pytest.raises(TypeError, match="text"):
        read_row(Note, row)
