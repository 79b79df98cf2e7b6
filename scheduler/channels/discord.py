"""One message sent to a Discord channel, by executing its webhook."""

from __future__ import annotations

from typing import Any

from heartbeat.runners.redaction import secret_parts
from scheduler.channels import address
from scheduler.channels.address import Hook
from scheduler.channels.http_post import HttpOptions, PostAnswer, clean_reason, post_json, result_of_status, wait_from_seconds
from scheduler.channels.limits import DISCORD as LIMIT
from scheduler.channels.message import DeliveryResult, Message

BASE = "https://discord.com"
SUPPRESS_EMBEDS = 1 << 2


async def send(url: str, message: Message, options: HttpOptions, *, base: str | None = None) -> DeliveryResult:
    """Send `message` once to the webhook of a discord:// URL; `base` replaces Discord's own server.

    Nobody is mentioned, no link is previewed, and none can hide behind other words. Discord knows no key to tell a repeat by.
    """
    try:
        hook = address.hook(url)
    except ValueError as error:
        return DeliveryResult("dead", str(error))
    server = base or hook.base or BASE
    answer = await post_json(_execute(hook, server), _content(message), options)
    return answer if isinstance(answer, DeliveryResult) else _judge(answer, [hook.token, *secret_parts(server, whole_url=True)])


def _execute(hook: Hook, server: str) -> str:
    thread = f"&thread_id={hook.thread}" if hook.thread else ""
    return f"{server.rstrip('/')}/api/v10/webhooks/{hook.id}/{hook.token}?wait=true{thread}"


def _content(message: Message) -> dict[str, Any]:
    return {"content": _plain(message.text), "allowed_mentions": {"parse": []}, "flags": SUPPRESS_EMBEDS}


def _plain(text: str) -> str:
    """The text with `[words](link)` shown as it is written: a link must not hide behind words.

    Where the backslash that does it does not fit, another bracket does.
    """
    escaped = text.replace("](", "]\\(")
    return escaped if len(escaped) <= LIMIT else text.replace("](", "]\N{FULLWIDTH LEFT PARENTHESIS}")


def _judge(answer: PostAnswer, secrets: list[str]) -> DeliveryResult:
    """`wait=true` has Discord answer with the message that it made; its refusals say why in the body."""
    told = answer.parse_json()
    if answer.status == 200 and "id" not in told:
        return DeliveryResult("uncertain", f"{answer.host} answered 200 without the message that it made")
    return result_of_status(
        answer, said=clean_reason(told.get("message"), secrets), wait=wait_from_seconds(told.get("retry_after"))
    )
