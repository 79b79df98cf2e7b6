"""Sends a test message to a channel, for `heartbeatd ping` and the status page. It does not go through the outbox."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from heartbeat.words import one_line
from heartbeatd.answers import TestedChannel, TestedChannels
from scheduler.channels import registry
from scheduler.channels.channel_kind import SendContext
from scheduler.config.file.message_parts import did_you_mean, join_with_or
from scheduler.model.message import DeliveryResult, Message
from scheduler.model.settings import LOG_CHANNEL, Channel, Network, Settings
from scheduler.net.http_client import HttpClient
from scheduler.system.process import Children

MAX_TESTS = 8  # test messages that are sent at the same time
TEST_MESSAGE_TEXT = "This is a test message from heartbeatd. Messages of agents and jobs arrive here."


class UnknownChannel(ValueError):
    """There is no channel with this name."""


def send_test_messages(settings: Settings, named: str | None, now: datetime) -> TestedChannels:
    """Send a test message to a channel (`chat:4711` with a target), or to all but the log that need no target.

    Raises UnknownChannel, and ValueError if a target is missing, or given without need.
    """
    channels, untested = _channels_to_test(settings.channels, named)
    with ThreadPoolExecutor(MAX_TESTS) as threads:
        sent = list(threads.map(lambda channel: asyncio.run(_send_test_message(channel, settings.network, now)), channels))
    tested = [
        TestedChannel(channel=channel.name, state=each.state, error=each.error or None, says=_describe(channel, each))
        for channel, each in zip(channels, sent, strict=True)
    ]
    hints = [f"{name}: not tested; its URL contains {{target}}: run `heartbeatd ping {name}:TARGET`" for name in untested]
    says = "\n".join([*(each.says for each in tested), *hints]) or "no channel is declared; messages go to the log"
    return TestedChannels(channels=tested, says=says)


def _channels_to_test(declared: Mapping[str, Channel], named: str | None) -> tuple[list[Channel], list[str]]:
    """The channels to test, and the names of those that would need a target."""
    if named is None:
        testable = [channel for channel in declared.values() if channel.kind != LOG_CHANNEL]
        untested = [channel.name for channel in testable if channel.needs_target]
        return [channel for channel in testable if not channel.needs_target], untested
    if "://" in named:
        raise ValueError("this is a URL; add it under `channels:` and use its name here")
    name, _, recipient = named.partition(":")
    if name not in declared:
        instead = did_you_mean(name, declared) or f"; write {join_with_or(tuple(declared))}, or declare it under channels:"
        raise UnknownChannel(f"{name!r} is not a channel{instead}")
    return [_channel_with_target(declared[name], recipient)], []


def _describe(channel: Channel, sent: DeliveryResult) -> str:
    if sent.state == "delivered":
        return f"{channel.name}: delivered"
    return one_line(f"{channel.name}: {'perhaps' if sent.state == 'uncertain' else 'not'} delivered: {sent.error}")


def _channel_with_target(channel: Channel, recipient: str) -> Channel:
    if channel.needs_target == bool(recipient):
        return registry.checked_channel(channel, recipient)
    if channel.needs_target:
        raise ValueError(f"channel: the URL of {channel.name} contains {{target}}; write {channel.name}:TARGET")
    raise ValueError(f"channel: {channel.name} takes no target; write {channel.name}")


async def _send_test_message(channel: Channel, network: Network, now: datetime) -> DeliveryResult:
    """Send a test message and wait for the result. Its key is random, so that no receiver takes it for a repeat."""
    message = Message(
        key=secrets.token_hex(32),
        kind="ping",
        name="heartbeatd",
        trigger="manual",
        planned_at=now,
        part=1,
        parts=1,
        text=TEST_MESSAGE_TEXT,
        title="heartbeatd",
    )
    async with HttpClient(lambda: network) as http:
        return await registry.send_message(channel, message, SendContext(http, Children("ping").start, now))
