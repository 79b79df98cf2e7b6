"""A trial of a channel: one test message that goes straight to it, past the outbox and only once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from datetime import datetime

from scheduler.channels import target_urls
from scheduler.channels.message import DeliveryResult, Message
from scheduler.engine.delivery import send_message
from scheduler.model.settings import Channel, Network
from scheduler.net.http_client import HttpClient
from scheduler.system.process import Children

TEXT = "This is a test message of heartbeatd: what agents and jobs have to say arrives here."


def testable_channels(declared: Mapping[str, Channel]) -> list[Channel]:
    """The channels that a trial of all of them tries: the log needs none."""
    return [channel for channel in declared.values() if channel.kind != "log"]


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
        text=TEXT,
        title="heartbeatd",
    )
    async with HttpClient(lambda: network) as http:
        return await send_message(channel, message, Children("ping").start, http)
