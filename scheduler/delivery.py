"""Delivery: what lies in the outbox goes to its channel, is marked before it leaves, and ends as the channel says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from scheduler import outbox
from scheduler.executor import Done
from scheduler.logs import event
from scheduler.outbox import Letter
from scheduler.settings import Channel
from scheduler.transports import Message, Sent, webhook
from scheduler.turn import Turn

LONGEST_WAIT = timedelta(minutes=15)  # of what a channel asks for before the next attempt

Send = Callable[["Parcel"], Sent]


@dataclass(frozen=True, slots=True)
class Parcel:
    """A letter and the channel as it was declared when the letter left."""

    letter: Letter
    channel: Channel


def collect(turn: Turn, limit: int) -> list[Parcel]:
    """The messages to send now, marked as `sending`. One whose channel is no longer declared is dead, and says so."""
    parcels = []
    for letter in outbox.take(turn, limit):
        channel = turn.plan.settings.channels.get(letter.channel)
        if channel is None:
            outbox.dead(turn, letter, f"channels.{letter.channel} is no longer declared")
        else:
            parcels.append(Parcel(letter, channel))
    return parcels


def settle(turn: Turn, done: Done[Parcel, Sent]) -> None:
    """Book how a sending ended. One that raised is uncertain: nobody knows how far it came."""
    letter, channel = done.task.letter, done.task.channel
    sent = done.result or Sent("uncertain", f"{type(done.surprise).__name__} while sending", None)
    if sent.state == "delivered":
        outbox.delivered(turn, letter)
    elif sent.state == "dead":
        outbox.dead(turn, letter, sent.error)
    elif sent.state == "uncertain":
        outbox.uncertain(turn, letter, sent.error, resend=channel.uncertain == "resend")
    else:
        outbox.try_later(turn, letter, sent.error, sent.retry_after and min(sent.retry_after, LONGEST_WAIT))


def recover(turn: Turn) -> None:
    """Book what an earlier life of the daemon was sending when it died: nobody knows whether it arrived."""
    for letter in outbox.interrupted(turn.db):
        channel = turn.plan.settings.channels.get(letter.channel)
        resend = channel is None or channel.uncertain == "resend"
        outbox.uncertain(turn, letter, "the daemon stopped while sending", resend=resend)


def send(parcel: Parcel) -> Sent:
    """Hand one message to its channel; waits for the channel."""
    letter, channel = parcel.letter, parcel.channel
    if channel.kind == "log":
        event(logging.INFO, "said", kind=letter.kind, name=letter.name, slot=letter.slot, text=letter.text)
        return Sent("delivered", "", None)
    assert channel.url is not None
    return webhook.send(channel.url.reveal(), _message(letter), allow_private=channel.allow_private)


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
