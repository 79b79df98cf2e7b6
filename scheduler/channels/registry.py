"""Lists the kinds of channels. A new kind is a module with a KIND and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.channels import apprise, command_channel, discord, log_channel, telegram, url_template, webhook
from scheduler.channels.channel_kind import ChannelKind, SendContext
from scheduler.model.message import DeliveryResult, Message
from scheduler.model.settings import Channel

KINDS = (
    webhook.KIND,
    telegram.KIND,
    discord.KIND,
    command_channel.KIND,
    apprise.KIND,
)
FALLBACK = apprise.KIND  # for URLs of all other schemes

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
        problem = f"a secret of channels.{channel.name} is not set; set it in the environment or the env_file"
        return DeliveryResult("retry", problem)
    if channel.needs_target:
        problem = f"the URL of channels.{channel.name} contains {url_template.PLACEHOLDER}, and no target is given"
        return DeliveryResult("dead", problem)
    return await kind.send(channel, message, context)
