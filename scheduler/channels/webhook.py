"""Posts a message as JSON to a URL of the config."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC
from typing import Any

from scheduler.channels.channel_kind import ChannelKind, SendContext
from scheduler.channels.http_post import channel_url, post_json, post_options, result_of_status
from scheduler.channels.message import DeliveryResult, Message
from scheduler.channels.url_template import PLACEHOLDER, is_web_address
from scheduler.model.settings import Channel


async def send(channel: Channel, message: Message, context: SendContext) -> DeliveryResult:
    """Post `message` once, as `post_json` does.

    The receiver can recognise a repeat by the Idempotency-Key header, which is the message's key.
    """
    headers = {"Idempotency-Key": message.key}
    answer = await post_json(channel_url(channel), _body(message), post_options(channel, context), headers)
    return answer if isinstance(answer, DeliveryResult) else result_of_status(answer)


def _body(message: Message) -> dict[str, Any]:
    slot = message.slot.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return asdict(message) | {"slot": slot}


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
    if_not_named='a web address alone does not name the kind of channel; write {kind: webhook, url: "https://..."}',
    detects_repeats=True,
)
