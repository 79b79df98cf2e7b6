"""Describes a kind of channel: its keys in the config, the longest message that it accepts, and how a message is sent."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from heartbeat.runners import StartProcess
from scheduler.model.message import Button, DeliveryResult, Message
from scheduler.model.outcome import Kind
from scheduler.model.settings import Channel, utf16_length

if TYPE_CHECKING:  # the kinds are needed to read a config; the HTTP client takes a third of a second to import, and is not
    from scheduler.net.http_client import HttpClient

SEND_TIMEOUT = 30.0  # seconds


@dataclass(frozen=True, slots=True)
class SendContext:
    """What the sending of a message may use: `http` for requests, `start` for programs, and at most `seconds`.

    `now` is the time at which it begins. `buttons` are shown with the message, on kinds that have buttons.
    """

    http: HttpClient
    start: StartProcess
    now: datetime
    seconds: float = SEND_TIMEOUT
    buttons: tuple[Button, ...] = ()


class SendMessage(Protocol):
    """Sends a message once. Waits for at most the time of its context, and raises nothing of the network."""

    async def __call__(self, channel: Channel, message: Message, context: SendContext) -> DeliveryResult: ...


def _accept(text: str) -> None:
    """Has no objection."""


def _unlimited(url: str) -> None:
    """Accepts any URL, and messages of any length."""


@dataclass(frozen=True, slots=True)
class ChannelKind:
    """A kind of channel. Each module of this package that sends messages has one, as KIND; `registry` lists them.

    - `name` is the value of `kind` in the config.
    - `send` sends one message. It is called with a channel whose URL is known and complete.
    - `check_url` returns how long a message to this URL may be, in UTF-16 units, None for any length. ValueError, which shows
      at most the scheme, if the URL is not one of this kind.
    - `check_url_before_target` gets the part of a URL before {target}. ValueError if nothing can be open behind it.
    - `schemes` are those of URLs that belong to this kind even without `kind`. `url_form` is how the docs write such a URL.
    - `if_not_named` is the error for a URL of these schemes without `kind`, for schemes that do not say enough.
    - `bad_target` is the error for a target that `check_url` does not accept. None: targets are not checked by the kind.
    - `detects_repeats` says that the receiver recognises a message that is sent again, by its key. Then a message whose
      delivery is uncertain can be sent again safely.
    - `has_base_url` says that the service can run on another server, so that `base_url` is allowed.
    - `own_connections` says that the sending does not use our HTTP client, so that `allow_private` has no effect.
    - `names_sender` says that its messages have fields for the agent and the host, so that texts have no prefix by default.
    - `is_signed` says that `secret` signs its requests.
    - `has_buttons` says that its messages can have buttons.
    - `runs_program` says that `argv` takes the place of `url`.
    """

    name: str
    send: SendMessage
    check_url: Callable[[str], int | None] = _unlimited
    check_url_before_target: Callable[[str], None] = _accept
    schemes: tuple[str, ...] = ()
    url_form: str = ""
    if_not_named: str | None = None
    bad_target: str | None = None
    detects_repeats: bool = False
    has_base_url: bool = False
    own_connections: bool = False
    names_sender: bool = False
    is_signed: bool = False
    has_buttons: bool = False
    runs_program: bool = False


def text_after_prefix(channel: Channel, message: Message) -> str:
    """The text of a message after the prefix of its channel.

    If the prefix names the agent, its name is taken out of the lines that notices.problem_text begins with, which end with a
    number. An agent's own words stay as they are.
    """
    if message.kind != Kind.HEARTBEAT or message.title != message.name or "{agent}" not in channel.prefix:
        return message.text
    line = rf"^(info    |warning |CRITICAL|over    ) {re.escape(message.name)} (?=\S.*: .*   p\d+$)"
    return re.sub(line, r"\1 ", message.text, flags=re.MULTILINE)


def prefixed_text(channel: Channel, message: Message) -> str:
    """The text of a message behind the prefix of its channel. It is at most one space longer than both together."""
    prefix = channel.prefix_for(message.kind, message.name, message.title)
    text = f"{prefix} {text_after_prefix(channel, message)}" if prefix else message.text
    is_too_long = channel.limit is not None and utf16_length(text) > channel.limit  # the prefix has changed since it was split
    return message.text if is_too_long else text
