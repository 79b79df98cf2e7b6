"""Checks the target of a message, and builds the channel with the URL for this target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heartbeatd.secret import Secret
from scheduler.channels import registry
from scheduler.channels.url_template import check_target_text, fill_placeholder
from scheduler.model.settings import LAST_TARGET, Channel, Target

INTERNAL = frozenset({"cli", "system", "subagent", "cron", "heartbeat"})  # channel names that gateways use internally


def resolve_targets(channels: Mapping[str, Channel], deliver: tuple[str, ...], last: Target | None) -> tuple[Target, ...]:
    """Where messages go now, each place once.

    `deliver` holds names of channels and `last`, which stands for the target `last`: where the agent's user wrote from most
    recently. It is left out if it is None, or if one of the named channels leads to the same place.
    """
    named = tuple(Target(name) for name in deliver if name != LAST_TARGET)
    if last is None or LAST_TARGET not in deliver or _is_same_place(channels, last, named):
        return named
    return (*named, last)


def check_target(channels: Mapping[str, Channel], target: Target) -> None:
    """ValueError, with a message for the client that reported it, unless messages can be sent to this target."""
    name, channel = target.channel, channels.get(target.channel)
    if "://" in name:
        raise ValueError("channel: this is a URL; declare it under channels: with {target} in it, and give its name here")
    if name.lower() in INTERNAL:
        raise ValueError(f"channel: {name} is internal and has no users; report only channels on which users write")
    if channel is None or not channel.needs_target:
        known = ", ".join(each.name for each in channels.values() if each.needs_target) or "none yet"
        raise ValueError(f"channel: give the name of a channel whose URL in the config contains {{target}}: {known}")
    checked_channel(channel, target.recipient)


def checked_channel(channel: Channel, recipient: str) -> Channel:
    """The channel with this target in its URL; ValueError unless it is one that the channel's kind can know."""
    if channel.needs_target:
        check_target_text(recipient)
    found = channel_for_recipient(channel, recipient)
    registry.check_recipient(found)
    return found


def channel_for_recipient(channel: Channel, recipient: str) -> Channel:
    """The channel with the recipient in place of {target}."""
    if not channel.needs_target or channel.url is None:
        return channel
    return replace(channel, url=Secret(fill_placeholder(channel.url.reveal(), recipient)), needs_target=False)


def _is_same_place(channels: Mapping[str, Channel], last: Target, named: tuple[Target, ...]) -> bool:
    """Whether one of the named channels is the same place under another name."""
    place = channel_for_recipient(channels[last.channel], last.recipient)
    return any(
        _place_of_channel(channels[each.channel]) == _place_of_channel(place) for each in named if each.channel in channels
    )


def _place_of_channel(channel: Channel) -> tuple[object, ...]:
    return channel.kind, channel.url, channel.base_url
