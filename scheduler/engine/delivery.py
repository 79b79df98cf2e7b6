"""Sends the messages of the outbox to their channels, and records the results.

Outside of the hours of their recipient (`hours` in `deliver`), messages are held, and sent together when the hours begin.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from heartbeat.hours import first_open
from heartbeat.runners import StartProcess
from heartbeat.spec import DeliverHours
from heartbeat.words import format_count
from scheduler.channels import registry
from scheduler.channels.channel_kind import SendContext
from scheduler.engine.tick_items import Request, Tick, run_for_message
from scheduler.model.entry import Entry
from scheduler.model.entry_row import parse_mute
from scheduler.model.local_days import local_text
from scheduler.model.message import Button, DeliveryResult
from scheduler.model.outcome import Kind, Trigger
from scheduler.model.problem import DAEMON, EndedBy, Problem, State, Subject
from scheduler.model.settings import LAST_TARGET, Channel, OnUncertain, Target
from scheduler.store import asked_questions, entries, outbox, problems
from scheduler.store.outbox import NO_RUN, HeldMessage, Hold, Origin, OutboxMessage
from scheduler.store.transaction import Transaction
from scheduler.system import extras
from scheduler.system.file_limits import is_scarcity
from scheduler.work.executor import Done, WorkerLoop

if TYPE_CHECKING:
    from scheduler.net.http_client import HttpClient  # takes a fifth of a second, which `plan` and `explain` need not wait for

MAX_SENDING = 8  # messages being sent at the same time

MAX_SENDING_PER_CHANNEL = 4  # to one channel, so that a channel that hangs does not delay the others

LONGEST_CHANNEL_WAIT = timedelta(minutes=15)  # the longest Retry-After of a channel that is respected

UNCERTAIN_RETRY_DELAY = timedelta(minutes=1)  # before a message that may have arrived is sent again

MUTE_CHECK = timedelta(days=1)  # how often a message looks whether its agent is still muted, if the mute has no end

# The first line of what a message says about a problem ends with its number (notices.problem_text).
NUMBER_OF_PROBLEM = re.compile(r"   p(\d+)$")

HELD = "held until "  # begins the name of the notice with what was held


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message, and its channel as it is declared when the message is sent."""

    message: OutboxMessage
    channel: Channel
    buttons: tuple[Button, ...] = ()


def claim_deliveries(tick: Tick, under_way: Iterable[Delivery]) -> list[Delivery]:
    """Mark the due messages as `sending` and return them. A message whose channel is no longer declared is given up."""
    next_at = outbox.next_pending_at(tick.tx.db)
    if next_at is None or next_at > tick.now:
        return []
    busy = Counter(each.channel.name for each in under_way)
    _hold_and_release(tick, outbox.full_channels(busy, MAX_SENDING_PER_CHANNEL))
    messages = outbox.claim_due_messages(tick.tx, MAX_SENDING, MAX_SENDING_PER_CHANNEL, busy)
    deliveries = [run_for_message(tick, each, partial(_prepare_delivery, tick, each)) for each in messages]
    return [each for each in deliveries if each is not None]


def _prepare_delivery(tick: Tick, message: OutboxMessage) -> Delivery | None:
    channel = tick.plan.settings.channels.get(message.channel)
    if channel is None or channel.needs_target != bool(message.recipient):
        outbox.mark_message_dead(tick.tx, message, _describe_unreachable(message, channel))
        return None
    place = registry.channel_for_recipient(channel, message.recipient)
    listener = button_listener({channel.name: channel})
    return Delivery(message, place, listener.buttons_of(tick.tx, message, channel) if listener else ())


def _hold_and_release(tick: Tick, full: Sequence[str]) -> None:
    """Hold the due messages whose recipient has closed hours, and release those whose hours have begun.

    Messages are decided on when they are due, so this holds for every message, however it was queued. Hours that have begun may
    be over again: the machine may have been suspended, or the daemon down. While a channel is slow, thousands of messages may be
    due, so in each tick only those are looked at that can be sent next.
    """
    begun = (message for message in outbox.hours_begun(tick.tx.db, tick.now) if not _hold_if_closed(tick, message))
    released = [message for message in begun if not _hold_if_muted(tick, message)]
    for target in dict.fromkeys(message.target for message in released):
        _release_after_hours(tick, target, [message for message in released if message.target == target])
    if tick.plan.has_deliver_hours:
        while sum(_hold_if_closed(tick, message) for message in outbox.next_untried(tick.tx.db, tick.now, full)):
            pass  # others are next instead


def _hold_if_closed(tick: Tick, message: HeldMessage) -> bool:
    """Hold a message if the hours of its recipient are closed."""
    opens_at = _hours_begin_at(tick, message) if tick.plan.has_deliver_hours else None
    if opens_at is None or opens_at <= tick.now:
        return False
    note = f"waits until {local_text(opens_at, tick.plan.settings.zone)}, when the hours of the recipient begin"
    outbox.hold_message(tick.tx, message, Hold((), opens_at), note)
    return True


def _hold_if_muted(tick: Tick, message: HeldMessage) -> bool:
    """Hold a message longer if its agent or job is muted now. A mute until a change holds nothing: it is about a change."""
    is_wanted = outbox.REPEATS.match(message.notice or "") is not None  # a person wants it again at this time
    is_about_entry = outbox.is_about_entry(message) and not is_wanted
    entry_row = entries.find_entry(tick.tx.db, Kind(message.kind), message.name) if is_about_entry else None
    if entry_row is None or entry_row.muted_until is None or not entry_row.is_muted(tick.now):
        return False
    if entry_row.mute is not None and parse_mute(entry_row.mute).known is not None:
        return False
    until = min(entry_row.muted_until, tick.now + MUTE_CHECK)
    outbox.hold_message(tick.tx, message, Hold((), until), f"waits until the mute of {message.name} ends")
    return True


def _hours_begin_at(tick: Tick, message: HeldMessage) -> datetime | None:
    """When the hours of its recipient begin, which is now if they have begun. None: it is sent at any time.

    A message about a provider or the daemon goes to the recipients of many entries. It is held while the hours of all entries
    with this recipient are closed. For a provider, only the entries that use it count, if there are any. Some messages are never
    held: one that joins held messages, one that a person wants at this time, and a question, because a run waits for its answer.
    """
    notice = message.notice or ""
    if notice.startswith((HELD, asked_questions.NOTICE)) or outbox.REPEATS.match(notice):
        return None
    entry = tick.plan.entries.get((Kind(message.kind), message.name)) if outbox.is_about_entry(message) else None
    chosen: list[Sequence[DeliverHours]]
    if entry is not None:
        chosen = [entry.spec.deliver_hours if message.notice is None else entry.spec.problems_hours]
    else:
        declared_entries = tick.plan.entries.values()
        using = [each for each in declared_entries if each.enabled and message.title in map(str, each.circuits)]
        chosen = _hours_of_recipient(using, message.target) or _hours_of_recipient(declared_entries, message.target)
    declared = [[hours for hours in some if _is_for(hours.channel, message.target)] for some in chosen]
    if not declared or not all(declared):
        return None
    found = [hours for some in declared for hours in some]
    if any(each.critical_always for each in found) and problems.is_about_critical(tick.tx.db, message.last_id):
        return None
    return min((at for each in found if (at := first_open(each.hours, tick.now)) is not None), default=None)


def _hours_of_recipient(entries: Iterable[Entry], target: Target) -> list[Sequence[DeliverHours]]:
    """The hours in `deliver` and in `problems.deliver`, of each of them that names this recipient."""
    declared = ((each.deliver, each.spec.deliver_hours) for each in entries)
    of_problems = ((each.problems_deliver, each.spec.problems_hours) for each in entries)
    return [hours for names, hours in (*declared, *of_problems) if any(_is_for(name, target) for name in names)]


def _is_for(name: str, target: Target) -> bool:
    return name == (LAST_TARGET if target.recipient else target.channel)


def _release_after_hours(tick: Tick, target: Target, held: Sequence[HeldMessage]) -> None:
    """Send the held messages of a recipient, as one message if there are several. What is no longer news is left out."""
    texts = {message: "\n".join(_lines_still_due(tick, message)).strip() for message in held}
    for message in [each for each in held if not texts[each]]:
        outbox.drop_held(tick.tx, message, "not sent: what it says was over, closed or acknowledged before the hours began")
    kept = [message for message in held if texts[message]]
    for message in kept:
        problems.renew_notice(tick.tx, message)
    if len(kept) == 1 and texts[kept[0]] == kept[0].text:
        outbox.release_message(tick.tx, kept[0], kept[0].note)
    elif kept:
        _send_together(tick, target, kept, [texts[message] for message in kept])


def _send_together(tick: Tick, target: Target, kept: Sequence[HeldMessage], texts: Sequence[str]) -> None:
    """Queue one message with these texts. One of several entries is a message of the daemon, which few tokens may see."""
    zone = tick.plan.settings.zone
    entries = {(each.kind, each.name) for each in kept}
    subject, title = (Subject.of_daemon()[:2], DAEMON) if len(entries) > 1 else (next(iter(entries)), None)
    names = (
        "" if NUMBER_OF_PROBLEM.search(text.splitlines()[0]) else f"{each.name}: " for each, text in zip(kept, texts, strict=True)
    )
    # A weekend can be closed, too.
    form = "%H:%M" if tick.now - kept[0].created_at < timedelta(days=1) else "%Y-%m-%d %H:%M"
    times = [each.created_at.astimezone(zone).strftime(form) for each in kept]
    parts = [f"{at} {name}{text}" for at, name, text in zip(times, names, texts, strict=True)]
    first = f"{format_count(len(kept), 'message')} since {times[0]}:"
    about = Origin(NO_RUN, *subject, Trigger.MANUAL, tick.now)
    notice = f"{HELD}{tick.now:%Y-%m-%d %H:%M:%S}{f' to {target.recipient}' if target.recipient else ''}"
    text = "\n\n".join((first, *parts))
    queued = outbox.queue_notice(tick.tx, tick.plan.settings.channels, about, notice, text, (target,), title)[target]
    outbox.merge_held(tick.tx, kept, queued)


def _lines_still_due(tick: Tick, message: HeldMessage) -> Iterator[str]:
    """The lines of a message, without those about problems of which a later message says more, or nothing is to be said."""
    is_kept = True
    for line in message.text.splitlines():
        if NUMBER_OF_PROBLEM.search(line):
            is_kept = _is_still_due(tick, message, line)
        elif not line.strip():
            is_kept = True  # the text without a key begins after an empty line
        if is_kept:
            yield line


def open_problems_in(db: sqlite3.Connection, message: HeldMessage) -> list[Problem]:
    """The open problems that a message is about, also those about which a later message has said more."""
    last = problems.problems_in_message(db, message.first_sent_id)
    named = [each for line in message.text.splitlines() if (each := _problem_of_line(db, line)) and each.over_at is None]
    # An agent's own words may name problems of others.
    own = [each for each in named if message.notice is not None or each.subject[:2] == (message.kind, message.name)]
    return [*{each.id: each for each in (*last, *own)}.values()]


def _problem_of_line(db: sqlite3.Connection, line: str) -> Problem | None:
    """The problem that a line is about; None if it only looks like that."""
    found = NUMBER_OF_PROBLEM.search(line)
    problem = problems.get_problem(db, int(found[1])) if found else None
    return problem if problem is not None and f" {problem.subject} {problem.label}: " in line else None


def _is_still_due(tick: Tick, message: HeldMessage, line: str) -> bool:
    problem = _problem_of_line(tick.tx.db, line)
    if problem is None:
        return True
    is_last = any(last.message_id == message.first_sent_id for last in problem.notices.values())
    # A person who wants it again gets it as long as the problem is open, whatever was sent meanwhile.
    is_wanted = outbox.REPEATS.match(message.notice or "") is not None and problem.over_at is None
    return (is_last or is_wanted) and problem.state(tick.now) is not State.ACKNOWLEDGED and problem.ended_by is not EndedBy.USER


def next_delivery_time(tx: Transaction, under_way: Iterable[Delivery]) -> datetime | None:
    """When the next message can be sent; None if too many are being sent already."""
    if outbox.next_pending_at(tx.db) is None:
        return None
    busy = Counter(each.channel.name for each in under_way)
    if busy.total() >= MAX_SENDING:
        return None
    return outbox.next_due_at(tx.db, outbox.full_channels(busy, MAX_SENDING_PER_CHANNEL))


async def send_delivery(delivery: Delivery, start: StartProcess, http: HttpClient, now: datetime) -> DeliveryResult:
    """Send one message to its channel; waits for the channel."""
    context = SendContext(http, start, now, buttons=delivery.buttons)
    return await registry.send_message(delivery.channel, delivery.message, context)


def settle_delivery(tx: Transaction, done: Done[Delivery, DeliveryResult]) -> None:
    """Record the result of a delivery. If sending raised an exception, it is unknown whether the message arrived."""
    message, channel = done.task.message, done.task.channel
    sent = done.result or _result_of_exception(done.exception)
    if sent.state == "delivered":
        outbox.record_delivery(tx, message, sent.receipt)
    elif sent.state == "dead":
        outbox.mark_message_dead(tx, message, sent.error)
    elif sent.state == "uncertain":
        _settle_uncertain(tx, message, channel, sent.error)
    else:
        outbox.retry_message_later(tx, message, sent.error, sent.retry_after and min(sent.retry_after, LONGEST_CHANNEL_WAIT))


def _result_of_exception(error: BaseException | None) -> DeliveryResult:
    if is_scarcity(error):
        return DeliveryResult("retry", f"could not start: {error}")
    return DeliveryResult("uncertain", f"{type(error).__name__} while sending")


def recover_deliveries(tick: Tick) -> None:
    """Record the messages that were being sent when the daemon crashed. It is unknown whether they arrived."""
    for message in outbox.interrupted_messages(tick.tx.db):
        run_for_message(tick, message, partial(_recover_delivery, tick, message))


def _recover_delivery(tick: Tick, message: OutboxMessage) -> None:
    channel = tick.plan.settings.channels.get(message.channel)
    if channel is None:
        outbox.mark_message_dead(tick.tx, message, _describe_unreachable(message, channel))
    else:
        _settle_uncertain(tick.tx, message, channel, "the daemon stopped while sending")


def _describe_unreachable(message: OutboxMessage, channel: Channel | None) -> str:
    if channel is None:
        return f"channels.{message.channel} is no longer declared"
    now = "now has {target}" if channel.needs_target else "no longer has {target}"
    return f"the URL of channels.{message.channel} {now}, so the message would reach a different recipient"


def _settle_uncertain(tx: Transaction, message: OutboxMessage, channel: Channel, error: str) -> None:
    """Handle a message that may have arrived. A channel that cannot detect repeats gets it at most once more."""
    about = message.kind if outbox.is_about_entry(message) else DAEMON  # a run of a job may have found that a provider fails
    resend = action_if_uncertain(channel, about) == "resend"
    if registry.kind_of(channel).detects_repeats:
        outbox.mark_message_uncertain(tx, message, error, resend=resend)
    else:
        outbox.mark_message_uncertain(tx, message, error, resend=resend and not message.doubted, wait=UNCERTAIN_RETRY_DELAY)


def action_if_uncertain(channel: Channel, kind: str) -> OnUncertain:
    """What to do with a message of a heartbeat, a job or the daemon (`kind`) if it is unknown whether it arrived.

    The config may set it. By default it is sent again if the channel detects repeats, or if it is an alert: better twice than
    never. The output of a job is held, and a person decides.
    """
    if channel.uncertain is not None:
        return channel.uncertain
    return "resend" if registry.kind_of(channel).detects_repeats or kind != Kind.CRON else "hold"


class Poller(Protocol):
    """Asks the services of chats for pressed buttons."""

    def poll(self, monotonic: float, channels: Mapping[str, Channel]) -> float | None:
        """Pass on the presses that have arrived, and ask for more. Returns the seconds until the next call; None: no limit."""


class ButtonListener(Protocol):
    """The module that the entry point `buttons` in `heartbeatd.listeners` names."""

    def buttons_of(self, tx: Transaction, message: OutboxMessage, channel: Channel) -> tuple[Button, ...]:
        """The buttons below a message."""

    def delete_old_uses(self, tx: Transaction) -> None:
        """Forget which buttons were used, once they can be used no more."""

    def make_poller(
        self,
        http: HttpClient,
        loop: WorkerLoop,
        notify: Callable[[], None],
        submit: Callable[[Request], Future[object]],
    ) -> Poller: ...


def button_listener(channels: Mapping[str, Channel]) -> ButtonListener | None:
    """The extra for buttons and answers; None if none of these channels has any. Raises UnusableExtra."""
    has_buttons = any(channel.can_be_answered for channel in channels.values())
    return cast("ButtonListener", extras.load("listeners", "buttons")) if has_buttons else None
