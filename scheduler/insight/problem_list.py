"""Lists everything that is wrong: what agents report, and what the daemon observes."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterable
from datetime import datetime

from heartbeat.findings import Severity, comparable_key
from heartbeatd import answers
from heartbeatd.answers import EntryName, ProblemNotice
from scheduler.model.outcome import Kind
from scheduler.model.problem import Problem, State, Subject, Told
from scheduler.store import problems

NUMBER = re.compile("p[0-9]+")
LISTED = ("open", "covered")  # the states of problems that are listed unless all are wanted


ACKNOWLEDGED = [name for name in answers.Problem.model_fields if name.startswith("acknowledged_")]


def list_problems(db: sqlite3.Connection, now: datetime, *, also_over: bool = True) -> list[answers.Problem]:
    """All problems: those that are over come last, and the most severe first."""
    found = problems.all_problems(db, also_over=also_over)
    listed = as_answers(found, found, now)
    return sorted(listed, key=lambda each: (each.over is not None, -Severity(each.severity).rank, each.since, each.subject))


def choose_problems(
    found: Collection[answers.Problem], named: str | None, known: Iterable[tuple[str, str]], *, also_over: bool
) -> list[answers.Problem]:
    """Those that have a number (in any state), or are those of a subject, or all. Others are left out if they were not reported.

    `known` are the kinds and names of agents, jobs and channels. The daemon is always known. Raises LookupError with a noun for
    an unknown number, or for an unknown name that has no problem either.
    """
    named_ones = [each for each in found if named in (None, each.number, each.subject, each.subject.partition("/")[2])]
    names = {name for subject in (*known, Subject.of_daemon()[:2]) for name in (subject[1], Subject(*subject).label)}
    if named and not named_ones and named not in names:
        raise LookupError(f"problem {named}" if NUMBER.fullmatch(named) else f"agent, job, channel or problem {named!r}")
    return [each for each in named_ones if also_over or each.number == named or each.state in LISTED]


def problems_with_key(found: Iterable[answers.Problem], key: str) -> list[answers.Problem]:
    """The problems that are not over and have this key. Case and blanks are ignored."""
    return [each for each in found if each.over is None and comparable_key(each.key) == comparable_key(key)]


def as_answers(wanted: Iterable[Problem], found: Iterable[Problem], now: datetime) -> list[answers.Problem]:
    """These problems as the API shows them. `found` are those among which their causes and consequences are looked for."""
    numbers: dict[int | None, str] = {}
    affected: dict[int | None, list[EntryName]] = {}
    unreported = {each.id for each in found if each.over_at is None and not each.is_open}  # and not listed
    for each in found:
        if each.id not in unreported:
            numbers[each.id] = each.number
        if each.found.cause_id and each.subject.kind in tuple(Kind):
            name = EntryName(kind=Kind(each.subject.kind).value, name=each.subject.name)
            affected.setdefault(each.found.cause_id, []).append(name)
    covered = {each.id for each in found if each.found.cause_id and each.found.cause_id not in unreported}
    return [
        _as_answer(each, numbers.get(each.found.cause_id), affected.get(each.id, []), now, is_covered=each.id in covered)
        for each in wanted
    ]


def _as_answer(
    problem: Problem, cause: str | None, affects: list[EntryName], now: datetime, *, is_covered: bool
) -> answers.Problem:
    subject = problem.subject
    kind = Kind(subject.kind) if subject.kind in tuple(Kind) else None
    acknowledged = problem.acknowledgement if problem.state(now) is State.ACKNOWLEDGED else None
    return answers.Problem(
        number=problem.number,
        subject=subject.label,
        kind=kind.value if kind else None,
        name=subject.name if kind else None,
        key=problem.label,
        reported=problem.is_reported,
        severity=problem.found.severity.value,
        text=problem.found.text,
        state="over" if problem.over_at else "covered" if is_covered else "open" if problem.is_open else "seen",
        since=problem.since,
        last_seen=problem.last_seen_at,
        over=problem.over_at,
        ended_by=problem.ended_by,
        unstable=problem.is_unstable(now),
        cause=cause,
        affects=affects,
        **{name: getattr(acknowledged, name.removeprefix("acknowledged_"), None) for name in ACKNOWLEDGED},
        run=problem.evidence.last_run_id or None,
        notices=[
            ProblemNotice(
                channel=target.channel,
                kind="over" if sent.is_end else "unstable" if sent.kind is Told.UNSTABLE else "open",
                severity=sent.severity.value,
                sent_at=sent.at,
                delivered_at=sent.delivered_at,
                says=sent.says,
                **({"target": target.recipient} if target.recipient else {}),
            )
            for target, sent in problem.notices.items()
        ],
    )
