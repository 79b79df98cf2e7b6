"""Finds out which channels take no messages, and notifies somebody on another channel."""

from __future__ import annotations

from collections.abc import Set
from datetime import timedelta

from heartbeat.findings import Severity
from scheduler.engine import notices, problem_notices
from scheduler.engine.problems import after_end, after_finding
from scheduler.engine.tick_items import Tick
from scheduler.model.events import MessageMoved
from scheduler.model.outcome import DeliveryState, Kind
from scheduler.model.problem import DAEMON, Finding, Subject
from scheduler.model.settings import LOG_CHANNEL, Target
from scheduler.store import clock_changes, outbox, problems
from scheduler.store.outbox import OutboxMessage

UNDELIVERED = "undelivered"
LONGEST_USUAL_DELAY = timedelta(hours=1)  # a channel that has taken no message for so long has a problem


def follow_deliveries(tick: Tick) -> None:
    """Follow what happened to messages in this tick: a channel, or one recipient on it, takes them, or does not."""
    moved = [each for each in tick.tx.events if isinstance(each, MessageMoved) and each.channel != LOG_CHANNEL]
    given_up = {each.outbox_id for each in moved if each.state is DeliveryState.DEAD}  # and not followed yet
    for happened in moved:
        given_up.discard(happened.outbox_id)
        if happened.state is DeliveryState.DELIVERED:
            _record_delivery(tick, happened.outbox_id)
        elif happened.state is DeliveryState.DEAD or happened.retried:
            message = outbox.get_message(tick.tx.db, happened.outbox_id)
            is_lost = happened.state is DeliveryState.DEAD
            for subject in problems.note_lost_message(tick.tx, happened.outbox_id) if is_lost else ():
                problem_notices.update_count(tick.tx, subject)  # so that the next run sends the end again
            if is_lost or _is_late(tick, message):
                _record_refusal(tick, message, happened.error, given_up, is_lost=is_lost)


def _is_late(tick: Tick, message: OutboxMessage) -> bool:
    """Whether a message has waited for an hour, and its recipient has taken no other one since."""
    since = tick.now - LONGEST_USUAL_DELAY
    return (
        message.created_at <= since
        and not clock_changes.changed_recently(tick.tx)
        and not outbox.was_delivered_since(tick.tx.db, Target(message.channel, message.recipient), since)
    )


def _record_delivery(tick: Tick, outbox_id: int) -> None:
    if not problems.unsettled_channels(tick.tx.db):
        return
    message = outbox.get_message(tick.tx.db, outbox_id)
    problem = problems.find_problem(tick.tx.db, Subject.of_target(Target(message.channel, message.recipient)))
    if problem is None or problem.is_settled:
        return
    now = problems.save_problem(tick.tx, after_end(problem, tick.now))  # if it is over already, its end was lost
    problem_notices.send_news(tick, now, (), message.origin)


def _record_refusal(tick: Tick, message: OutboxMessage, error: str, given_up: Set[int], *, is_lost: bool) -> None:
    lost = Target(message.channel, message.recipient)
    was = problems.find_problem(tick.tx.db, Subject.of_target(lost))
    found = Finding(UNDELIVERED, Severity.CRITICAL, error or "it takes no messages", UNDELIVERED, UNDELIVERED)
    now = problems.save_problem(tick.tx, after_finding(was, Subject.of_target(lost), found, tick.now))
    entry = None if message.kind == DAEMON else tick.plan.entries.get((Kind(message.kind), message.name))
    wished, failing = entry.problem_rule.deliver if entry else (), problems.failing_targets(tick.tx.db)
    recipient = notices.substitute_target(tick.plan.settings.channels, wished, failing | {Target(message.channel)})
    if recipient in now.notices and now.notices[recipient].message_id in given_up:
        return  # its channel refuses messages too, which is recorded next: the next refusal is notified elsewhere
    details = tuple(notices.undelivered_details(message, is_lost=is_lost))
    problem_notices.send_news(tick, now, (recipient,), message.origin, details)
