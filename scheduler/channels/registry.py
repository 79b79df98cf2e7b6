"""Lists the kinds of channels, checks where messages go, and sends them. A new kind is a module with a KIND and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import unquote

from heartbeatd.secret import HOW_TO_SET, Secret
from scheduler.channels import apprise, command_channel, discord, log_channel, telegram, url_template, webhook
from scheduler.channels.channel_kind import ChannelKind, SendContext
from scheduler.channels.url_template import check_target_text, fill_placeholder
from scheduler.model.message import DeliveryResult, Message
from scheduler.model.settings import LAST_TARGET, Channel, Target

KINDS = (
    webhook.KIND,
    telegram.KIND,
    discord.KIND,
    command_channel.KIND,
    apprise.KIND,
)
FALLBACK = apprise.KIND  # for URLs of all other schemes
INTERNAL = frozenset({"cli", "system", "subagent", "cron", "heartbeat"})  # channel names that gateways use internally

_BY_NAME: Mapping[str, ChannelKind] = {kind.name: kind for kind in (*KINDS, log_channel.KIND)}
_BY_SCHEME: Mapping[str, ChannelKind] = {scheme: kind for kind in KINDS for scheme in kind.schemes}


def kind_of(channel: Channel) -> ChannelKind:
    """The kind of a channel."""
    return _BY_NAME[channel.kind]


def kind_for(name: str | None, scheme: str) -> ChannelKind:
    """The kind with the name that the config gives, otherwise the one whose URLs have this scheme."""
    return _BY_NAME[name] if name else _BY_SCHEME.get(scheme, FALLBACK)


def kinds_with_own_scheme() -> tuple[ChannelKind, ...]:
    """The kinds that need not be named, because the scheme of their URLs says enough."""
    return tuple(kind for kind in KINDS if kind.schemes and kind.if_not_named is None)


def check_recipient(channel: Channel) -> None:
    """ValueError if the target in a completed URL is not one that the kind of the channel accepts."""
    kind = kind_of(channel)
    if channel.url is None or kind.bad_target is None:
        return
    try:
        kind.check_url(channel.url.reveal())
    except ValueError:
        raise ValueError(kind.bad_target) from None


async def send_message(channel: Channel, message: Message, context: SendContext) -> DeliveryResult:
    """Send a message to its channel; waits for at most half a minute and raises nothing of the network."""
    kind = kind_of(channel)
    if channel.url is None and kind in KINDS and not kind.runs_program:
        return DeliveryResult("retry", f"a secret of channels.{channel.name} is not set; {HOW_TO_SET}")
    if channel.needs_target:
        problem = f"the URL of channels.{channel.name} contains {url_template.PLACEHOLDER}, and no target is given"
        return DeliveryResult("dead", problem)
    return await kind.send(channel, message, context)


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
    check_recipient(found)
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
    """A target in a URL is percent-encoded, such as the colon before a topic. What the config says need not be."""
    return channel.kind, channel.url and unquote(channel.url.reveal()), channel.base_url
