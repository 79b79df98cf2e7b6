"""Keeps all problems, those that agents report and those that the daemon observes, and what each recipient last got."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import fields, replace
from datetime import datetime, timedelta

from heartbeat.findings import Severity
from scheduler.model.entry import Entry
from scheduler.model.outcome import DeliveryState, Key, Kind
from scheduler.model.problem import (
    CHANNEL,
    FALLBACK,
    PAUSED,
    PROVIDER,
    REPORTED,
    UNSTABLE_TIME,
    Acknowledgement,
    Evidence,
    Problem,
    ProblemNotice,
    Subject,
    Symptom,
    Told,
)
from scheduler.model.settings import Target
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store.outbox import HeldMessage, deliveries_of_messages, delivery_text
from scheduler.store.rows import insert_new, read_part, read_row, replace_row, update_row
from scheduler.store.transaction import Transaction, recall

MAX_KEPT = 500  # problems of an agent that are over; the oldest are deleted first

MORE_THAN_KEPT = f"select 1 from problem limit 1 offset {MAX_KEPT}"  # noqa: S608

# The problems that matter for the next look: they are not over, or a recipient is still to be notified of their end.
UNSETTLED = (
    "(over_at is null or exists (select 1 from problem_notice where problem_id = problem.id and problem_notice.kind <> 'over'))"
)

ALL_UNSETTLED = (
    "select * from problem where " + UNSETTLED + " and coalesce(?, kind) = kind"  # noqa: S608
    " and coalesce(?, name) = name order by kind, name, part, key"
)
# The subjects of unsettled problems, some twice, from two small indexes: most problems are over, and their recipients know it.
# With more rows than this, each subject is queried by itself: each change of a problem makes the next call read all rows again.
MAX_RECALLED = 50
SOME_UNSETTLED = (
    "select kind, name, part from problem where over_at is null union all select kind, name, part from problem"  # noqa: S608
    f" where id in (select problem_id from problem_notice where kind <> 'over') limit {MAX_RECALLED + 1}"
)

NOTICES = """
select * from problem_notice where problem_id in (select cast(value as bigint) from json_each(?))
order by problem_id, channel, whom
"""

FOUND = tuple(each.name for each in fields(Symptom))
STATES = ("count", "since", "last_seen_at", "opened_at", "over_at", "ended_by", "openings")
EVIDENCE = tuple(each.name for each in fields(Evidence) if each.name != "has_returned")
ACKED = tuple(each.name for each in fields(Acknowledgement))
NOT_ACKED = {"by": ""}  # the columns that are never null


def problems_of(db: sqlite3.Connection, subject: Subject) -> list[Problem]:
    """All problems of a subject, also those that are over, by key."""
    return _read_problems(db, "select * from problem where kind = ? and name = ? and part = ? order by key", *subject)


def open_reports_of(db: sqlite3.Connection, agent: str, kind: Kind = Kind.HEARTBEAT) -> list[Problem]:
    """The open problems that an agent, or the agent of a job, reports, the most severe and the latest first."""
    query = "select * from problem where kind = ? and name = ? and part = ? and over_at is null"
    subject = Subject.of_reports(agent, kind)
    return sorted(_read_problems(db, query, *subject), key=_urgency) if has_unsettled(db, subject) else []


def _urgency(problem: Problem) -> tuple[int, int, str]:
    return -problem.found.severity.rank, -to_millis(problem.last_seen_at), problem.key


def reports_about(db: sqlite3.Connection, job: str) -> list[Problem]:
    """The open problems that agents report about this job, or that came with its wake, by agent."""
    query = "select * from problem where part = 'reported' and over_at is null and (jobs <> '[]' or senders <> '[]')"
    found = _read_problems(db, query)
    sender = sender_of_job(job)
    about = (each for each in found if job in each.evidence.jobs or sender in each.evidence.senders)
    return sorted(about, key=lambda each: (each.subject.name, *_urgency(each)))


def sender_of_job(job: str) -> str:
    """The job as the sender of a wake, as `Evidence.senders` has it."""
    return f"{Kind.CRON.value}:{job}"


def problems_in_message(db: sqlite3.Connection, outbox_id: int) -> list[Problem]:
    """The open problems that a message was the last to report to its recipient."""
    query = (
        "select * from problem where over_at is null and id in"
        " (select problem_id from problem_notice where outbox_id = ? and kind <> 'over') order by key, kind, name"
    )
    return _read_problems(db, query, outbox_id)


def is_about_critical(db: sqlite3.Connection, outbox_id: int) -> bool:
    """Whether a message is about a critical problem, or its end."""
    query = "select * from problem where id in (select problem_id from problem_notice where outbox_id = ?)"
    return any(each.found.severity is Severity.CRITICAL for each in _read_problems(db, query, outbox_id))


def unsettled_problems(db: sqlite3.Connection, kind: str | None = None, name: str | None = None) -> list[Problem]:
    """The problems of all subjects, or of those of one kind or name, that are not over or whose end is still to be sent."""
    return _read_problems(db, ALL_UNSETTLED, kind, name)


def all_problems(db: sqlite3.Connection, *, also_over: bool = True) -> list[Problem]:
    """The problems of all subjects, by number."""
    found = _read_problems(db, "select * from problem" if also_over else "select * from problem where over_at is null")
    return sorted(found, key=lambda each: each.id)  # with `order by id`, SQLite would not use the index of those not over


def find_problem(db: sqlite3.Connection, subject: Subject, key: str | None = None) -> Problem | None:
    """The problem of a subject with this key, open or over; None if it never had any.

    A provider or channel has one problem at most, under a key that may change.
    """
    return next((each for each in problems_of(db, subject) if key in (None, each.key)), None)


def find_unsettled(db: sqlite3.Connection, subject: Subject) -> Problem | None:
    """The problem of a provider or a channel; None if it has none, or all know that it is over. Usually that takes no query."""
    return find_problem(db, subject) if has_unsettled(db, subject) else None


def present_problem(found: Iterable[Problem]) -> Problem | None:
    """Of the problems of an agent or a job, the one that its latest runs have; None if it works."""
    own = (problem for problem in found if problem.over_at is None and not problem.is_reported)
    going_on = (problem for problem in own if problem.key != FALLBACK)  # with a fallback, it works
    # That it is paused follows from its failures, which say why.
    return max(going_on, key=lambda problem: (problem.key != PAUSED, problem.last_seen_at, problem.count), default=None)


def get_problem(db: sqlite3.Connection, problem_id: int) -> Problem | None:
    """A problem by its number; None if it was deleted."""
    return next(iter(_read_problems(db, "select * from problem where id = ?", problem_id)), None)


def _read_problems(db: sqlite3.Connection, query: str, *values: str | int | None) -> list[Problem]:
    rows = db.execute(query, values).fetchall()
    notices = _read_notices(db, [row["id"] for row in rows])
    return [_problem_from_row(row, notices.get(row["id"], {})) for row in rows]


def _read_notices(db: sqlite3.Connection, ids: Collection[int]) -> dict[int, dict[Target, ProblemNotice]]:
    """The last news to each recipient. Without a message, or after it was deleted, the news count as delivered."""
    found: dict[int, dict[Target, ProblemNotice]] = {}
    rows = db.execute(NOTICES, (json.dumps(list(ids)),)).fetchall() if ids else []
    sent = deliveries_of_messages(db, {row["outbox_id"] for row in rows if row["outbox_id"]})
    for row in rows:
        target, at = Target(row["channel"], row["whom"]), from_millis(row["told_at"])
        arrived = delivery_text(target.label, DeliveryState.DELIVERED, 0, None, doubted=False)
        known = read_row(ProblemNotice, row, at=at, delivered_at=at, says=arrived)
        if delivery := sent.get(row["outbox_id"]):  # it may have gone to a substitute
            known = replace(
                known,
                is_pending=delivery.is_pending,
                is_lost=delivery.is_lost,
                message_id=row["outbox_id"],
                delivered_at=delivery.delivered_at,
                says=delivery.text,
            )
        found.setdefault(row["problem_id"], {})[target] = known
    return found


def save_problem(tx: Transaction, problem: Problem) -> Problem:
    """Insert or update a problem, without its notices; returns it with its id. One that never opened and is over is deleted."""
    if problem.over_at is not None and not problem.openings:
        delete_problem(tx, problem.id)
        return replace(problem, id=0)
    acked = problem.acknowledgement
    columns = {
        **problem.subject._asdict(),
        **_columns(problem.found, FOUND),
        **_columns(problem, STATES),
        **_columns(problem.evidence, EVIDENCE),
        **{f"acked_{name}": getattr(acked, name) if acked else NOT_ACKED.get(name) for name in ACKED},
    }
    if problem.id:
        update_row(tx.db, "problem", problem.id, **columns)
        return problem
    problem_id = insert_new(tx.db, "problem", columns)
    assert problem_id is not None
    return replace(problem, id=problem_id)


def _columns(part: object, names: Iterable[str]) -> dict[str, object]:
    return {name: getattr(part, name) for name in names}


def save_notice(tx: Transaction, problem_id: int, target: Target, known: ProblemNotice, outbox_id: int | None) -> None:
    """Record what a recipient is being notified of. Without a message the last one stays the one that was sent."""
    message = {} if outbox_id is None else {"outbox_id": outbox_id}
    replace_row(
        tx.db,
        "problem_notice",
        {"problem_id": problem_id, "channel": target.channel, "whom": target.recipient},
        {
            "kind": known.kind, "severity": known.severity, "told_at": known.at, "faults": known.faults,
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


def is_any_unsettled(db: sqlite3.Connection) -> bool:
    """Whether any problem is not over, or its end is still to be sent."""
    return bool(recall(db, SOME_UNSETTLED, _tuples))


def has_unsettled(db: sqlite3.Connection, subject: Subject) -> bool:
    """Whether a problem of a subject is not over, or its end is still to be sent. One query answers for all if they are few."""
    some = recall(db, SOME_UNSETTLED, _tuples)
    if len(some) <= MAX_RECALLED:
        return subject in some
    query = "select exists (select 1 from problem where kind = ? and name = ? and part = ? and " + UNSETTLED + ")"  # noqa: S608
    return bool(db.execute(query, subject).fetchone()[0])


def _tuples(rows: list[sqlite3.Row]) -> list[tuple[str, ...]]:
    return [*map(tuple, rows)]


def entries_with_problems(db: sqlite3.Connection) -> frozenset[Key]:
    """The agents and jobs with a problem that is not over, or whose end is still to be sent."""
    rows = db.execute(
        "select kind, name from problem where over_at is null"
        " union select kind, name from problem where id in (select problem_id from problem_notice where kind <> 'over')"
    )
    return frozenset((Kind(row["kind"]), row["name"]) for row in rows if row["kind"] in tuple(Kind))


def delete_problem(tx: Transaction, problem_id: int) -> None:
    """Delete a problem and what was sent about it."""
    tx.db.execute("delete from problem_notice where problem_id = ?", (problem_id,))
    tx.db.execute("delete from problem where id = ?", (problem_id,))


def delete_problems_of(tx: Transaction, subject: Subject) -> None:
    """Delete all problems of a subject that is gone."""
    for problem in problems_of(tx.db, subject):
        delete_problem(tx, problem.id)


def consequences_of(db: sqlite3.Connection, cause_id: int) -> list[tuple[str, str]]:
    """Kind and name of each agent and job that fails because of a problem."""
    query = "select distinct kind, name from problem where cause_id = ? order by kind desc, name"
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
    if recall(tx.db, MORE_THAN_KEPT, bool):  # else no agent has too many, and the statement takes 150 µs
        tx.db.execute(
            "delete from problem where id in (select id from"
            " (select id, row_number() over (partition by kind, name order by over_at desc) as place from problem"
            " where part = ? and over_at is not null) as ended where place > ?)",
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
    return read_part(
        Problem,
        row,
        "",
        subject=read_part(Subject, row, ""),
        found=read_part(Symptom, row, ""),
        evidence=read_part(Evidence, row, "", has_returned=False),
        acknowledgement=read_part(Acknowledgement, row, "acked_") if row["acked_at"] else None,
        notices=notices,
    )
