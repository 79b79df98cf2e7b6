"""The rules of problems, without any effect: when one opens and is over, and what each recipient gets about it.

The rules look at states and not at changes: a recipient that should know of a problem, and does not, is notified of it. So a
message that was not delivered, a restart, a mute or a new recipient needs no rule of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from heartbeat.findings import Severity
from heartbeat.words import Word
from scheduler.model.problem import (
    UNSTABLE_OPENINGS,
    UNSTABLE_TIME,
    EndedBy,
    Problem,
    ProblemNotice,
    State,
    Subject,
    Symptom,
    Told,
)
from scheduler.model.settings import Target

REMIND_CRITICAL = timedelta(hours=6)  # the longest interval of reminders of a critical problem
KEEPS_ACKNOWLEDGEMENT = timedelta(days=1)  # the problem of a removed agent or job that comes back so soon
MAX_OPENINGS = 10  # earlier openings that are remembered
MAX_FAULTS_SENT = 5  # different errors of one problem that are sent at once; further ones wait for the reminder


class Change(Word):
    """Why a recipient gets a message about a problem, for its first line; empty if the reason is plain."""

    OPENED = "opened"
    WORSE = "worse", "was {before}"  # its severity is higher than the highest that the recipient got
    OTHER = "other", "another error"
    REMINDER = "reminder", "reminder"
    UNSTABLE = (
        "unstable",
        f"unstable: it opened {UNSTABLE_OPENINGS} times within 24 hours, and only gets a message again if it gets worse",
    )
    OVER = "over"


@dataclass(frozen=True, slots=True)
class News:
    """That a recipient gets a message about a problem, and what it knows afterwards. Without a `change` this is only recorded."""

    problem: Problem
    target: Target
    known: ProblemNotice
    change: Change | None


def times_in_a_row(was: Problem | None) -> int:
    """How often in a row a problem will have been seen if this look finds it too."""
    return 1 if was is None or was.over_at is not None else was.count + 1


def after_symptom(was: Problem | None, subject: Subject, found: Symptom, now: datetime, *, opens: bool = True) -> Problem:
    """The problem after a look that found it. If it `opens`, it was seen often enough; one that has a cause stays closed."""
    if was is None:
        seen = Problem(subject, found, now, now)
    elif was.over_at is not None:
        seen = replace(was, found=found, since=now, last_seen_at=now, count=1, opened_at=None, over_at=None, ended_by=None)
        if now - was.over_at > KEEPS_ACKNOWLEDGEMENT:
            seen = replace(seen, acknowledgement=None)
    else:
        seen = replace(was, found=found, last_seen_at=now, count=times_in_a_row(was))
    if seen.state(now) is not State.ACKNOWLEDGED:  # it has become worse than what was acknowledged
        seen = replace(seen, acknowledgement=None)
    if seen.opened_at is not None or not opens or found.cause_id is not None:
        return seen
    recent = tuple(opened for opened in seen.openings if opened > now - UNSTABLE_TIME)
    return replace(seen, opened_at=now, openings=(*recent[-MAX_OPENINGS:], now))


def after_end(was: Problem, now: datetime, by: EndedBy = EndedBy.OBSERVED) -> Problem:
    """The problem after a look that found it over. One that is over already stays as it is."""
    if was.over_at is not None:
        return was
    return replace(was, over_at=now, ended_by=by, acknowledgement=None, found=replace(was.found, cause_id=None))


def after_close(was: Problem, now: datetime) -> Problem:
    """The problem that a user has closed: no recipient gets its end. Those that know it as unstable get no new opening either."""
    closed = after_end(was, now, EndedBy.USER)
    closed = replace(closed, evidence=replace(closed.evidence, missed=0, wrongly_closed=0))
    keeps = Told.UNSTABLE if closed.is_unstable(now) else None
    no_end = {target: replace(last, kind=Told.OVER, severity_before=None) for target, last in closed.notices.items()}
    kept = {target: last for target, last in closed.notices.items() if last.kind is keeps}
    return replace(closed, notices={**no_end, **kept})


def after_removal(was: Problem, now: datetime) -> Problem:
    """The problem of an agent or job that was removed: as if a user had closed it. An edit may bring it back soon, so its
    acknowledgement is kept for a day.
    """
    return replace(after_close(was, now), acknowledgement=was.acknowledgement)


def remind_interval(found: Symptom, remind: timedelta) -> timedelta:
    """The interval of reminders, which is shorter for what is critical."""
    return min(remind, REMIND_CRITICAL) if found.severity is Severity.CRITICAL else remind


def news_of(problem: Problem, recipients: Iterable[Target], remind: timedelta, now: datetime) -> list[News]:
    """What the recipients get now: the present ones of its subject while it is open, all that know of it when it is over.

    `remind` is the interval of its reminders, which is shorter if it is critical.
    """
    targets = recipients if problem.over_at is None else problem.notices
    found = [_news_for(problem, target, remind, now) for target in targets]
    return [each for each in found if each is not None]


def _news_for(problem: Problem, target: Target, remind: timedelta, now: datetime) -> News | None:
    last, found, state = problem.notices.get(target), problem.found, problem.state(now)
    if state is State.OVER:
        return None if last is None or last.is_settled else _news_of_end(problem, target, last, now)
    if state not in (State.OPEN, State.UNSTABLE):
        return None
    is_unstable = state is State.UNSTABLE

    def news(change: Change | None, faults: tuple[str, ...] = ()) -> News:
        before = None if last is None or last.is_end else last.arrived
        severity = max(before or found.severity, found.severity, key=lambda each: each.rank)
        says_unstable = change is Change.UNSTABLE or (is_unstable and last is not None and last.kind is Told.UNSTABLE)
        kind = Told.UNSTABLE if says_unstable else Told.OPEN
        sent = ProblemNotice(kind, severity, now, tuple(dict.fromkeys((*faults, found.fault))), before)
        return News(problem, target, sent, change)

    if last is None or last.is_end or last.is_lost:
        is_old_news = problem.evidence.has_returned and last is not None and last.arrived is Severity.INFO is found.severity
        known = last.faults[:-1] if last is not None and not last.is_end and last.arrived else ()  # without the lost one
        return news(Change.UNSTABLE if is_unstable else None if is_old_news else Change.OPENED, known)
    if found.severity.rank > last.severity.rank:
        return news(Change.WORSE, last.faults)
    if is_unstable:
        return None if last.kind is Told.UNSTABLE else news(Change.UNSTABLE, last.faults)
    if found.severity is Severity.INFO:
        return None
    if found.fault not in last.faults and len(last.faults) < MAX_FAULTS_SENT:
        return news(Change.OTHER, last.faults)
    is_due = now >= last.at + remind_interval(found, remind) and not last.is_pending and not problem.evidence.missed
    return news(Change.REMINDER, last.faults) if is_due else None


def _news_of_end(problem: Problem, target: Target, last: ProblemNotice, now: datetime) -> News | None:
    """The end of a problem: sent if the recipient got it as more than `info`, and later if it is unstable."""
    if last.arrived and problem.is_unstable(now):
        return None
    is_sent = last.arrived not in (None, Severity.INFO) and problem.ended_by is not EndedBy.USER
    known = ProblemNotice(Told.OVER, last.severity, now, severity_before=last.arrived if is_sent else None)
    return News(problem, target, known, Change.OVER if is_sent else None)
