"""Keeps the problems of agents, jobs, providers and channels, and what each recipient was last notified of."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable
from datetime import timedelta

from heartbeat.findings import Severity
from scheduler.model.entry import Entry, Key
from scheduler.model.outcome import DeliveryState
from scheduler.model.problem import CHANNEL, PROVIDER, UNSTABLE_TIME, Finding, Problem, ProblemNotice, Subject, Told
from scheduler.model.settings import Target
from scheduler.model.timestamps import from_millis, from_optional_millis, to_millis, to_optional_millis
from scheduler.store.outbox import HeldNotice, delivery_text
from scheduler.store.transaction import Transaction

# The problems that matter for the next look: they are not over, or a recipient is still to be notified of their end.
UNSETTLED = (
    "(over_at is null or exists (select 1 from problem_notice where problem_id = problem.id and problem_notice.kind <> 'over'))"
)

ALL_UNSETTLED = (
    "select * from problem where " + UNSETTLED + " and coalesce(?, kind) = kind"  # noqa: S608
    " and coalesce(?, name) = name order by kind, name, part, key"
)
COUNT_UNSETTLED = (
    "update entry set troubles = (select count(*) from problem where problem.kind = entry.kind"  # noqa: S608
    " and problem.name = entry.name and " + UNSETTLED + ") where kind = ? and name = ?"
)

# The last message to each recipient, with the states of its parts. A message that was deleted had arrived.
NOTICES = """
select told.problem_id, told.channel, told.whom, told.kind, told.severity, told.told_at, told.faults, told.known,
  count(part.id) as parts, sum(part.state = 'delivered') as delivered, sum(part.state = 'dead') as dead,
  sum(part.state in ('pending', 'sending', 'uncertain', 'held')) as pending, max(part.finished_at) as finished_at,
  max(part.attempts) as tries, max(case when part.state <> 'delivered' then part.error end) as error,
  max(last.channel) as sent_on, max(last.whom) as sent_to, max(part.doubted_at) as doubted_at
from problem_notice as told left join outbox as last on last.id = told.outbox_id
left join outbox as part on part.run_id = last.run_id and part.channel = last.channel and part.whom = last.whom
  and part.notice is not distinct from last.notice
where told.problem_id in (select cast(value as bigint) from json_each(?))
group by told.problem_id, told.channel, told.whom, told.kind, told.severity, told.told_at, told.faults, told.known
order by told.problem_id, told.channel, told.whom
"""


def problems_of(db: sqlite3.Connection, kind: str, name: str) -> list[Problem]:
    """All problems of a subject and its parts, also those that are over, by part and key."""
    return _read_problems(db, "select * from problem where kind = ? and name = ? order by part, key", (kind, name))


def unsettled_problems(db: sqlite3.Connection, kind: str | None = None, name: str | None = None) -> list[Problem]:
    """The problems of all subjects, or of those of one kind or name, that are not over or whose end is still to be sent."""
    return _read_problems(db, ALL_UNSETTLED, (kind, name))


def all_problems(db: sqlite3.Connection) -> list[Problem]:
    """The problems of all subjects, also those that are over."""
    return _read_problems(db, "select * from problem", ())


def find_problem(db: sqlite3.Connection, subject: Subject) -> Problem | None:
    """The problem of a provider or a channel, which has one at most, under a key that may change; None if it never had any."""
    found = _read_problems(db, "select * from problem where kind = ? and name = ? and part = ?", subject)
    return found[0] if found else None


def present_problem(found: Iterable[Problem]) -> Problem | None:
    """Of the problems of an agent or a job, the one that its latest runs have; None if it works."""
    going_on = (problem for problem in found if problem.over_at is None)
    return max(going_on, key=lambda problem: (problem.last_seen_at, problem.count), default=None)


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
            is_known=bool(row["known"]),
            is_pending=bool(row["pending"]),
            is_lost=bool(row["dead"]),
            delivered_at=arrived_at if (row["delivered"] or 0) == row["parts"] else None,
            says=_delivery_text(row),
        )
    return found


def _delivery_text(row: sqlite3.Row) -> str:
    """Whether the last message to a recipient has arrived, which may have gone to a substitute."""
    delivered, state = row["delivered"] or 0, DeliveryState.DROPPED
    if delivered == row["parts"]:
        state = DeliveryState.DELIVERED
    elif row["dead"]:
        state = DeliveryState.DEAD
    elif row["pending"]:
        state = DeliveryState.PARTIAL if delivered else DeliveryState.PENDING
    target = Target(row["sent_on"] or row["channel"], (row["sent_to"] if row["sent_on"] else row["whom"]) or "")
    return delivery_text(target.label, state, row["tries"] or 0, row["error"], doubted=row["doubted_at"] is not None)


def save_problem(tx: Transaction, problem: Problem) -> int:
    """Insert or update a problem, without its notices; returns its id. One that never opened and is over is deleted."""
    if problem.subject.kind == PROVIDER:
        tx.open_breakers = None  # they are cached together with the circuits that were unstable
    if problem.over_at is not None and not problem.openings:
        delete_problem(tx, problem.id)
        return 0
    found = problem.found
    values = (
        *problem.subject, found.key, found.severity, found.text, found.reason, found.fault, found.cause_id, problem.count,
        to_millis(problem.since), to_millis(problem.last_seen_at), to_optional_millis(problem.opened_at),
        to_optional_millis(problem.over_at), json.dumps([to_millis(opened) for opened in problem.openings]),
    )  # fmt: skip
    if problem.id:
        tx.db.execute(
            "update problem set kind = ?, name = ?, part = ?, key = ?, severity = ?, text = ?, reason = ?, fault = ?,"
            " cause_id = ?, count = ?, since = ?, last_seen_at = ?, opened_at = ?, over_at = ?, openings = ? where id = ?",
            (*values, problem.id),
        )
        return problem.id
    row = tx.db.execute(
        "insert into problem (kind, name, part, key, severity, text, reason, fault, cause_id, count, since, last_seen_at,"
        " opened_at, over_at, openings) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) returning id",
        values,
    ).fetchone()
    return int(row["id"])


def save_notice(tx: Transaction, problem_id: int, target: Target, known: ProblemNotice, outbox_id: int | None) -> None:
    """Record what a recipient is being notified of. Without a message the last one stays the one that was sent."""
    tx.db.execute(
        "insert into problem_notice (problem_id, channel, whom, kind, severity, told_at, faults, known, outbox_id)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (problem_id, channel, whom) do update set kind = excluded.kind,"
        " severity = excluded.severity, told_at = excluded.told_at, faults = excluded.faults, known = excluded.known,"
        " outbox_id = coalesce(excluded.outbox_id, problem_notice.outbox_id)",
        (
            problem_id, target.channel, target.recipient, known.kind, known.severity, to_millis(known.at),
            json.dumps(known.faults), int(known.is_known), outbox_id,
        ),
    )  # fmt: skip


def renew_notice(tx: Transaction, held: HeldNotice) -> None:
    """Count the interval of reminders from now on, because a delayed message is sent now."""
    tx.db.execute(
        "update problem_notice set told_at = ? where channel = ? and whom = ? and outbox_id in"
        " (select id from outbox where run_id = ? and notice = ? and name = ?)",
        (to_millis(tx.now), held.target.channel, held.target.recipient, held.run_id, held.notice, held.name),
    )


def delete_problem(tx: Transaction, problem_id: int) -> None:
    """Delete a problem and what was sent about it. Its consequences are no longer consequences."""
    tx.open_breakers = None
    tx.db.execute("delete from problem_notice where problem_id = ?", (problem_id,))
    tx.db.execute("delete from problem where id = ?", (problem_id,))


def delete_problems_of(tx: Transaction, kind: str, name: str) -> None:
    """Delete all problems of a subject that is gone."""
    for problem in problems_of(tx.db, kind, name):
        delete_problem(tx, problem.id)


def consequences_of(db: sqlite3.Connection, cause_id: int) -> list[tuple[str, str]]:
    """Kind and name of each agent and job that fails because of a problem."""
    query = "select distinct kind, name from problem where cause_id = ? and over_at is null order by kind desc, name"
    return [(row["kind"], row["name"]) for row in db.execute(query, (cause_id,))]


def release_consequences(tx: Transaction, cause_id: int, keep: Key) -> None:
    """Delete the problems that were only consequences and never sent, except that of `keep`, which is updated anyway."""
    released = tx.db.execute(
        "delete from problem where cause_id = ? and openings = '[]' and not (kind = ? and name = ?) returning kind, name",
        (cause_id, *keep),
    ).fetchall()
    tx.db.executemany(COUNT_UNSETTLED, [tuple(row) for row in released])


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


def delete_problems_of_undeclared_channels(tx: Transaction, declared: Iterable[str]) -> None:
    """Delete the problems of channels that the config no longer declares."""
    known = set(declared)
    for problem in unsettled_problems(tx.db, CHANNEL):
        if problem.subject.name not in known:
            delete_problem(tx, problem.id)


def delete_old_problems(tx: Transaction, keep: timedelta) -> None:
    """Delete problems that have been over for longer than their retention, at least for a day: they may open again."""
    before = to_millis(tx.now - max(keep, UNSTABLE_TIME))
    tx.db.execute("delete from problem where over_at < ?", (before,))
    tx.db.execute("delete from problem_notice where problem_id not in (select id from problem)")


def _problem_from_row(row: sqlite3.Row, notices: dict[Target, ProblemNotice]) -> Problem:
    return Problem(
        subject=Subject(row["kind"], row["name"], row["part"]),
        found=Finding(row["key"], Severity(row["severity"]), row["text"], row["reason"], row["fault"], row["cause_id"]),
        since=from_millis(row["since"]),
        last_seen_at=from_millis(row["last_seen_at"]),
        count=row["count"],
        opened_at=from_optional_millis(row["opened_at"]),
        over_at=from_optional_millis(row["over_at"]),
        openings=tuple(from_millis(opened) for opened in json.loads(row["openings"])),
        id=row["id"],
        notices=notices,
    )
