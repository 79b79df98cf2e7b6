"""Keeps the conditions of agents, and what each target was last notified of."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from types import UnionType
from typing import Any

from heartbeat.evidence import TrackedLine
from heartbeat.findings import Severity
from heartbeatd import answers
from scheduler.model.condition import FLAPPING_TIME, Acknowledgement, Condition, ConditionReport, EndedBy, ReportKind
from scheduler.model.outcome import Kind
from scheduler.model.settings import Target
from scheduler.model.timestamps import from_millis, from_optional_millis, to_millis
from scheduler.store import outbox
from scheduler.store.transaction import Transaction

MAX_KEPT_CLOSED = 500  # closed conditions of an agent; the oldest are deleted first


def conditions_of(db: sqlite3.Connection, name: str) -> list[Condition]:
    """All conditions of an agent, open and closed, with what was reported of them.

    The most important come first. Those of the same severity and time are in the order of their keys.
    """
    found = _read_conditions(db, "select * from condition where name = ? order by key", (name,))
    return sorted(
        found, key=lambda condition: (not condition.is_open, -condition.severity.rank, -to_millis(condition.last_seen_at))
    )


def all_conditions(db: sqlite3.Connection) -> list[Condition]:
    """The conditions of all agents, open and closed, by agent and key."""
    return _read_conditions(db, "select * from condition order by name, key", ())


def _read_conditions(db: sqlite3.Connection, query: str, values: tuple[str, ...]) -> list[Condition]:
    rows = db.execute(query, values).fetchall()
    reports = _read_reports(db, [row["id"] for row in rows])
    return [_condition_from_row(row, reports.get(row["id"], {})) for row in rows]


REPORTS = """
select report.*, outbox.id as message_id, outbox.run_id from condition_report as report
left join outbox on outbox.id = report.outbox_id
where condition_id in (select cast(value as bigint) from json_each(?)) order by condition_id, report.channel, report.whom
"""


def _read_reports(db: sqlite3.Connection, condition_ids: Collection[int]) -> dict[int, dict[Target, ConditionReport]]:
    """What was reported of these conditions, by target, and whether it has arrived. A message that was deleted had arrived."""
    rows = db.execute(REPORTS, (json.dumps(list(condition_ids)),)).fetchall()
    deliveries = outbox.deliveries_of_runs(db, {row["run_id"] for row in rows if row["run_id"] is not None})
    found: dict[int, dict[Target, ConditionReport]] = {}
    for row in rows:
        target = Target(row["channel"], row["whom"])
        sent = next((each for each in deliveries.get(row["run_id"], ()) if each.target == target), None)
        queued_at = from_millis(row["reported_at"])
        found.setdefault(row["condition_id"], {})[target] = ConditionReport(
            kind=ReportKind(row["kind"]),
            severity=Severity(row["severity"]),
            at=queued_at,
            message_id=row["message_id"],
            delivered_at=sent.delivered_at if sent else queued_at,
            is_pending=sent is not None and sent.is_pending,
            is_lost=sent is not None and sent.is_lost,
            says=sent.text if sent else f"delivered to {target.label}",
        )
    return found


def keys_of_message(db: sqlite3.Connection, outbox_id: int) -> list[str]:
    """The keys of the open conditions that a message was the last to report."""
    rows = db.execute(
        "select key from condition join condition_report on condition_id = condition.id"
        " where outbox_id = ? and condition.state = 'open' and kind <> 'ended' order by key",
        (outbox_id,),
    )
    return [row["key"] for row in rows]


def open_conditions_of(db: sqlite3.Connection, name: str) -> list[Condition]:
    """The open conditions of an agent, the most important first."""
    return [condition for condition in conditions_of(db, name) if condition.is_open]


def agents_with_conditions_of_job(db: sqlite3.Connection, job: str) -> list[str]:
    """The agents that have an open condition about this job, or one that came with its wake."""
    rows = db.execute(
        "select distinct name from condition where state = 'open' and (jobs <> '[]' or senders <> '[]')"
        " and (? in (select value from json_each(case when json_valid(jobs) then jobs else '[]' end))"
        " or ? in (select value from json_each(case when json_valid(senders) then senders else '[]' end))) order by name",
        (job, sender_of_job(job)),
    )
    return [row["name"] for row in rows.fetchall()]


def sender_of_job(job: str) -> str:
    """The job as the sender of a wake, as `Condition.senders` has it."""
    return f"{Kind.CRON.value}:{job}"


def save_condition(tx: Transaction, condition: Condition) -> int:
    """Insert or update a condition; returns its id."""
    acked = condition.acknowledgement
    values = (
        condition.label, condition.severity, condition.text, "open" if condition.is_open else "closed",
        to_millis(condition.opened_at), to_millis(condition.last_seen_at),
        to_millis(condition.closed_at) if condition.closed_at else None, condition.ended_by, condition.missed,
        condition.wrongly_closed, json.dumps([to_millis(opened) for opened in condition.openings]),
        json.dumps([[line.name, line.form, line.forms] for line in condition.lines]),
        json.dumps(sorted(condition.senders)), json.dumps(sorted(condition.jobs)),
        condition.first_run_id, condition.last_run_id,
        *((to_millis(acked.at), acked.severity, acked.by) if acked else (None, None, "")),
        json.dumps(condition.aliases),
    )  # fmt: skip
    row = tx.db.execute(
        "insert into condition (label, severity, text, state, opened_at, last_seen_at, closed_at, ended_by, missed,"
        " wrongly_closed, openings, lines, senders, jobs, first_run_id, last_run_id, acked_at, acked_severity, acked_by, aliases,"
        " name, key)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (name, key) do update set"
        " label = excluded.label, severity = excluded.severity, text = excluded.text, state = excluded.state,"
        " opened_at = excluded.opened_at, last_seen_at = excluded.last_seen_at, closed_at = excluded.closed_at,"
        " ended_by = excluded.ended_by, missed = excluded.missed, wrongly_closed = excluded.wrongly_closed,"
        " openings = excluded.openings, lines = excluded.lines, senders = excluded.senders, jobs = excluded.jobs,"
        " first_run_id = excluded.first_run_id, last_run_id = excluded.last_run_id, acked_at = excluded.acked_at,"
        " acked_severity = excluded.acked_severity, acked_by = excluded.acked_by, aliases = excluded.aliases returning id",
        (*values, condition.name, condition.key),
    ).fetchone()
    return int(row["id"])


def save_report(
    tx: Transaction, condition_id: int, target: Target, kind: ReportKind, severity: Severity, message: int | None
) -> None:
    """Record what a target is being notified of.

    Without a `message` nothing is sent. The time of the report is now, too, and the last message stays the one that was sent.
    """
    tx.db.execute(
        "insert into condition_report (condition_id, channel, whom, kind, severity, reported_at, outbox_id)"
        " values (?, ?, ?, ?, ?, ?, ?) on conflict (condition_id, channel, whom) do update set kind = excluded.kind,"
        " severity = excluded.severity, reported_at = excluded.reported_at,"
        " outbox_id = coalesce(excluded.outbox_id, condition_report.outbox_id)",
        (condition_id, target.channel, target.recipient, kind, severity, to_millis(tx.now), message),
    )


def end_reports(tx: Transaction, condition_id: int, *, also_flapping: bool) -> None:
    """Record the end of a condition for all targets, or only for those that do not know it as flapping. Nothing is sent."""
    tx.db.execute(
        "update condition_report set kind = 'ended' where condition_id = ? and (kind <> 'flapping' or ? = 1)",
        (condition_id, also_flapping),
    )


def delete_old_conditions(tx: Transaction, keep: timedelta) -> None:
    """Delete closed conditions after their retention, and those above the limit of their agent.

    A condition is kept for a day at least, because a condition that opens again within a day may flap.
    """
    before = to_millis(tx.now - max(keep, FLAPPING_TIME))
    tx.db.execute("delete from condition where closed_at < ?", (before,))
    tx.db.execute(
        "delete from condition where id in (select id from (select id, row_number() over (partition by name"
        " order by closed_at desc) as place from condition where state = 'closed') as closed where place > ?)",
        (MAX_KEPT_CLOSED,),
    )
    tx.db.execute("delete from condition_report where condition_id not in (select id from condition)")


def list_conditions(
    db: sqlite3.Connection, names: Iterable[str] | None = None, *, closed: bool = False
) -> list[answers.Condition]:
    """Conditions by agent, the most important first; with `closed` the closed ones too. None: of all agents."""
    wanted = None if names is None else json.dumps(list(names))
    rows = db.execute(
        "select * from condition where (cast(? as text) is null or name in (select value from json_each(?)))"
        " and (? = 1 or state = 'open')"
        " order by name, state = 'closed', case severity when 'critical' then 0 when 'warning' then 1 else 2 end,"
        " last_seen_at desc, id",
        (wanted, wanted, closed),
    ).fetchall()
    reports = _read_reports(db, [row["id"] for row in rows])
    return [_read_condition(row, reports.get(row["id"], {})) for row in rows]


def count_open(db: sqlite3.Connection) -> dict[tuple[str, str, bool], int]:
    """The number of open conditions by agent, by severity, and by whether a person has acknowledged them."""
    rows = db.execute(
        "select name, severity, acked_at is not null, count(*) from condition where state = 'open' group by 1, 2, 3"
    )
    return {(row[0], row[1], bool(row[2])): row[3] for row in rows}


def _read_list(text: str, item_type: type | UnionType) -> list[Any]:
    """A list in a column. What is damaged is left out, so that the rest can be used."""
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return [item for item in found if isinstance(item, item_type)] if isinstance(found, list) else []


def _read_lines(text: str) -> tuple[TrackedLine, ...]:
    """The lines in a column. An earlier version wrote a digest for each, without the figures."""
    found = [[each, "", 1] if isinstance(each, str) else each for each in _read_list(text, str | list)]
    return tuple(TrackedLine(*each) for each in found if [type(part) for part in each] == [str, str, int])


def _condition_from_row(row: sqlite3.Row, reports: dict[Target, ConditionReport]) -> Condition:
    return Condition(
        name=row["name"],
        key=row["key"],
        label=row["label"],
        severity=Severity(row["severity"]),
        text=row["text"],
        opened_at=from_millis(row["opened_at"]),
        last_seen_at=from_millis(row["last_seen_at"]),
        first_run_id=row["first_run_id"],
        last_run_id=row["last_run_id"],
        id=row["id"],
        closed_at=from_optional_millis(row["closed_at"]),
        ended_by=EndedBy(row["ended_by"]) if row["ended_by"] else None,
        missed=row["missed"],
        wrongly_closed=row["wrongly_closed"],
        openings=tuple(from_millis(opened) for opened in _read_list(row["openings"], int)),
        lines=_read_lines(row["lines"]),
        senders=frozenset(_read_list(row["senders"], str)),
        jobs=frozenset(_read_list(row["jobs"], str)),
        aliases=tuple(_read_list(row["aliases"], str)),
        acknowledgement=Acknowledgement(from_millis(row["acked_at"]), Severity(row["acked_severity"]), row["acked_by"])
        if row["acked_severity"]
        else None,
        reports=reports,
    )


def _read_condition(row: sqlite3.Row, reports: Mapping[Target, ConditionReport]) -> answers.Condition:
    now_open = row["state"] == "open"
    return answers.Condition(
        name=row["name"],
        key=row["label"],
        severity=row["severity"],
        state=row["state"],
        text=row["text"],
        opened_at=from_millis(row["opened_at"]),
        last_seen_at=from_millis(row["last_seen_at"]),
        closed_at=from_optional_millis(row["closed_at"]),
        ended_by=row["ended_by"],
        missed=row["missed"] if now_open else 0,
        acknowledged_at=from_optional_millis(row["acked_at"]) if now_open else None,
        acknowledged_by=(row["acked_by"] or None) if now_open else None,
        openings=[from_millis(opened) for opened in _read_list(row["openings"], int)],
        first_run=row["first_run_id"],
        last_run=row["last_run_id"],
        reports=[_read_report(target, report) for target, report in reports.items()],
    )


def _read_report(target: Target, report: ConditionReport) -> answers.ConditionReport:
    recipient = {"target": target.recipient} if target.recipient else {}
    return answers.ConditionReport(
        channel=target.channel,
        kind=report.kind,
        severity=report.severity.value,
        reported_at=report.delivered_at,
        says=report.says,
        **recipient,
    )
