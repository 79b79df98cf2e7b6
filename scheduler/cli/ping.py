"""Sends a test message through one channel or all channels."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from heartbeat.words import one_line
from scheduler.channels import ping_message
from scheduler.channels.message import DeliveryResult
from scheduler.cli.options import InputError
from scheduler.cli.output import utc_now
from scheduler.config.file.message_parts import did_you_mean, join_with_or
from scheduler.config.settings import load
from scheduler.model.settings import Channel, Network, Settings
from scheduler.system import log


def print_tests(name: str | None, path: Path) -> int:
    """Send a test message through the channels, and print each result. Returns 1 if one was not delivered."""
    settings = load.load_config(path, os.environ).settings
    chosen = _choose_channels(settings, name)
    channels = [channel for channel in chosen if not channel.needs_target]
    for channel in chosen:
        if channel.needs_target:
            click.echo(f"{channel.name}: not tested; its URL contains {{target}}: run `heartbeatd ping {channel.name}:TARGET`")
    if not chosen:
        click.echo("no channel is declared; messages go to the log")
    log.set_up_log(sys.stderr)
    tried = [_test_channel(channel, settings.network) for channel in channels]
    return int(not all(tried))


def _choose_channels(settings: Settings, name: str | None) -> list[Channel]:
    declared = settings.channels
    if name is None:
        return ping_message.testable_channels(declared)
    if "://" in name:
        raise InputError("this is a URL; add it under `channels:` and use its name here")
    name, _, target = name.partition(":")
    if name not in declared:
        instead = did_you_mean(name, declared) or f"; write {join_with_or(tuple(declared))}"
        raise InputError(f"{name!r} is not a channel in {settings.path}{instead}")
    try:
        return [ping_message.channel_to_test(declared[name], target)]
    except ValueError as error:
        raise InputError(str(error)) from None


def _test_channel(channel: Channel, network: Network) -> bool:
    sent = ping_message.send_test_message(channel, network, utc_now())
    click.echo(f"{channel.name}: {_format_result(sent)}")
    return sent.state == "delivered"


def _format_result(sent: DeliveryResult) -> str:
    if sent.state == "delivered":
        return "delivered"
    return one_line(f"{'perhaps' if sent.state == 'uncertain' else 'not'} delivered: {sent.error}")
