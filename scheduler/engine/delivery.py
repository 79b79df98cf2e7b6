"""Delivery: what lies in the outbox goes to its channel, is marked before it leaves, and ends as the channel says."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from heartbeat.runners import Start
from scheduler.channels import command, discord, telegram, webhook
from scheduler.channels.message import Message, Sent
from scheduler.channels.post import HttpOptions
from scheduler.engine.tick import Tick
from scheduler.model.outcome import Kind
from scheduler.model.settings import Channel, Uncertain
from scheduler.net.http_client import HttpClient
from scheduler.store import outbox, targets
from scheduler.store.outbox import Letter
from scheduler.store.transaction import Transaction
from scheduler.system.file_limits import is_scarcity
from scheduler.system.log import event
from scheduler.work.executor import Done

AT_ONCE = 8  # messages under way
SHARE = 4  # of one channel, so that one that hangs does not hold up the others
LONGEST_WAIT = timedelta(minutes=15)  # of what a channel asks for before the next attempt
ONCE_MORE = timedelta(minutes=1)  # after which what may have arrived goes out again, where that is right
KNOWS_REPEATS = ("webhook", "log")  # kinds that take a message's key, or do not mind a line more


@dataclass(frozen=True, slots=True)
class Parcel:
    """A letter and the channel as it was declared when the letter left."""

    letter: Letter
    channel: Channel


def collect(tick: Tick, under_way: Iterable[Parcel]) -> list[Parcel]:
    """The messages to send now, marked as `sending`. One whose channel is no longer declared is dead, and says so."""
    parcels = []
    for letter in outbox.take(tick.tx, AT_ONCE, SHARE, _by_channel(under_way)):
        channel = tick.plan.settings.channels.get(letter.channel)
        if channel is None or channel.open != bool(letter.whom):
            outbox.dead(tick.tx, letter, _unreachable(letter, channel))
        else:
            parcels.append(Parcel(letter, targets.aimed(channel, letter.whom)))
    return parcels


def next_due(tx: Transaction, under_way: Iterable[Parcel]) -> datetime | None:
    """When the next message can be sent; None while there is no room for any."""
    busy = _by_channel(under_way)
    if busy.total() >= AT_ONCE:
        return None
    return outbox.next_due(tx.db, [channel for channel, count in busy.items() if count >= SHARE])


def _by_channel(under_way: Iterable[Parcel]) -> Counter[str]:
    return Counter(parcel.channel.name for parcel in under_way)


def settle(tx: Transaction, done: Done[Parcel, Sent]) -> None:
    """Book how a sending ended. One that raised is uncertain: nobody knows how far it came."""
    letter, channel = done.task.letter, done.task.channel
    sent = done.result or _unsent(done.surprise) or Sent("uncertain", f"{type(done.surprise).__name__} while sending", None)
    if sent.state == "delivered":
        outbox.delivered(tx, letter)
    elif sent.state == "dead":
        outbox.dead(tx, letter, sent.error)
    elif sent.state == "uncertain":
        _doubt(tx, letter, channel, sent.error)
    else:
        outbox.try_later(tx, letter, sent.error, sent.retry_after and min(sent.retry_after, LONGEST_WAIT))


def _unsent(surprise: BaseException | None) -> Sent | None:
    """What had no room to begin has not been sent, and is tried again."""
    return Sent("retry", f"could not begin: {surprise}", None) if is_scarcity(surprise) else None


def recover(tick: Tick) -> None:
    """Book what an earlier life of the daemon was sending when it died: nobody knows whether it arrived."""
    for letter in outbox.interrupted(tick.tx.db):
        channel = tick.plan.settings.channels.get(letter.channel)
        if channel is None:
            outbox.dead(tick.tx, letter, _unreachable(letter, channel))
        else:
            _doubt(tick.tx, letter, channel, "the daemon stopped while sending")


def when_uncertain(channel: Channel, kind: str) -> Uncertain:
    """What becomes of a message of a heartbeat or a job (`kind`) when nobody knows whether the channel has it.

    Unless the config says it, a receiver that knows repeats gets it again; of the others an alert, better twice than never,
    while a job's output is held for a person to decide.
    """
    if channel.uncertain is not None:
        return channel.uncertain
    return "resend" if channel.kind in KNOWS_REPEATS or kind == Kind.HEARTBEAT else "hold"


async def send(parcel: Parcel, start: Start, http: HttpClient) -> Sent:
    """Hand one message to its channel; waits for the channel."""
    return await hand_over(parcel.channel, _message(parcel.letter), start, http)


async def hand_over(channel: Channel, message: Message, start: Start, http: HttpClient) -> Sent:
    """Send a message by the transport of its channel; waits for at most half a minute and raises nothing of the network.

    `start` starts a channel's program.
    """
    if channel.kind == "log":
        event(logging.INFO, "said", kind=message.kind, name=message.name, slot=message.slot, text=message.text)
        return Sent("delivered", "", None)
    if channel.kind == "command":
        return await command.send(channel.argv, channel.folder, message, start)
    if channel.url is None:
        return Sent("retry", f"a secret of channels.{channel.name} is not set; set it in the environment or the env_file", None)
    if channel.open:
        return Sent("dead", f"the URL of channels.{channel.name} holds {{target}}, and nobody is named", None)
    url, options = channel.url.reveal(), HttpOptions(http, channel.allow_private)
    base = channel.base_url.reveal() if channel.base_url else None
    match channel.kind:
        case "telegram":
            return await telegram.send(url, message, options, base=base)
        case "discord":
            return await discord.send(url, message, options, base=base)
        case "apprise":
            from scheduler.channels import apprise  # a fifth of a second and 20 MiB, and most have no such channel

            return await apprise.send(url, message, http.network)
        case "webhook":
            return await webhook.send(url, message, options)


def _doubt(tx: Transaction, letter: Letter, channel: Channel, error: str) -> None:
    """Nobody knows whether it arrived. A receiver that does not know repeats is sent it at most once more."""
    resend = when_uncertain(channel, letter.kind) == "resend"
    if channel.kind in KNOWS_REPEATS:
        outbox.uncertain(tx, letter, error, resend=resend)
    else:
        outbox.uncertain(tx, letter, error, resend=resend and not letter.doubted, wait=ONCE_MORE)


def _unreachable(letter: Letter, channel: Channel | None) -> str:
    if channel is None:
        return f"channels.{letter.channel} is no longer declared"
    now = "now holds {target}" if channel.open else "no longer holds {target}"
    return f"the URL of channels.{letter.channel} {now}, and so leads to somebody else"


def _message(letter: Letter) -> Message:
    return Message(
        key=letter.key,
        kind=letter.kind,
        name=letter.name,
        trigger=letter.trigger,
        slot=letter.slot,
        part=letter.part,
        parts=letter.parts,
        text=letter.text,
        title=letter.title,
    )
