"""Stores the questions that runs ask people, and their answers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime

from heartbeatd.answers import PersonQuestion
from scheduler.model.outcome import Key
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store.rows import insert_row, read_row
from scheduler.store.transaction import Transaction, first_time, recall

NOTICE = "question "  # begins the names of the notices that ask a question, and that say how it has ended, before its number

OVER = """
select * from question where state = 'open' and (ends_at <= ? or not exists (select 1 from run
  where run.id = question.run_id and (run.state in ('running', 'waiting') or run.result_due_at is not null))) order by id
"""


def add_question(
    tx: Transaction, run_id: int, subject: Key, key: str, fence: int, text: str, options: Sequence[str],
    people: Sequence[str], asked_by: str, ends_at: datetime,
) -> PersonQuestion:  # fmt: skip
    """Insert an open question. The run has waited since its first open question was asked."""
    since = tx.db.execute("select min(waits_since) from question where run_id = ? and state = 'open'", (run_id,)).fetchone()[0]
    record = {
        "run_id": run_id, "kind": subject[0], "name": subject[1], "key": key, "fence": fence, "text": text,
        "options": options, "people": people, "asked_by": asked_by, "asked_at": tx.now,
        "waits_since": tx.now if since is None else since, "ends_at": ends_at, "state": "open",
    }  # fmt: skip
    return _question_from_row(insert_row(tx.db, "question", record, "returning *").fetchone())


def asked_before(tx: Transaction, run_id: int, key: str, fence: int, text: str, options: Sequence[str]) -> PersonQuestion | None:
    """The question that a run asks again: by its key, or in a further attempt by its text, unless nobody has answered it."""
    row = tx.db.execute(
        "select * from question where run_id = ? and (key = ? or (fence < ? and text = ? and options = ? and state <> 'ended'))"
        " order by key <> ?, id limit 1",
        (run_id, key, fence, text, json.dumps(options), key),
    ).fetchone()
    if row is None:
        return None
    if (row["key"], row["fence"]) != (key, fence):
        tx.db.execute("update question set key = ?, fence = ? where id = ?", (key, fence, row["id"]))
    return _question_from_row(row)


def close_question(
    tx: Transaction, number: int, *, answer: str | None = None, by: str | None = None, why: str | None = None
) -> None:
    """Record the answer, or why there is none. The time in which the run has waited does not count for its result."""
    row = tx.db.execute(
        "update question set state = ?, answer = ?, answered_by = ?, why = ?, ended_at = ? where id = ? and state = 'open'"
        " returning run_id, waits_since",
        ("ended" if answer is None else "answered", answer, by, why, to_millis(tx.now), number),
    ).fetchone()
    if row is not None and not open_questions(tx.db, row["run_id"]):
        waited = to_millis(tx.now) - row["waits_since"]
        tx.db.execute("update run set result_due_at = result_due_at + ? where id = ?", (waited, row["run_id"]))


def find_question(db: sqlite3.Connection, number: int) -> PersonQuestion | None:
    row = db.execute("select * from question where id = ?", (number,)).fetchone()
    return _question_from_row(row) if row else None


def question_of_notice(db: sqlite3.Connection, notice: str | None) -> PersonQuestion | None:
    """The question that a message asks; None if it asks none."""
    number = (notice or "").removeprefix(NOTICE)
    return find_question(db, int(number)) if notice and notice.startswith(NOTICE) and number.isdecimal() else None


def questions_of_run(db: sqlite3.Connection, run_id: int) -> list[PersonQuestion]:
    """All questions of a run, in the order in which they were asked."""
    return _questions(db.execute("select * from question where run_id = ? order by id", (run_id,)))


def open_questions(db: sqlite3.Connection, run_id: int | None = None) -> list[PersonQuestion]:
    """The questions that wait for an answer: of a run, or all, the oldest first."""
    query = "select * from question where state = 'open' and (cast(? as bigint) is null or run_id = ?) order by id"
    return _questions(db.execute(query, (run_id, run_id)))


def waits_for_person(db: sqlite3.Connection, run_id: int) -> bool:
    """Whether the present attempt of a run waits for an answer. A question that only an earlier one has asked does not count."""
    query = (
        "select 1 from question join run on run.id = question.run_id and run.fence = question.fence"
        " where run_id = ? and question.state = 'open' limit 1"
    )
    return db.execute(query, (run_id,)).fetchone() is not None


def questions_over(db: sqlite3.Connection, now: datetime) -> list[PersonQuestion]:
    """The open questions whose time is over, or whose run has ended."""
    return _questions(db.execute(OVER, (to_millis(now),)))


def next_end_at(db: sqlite3.Connection) -> datetime | None:
    """When the time of the next question is over."""
    return recall(db, "select min(ends_at) from question where state = 'open'", first_time)


def _questions(rows: sqlite3.Cursor) -> list[PersonQuestion]:
    return [_question_from_row(row) for row in rows.fetchall()]


def _question_from_row(row: sqlite3.Row) -> PersonQuestion:
    return read_row(PersonQuestion, row, run=row["run_id"], until=from_millis(row["ends_at"]))
