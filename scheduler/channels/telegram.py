"""Sends a message to a Telegram chat, by the Bot API's sendMessage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from heartbeat.runners.redaction import secret_parts
from scheduler.channels.channel_kind import ChannelKind, SendContext, prefixed_text
from scheduler.channels.http_post import (
    PostAnswer,
    channel_url,
    clean_reason,
    post_json,
    result_of_status,
    wait_from_seconds,
)
from scheduler.model.message import Button, DeliveryResult, Message
from scheduler.model.settings import Channel

SERVER = "https://api.telegram.org"
MAX_LENGTH = 4096  # UTF-16 units of one message
MAX_ROW = 30  # characters of the buttons side by side; a phone cuts longer ones
BAD_URL = "this is not the URL of a Telegram chat; write tgram://TOKEN/CHAT, or tgram://TOKEN/CHAT:TOPIC"

_URL = re.compile(r"tgram://(?:bot)?([0-9A-Za-z:_-]+)/(-?\d{1,20}|@?[A-Za-z]\w{2,63})(?::(\d{1,18}))?/?", re.ASCII)


_TOKEN = re.compile(r"tgram://(?:bot)?([0-9A-Za-z:_-]+)/", re.ASCII)


@dataclass(frozen=True, slots=True)
class TelegramChat:
    """A Telegram bot, and the chat (an id, or a channel's @name) and topic that it writes to."""

    token: str = field(repr=False)
    chat: str
    topic: int | None


def parse_chat_url(url: str) -> TelegramChat:
    """The bot and chat of a tgram:// URL. ValueError, which shows nothing of it, if it is none."""
    found = _URL.fullmatch(unquote(url))
    if not found:
        raise ValueError(BAD_URL)
    token, chat, topic = found.groups()
    return TelegramChat(token, f"@{chat}" if chat[0].isalpha() else chat, int(topic) if topic else None)


def parse_token(url: str) -> str:
    """The token of the bot of a tgram:// URL, whatever its chat. ValueError, which shows nothing of it, if there is none."""
    found = _TOKEN.match(unquote(url))
    if not found:
        raise ValueError(BAD_URL)
    return found[1]


async def send(channel: Channel, message: Message, context: SendContext) -> DeliveryResult:
    """Send `message` once as plain text to the chat of a tgram:// URL; `base_url` replaces Telegram's own server.

    No markup is read from the text and no link in it is previewed. Telegram has no key by which it could recognise a repeat.
    """
    try:
        chat = parse_chat_url(channel_url(channel))
    except ValueError as error:
        return DeliveryResult("dead", str(error))
    server = channel.base_url.reveal() if channel.base_url else SERVER
    url = f"{server.rstrip('/')}/bot{chat.token}/sendMessage"
    body = _body(chat, prefixed_text(channel, message), context.buttons)
    answer = await post_json(url, body, context.http, allow_private=channel.allow_private, seconds=context.seconds)
    if isinstance(answer, DeliveryResult):
        return answer
    return _read_answer(answer, [chat.token, *secret_parts(server if channel.base_url else "", whole_url=True)])


def _body(chat: TelegramChat, text: str, buttons: Sequence[Button]) -> dict[str, object]:
    content: dict[str, object] = {"chat_id": chat.chat, "text": text, "link_preview_options": {"is_disabled": True}}
    if buttons:
        row = [{"text": button.label, "callback_data": button.data} for button in buttons]
        is_narrow = sum(len(button.label) for button in buttons) <= MAX_ROW
        content["reply_markup"] = {"inline_keyboard": [row] if is_narrow else [[each] for each in row]}
    return content | ({"message_thread_id": chat.topic} if chat.topic is not None else {})


def _read_answer(answer: PostAnswer, secrets: list[str]) -> DeliveryResult:
    """Telegram says `ok` in the body. An error has its status there too, so an error in a 200 is read from the body."""
    data = answer.parse_json()
    if 200 <= answer.status < 300:
        if data.get("ok") is True:
            result = data.get("result")
            number = result.get("message_id") if isinstance(result, dict) else None
            return DeliveryResult("delivered", receipt=str(number) if type(number) is int else "")
        if data.get("ok") is not False:
            return DeliveryResult(
                "uncertain", f"{answer.host} answered {answer.status} without saying whether it accepted the message"
            )
        code = data.get("error_code")
        answer = replace(answer, status=code if type(code) is int and 300 <= code < 600 else 500)
    parameters = data.get("parameters")
    wait = wait_from_seconds(parameters.get("retry_after")) if isinstance(parameters, dict) else None
    return result_of_status(answer, reason=clean_reason(data.get("description"), secrets), wait=wait)


def _check_url(url: str) -> int:
    parse_chat_url(url)
    return MAX_LENGTH


KIND = ChannelKind(
    "telegram",
    send,
    check_url=_check_url,
    schemes=("tgram",),
    url_form="tgram://TOKEN/CHAT",
    bad_target="target: write the number or @name of a Telegram chat, or CHAT:TOPIC for a topic in it",
    has_base_url=True,
    has_buttons=True,
)
