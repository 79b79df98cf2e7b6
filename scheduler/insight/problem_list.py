"""Lists everything that is wrong: the problems that the daemon found, and the conditions that agents reported."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Mapping
from datetime import datetime

from heartbeat.findings import Severity
from heartbeatd import answers
from heartbeatd.answers import EntryName, ProblemNotice
from scheduler.model.condition import Condition, ConditionReport, ReportKind
from scheduler.model.entry import Key
from scheduler.model.outcome import Kind
from scheduler.model.problem import Problem, Told
from scheduler.model.problem import ProblemNotice as KnownNotice
from scheduler.model.settings import Target
from scheduler.store import conditions, problems

NUMBER = re.compile("p[0-9]+")

# What was last sent about a condition, in the words for problems.
TOLD_BY_REPORT: Mapping[ReportKind, Told] = {
    ReportKind.OPEN: Told.OPEN,
    ReportKind.FLAPPING: Told.UNSTABLE,
    ReportKind.ENDED: Told.OVER,
}


def list_problems(db: sqlite3.Connection, now: datetime) -> list[answers.Problem]:
    """All problems and conditions: those that are over come last, and the most severe first."""
    found = problems.all_problems(db)
    listed = [_problem_of_daemon(each, found, now) for each in found]
    listed += [_problem_of_agent(each, now) for each in conditions.all_conditions(db)]
    return sorted(listed, key=lambda each: (each.over is not None, -Severity(each.severity).rank, each.since, each.subject))


def choose_problems(
    found: Collection[answers.Problem], named: str | None, known: Collection[Key], *, also_over: bool
) -> list[answers.Problem]:
    """Those that have a number (in any state), or are those of a subject, or all. Others are left out if they were not reported.

    Raises LookupError with a noun for an unknown number, or for a name that neither a problem nor one of the `known` entries has.
    """
    named_ones = [each for each in found if named is None or named in _names_of(each)]
    if named and not named_ones and not any(named in (name, kind.label_of(name)) for kind, name in known):
        raise LookupError(f"problem {named}" if NUMBER.fullmatch(named) else f"agent, job or problem {named!r}")
    return [each for each in named_ones if also_over or each.number == named or each.state in ("open", "covered")]


def _names_of(problem: answers.Problem) -> tuple[str | None, ...]:
    return problem.number, problem.subject, problem.subject.partition("/")[2]


def _problem_of_daemon(problem: Problem, found: Collection[Problem], now: datetime) -> answers.Problem:
    subject, cause_id = problem.subject, problem.found.cause_id
    kind = Kind(subject.kind) if subject.kind in tuple(Kind) else None
    return answers.Problem(
        number=problem.number,
        subject=subject.label,
        kind=kind.value if kind else None,
        name=subject.name if kind else None,
        key=problem.key,
        severity=problem.found.severity.value,
        text=problem.found.text,
        state="over" if problem.over_at else "covered" if cause_id else "open" if problem.is_open else "seen",
        since=problem.since,
        over=problem.over_at,
        unstable=problem.is_unstable(now),
        cause=next((each.number for each in found if each.id == cause_id), None),
        affects=[
            EntryName(kind=Kind(each.subject.kind).value, name=each.subject.name)
            for each in found
            if each.found.cause_id == problem.id
        ],
        acknowledged_at=None,
        acknowledged_by=None,
        notices=[_notice(target, told.kind, told) for target, told in problem.notices.items()],
    )


def _problem_of_agent(condition: Condition, now: datetime) -> answers.Problem:
    acknowledged = condition.acknowledgement if condition.is_acknowledged else None
    return answers.Problem(
        number=None,
        subject=Kind.HEARTBEAT.label_of(condition.name),
        kind=Kind.HEARTBEAT.value,
        name=condition.name,
        key=condition.label,
        severity=condition.severity.value,
        text=condition.text,
        state="open" if condition.is_open else "over",
        since=condition.opened_at,
        over=condition.closed_at,
        unstable=condition.is_flapping(now),
        cause=None,
        affects=[],
        acknowledged_at=acknowledged.at if acknowledged else None,
        acknowledged_by=(acknowledged.by or None) if acknowledged else None,
        notices=[_notice(target, TOLD_BY_REPORT[report.kind], report) for target, report in condition.reports.items()],
    )


def _notice(target: Target, kind: Told, sent: KnownNotice | ConditionReport) -> ProblemNotice:
    recipient = {"target": target.recipient} if target.recipient else {}
    return ProblemNotice(
        channel=target.channel,
        kind=kind.value,
        severity=sent.severity.value,
        sent_at=sent.at,
        delivered_at=sent.delivered_at,
        says=sent.says,
        **recipient,
    )
