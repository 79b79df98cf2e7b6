"""One message sent to a Telegram chat, by the Bot API's sendMessage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from heartbeat.runners.redaction import secret_parts
from scheduler.channels import address
from scheduler.channels.address import Bot
from scheduler.channels.http_post import HttpOptions, PostAnswer, clean_reason, post_json, result_of_status, wait_from_seconds
from scheduler.channels.message import DeliveryResult, Message

BASE = "https://api.telegram.org"


async def send(url: str, message: Message, options: HttpOptions, *, base: str | None = None) -> DeliveryResult:
    """Send `message` once as plain text to the chat of a tgram:// URL; `base` replaces Telegram's own server.

    No markup is read from the text and no link in it is previewed. Telegram knows no key to tell a repeat by.
    """
    try:
        bot = address.bot(url)
    except ValueError as error:
        return DeliveryResult("dead", str(error))
    answer = await post_json(f"{(base or BASE).rstrip('/')}/bot{bot.token}/sendMessage", _content(bot, message), options)
    return (
        answer if isinstance(answer, DeliveryResult) else _judge(answer, [bot.token, *secret_parts(base or "", whole_url=True)])
    )


def _content(bot: Bot, message: Message) -> dict[str, Any]:
    content: dict[str, Any] = {"chat_id": bot.chat, "text": message.text, "link_preview_options": {"is_disabled": True}}
    return content | ({"message_thread_id": bot.topic} if bot.topic is not None else {})


def _judge(answer: PostAnswer, secrets: list[str]) -> DeliveryResult:
    """Telegram says `ok` in the body; a refusal carries its status there too, so one in a 200 is judged by that."""
    told = answer.parse_json()
    if 200 <= answer.status < 300:
        if told.get("ok") is True:
            return DeliveryResult("delivered")
        if told.get("ok") is not False:
            return DeliveryResult(
                "uncertain", f"{answer.host} answered {answer.status} without saying whether it took the message"
            )
        code = told.get("error_code")
        answer = replace(answer, status=code if type(code) is int and 300 <= code < 600 else 500)
    parameters = told.get("parameters")
    wait = wait_from_seconds(parameters.get("retry_after")) if isinstance(parameters, dict) else None
    return result_of_status(answer, said=clean_reason(told.get("description"), secrets), wait=wait)
