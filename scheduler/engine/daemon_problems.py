"""Records what is wrong with the daemon itself, and notifies the default channel."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from heartbeat.findings import Severity
from scheduler.engine import notices, problem_notices
from scheduler.engine.problems import Change, News, after_end, after_finding
from scheduler.engine.tick_items import Tick
from scheduler.model.problem import DAEMON, Finding, Problem, ProblemNotice, Subject, Told
from scheduler.model.settings import Target
from scheduler.store import problems
from scheduler.store.outbox import NO_RUN, Origin

CONFIG = "config"  # the file was rejected
DATABASE = "database"  # it cannot be written, or soon can not
DAMAGE = "damage"  # of the database
WORKERS = "workers"  # no worker executes runs
INTERNAL = "internal"  # an exception that should not happen

SENT_AFTER = {WORKERS: timedelta(minutes=1)}  # workers may be restarted, or start after the daemon
SHORT_FAILURE = timedelta(minutes=1)  # another program may lock the database for so long
CALM = timedelta(hours=2)  # without internal errors: what was postponed for an hour has worked since

WHAT_FOLLOWS = {
    CONFIG: "The previous config stays active.",
    DATABASE: "Without room, no run starts and no message is sent.",
    DAMAGE: "The daemon continues as long as it can. Save a copy of the file, and restore a backup.",
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
    was = problems.find_problem(tick.tx.db, Subject.of_daemon(), key)
    if problem is not None:
        _send_news(tick, problems.save_problem(tick.tx, _after_failure(was, key, problem, tick.now)))
    elif was is not None and was.over_at is None:
        _send_news(tick, problems.save_problem(tick.tx, after_end(was, tick.now)))


def note_failed_writes(tick: Tick, failed: FailedWrites, shortage: str | None) -> None:
    """Record that the database can be written again. Until now, no message could be queued.

    `shortage`: its disk is still so full that this may end. Otherwise one message says how long it could not be written.
    """
    if shortage is not None:
        note(tick, DATABASE, shortage)
        return
    was = problems.find_problem(tick.tx.db, Subject.of_daemon(), DATABASE)
    if tick.now - failed.since < SHORT_FAILURE or (was is not None and was.over_at is None):
        return
    over = after_end(_after_failure(was, DATABASE, failed.problem, failed.since), tick.now)
    known = ProblemNotice(Told.OVER, Severity.CRITICAL, tick.now, severity_before=Severity.CRITICAL)
    news = News(problems.save_problem(tick.tx, over), _default_channel(tick), known, Change.OVER)
    problem_notices.send_message(tick, news, _origin(tick), notices.problem_text(news, (), tick.plan.settings.zone))


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


def _after_failure(was: Problem | None, key: str, error: str, now: datetime) -> Problem:
    """Another error of the same part is no news: people look at the first one, and see the present one there."""
    return after_finding(was, Subject.of_daemon(), Finding(key, Severity.CRITICAL, error, key, key), now)


def _send_news(tick: Tick, problem: Problem) -> None:
    is_sent = tick.now - problem.since >= SENT_AFTER.get(problem.key, timedelta())
    details = (WHAT_FOLLOWS[problem.key],) if problem.over_at is None else ()
    problem_notices.send_news(tick, problem, (_default_channel(tick),) if is_sent else (), _origin(tick), details)


def _default_channel(tick: Tick) -> Target:
    settings = tick.plan.settings
    return notices.substitute_target(settings.channels, settings.deliver, problems.failing_targets(tick.tx.db))


def _origin(tick: Tick) -> Origin:
    return Origin(NO_RUN, *Subject.of_daemon()[:2], DAEMON, tick.now)
