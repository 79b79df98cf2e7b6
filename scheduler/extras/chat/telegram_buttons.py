"""Polls Telegram for pressed buttons, and responds to the presses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from heartbeat.words import one_line
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
MAX_NAME = 100  # characters of the name of a person, with the channel

_COMMA = re.compile(r"\s*,\s*")
_UPDATES = re.compile(r'\s*\{\s*"ok"\s*:\s*true\s*,\s*"result"\s*:\s*\[\s*')


@dataclass(frozen=True, slots=True)
class Bot:
    """A bot of Telegram, which several channels may have. `server` is the address of its API."""

    server: str
    token: Secret
    allow_private: bool = field(compare=False)

    def url(self, method: str) -> str:
        """The address of a method of the Bot API."""
        return f"{self.server}/bot{self.token.reveal()}/{method}"


@dataclass(frozen=True, slots=True)
class FromPerson:
    """What a person has sent in a chat. `user` is a name for display, in one short line.

    `people` are the names by which a config may allow the person: the user name in lower case, and the number.
    """

    chat: str
    chat_name: str
    user: str
    people: frozenset[str]

    def sender_on(self, channel: str) -> str:
        """The person as records name it."""
        return f"{self.user} on {channel}"[:MAX_NAME]


@dataclass(frozen=True, slots=True)
class Press(FromPerson):
    """A press of a button: `data` is that of the button, or whatever else the client has sent."""

    id: str
    data: str


@dataclass(frozen=True, slots=True)
class Reply(FromPerson):
    """A message of a person that answers the message with the number `to` in the chat. `number` is its own."""

    number: int
    to: str
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
    return Bot(server.rstrip("/"), Secret(token), channel.allow_private)


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
    to, number, text = _map(message.get("reply_to_message")).get("message_id"), message.get("message_id"), message.get("text")
    if type(number) is not int or type(to) is not int or not isinstance(text, str) or not text.strip():
        return None
    return Reply(*_read_person(message.get("chat"), message.get("from")), number, str(to), text.strip())


def _read_press(query: object) -> Press | None:
    """The press in a callback query; None if it is none of a button of a message."""
    if not isinstance(query, dict) or not isinstance(query.get("id"), str):
        return None
    person = _read_person(_map(query.get("message")).get("chat"), query.get("from"))
    return Press(*person, query["id"], str(query.get("data", "")))


def _read_person(chat: object, user: object) -> tuple[str, str, str, frozenset[str]]:
    """The fields of `FromPerson`."""
    chat, user = _map(chat), _map(user)
    shown = one_line(str(user.get("username") or user.get("first_name") or user.get("id")))[:MAX_NAME]
    people = frozenset(str(each).casefold() for each in (user.get("username"), user.get("id")) if each)
    return str(chat.get("id", "")), str(chat.get("username", "")), shown, people


def _map(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
