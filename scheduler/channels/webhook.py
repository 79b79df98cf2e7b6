"""Posts a message as JSON to a URL of the config."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import fields
from datetime import UTC, datetime
from functools import partial

from scheduler.channels.channel_kind import ChannelKind, SendContext, prefixed_text
from scheduler.channels.http_post import channel_url, post_json, result_of_status
from scheduler.channels.url_template import PLACEHOLDER, is_web_address
from scheduler.model.message import DeliveryResult, Message
from scheduler.model.settings import Channel


async def send(channel: Channel, message: Message, context: SendContext) -> DeliveryResult:
    """Post `message` once, as `post_json` does.

    If the channel has a secret, the request is signed. The receiver can recognise a repeat by the Idempotency-Key header, which
    is the message's key.
    """
    planned_at = message.planned_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    own = {each.name: getattr(message, each.name) for each in fields(Message)}  # a queued message has fields of its own
    text = prefixed_text(channel, message)
    answer = await post_json(
        channel_url(channel),
        own | {"planned_at": planned_at, "text": text, "agent": message.name, "host": channel.host},
        context.http,
        allow_private=channel.allow_private,
        seconds=context.seconds,
        headers={"Idempotency-Key": message.key},
        sign=partial(_signature, channel, context.now) if channel.signing_secret else None,
    )
    return answer if isinstance(answer, DeliveryResult) else result_of_status(answer)


def _signature(channel: Channel, now: datetime, body: bytes) -> dict[str, str]:
    """The signature of a request in the scheme of Stripe: HMAC-SHA256 over the time in seconds, a dot and the body.

    https://docs.stripe.com/webhooks#verify-manually
    """
    assert channel.signing_secret is not None
    timestamp = str(int(now.timestamp()))
    key = channel.signing_secret.reveal().encode(errors="surrogateescape")
    digest = hmac.new(key, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {channel.signature_header: f"t={timestamp},v1={digest}"}


def _check_url(url: str) -> None:
    if not is_web_address(url):
        raise ValueError("this is not the address of a webhook; write http:// or https:// with a host")


def _check_url_before_target(before: str) -> None:
    if "#" in before:
        raise ValueError(f"the part after # is never sent; write {PLACEHOLDER} before it")


KIND = ChannelKind(
    "webhook",
    send,
    check_url=_check_url,
    check_url_before_target=_check_url_before_target,
    schemes=("http", "https"),
    if_not_named='an https:// address alone names no kind; write {kind: webhook, url: "https://..."} or kind: discord',
    detects_repeats=True,
    names_sender=True,
    is_signed=True,
)
