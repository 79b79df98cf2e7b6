"""Sends the messages of the outbox to their channels, and records the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from heartbeat.runners import StartProcess
from scheduler.channels import registry
from scheduler.channels.channel_kind import SendContext
from scheduler.engine import quiet_hours
from scheduler.engine.inbox import Request
from scheduler.engine.tick_items import Tick, run_for_message
from scheduler.model.message import Button, DeliveryResult
from scheduler.model.outcome import Kind
from scheduler.model.settings import Channel, OnUncertain
from scheduler.store import outbox
from scheduler.store.outbox import OutboxMessage
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


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message, and its channel as it is declared when the message is sent."""

    message: OutboxMessage
    channel: Channel
    buttons: tuple[Button, ...] = ()


def claim_deliveries(tick: Tick, under_way: Iterable[Delivery]) -> list[Delivery]:
    """Mark the due messages as `sending` and return them. A message whose channel is no longer declared is given up."""
    quiet_hours.hold_and_release(tick)
    messages = outbox.claim_due_messages(tick.tx, MAX_SENDING, MAX_SENDING_PER_CHANNEL, _count_by_channel(under_way))
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


def next_delivery_time(tx: Transaction, under_way: Iterable[Delivery]) -> datetime | None:
    """When the next message can be sent; None if too many are being sent already."""
    busy = _count_by_channel(under_way)
    if busy.total() >= MAX_SENDING:
        return None
    return outbox.next_due_at(tx.db, [channel for channel, count in busy.items() if count >= MAX_SENDING_PER_CHANNEL])


def _count_by_channel(under_way: Iterable[Delivery]) -> Counter[str]:
    return Counter(delivery.channel.name for delivery in under_way)


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
    resend = action_if_uncertain(channel, message.kind) == "resend"
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
        submit: Callable[[Request], Future[Any]],
    ) -> Poller: ...


def button_listener(channels: Mapping[str, Channel]) -> ButtonListener | None:
    """The extra for buttons and answers; None if none of these channels has any. Raises MissingExtra."""
    has_buttons = any(channel.buttons or channel.people for channel in channels.values())
    return cast("ButtonListener", extras.load("listeners", "buttons")) if has_buttons else None
