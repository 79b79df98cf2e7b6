"""Writes messages to the daemon's log: the channel `log`, which is built in."""

from __future__ import annotations

import logging

from scheduler.channels.channel_kind import ChannelKind, SendContext
from scheduler.model.message import DeliveryResult, Message
from scheduler.model.settings import LOG_CHANNEL, Channel
from scheduler.system.log import log_event


async def _send(channel: Channel, message: Message, context: SendContext) -> DeliveryResult:  # noqa: ARG001 (as all kinds have it)
    log_event(logging.INFO, "said", kind=message.kind, name=message.name, planned_at=message.planned_at, text=message.text)
    return DeliveryResult("delivered")


KIND = ChannelKind(LOG_CHANNEL, _send, detects_repeats=True)  # a second line in the log does no harm
