"""Sends what the rules of problems decided, and records it: the only place that does."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scheduler.engine import notices
from scheduler.engine.problems import Change, News
from scheduler.engine.tick import Tick
from scheduler.store import outbox, problems
from scheduler.store.outbox import Hold, Origin

TextOfNews = Callable[[News], str]


def send_news(tick: Tick, news: Iterable[News], about: Origin, text_of: TextOfNews) -> None:
    """Send and record what recipients get about problems. Messages about a provider or channel have its name as their title."""
    for each in news:
        send_message(tick, each, about, text_of(each) if each.change else "", title=str(each.problem.subject))


def send_message(tick: Tick, news: News, about: Origin, text: str, *, title: str | None = None, hold: Hold | None = None) -> None:
    """Queue one message for a recipient, or for a substitute if its channel takes no messages. Without a text it gets nothing."""
    queued = None
    if text:
        target = notices.target_or_substitute(tick, news.target)
        name = _name_of_notice(tick, news)
        sent = outbox.queue_notice(tick.tx, tick.plan.settings.channels, about, name, text, (target,), title, hold)
        queued = sent.get(target)
        if queued is None and news.change is Change.OPENED:
            return  # the same run has sent it before, and another run will send it again
    problems.save_notice(tick.tx, news.problem.id, news.target, news.known, queued)


def _name_of_notice(tick: Tick, news: News) -> str:
    """The kind of the message, which a run has once: a message that waits for a day may cause several reminders."""
    when = f" of {tick.now:%Y-%m-%d %H:%M}" if news.change is Change.REMINDER else ""
    recipient = f" to {news.target.recipient}" if news.target.recipient else ""
    return f"{news.change} {news.problem.number}{when}{recipient}"
