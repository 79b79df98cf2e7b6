"""An object is read from the columns that have the names of its fields."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from heartbeatd.answers import Time
from scheduler.model.outcome import Kind
from scheduler.store.rows import insert_row, read_part, read_row


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


@dataclass(frozen=True)
class Line:
    name: str
    forms: int


@dataclass(frozen=True)
class Lists:
    times: tuple[datetime, ...]
    lines: tuple[Line, ...]
    jobs: frozenset[str]


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        (None, Lists((datetime(2026, 3, 2, 8, 0, tzinfo=UTC),), (Line("a", 1), Line("b", 2)), frozenset({"x", "y"}))),
        *((text, Lists((), (), frozenset())) for text in ("", "{", "7", "null", "[null]", '[["a"]]')),
        ('["x", [], 7]', Lists((datetime(1970, 1, 1, 0, 0, 0, 7_000, UTC),), (), frozenset({"x"}))),
    ],
)
def test_lists_are_stored_as_json_and_what_is_damaged_is_left_out(damage: str | None, kept: Lists) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.row_factory = sqlite3.Row
        db.execute("create table list (times text, lines text, jobs text)")
        insert_row(db, "list", vars(kept) if damage is None else dict.fromkeys(("times", "lines", "jobs"), damage))
        assert read_part(Lists, db.execute("select * from list").fetchone(), "") == kept
