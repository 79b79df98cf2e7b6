"""Polls Telegram for pressed buttons, and responds to the presses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from heartbeatd.secret import Secret
from scheduler.channels import telegram
from scheduler.channels.http_post import clean_reason, post_json
from scheduler.model.message import DeliveryResult
from scheduler.model.settings import Channel
from scheduler.net.http_client import HttpClient

POLL_SECONDS = 50  # for which Telegram waits for a press before it answers
ANSWER_SECONDS = 10.0  # in addition, until the answer is there
MAX_UPDATES = 100  # in one answer; Telegram sends no more
LONGEST_ANSWER = 200  # characters of the text that Telegram shows after a press

_COMMA = re.compile(r"\s*,\s*")
_UPDATES = re.compile(r'\s*\{\s*"ok"\s*:\s*true\s*,\s*"result"\s*:\s*\[\s*')


@dataclass(frozen=True, slots=True)
class Bot:
    """A bot of Telegram. `server` is the address of its API."""

    server: str
    token: Secret
    allow_private: bool

    def url(self, method: str) -> str:
        """The address of a method of the Bot API."""
        return f"{self.server.rstrip('/')}/bot{self.token.reveal()}/{method}"


@dataclass(frozen=True, slots=True)
class Press:
    """A press of a button: `data` is that of the button, or whatever else the client has sent. `user` is a name for display.

    `people` are the names by which a config may allow the person: the user name in lower case, and the number.
    """

    id: str
    chat: str
    chat_name: str
    user: str
    data: str
    people: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Reply:
    """A message of a person that answers the message with the number `to` in the chat. `number` is its own.

    `people` are the names by which `people` of a channel may allow the person: the user name in lower case, and the number.
    """

    number: int
    to: str
    chat: str
    chat_name: str
    user: str
    people: frozenset[str]
    text: str


@dataclass(frozen=True, slots=True)
class Presses:
    """The presses and replies since the last poll, and the offset of the next poll. `error` says why there is no answer."""

    presses: tuple[Press, ...] = ()
    replies: tuple[Reply, ...] = ()
    offset: int = 0
    error: str = ""


def bot_of(channel: Channel) -> Bot | None:
    """The bot of a Telegram channel; None if its URL is not known."""
    if channel.url is None:
        return None
    try:
        token = telegram.parse_token(channel.url.reveal())
    except ValueError:
        return None
    server = channel.base_url.reveal() if channel.base_url else telegram.SERVER
    return Bot(server, Secret(token), channel.allow_private)


async def get_presses(bot: Bot, offset: int, http: HttpClient, *, with_replies: bool = False) -> Presses:
    """Wait for presses, and for replies if they are wanted, at most 50 s.

    Those that fit into the part of the answer that is read are returned; a single one fits. Anybody in a chat can send forged
    presses. Read one at a time, hundreds of them would delay a genuine press by a minute.
    """
    kinds = ["callback_query", *(["message"] if with_replies else [])]
    content = {"offset": offset, "limit": MAX_UPDATES, "timeout": POLL_SECONDS, "allowed_updates": kinds}
    seconds = POLL_SECONDS + ANSWER_SECONDS
    answer = await post_json(bot.url("getUpdates"), content, http, allow_private=bot.allow_private, seconds=seconds)
    if isinstance(answer, DeliveryResult):
        return Presses(offset=offset, error=answer.error)
    data = answer.parse_json() or _parse_beginning(answer.body)
    updates = data.get("result")
    if data.get("ok") is not True or not isinstance(updates, list):
        reason = clean_reason(data.get("description"), [bot.token.reveal()])
        return Presses(offset=offset, error=f"{answer.host} answered {answer.status}: {reason or 'no updates'}")
    found = [update for update in updates if isinstance(update, dict)]
    numbers = [number for update in found if type(number := update.get("update_id")) is int]
    if updates and not numbers:
        return Presses(offset=offset, error=f"{answer.host} sent updates without a number")
    presses = tuple(press for update in found if (press := _read_press(update.get("callback_query"))))
    replies = tuple(reply for update in found if (reply := _read_reply(update.get("message")))) if with_replies else ()
    return Presses(presses, replies, max((number + 1 for number in numbers), default=offset))


def _parse_beginning(body: bytes) -> Mapping[str, object]:
    """The complete updates of an answer whose end was not read; empty if there are none."""
    text = body.decode(errors="ignore")
    found: list[object] = []
    before = _UPDATES.match(text)
    while before is not None:
        try:
            update, place = json.JSONDecoder().raw_decode(text, before.end())
        except (ValueError, RecursionError):
            break
        found.append(update)
        before = _COMMA.match(text, place)
    return {"ok": True, "result": found} if found else {}


async def answer_person(bot: Bot, sent: Press | Reply, text: str, http: HttpClient) -> None:
    """Show a text to the person who has pressed a button or replied. Nothing depends on whether it arrives."""
    content: dict[str, object] = {"text": text[:LONGEST_ANSWER]}
    if isinstance(sent, Press):
        method = "answerCallbackQuery"
        content |= {"callback_query_id": sent.id}
    else:
        method = "sendMessage"
        content |= {"chat_id": sent.chat, "reply_parameters": {"message_id": sent.number}}
    await post_json(bot.url(method), content, http, allow_private=bot.allow_private, seconds=ANSWER_SECONDS)


def _read_reply(message: object) -> Reply | None:
    """The reply in a message of a person; None if it is none, or has no text."""
    if not isinstance(message, dict):
        return None
    to, chat, user = _map(message.get("reply_to_message")), _map(message.get("chat")), _map(message.get("from"))
    number, text, name = message.get("message_id"), message.get("text"), user.get("username")
    if type(number) is not int or type(to.get("message_id")) is not int or not isinstance(text, str) or not text.strip():
        return None
    shown = str(name or user.get("first_name") or user.get("id"))
    return Reply(
        number,
        str(to["message_id"]),
        str(chat.get("id", "")),
        str(chat.get("username", "")),
        shown,
        _names_of(user),
        text.strip(),
    )


def _read_press(query: object) -> Press | None:
    """The press in a callback query; None if it is none of a button of a message."""
    if not isinstance(query, dict):
        return None
    chat, user = _map(_map(query.get("message")).get("chat")), _map(query.get("from"))
    number, name = query.get("id"), user.get("username") or user.get("first_name") or user.get("id")
    if not isinstance(number, str):
        return None
    place = str(chat.get("id", "")), str(chat.get("username", ""))
    return Press(number, *place, str(name), str(query.get("data", "")), _names_of(user))


def _names_of(user: Mapping[str, object]) -> frozenset[str]:
    return frozenset(str(each).casefold() for each in (user.get("username"), user.get("id")) if each)


def _map(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
