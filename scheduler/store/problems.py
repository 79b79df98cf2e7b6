"""Keeps all problems, those that agents report and those that the daemon observes, and what each recipient last got."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import fields, replace
from datetime import datetime, timedelta
from types import UnionType
from typing import Any

from heartbeat.evidence import TrackedLine
from heartbeat.findings import Severity
from scheduler.model.entry import Entry, Key
from scheduler.model.outcome import DeliveryState, Kind
from scheduler.model.problem import (
    CHANNEL,
    PAUSED,
    PROVIDER,
    REPORTED,
    UNSTABLE_TIME,
    Acknowledgement,
    Evidence,
    Finding,
    Problem,
    ProblemNotice,
    Subject,
    Told,
)
from scheduler.model.settings import Target
from scheduler.model.timestamps import from_millis, from_optional_millis, to_millis
from scheduler.store.outbox import FOR_HOURS, HeldMessage, delivery_text, hold_text
from scheduler.store.rows import insert_row, read_part, replace_row, update_row
from scheduler.store.transaction import Transaction, recall

MAX_KEPT = 500  # problems of an agent that are over; the oldest are deleted first

# The problems that matter for the next look: they are not over, or a recipient is still to be notified of their end.
UNSETTLED = (
    "(over_at is null or exists (select 1 from problem_notice where problem_id = problem.id and problem_notice.kind <> 'over'))"
)

ALL_UNSETTLED = (
    "select * from problem where " + UNSETTLED + " and coalesce(?, kind) = kind"  # noqa: S608
    " and coalesce(?, name) = name order by kind, name, part, key"
)
# The same without a subject, from two small indexes: most problems are over, and their recipients know it.
IS_ANY_UNSETTLED = (
    "select exists (select 1 from problem where over_at is null) or exists (select 1 from problem_notice where kind <> 'over')"
)

# The last message to each recipient, with the states of its parts. A message that was deleted had arrived.
NOTICES = """
select told.problem_id, told.channel, told.whom, told.kind, told.severity, told.told_at, told.faults,
  told.severity_before, told.outbox_id,
  count(part.id) as parts, count(*) filter (where part.state = 'delivered') as delivered,
  count(*) filter (where part.state = 'dead') as dead,
  count(*) filter (where part.state in ('pending', 'sending', 'uncertain', 'held')) as pending,
  max(part.finished_at) as finished_at, max(part.attempts) as tries,
  max(case when part.state <> 'delivered' then coalesce(part.error, case when part.awaits = '[]' then part.hold_note end) end)
    as error,
  max(last.channel) as sent_on, max(last.whom) as sent_to, max(part.doubted_at) as doubted_at, max(part.awaits) as awaits
from problem_notice as told left join outbox as last on last.id = told.outbox_id
left join outbox as part on part.run_id = last.run_id and part.channel = last.channel and part.whom = last.whom
  and part.notice is not distinct from last.notice
where told.problem_id in (select cast(value as bigint) from json_each(?))
group by told.problem_id, told.channel, told.whom, told.kind, told.severity, told.told_at, told.faults, told.severity_before,
  told.outbox_id order by told.problem_id, told.channel, told.whom
"""


FOUND = tuple(each.name for each in fields(Finding))
STATES = ("count", "since", "last_seen_at", "opened_at", "over_at", "ended_by", "openings")
EVIDENCE = tuple(each.name for each in fields(Evidence) if each.name != "has_returned")
ACKED = tuple(each.name for each in fields(Acknowledgement))
COLUMNS = (*Subject._fields, *FOUND, *STATES, *EVIDENCE, *(f"acked_{name}" for name in ACKED))


def problems_of(db: sqlite3.Connection, subject: Subject) -> list[Problem]:
    """All problems of a subject, also those that are over, by key."""
    return _read_problems(db, "select * from problem where kind = ? and name = ? and part = ? order by key", subject)


def open_reports_of(db: sqlite3.Connection, agent: str, kind: Kind = Kind.HEARTBEAT) -> list[Problem]:
    """The open problems that an agent, or the agent of a job, reports, the most severe and the latest first."""
    query = "select * from problem where kind = ? and name = ? and part = ? and over_at is null"
    found = _read_problems(db, query, Subject.of_reports(agent, kind))
    return sorted(found, key=lambda each: (-each.found.severity.rank, -to_millis(each.last_seen_at), each.key))


def agents_with_reports_about(db: sqlite3.Connection, job: str) -> list[str]:
    """The agents that report an open problem about this job, or one that came with its wake."""
    rows = db.execute(
        "select distinct name from problem where part = 'reported' and over_at is null and (jobs <> '[]' or senders <> '[]')"
        " and (? in (select value from json_each(case when json_valid(jobs) then jobs else '[]' end))"
        " or ? in (select value from json_each(case when json_valid(senders) then senders else '[]' end))) order by name",
        (job, sender_of_job(job)),
    )
    return [row["name"] for row in rows.fetchall()]


def sender_of_job(job: str) -> str:
    """The job as the sender of a wake, as `Evidence.senders` has it."""
    return f"{Kind.CRON.value}:{job}"


def problems_in_message(db: sqlite3.Connection, outbox_id: int) -> list[Problem]:
    """The open problems that a message was the last to report to its recipient."""
    query = (
        "select * from problem where over_at is null and id in"
        " (select problem_id from problem_notice where outbox_id = ? and kind <> 'over') order by key, kind, name"
    )
    return _read_problems(db, query, (outbox_id,))


def is_about_critical(db: sqlite3.Connection, outbox_id: int) -> bool:
    """Whether a message is about a critical problem, or its end."""
    query = (
        "select 1 from problem_notice join problem on problem.id = problem_id where outbox_id = ?"
        " and problem.severity = 'critical' limit 1"
    )
    return db.execute(query, (outbox_id,)).fetchone() is not None


def unsettled_problems(db: sqlite3.Connection, kind: str | None = None, name: str | None = None) -> list[Problem]:
    """The problems of all subjects, or of those of one kind or name, that are not over or whose end is still to be sent."""
    return _read_problems(db, ALL_UNSETTLED, (kind, name))


def all_problems(db: sqlite3.Connection, *, also_over: bool = True) -> list[Problem]:
    """The problems of all subjects."""
    return _read_problems(db, "select * from problem" if also_over else "select * from problem where over_at is null", ())


def find_problem(db: sqlite3.Connection, subject: Subject, key: str | None = None) -> Problem | None:
    """The problem of a subject with this key, open or over; None if it never had any.

    A provider or channel has one problem at most, under a key that may change.
    """
    return next((each for each in problems_of(db, subject) if key in (None, each.key)), None)


def present_problem(found: Iterable[Problem]) -> Problem | None:
    """Of the problems of an agent or a job, the one that its latest runs have; None if it works."""
    going_on = (problem for problem in found if problem.over_at is None and not problem.is_reported)
    # That it is paused follows from its failures, which say why.
    return max(going_on, key=lambda problem: (problem.key != PAUSED, problem.last_seen_at, problem.count), default=None)


def get_problem(db: sqlite3.Connection, problem_id: int) -> Problem | None:
    """A problem by its number; None if it was deleted."""
    found = _read_problems(db, "select * from problem where id = ?", (problem_id,))
    return found[0] if found else None


def _read_problems(db: sqlite3.Connection, query: str, values: tuple[str | int | None, ...]) -> list[Problem]:
    rows = db.execute(query, values).fetchall()
    notices = _read_notices(db, [row["id"] for row in rows])
    return [_problem_from_row(row, notices.get(row["id"], {})) for row in rows]


def _read_notices(db: sqlite3.Connection, ids: Collection[int]) -> dict[int, dict[Target, ProblemNotice]]:
    found: dict[int, dict[Target, ProblemNotice]] = {}
    for row in db.execute(NOTICES, (json.dumps(list(ids)),)) if ids else ():
        told_at = from_millis(row["told_at"])
        arrived_at = from_optional_millis(row["finished_at"]) if row["parts"] else told_at
        found.setdefault(row["problem_id"], {})[Target(row["channel"], row["whom"])] = ProblemNotice(
            kind=Told(row["kind"]),
            severity=Severity(row["severity"]),
            at=told_at,
            faults=tuple(json.loads(row["faults"])),
            severity_before=Severity(row["severity_before"]) if row["severity_before"] else None,
            is_pending=bool(row["pending"]),
            is_lost=bool(row["dead"]),
            message_id=row["outbox_id"] if row["parts"] else None,
            delivered_at=arrived_at if row["delivered"] == row["parts"] else None,
            says=_delivery_text(row),
        )
    return found


def _delivery_text(row: sqlite3.Row) -> str:
    """Whether the last message to a recipient has arrived, which may have gone to a substitute."""
    delivered, state = row["delivered"], DeliveryState.DROPPED
    if delivered == row["parts"]:
        state = DeliveryState.DELIVERED
    elif row["dead"]:
        state = DeliveryState.DEAD
    elif row["pending"]:
        state = DeliveryState.PARTIAL if delivered else DeliveryState.PENDING
    target = Target(row["sent_on"] or row["channel"], (row["sent_to"] if row["sent_on"] else row["whom"]) or "")
    if row["awaits"] and row["awaits"] != FOR_HOURS and state is DeliveryState.PENDING:
        return hold_text(json.loads(row["awaits"]))
    return delivery_text(target.label, state, row["tries"] or 0, row["error"], doubted=row["doubted_at"] is not None)


def save_problem(tx: Transaction, problem: Problem) -> Problem:
    """Insert or update a problem, without its notices; returns it with its id. One that never opened and is over is deleted."""
    if problem.over_at is not None and not problem.openings:
        delete_problem(tx, problem.id)
        return replace(problem, id=0)
    acked = problem.acknowledgement
    values = [
        *problem.subject,
        *_values(problem.found, FOUND),
        *_values(problem, STATES),
        *_values(problem.evidence, EVIDENCE),
        *(_values(acked, ACKED) if acked else ("" if name == "by" else None for name in ACKED)),
    ]
    columns = dict(zip(COLUMNS, values, strict=True))
    if problem.id:
        update_row(tx.db, "problem", problem.id, **columns)
        return problem
    return replace(problem, id=insert_row(tx.db, "problem", columns, "returning id").fetchone()["id"])


def _values(part: object, names: Iterable[str]) -> list[object]:
    """What columns have of a part of a problem: times in milliseconds, and lists and sets as JSON."""
    found: list[object] = []
    for name in names:
        value = getattr(part, name)
        if isinstance(value, tuple | frozenset):
            items = sorted(value) if isinstance(value, frozenset) else value
            found.append(json.dumps([_item(each) for each in items]))
        else:
            found.append(to_millis(value) if isinstance(value, datetime) else value)
    return found


def _item(value: datetime | str | TrackedLine) -> object:
    if isinstance(value, datetime):
        return to_millis(value)
    return [value.name, value.form, value.forms] if isinstance(value, TrackedLine) else value


def save_notice(tx: Transaction, problem_id: int, target: Target, known: ProblemNotice, outbox_id: int | None) -> None:
    """Record what a recipient is being notified of. Without a message the last one stays the one that was sent."""
    message = {} if outbox_id is None else {"outbox_id": outbox_id}
    replace_row(
        tx.db,
        "problem_notice",
        {"problem_id": problem_id, "channel": target.channel, "whom": target.recipient},
        {
            "kind": known.kind, "severity": known.severity, "told_at": known.at, "faults": json.dumps(known.faults),
            "severity_before": known.severity_before, **message,
        },
    )  # fmt: skip


def note_lost_message(tx: Transaction, outbox_id: int) -> None:
    """Record that a message was given up. The ends of problems that it said are still to be sent.

    An end that needed no message has no `severity_before`, because its last message may be an earlier one that is lost later.
    """
    tx.db.execute(
        "update problem_notice set kind = ? where kind in (?, ?) and severity_before is not null and outbox_id in (select last.id"
        " from outbox as last join outbox as part on part.run_id = last.run_id and part.channel = last.channel"
        " and part.whom = last.whom and part.notice is not distinct from last.notice where part.id = ?)",
        (Told.LOST_END, Told.OVER, Told.LOST_END, outbox_id),
    )


def renew_notice(tx: Transaction, held: HeldMessage) -> None:
    """Count the interval of reminders from now on, because a delayed message is sent now."""
    tx.db.execute("update problem_notice set told_at = ? where outbox_id = ?", (to_millis(tx.now), held.last_id))


def has_unsettled(db: sqlite3.Connection, subject: Subject) -> bool:
    """Whether a problem of a subject is not over, or its end is still to be sent. In a tick without any, this takes no query."""
    query = "select exists (select 1 from problem where kind = ? and name = ? and part = ? and " + UNSETTLED + ")"  # noqa: S608
    return recall(db, IS_ANY_UNSETTLED, lambda rows: bool(rows[0][0])) and bool(db.execute(query, subject).fetchone()[0])


def entries_with_problems(db: sqlite3.Connection) -> frozenset[Key]:
    """The agents and jobs with a problem that is not over, or whose end is still to be sent."""
    rows = db.execute(
        "select kind, name from problem where over_at is null"
        " union select kind, name from problem where id in (select problem_id from problem_notice where kind <> 'over')"
    )
    return frozenset((Kind(row["kind"]), row["name"]) for row in rows if row["kind"] in tuple(Kind))


def delete_problem(tx: Transaction, problem_id: int) -> None:
    """Delete a problem and what was sent about it. Its consequences are no longer consequences."""
    tx.db.execute("delete from problem_notice where problem_id = ?", (problem_id,))
    tx.db.execute("delete from problem where id = ?", (problem_id,))


def delete_problems_of(tx: Transaction, subject: Subject) -> None:
    """Delete all problems of a subject that is gone."""
    for problem in problems_of(tx.db, subject):
        delete_problem(tx, problem.id)


def consequences_of(db: sqlite3.Connection, cause_id: int) -> list[tuple[str, str]]:
    """Kind and name of each agent and job that fails because of a problem."""
    query = "select distinct kind, name from problem where cause_id = ? and over_at is null order by kind desc, name"
    return [(row["kind"], row["name"]) for row in db.execute(query, (cause_id,))]


def release_consequences(tx: Transaction, cause_id: int, keep: Key) -> None:
    """Delete the problems that were only consequences and never sent, except that of `keep`, which is updated anyway."""
    tx.db.execute("delete from problem where cause_id = ? and openings = '[]' and not (kind = ? and name = ?)", (cause_id, *keep))


def failing_targets(db: sqlite3.Connection) -> frozenset[Target]:
    """The targets that do not take messages. One failing recipient does not make its channel useless for others."""
    rows = db.execute("select name, part from problem where kind = ? and over_at is null", (CHANNEL,))
    return frozenset(Target(*row) for row in rows)


def delete_problems_of_unused_circuits(tx: Transaction, planned: Iterable[Entry]) -> None:
    """Delete the problems of circuits that no entry uses, unless an affected entry has yet to show that it works."""
    for problem in unsettled_problems(tx.db, PROVIDER):
        is_used = any(entry.enabled and problem.subject.circuit in entry.circuits for entry in planned)
        if not is_used and not consequences_of(tx.db, problem.id):
            delete_problem(tx, problem.id)


def delete_problems_of_unused_channels(tx: Transaction, declared: Iterable[str]) -> None:
    """Delete the problems of channels and recipients that no message is sent to, and for which none waits any more.

    The config no longer declares the channel, or the recipient is no longer the last target of any agent, and has refused
    nothing for a day: a user may alternate between two places.
    """
    known = set(declared)
    waiting = "select 1 from outbox where channel = ? and whom = ? and state in ('pending', 'sending', 'uncertain', 'held')"
    last = "select 1 from target where channel = ? and whom = ? and id in (select max(id) from target group by name)"
    for problem in unsettled_problems(tx.db, CHANNEL):
        name, recipient = target = problem.subject[1:]
        is_old = bool(recipient) and problem.last_seen_at < tx.now - UNSTABLE_TIME
        is_used = name in known and not (is_old and tx.db.execute(last, target).fetchone() is None)
        if not is_used and tx.db.execute(waiting, target).fetchone() is None:
            delete_problem(tx, problem.id)


def delete_old_problems(tx: Transaction, keep: timedelta) -> None:
    """Delete problems that have been over for longer than their retention, and those of an agent above the limit.

    A problem is kept for a day at least, because it may open again.
    """
    before = to_millis(tx.now - max(keep, UNSTABLE_TIME))
    tx.db.execute("delete from problem where over_at < ?", (before,))
    tx.db.execute(
        "delete from problem where id in (select id from (select id, row_number() over (partition by name order by over_at desc)"
        " as place from problem where part = ? and over_at is not null) as ended where place > ?)",
        (REPORTED, MAX_KEPT),
    )
    tx.db.execute("delete from problem_notice where problem_id not in (select id from problem)")


def count_open(db: sqlite3.Connection) -> dict[tuple[Subject, str, bool], int]:
    """The number of open problems by subject, by severity, and by whether they are acknowledged; without covered ones."""
    rows = db.execute(
        "select kind, name, part, severity, acked_at is not null, count(*) from problem"
        " where over_at is null and opened_at is not null and cause_id is null group by 1, 2, 3, 4, 5"
    )
    return {(Subject(row[0], row[1], row[2]), row[3], bool(row[4])): row[5] for row in rows}


def oldest_unacknowledged(db: sqlite3.Connection) -> dict[Subject, datetime]:
    """Since when the oldest open problem of each subject lasts that is more than `info`, and that nobody has acknowledged."""
    rows = db.execute(
        "select kind, name, part, min(since) from problem where over_at is null and opened_at is not null and cause_id is null"
        " and acked_at is null and severity <> 'info' group by 1, 2, 3"
    )
    return {Subject(row[0], row[1], row[2]): from_millis(row[3]) for row in rows}


def _problem_from_row(row: sqlite3.Row, notices: dict[Target, ProblemNotice]) -> Problem:
    evidence = read_part(
        Evidence,
        row,
        "",
        lines=_read_lines(row["lines"]),
        senders=frozenset(_read_list(row["senders"], str)),
        jobs=frozenset(_read_list(row["jobs"], str)),
        aliases=tuple(_read_list(row["aliases"], str)),
        has_returned=False,
    )
    return read_part(
        Problem,
        row,
        "",
        subject=read_part(Subject, row, ""),
        found=read_part(Finding, row, ""),
        openings=tuple(from_millis(opened) for opened in _read_list(row["openings"], int)),
        evidence=evidence,
        acknowledgement=read_part(Acknowledgement, row, "acked_") if row["acked_at"] else None,
        notices=notices,
    )


def _read_list(text: str, item_type: type | UnionType) -> list[Any]:
    """A list in a column. What is damaged is left out, so that the rest can be used."""
    if text == "[]":  # most are; the comparison takes a fifteenth of the time of the JSON reader
        return []
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return [item for item in found if isinstance(item, item_type)] if isinstance(found, list) else []


def _read_lines(text: str) -> tuple[TrackedLine, ...]:
    """The lines in a column. An earlier version wrote a digest for each, without the figures."""
    found = [[each, "", 1] if isinstance(each, str) else each for each in _read_list(text, str | list)]
    return tuple(TrackedLine(*each) for each in found if [type(part) for part in each] == [str, str, int])
