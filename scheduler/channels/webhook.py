"""One message posted as JSON to a URL of the config."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC
from typing import Any

from scheduler.channels.http_post import HttpOptions, post_json, result_of_status
from scheduler.channels.message import DeliveryResult, Message


async def send(url: str, message: Message, options: HttpOptions) -> DeliveryResult:
    """Post `message` to `url` once, as `post_json` does.

    The receiver can tell a repeat by the Idempotency-Key header, which is the message's key.
    """
    answer = await post_json(url, _content(message), options, {"Idempotency-Key": message.key})
    return answer if isinstance(answer, DeliveryResult) else result_of_status(answer)


def _content(message: Message) -> dict[str, Any]:
    slot = message.slot.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return asdict(message) | {"slot": slot}
