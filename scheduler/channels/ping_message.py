"""Sends a test message to a channel, for `heartbeatd ping` and the status page. It does not go through the outbox."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from datetime import datetime

from scheduler.channels import registry, target_urls
from scheduler.channels.channel_kind import SendContext
from scheduler.channels.message import DeliveryResult, Message
from scheduler.model.settings import LOG_CHANNEL, Channel, Network
from scheduler.net.http_client import HttpClient
from scheduler.system.process import Children

TEST_MESSAGE_TEXT = "This is a test message from heartbeatd. Messages of agents and jobs arrive here."


def testable_channels(declared: Mapping[str, Channel]) -> list[Channel]:
    """The channels that get a test message: all but the log."""
    return [channel for channel in declared.values() if channel.kind != LOG_CHANNEL]


def channel_to_test(channel: Channel, recipient: str) -> Channel:
    """The channel for a test message to `recipient`. Raises ValueError if a target is missing, or given without need."""
    if channel.needs_target == bool(recipient):
        return target_urls.checked_channel(channel, recipient)
    named = f"{channel.name}:TARGET, because its URL has {{target}}" if channel.needs_target else f"{channel.name} alone"
    raise ValueError(f"channel: write {named}")


def send_test_message(channel: Channel, network: Network, now: datetime) -> DeliveryResult:
    """Send a test message and wait for the result. Its key is random, so that no receiver takes it for a repeat."""
    return asyncio.run(_send_on_new_client(channel, network, now))


async def _send_on_new_client(channel: Channel, network: Network, now: datetime) -> DeliveryResult:
    message = Message(
        key=secrets.token_hex(32),
        kind="ping",
        name="heartbeatd",
        trigger="manual",
        slot=now,
        part=1,
        parts=1,
        text=TEST_MESSAGE_TEXT,
        title="heartbeatd",
    )
    async with HttpClient(lambda: network) as http:
        return await registry.send_message(channel, message, SendContext(http, Children("ping").start, now))
