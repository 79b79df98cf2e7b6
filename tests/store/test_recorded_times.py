"""A change of the system clock treats each column with a time in one way, which `scheduler/store/clock_changes.py` says."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from checkout import DATA

from scheduler.store.clock_changes import MOVED, NEVER_WAS, SET_BACK
from scheduler.store.database import open_empty_database

PLANNED_ANEW = "engine/clock_adjustment plans each entry anew"
IDENTITY = "it is part of the identity of a run"
HISTORY = "it is shown as the clock showed it"
BY_CHANGE = "each change of the clock has moved it"
CHOSEN = "a person chose this time by the clock on the wall"
KEPT: Mapping[str, str] = {
    "entry.active_at": "a gateway sends the next one soon",
    "entry.anchor": PLANNED_ANEW,
    "entry.due_at": PLANNED_ANEW,
    "entry.expected_at": PLANNED_ANEW,
    "entry.expected_before": PLANNED_ANEW,
    "entry.first_seen_at": PLANNED_ANEW,
    "entry.last_slot": IDENTITY,
    "entry.muted_until": CHOSEN,
    "entry.paused_at": HISTORY,
    "entry.paused_until": CHOSEN,
    "entry.settled_until": PLANNED_ANEW,
    "entry.slot": PLANNED_ANEW,
    "former.anchor": "the slots up to `until_at` are counted from it",
    "item.asked": IDENTITY,
    "jump.at": "it is the record of the change",
    "message.at": HISTORY,
    "once.seen_at": "the one moment of a job is seen once",
    "outbox.doubted_at": HISTORY,
    "outbox.finished_at": HISTORY,
    "outbox.sending_at": HISTORY,
    "outbox.slot": IDENTITY,
    "question.asked_at": BY_CHANGE,
    "question.ended_at": HISTORY,
    "question.ends_at": BY_CHANGE,
    "question.waits_since": BY_CHANGE,
    "run.cut_at": "a duration is measured from `started_at` to it",
    "run.finished_at": HISTORY,
    "run.slot": IDENTITY,
    "spend.ends_at": "the day of a budget ends by the calendar",
    "stall.since": HISTORY,
    "stall.until": HISTORY,
    "target.at": HISTORY,
    "used_button.used_at": HISTORY,
    "wake.created_at": HISTORY,
}
"""The columns with a time that a set-back leaves as they are, and why."""

TIME_NAMES = re.compile(r"(^|_)(at|until|since|before|slot|anchor|asked)$")
MILLISECONDS = 1_000_000_000_000  # so many of them had passed by the year 2001


def time_columns() -> set[str]:
    """The columns of the present schema that are named for a time, or in which the dump of an earlier version has one."""
    with closing(open_empty_database()) as db, closing(sqlite3.connect(":memory:")) as dump:
        dump.executescript((DATA / "database_2026_11.sql").read_text("utf-8"))
        found = set()
        for (table,) in db.execute("select name from sqlite_master where type = 'table' and name not like '%sqlite%'").fetchall():
            in_dump = {row[1] for row in dump.execute(f"pragma table_info({table})")}
            for column, kind in [(row[1], row[2]) for row in db.execute(f"pragma table_info({table})")]:
                values = f'select 1 from {table} where "{column}" > {MILLISECONDS}'
                is_time = column in in_dump and dump.execute(values).fetchone() is not None
                if kind == "INTEGER" and (TIME_NAMES.search(column) or is_time):
                    found.add(f"{table}.{column}")
        return found


def changed_columns() -> set[str]:
    """The columns that a statement sets to an earlier time."""
    statements = [*SET_BACK.values(), *NEVER_WAS.values()]
    assert all(table.split()[0] == text.split()[1] for texts in (MOVED, SET_BACK, NEVER_WAS) for table, text in texts.items())
    return {f"{text.split()[1]}.{name}" for text in statements for name in re.findall(r"(\w+) = (?:min\(|case )", text)}


def test_each_column_with_a_time_is_limited_or_kept_for_a_reason() -> None:
    assert changed_columns() & set(KEPT) == set()
    assert changed_columns() | set(KEPT) == time_columns()


def test_each_change_is_of_a_column_that_exists(tmp_path: Path) -> None:
    values = dict.fromkeys(("now", "by", "retry", "result", "hold", "probe"), 0)
    with closing(open_empty_database()) as db:
        for statement in (*MOVED.values(), *SET_BACK.values(), *NEVER_WAS.values()):
            db.execute(statement, values)
