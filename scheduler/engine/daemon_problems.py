"""Records what is wrong with the daemon itself, and notifies the default channel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from heartbeat.findings import Severity
from scheduler.engine import notices, problem_notices
from scheduler.engine.problems import REMIND_CRITICAL, Change, News, after_end, after_finding, news_of
from scheduler.engine.tick_items import Tick
from scheduler.model.problem import DAEMON, Finding, Problem, ProblemNotice, Subject, Told
from scheduler.model.settings import Target
from scheduler.store import problems
from scheduler.store.outbox import NO_RUN, Origin

CONFIG = "config"  # the file was rejected
DATABASE = "database"  # it cannot be written, or soon can not
WORKERS = "workers"  # no worker executes runs
INTERNAL = "internal"  # an exception that should not happen

SENT_AFTER = {WORKERS: timedelta(minutes=1)}  # workers may be restarted, or start after the daemon
SHORT_FAILURE = timedelta(minutes=1)  # another program may lock the database for so long
CALM = timedelta(hours=2)  # without internal errors: what was postponed for an hour has worked since

WHAT_FOLLOWS = {
    CONFIG: "The previous config stays active.",
    DATABASE: "Without room, no run starts and no message is sent.",
    WORKERS: "Runs wait until a worker takes them.",
    INTERNAL: "The log of the daemon has more. What was affected is tried again within an hour.",
}


@dataclass(frozen=True, slots=True)
class FailedWrites:
    """Since when the database could not be written, and why."""

    since: datetime
    problem: str


def note(tick: Tick, key: str, problem: str | None) -> None:
    """Record why a part of the daemon does not work, or (None) that it does. The default channel is notified of news."""
    was = _find(tick, key)
    if problem is not None:
        _save_and_send(tick, after_finding(was, Subject.of_daemon(), _finding(key, problem), tick.now, opens=True))
    elif was is not None and was.over_at is None:
        _save_and_send(tick, after_end(was, tick.now))


def note_internal_errors(tick: Tick) -> None:
    """Record the unexpected exceptions of this tick. Their texts may have secrets, so only the log has them."""
    note(tick, INTERNAL, f"internal error in {tick.broken[-1]}")


def note_failed_writes(tick: Tick, failed: FailedWrites, shortage: str | None) -> None:
    """Record that the database can be written again. Until now, no message could be queued.

    `shortage`: its disk is still so full that this may end. Otherwise one message says how long it could not be written.
    """
    if shortage is not None:
        note(tick, DATABASE, shortage)
        return
    was = _find(tick, DATABASE)
    if tick.now - failed.since < SHORT_FAILURE or (was is not None and was.over_at is None):
        return
    found = after_finding(was, Subject.of_daemon(), _finding(DATABASE, failed.problem), failed.since, opens=True)
    over = after_end(found, tick.now)
    over = replace(over, id=problems.save_problem(tick.tx, over))
    known = ProblemNotice(Told.OVER, Severity.CRITICAL, tick.now, severity_before=Severity.CRITICAL)
    _send(tick, [News(over, target, known, Change.OVER) for target in _default_channel(tick)])


def review(tick: Tick, shortage: str | None) -> None:
    """Once a minute: find out what the time has changed, and send reminders and what was not delivered.

    `shortage` says how full the disk of the database is, if it is too full.
    """
    known = {each.key: each for each in problems.unsettled_problems(tick.tx.db, DAEMON)}
    if shortage is not None:
        note(tick, DATABASE, shortage)
    for key, problem in known.items():
        works = shortage is None if key == DATABASE else key == INTERNAL and tick.now - problem.last_seen_at >= CALM
        if works and problem.over_at is None:
            note(tick, key, None)
        elif works or key != DATABASE:
            _send_news(tick, problem)


def _find(tick: Tick, key: str) -> Problem | None:
    return next((each for each in problems.problems_of(tick.tx.db, Subject.of_daemon()) if each.key == key), None)


def _finding(key: str, problem: str) -> Finding:
    """Another error of the same part is no news: people look at the first one, and see the present one there."""
    return Finding(key, Severity.CRITICAL, problem, key, key)


def _default_channel(tick: Tick) -> tuple[Target, ...]:
    settings = tick.plan.settings
    return (notices.substitute_target(settings.channels, settings.deliver, problems.failing_targets(tick.tx.db)),)


def _save_and_send(tick: Tick, problem: Problem) -> None:
    _send_news(tick, replace(problem, id=problems.save_problem(tick.tx, problem)))


def _send_news(tick: Tick, problem: Problem) -> None:
    is_sent = tick.now - problem.since >= SENT_AFTER.get(problem.key, timedelta())
    _send(tick, news_of(problem, _default_channel(tick) if is_sent else (), REMIND_CRITICAL, tick.now))


def _send(tick: Tick, news: Iterable[News]) -> None:
    about = Origin(NO_RUN, *Subject.of_daemon()[:2], DAEMON, tick.now)
    problem_notices.send_news(tick, news, about, lambda each: _text(tick, each))


def _text(tick: Tick, news: News) -> str:
    details = () if news.change is Change.OVER else (WHAT_FOLLOWS[news.problem.key],)
    return notices.problem_text(news, news.problem.found.text, details, tick.plan.settings.zone)
