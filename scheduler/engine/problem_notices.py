"""Sends what the rules of problems decided, and records it: the only place that does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from scheduler.engine import notices
from scheduler.engine.problems import REMIND_CRITICAL, Change, News, after_end, news_of
from scheduler.engine.tick_items import Tick
from scheduler.model.entry import Entry
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import Kind, Trigger
from scheduler.model.problem import CHANNEL, Problem, Subject
from scheduler.model.settings import Target
from scheduler.store import entries, outbox, problems
from scheduler.store.outbox import NO_RUN, Hold, Origin
from scheduler.store.transaction import Transaction


def send_news(
    tick: Tick,
    problem: Problem,
    recipients: Iterable[Target],
    about: Origin,
    details: Sequence[str] = (),
    remind: timedelta = REMIND_CRITICAL,
) -> None:
    """Send each recipient what is new to it of a problem of a provider, a channel or the daemon, which is saved already."""
    for each in news_of(problem, recipients, remind, tick.now):
        send_message(tick, each, about, notices.problem_text(each, details, tick.plan.settings.zone) if each.change else "")


def send_message(tick: Tick, news: News, about: Origin, text: str, hold: Hold | None = None) -> None:
    """Queue one message for a recipient, or for a substitute if its channel takes no messages. Without a text it gets nothing.

    A message about a provider, a channel or the daemon has its name as its title.
    """
    queued, subject = None, news.problem.subject
    if text:
        target = notices.target_or_substitute(tick, news.target)
        name, title = _name_of_notice(tick, news, about), None if subject.kind in tuple(Kind) else str(subject)
        queued = outbox.queue_notice(tick.tx, tick.plan.settings.channels, about, name, text, (target,), title, hold)[target]
    problems.save_notice(tick.tx, news.problem.id, news.target, news.known, queued)


def _name_of_notice(tick: Tick, news: News, about: Origin) -> str:
    """The kind of the message, which a run has once.

    A message that waits for a day may cause several reminders, and its channel may fail, work and fail again.
    """
    is_known_channel = news.problem.subject.kind == CHANNEL and bool(news.problem.notices)
    is_repeated = is_known_channel or news.change is Change.REMINDER or about.run_id == NO_RUN
    when = f" of {tick.now:%Y-%m-%d %H:%M:%S}" if is_repeated else ""
    recipient = f" to {news.target.recipient}" if news.target.recipient else ""
    return f"{news.change} {news.problem.number}{when}{recipient}"


def send_ends_together(tick: Tick, about: Origin, ended: Iterable[Problem]) -> frozenset[Target]:
    """Send the ends of several problems of an agent, which another event has ended, in one message to each recipient.

    Returns the recipients that get one.
    """
    news = [each for problem in ended for each in news_of(problem, (), REMIND_CRITICAL, tick.now)]  # an end has no reminders
    queued: dict[Target, int] = {}
    for target, text in notices.text_by_target(news, tick.plan.settings.zone).items():
        name = f"over {news[0].problem.number}{f' to {target.recipient}' if target.recipient else ''}"
        sent = notices.target_or_substitute(tick, target)
        queued[target] = outbox.queue_notice(tick.tx, tick.plan.settings.channels, about, name, text, (sent,))[sent]
    record_news(tick.tx, news, queued)
    return frozenset(queued)


def record_news(tx: Transaction, news: Iterable[News], queued: Mapping[Target, int]) -> None:
    """Record what recipients get by messages that are queued for them, each about one problem or several."""
    for each in news:
        problems.save_notice(tx, each.problem.id, each.target, each.known, queued.get(each.target) if each.change else None)


def send_news_of_entry(tick: Tick, entry: Entry, problem: Problem) -> None:
    """Send what is news about a problem of an agent or job while none of its runs ends."""
    about = Origin(NO_RUN, *entry.key, Trigger.MANUAL, tick.now)
    send_news(tick, problem, notices.notice_targets(tick, entry), about, (), entry.problem_rule.remind)


def end_problem(tick: Tick, entry_row: EntryRow, key: str) -> EntryRow:
    """End a problem of an agent or job, because a user has removed its cause. Returns the updated row.

    While the entry is muted, nothing is sent: the next run after the mute sends the end.
    """
    subject, entry = Subject(entry_row.kind, entry_row.name), tick.plan.entries.get((entry_row.kind, entry_row.name))
    was = problems.find_problem(tick.tx.db, subject, key)
    if was is None or was.over_at is not None:
        return entry_row
    over = problems.save_problem(tick.tx, after_end(was, tick.now))
    if entry is not None and not entry_row.is_muted(tick.now):
        send_news_of_entry(tick, entry, over)
    return entry_row._replace(troubles=problems.count_unsettled(tick.tx.db, subject))


def update_count(tx: Transaction, subject: Subject) -> None:
    """Update how many problems of an agent or job are not settled, in its row. Other subjects have none."""
    row = entries.current_entry(tx, Kind(subject.kind), subject.name) if subject.kind in tuple(Kind) else None
    if row is not None:
        number = problems.count_unsettled(tx.db, subject)
        entries.change_entry(tx, row, row._replace(reported=number) if subject.part else row._replace(troubles=number))


def record_close(tx: Transaction, closed: Problem) -> None:
    """Save a problem that a user has closed. No recipient gets its end."""
    problems.save_problem(tx, closed)
    for target, last in closed.notices.items():
        problems.save_notice(tx, closed.id, target, last, None)
    update_count(tx, closed.subject)
