"""Delivery: what lies in the outbox goes to its channel, is marked before it leaves, and ends as the channel says."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from heartbeat.runners import StartProcess
from scheduler.channels import registry, target_urls
from scheduler.channels.channel_kind import SendContext
from scheduler.channels.message import DeliveryResult, Message
from scheduler.engine.tick import Tick
from scheduler.model.outcome import Kind
from scheduler.model.settings import LOG_CHANNEL, Channel, Network, OnUncertain
from scheduler.net.http_client import HttpClient
from scheduler.store import outbox
from scheduler.store.outbox import OutboxMessage
from scheduler.store.transaction import Transaction
from scheduler.system.file_limits import is_scarcity
from scheduler.system.process import Children
from scheduler.work.executor import Done

MAX_SENDING = 8  # messages under way
MAX_SENDING_PER_CHANNEL = 4  # of one channel, so that one that hangs does not hold up the others
LONGEST_CHANNEL_WAIT = timedelta(minutes=15)  # of what a channel asks for before the next attempt
UNCERTAIN_RETRY_DELAY = timedelta(minutes=1)  # after which what may have arrived goes out again, where that is right


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message and the channel as it was declared when the message left."""

    message: OutboxMessage
    channel: Channel


def collect_due(tick: Tick, under_way: Iterable[Delivery]) -> list[Delivery]:
    """The messages to send now, marked as `sending`. One whose channel is no longer declared is dead, and says so."""
    deliveries = []
    for message in outbox.claim_due_messages(tick.tx, MAX_SENDING, MAX_SENDING_PER_CHANNEL, _count_by_channel(under_way)):
        channel = tick.plan.settings.channels.get(message.channel)
        if channel is None or channel.needs_target != bool(message.recipient):
            outbox.mark_message_dead(tick.tx, message, _describe_unreachable(message, channel))
        else:
            deliveries.append(Delivery(message, target_urls.channel_for_recipient(channel, message.recipient)))
    return deliveries


def next_delivery_time(tx: Transaction, under_way: Iterable[Delivery]) -> datetime | None:
    """When the next message can be sent; None while there is no room for any."""
    busy = _count_by_channel(under_way)
    if busy.total() >= MAX_SENDING:
        return None
    return outbox.next_due_at(tx.db, [channel for channel, count in busy.items() if count >= MAX_SENDING_PER_CHANNEL])


def _count_by_channel(under_way: Iterable[Delivery]) -> Counter[str]:
    return Counter(delivery.channel.name for delivery in under_way)


def settle_delivery(tx: Transaction, done: Done[Delivery, DeliveryResult]) -> None:
    """Book how a sending ended. One that raised is uncertain: nobody knows how far it came."""
    message, channel = done.task.message, done.task.channel
    sent = (
        done.result
        or _retry_if_unsent(done.surprise)
        or DeliveryResult("uncertain", f"{type(done.surprise).__name__} while sending")
    )
    if sent.state == "delivered":
        outbox.record_delivery(tx, message)
    elif sent.state == "dead":
        outbox.mark_message_dead(tx, message, sent.error)
    elif sent.state == "uncertain":
        _settle_uncertain(tx, message, channel, sent.error)
    else:
        outbox.retry_message_later(tx, message, sent.error, sent.retry_after and min(sent.retry_after, LONGEST_CHANNEL_WAIT))


def _retry_if_unsent(surprise: BaseException | None) -> DeliveryResult | None:
    """What had no room to begin has not been sent, and is tried again."""
    return DeliveryResult("retry", f"could not begin: {surprise}") if is_scarcity(surprise) else None


def recover_deliveries(tick: Tick) -> None:
    """Book what an earlier life of the daemon was sending when it died: nobody knows whether it arrived."""
    for message in outbox.interrupted_messages(tick.tx.db):
        channel = tick.plan.settings.channels.get(message.channel)
        if channel is None:
            outbox.mark_message_dead(tick.tx, message, _describe_unreachable(message, channel))
        else:
            _settle_uncertain(tick.tx, message, channel, "the daemon stopped while sending")


def action_if_uncertain(channel: Channel, kind: str) -> OnUncertain:
    """What becomes of a message of a heartbeat or a job (`kind`) when nobody knows whether the channel has it.

    Unless the config says it, a receiver that knows repeats gets it again; of the others an alert, better twice than never,
    while a job's output is held for a person to decide.
    """
    if channel.uncertain is not None:
        return channel.uncertain
    return "resend" if registry.kind_of(channel).detects_repeats or kind == Kind.HEARTBEAT else "hold"


async def send_delivery(delivery: Delivery, start: StartProcess, http: HttpClient) -> DeliveryResult:
    """Send one message to its channel; waits for the channel."""
    return await registry.send_message(delivery.channel, _to_message(delivery.message), SendContext(http, start))


def _settle_uncertain(tx: Transaction, message: OutboxMessage, channel: Channel, error: str) -> None:
    """Nobody knows whether it arrived. A receiver that does not know repeats is sent it at most once more."""
    resend = action_if_uncertain(channel, message.kind) == "resend"
    if registry.kind_of(channel).detects_repeats:
        outbox.mark_message_uncertain(tx, message, error, resend=resend)
    else:
        outbox.mark_message_uncertain(tx, message, error, resend=resend and not message.doubted, wait=UNCERTAIN_RETRY_DELAY)


def _describe_unreachable(message: OutboxMessage, channel: Channel | None) -> str:
    if channel is None:
        return f"channels.{message.channel} is no longer declared"
    now = "now holds {target}" if channel.needs_target else "no longer holds {target}"
    return f"the URL of channels.{message.channel} {now}, and so leads to somebody else"


def _to_message(message: OutboxMessage) -> Message:
    return Message(
        key=message.key,
        kind=message.kind,
        name=message.name,
        trigger=message.trigger,
        slot=message.slot,
        part=message.part,
        parts=message.parts,
        text=message.text,
        title=message.title,
    )


TEST_MESSAGE_TEXT = "This is a test message of heartbeatd: what agents and jobs have to say arrives here."


def testable_channels(declared: Mapping[str, Channel]) -> list[Channel]:
    """The channels that a trial of all of them tries: the log needs none."""
    return [channel for channel in declared.values() if channel.kind != LOG_CHANNEL]


def channel_for_recipient(channel: Channel, whom: str) -> Channel:
    """The channel as its URL stands, or with somebody where that leaves it open; ValueError says what to name instead."""
    if channel.needs_target == bool(whom):
        return target_urls.checked_channel(channel, whom)
    named = f"{channel.name}:TARGET, for its URL holds {{target}}" if channel.needs_target else f"{channel.name} alone"
    raise ValueError(f"channel: name {named}")


def send_test_message(channel: Channel, network: Network, now: datetime) -> DeliveryResult:
    """Try one channel, and wait for it. The message has a key of its own: no receiver shall take it for one that it had."""
    return asyncio.run(_send_on_new_client(channel, network, now))


async def _send_on_new_client(channel: Channel, network: Network, now: datetime) -> DeliveryResult:
    message = Message(
        key=secrets.token_hex(32),
        kind="ping",
        name="ping",
        trigger="manual",
        slot=now,
        part=1,
        parts=1,
        text=TEST_MESSAGE_TEXT,
        title="heartbeatd",
    )
    async with HttpClient(lambda: network) as http:
        return await registry.send_message(channel, message, SendContext(http, Children("ping").start))
