"""Sends a message to a Discord channel, by executing its webhook."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from heartbeat.runners.redaction import secret_parts
from scheduler.channels.channel_kind import ChannelKind, SendContext, prefixed_text, text_after_prefix
from scheduler.channels.http_post import (
    PostAnswer,
    channel_url,
    clean_reason,
    post_json,
    result_of_status,
    wait_from_seconds,
)
from scheduler.channels.url_template import PLACEHOLDER
from scheduler.model.message import DeliveryResult, Message
from scheduler.model.settings import Channel

SERVER = "https://discord.com"
MAX_LENGTH = 2000  # characters of one message
MAX_NAME_LENGTH = 80  # characters of the name of a sender
RESERVED_IN_NAMES = ("discord", "clyde", "```", "#", ":")  # Discord does not accept names with these texts
RESERVED_NAMES = ("everyone", "here")
SUPPRESS_EMBEDS = 1 << 2
BAD_URL = "this is not the URL of a Discord webhook; write discord://ID/TOKEN, or the https:// one that Discord shows"

_URL = re.compile(
    r"(?:discord:/|(https?://[^/?#\s]+)/api(?:/v\d+)?/webhooks)/(\d{1,20})/([\w-]{1,200})/?(?:\?thread(?:_id)?=(\d{1,20}))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class DiscordWebhook:
    """A Discord webhook and the thread that it writes to. `server` is None for Discord itself."""

    server: str | None
    id: str
    token: str = field(repr=False)
    thread: str | None


def parse_webhook_url(url: str) -> DiscordWebhook:
    """The webhook of a discord:// URL, or of the https:// one that Discord shows.

    ValueError, which shows nothing of it, if it is none.
    """
    found = _URL.fullmatch(url)
    if not found:
        raise ValueError(BAD_URL)
    return DiscordWebhook(*found.groups())


async def send(channel: Channel, message: Message, context: SendContext) -> DeliveryResult:
    """Send `message` once to the webhook of a discord:// URL; `base_url` replaces Discord's own server.

    Nobody is mentioned, no link is previewed, and none can hide behind other words. Discord has no key by which it could
    recognise a repeat.
    """
    try:
        webhook = parse_webhook_url(channel_url(channel))
    except ValueError as error:
        return DeliveryResult("dead", str(error))
    server = (channel.base_url.reveal() if channel.base_url else None) or webhook.server or SERVER
    thread = f"&thread_id={webhook.thread}" if webhook.thread else ""
    url = f"{server.rstrip('/')}/api/v10/webhooks/{webhook.id}/{webhook.token}?wait=true{thread}"
    answer = await post_json(
        url, _body(channel, message), context.http, allow_private=channel.allow_private, seconds=context.seconds
    )
    if isinstance(answer, DeliveryResult):
        return answer
    return _read_answer(answer, [webhook.token, *secret_parts(server, whole_url=True)])


def _body(channel: Channel, message: Message) -> dict[str, object]:
    """What Discord gets: the prefix is the name of the sender. If Discord would not accept the name, it begins the text."""
    sender = _name_of_sender(channel.prefix_for(message.kind, message.name, message.title))
    content = _disarm_links(text_after_prefix(channel, message) if sender else prefixed_text(channel, message))
    body: dict[str, object] = {"content": content, "allowed_mentions": {"parse": []}, "flags": SUPPRESS_EMBEDS}
    return body | ({"username": sender} if sender else {})


def _name_of_sender(prefix: str) -> str | None:
    """The prefix as the name of a sender, such as `ops on web1`; None if Discord might not accept it."""
    name = prefix.removeprefix("[").removesuffix("]").replace("@", " on ").strip()
    is_reserved = name.lower() in RESERVED_NAMES or any(text in name.lower() for text in RESERVED_IN_NAMES)
    return None if is_reserved or not 0 < len(name) <= MAX_NAME_LENGTH else name


def _disarm_links(text: str) -> str:
    """The text with `[words](link)` shown as it is written: a link must not hide behind words.

    Where the backslash that does it does not fit, another bracket does.
    """
    escaped = text.replace("](", "]\\(")
    return escaped if len(escaped) <= MAX_LENGTH else text.replace("](", "]\N{FULLWIDTH LEFT PARENTHESIS}")


def _read_answer(answer: PostAnswer, secrets: list[str]) -> DeliveryResult:
    """With `wait=true` Discord answers with the message that it created. The body of an error gives the reason."""
    data = answer.parse_json()
    if answer.status == 200 and "id" not in data:
        return DeliveryResult("uncertain", f"{answer.host} answered 200 without the message that it created")
    wait = wait_from_seconds(data.get("retry_after"))
    return result_of_status(answer, reason=clean_reason(data.get("message"), secrets), wait=wait)


def _check_url(url: str) -> int:
    parse_webhook_url(url)
    return MAX_LENGTH


def _check_url_before_target(before: str) -> None:
    if "?" not in before:
        problem = "in the URL of a Discord webhook only the thread can be open"
        raise ValueError(f"{problem}; write discord://ID/TOKEN?thread={PLACEHOLDER}")


KIND = ChannelKind(
    "discord",
    send,
    check_url=_check_url,
    check_url_before_target=_check_url_before_target,
    schemes=("discord",),
    url_form="discord://ID/TOKEN",
    bad_target="target: write the number of a Discord thread",
    has_base_url=True,
)
