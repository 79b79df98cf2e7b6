"""Puts buttons below messages, and carries out the action of a pressed button.

The data of a button names an action and a message. A code over both, which only the daemon can compute, shows that it is genuine.
It holds for a day and can be used once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from heartbeat.words import one_line
from heartbeatd.operations import Concern
from heartbeatd.verbs import VERB_ENDPOINTS, VERBS, Verb
from scheduler.channels import target_urls, telegram
from scheduler.channels.message import Button
from scheduler.channels.telegram_buttons import Press
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.inbox import Refused
from scheduler.engine.tick import Tick
from scheduler.model.events import ButtonPressed
from scheduler.model.outcome import Kind, Trigger
from scheduler.model.settings import Channel
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store import conditions, outbox, used_buttons
from scheduler.store.outbox import OutboxMessage
from scheduler.store.transaction import Transaction

LIFETIME = timedelta(hours=24)  # for which a button can be used
CODE_BYTES = 16  # of the HMAC; Telegram accepts 64 bytes of data
PURPOSE = b"buttons of heartbeatd"  # the key is derived from the token of the bot for this purpose alone

CHAT_BUTTONS = {verb.in_chat.name[0]: verb.in_chat for verb in VERBS if issubclass(verb, Verb) and verb.in_chat}  # by letter


def _verbs_of(message: OutboxMessage) -> dict[str, type[Verb]]:
    """The verb that each button sends for the agent or job of a message, or for its conditions, by the letter of the button."""
    concerns = (Concern.NAMED, Concern.AGENT if message.kind == Kind.HEARTBEAT else Concern.JOB)
    listed = [each.operation for each in VERB_ENDPOINTS.values() if each.concern in concerns]
    return {verb.in_chat.name[0]: verb for verb in listed if issubclass(verb, Verb) and verb.in_chat}


def _requests_of(db: sqlite3.Connection, message: OutboxMessage, letter: str, person: Sender) -> list[VerbRequest]:
    """What the button with this letter asks of the engine."""
    verb, sent = _verbs_of(message)[letter], CHAT_BUTTONS[letter].keys
    if verb.concern is not Concern.NAMED:
        return [VerbRequest(verb.of(**sent), (Kind(message.kind), message.name), person)]
    keys = conditions.keys_of_message(db, message.id)
    named: list[dict[str, object]] = [{"agent": message.name, "key": key} for key in keys] or [{"run": message.run_id}]
    return [VerbRequest(verb.of(**sent, **each), sender=person) for each in named]


PressResult = Literal["applied", "failed", "forged", "expired", "wrong_chat", "replayed"]
REFUSALS: dict[PressResult, str] = {
    "forged": "This button is not valid.",
    "expired": "This button has expired. Use the command line instead.",
    "wrong_chat": "This button is not valid in this chat.",
    "replayed": "This button was used before.",
}


def buttons_of(tx: Transaction, message: OutboxMessage, channel: Channel) -> tuple[Button, ...]:
    """The buttons below a message; none unless its channel has buttons, and only below the last part of a long message."""
    if not channel.buttons or message.part != message.parts or _signing_key(channel) is None:
        return ()
    has_conditions = bool(conditions.keys_of_message(tx.db, message.id))
    expires = to_millis(tx.now + LIFETIME) // 1000
    return tuple(
        Button(CHAT_BUTTONS[letter].name, CHAT_BUTTONS[letter].label, _button_data(channel, message, letter, expires))
        for letter, verb in sorted(_verbs_of(message).items())
        if verb.concern is not Concern.NAMED or has_conditions
    )


def _button_data(channel: Channel, message: OutboxMessage, action: str, expires: int) -> str:
    return f"{action}:{message.id:x}:{expires:x}:{_code(channel, message, action, expires)}"


def _code(channel: Channel, message: OutboxMessage, action: str, expires: int) -> str:
    """The code that makes a button genuine. The key of the message is part of it, as numbers begin again in a new database."""
    secret = _signing_key(channel)
    assert secret is not None
    key = hmac.digest(secret.encode(errors="surrogateescape"), PURPOSE, "sha256")
    signed = f"{action}:{message.id}:{expires}:{message.key}".encode()
    return base64.urlsafe_b64encode(hmac.new(key, signed, hashlib.sha256).digest()[:CODE_BYTES]).decode().rstrip("=")


def _signing_key(channel: Channel) -> str | None:
    """The secret from which the key of a channel's codes is derived: the bot's token."""
    return telegram.parse_token(channel.url.reveal()) if channel.url else None


@dataclass(frozen=True, slots=True)
class GenuineButton:
    """A button whose code is right: its message, its action, and when it expires, in seconds since 1970."""

    message: OutboxMessage
    action: str
    expires: int


def find_genuine(db: sqlite3.Connection, channels: Mapping[str, Channel], data: str) -> GenuineButton | None:
    """The button with this data, if its code is right; otherwise None."""
    try:
        action, number, expires, code = data.split(":")
        found = outbox.find_message(db, int(number, 16)) if action in CHAT_BUTTONS else None
        until = int(expires, 16)
    except (ValueError, OverflowError):
        return None
    channel = channels.get(found[0].channel) if found else None
    if found is None or channel is None or not channel.buttons or _signing_key(channel) is None:
        return None
    is_genuine = hmac.compare_digest(_code(channel, found[0], action, until).encode(), code.encode(errors="replace"))
    return GenuineButton(found[0], action, until) if is_genuine else None


def why_over(db: sqlite3.Connection, button: GenuineButton, now: datetime) -> PressResult | None:
    """Why a genuine button can no longer be used; None if it can."""
    if from_millis(button.expires * 1000) < now:
        return "expired"
    return "replayed" if used_buttons.is_used(db, button.message.id, button.action) else None


@dataclass(frozen=True, slots=True)
class PressAnswer:
    """The text for the person who has pressed a button, and whether its action was carried out."""

    text: str
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class PressButton:
    """Carry out the action of a pressed button. `channel` is one that has the bot."""

    channel: str
    press: Press

    def apply(self, tick: Tick) -> PressAnswer:
        """A button that is forged, expired, used before or from another chat has no effect. Each press is counted."""
        action, _, _ = self.press.data.partition(":")
        found = find_genuine(tick.tx.db, tick.plan.settings.channels, self.press.data)
        if found is None:
            self._report(tick.tx, action, "forged", None)
            return PressAnswer(REFUSALS["forged"])
        message = found.message
        result = self._check(tick, message, action, found.expires)
        if result is not None:
            self._report(tick.tx, action, result, message)
            return PressAnswer(REFUSALS[result])
        try:
            text = self._act(tick, message, action)
        except Refused as refused:
            self._report(tick.tx, action, "failed", message)
            return PressAnswer(str(refused))
        used_buttons.record_use(tick.tx, message.id, action)
        self._report(tick.tx, action, "applied", message)
        return PressAnswer(text, is_done=True)

    def _check(self, tick: Tick, message: OutboxMessage, action: str, expires: int) -> PressResult | None:
        """Why a genuine button must not be obeyed; None if it may be."""
        if not self._is_from_its_chat(tick, message):
            return "wrong_chat"
        return why_over(tick.tx.db, GenuineButton(message, action, expires), tick.now)

    def _is_from_its_chat(self, tick: Tick, message: OutboxMessage) -> bool:
        """Whether the button was pressed in the chat that its message was sent to. A channel's chat may be known by its @name."""
        channel = target_urls.channel_for_recipient(tick.plan.settings.channels[message.channel], message.recipient)
        if channel.url is None:
            return False
        try:
            chat = telegram.parse_chat_url(channel.url.reveal()).chat
        except ValueError:
            return False
        return chat == self.press.chat or chat.casefold() == f"@{self.press.chat_name}".casefold()

    def _act(self, tick: Tick, message: OutboxMessage, action: str) -> str:
        person = Sender(one_line(f"{self.press.user} on {message.channel}")[:100], source=Trigger.API)
        return "; ".join(each.apply(tick).says for each in _requests_of(tick.tx.db, message, action, person))

    def _report(self, tx: Transaction, action: str, result: PressResult, message: OutboxMessage | None) -> None:
        channel = message.channel if message else self.channel
        name = message.name if message else None
        shown = CHAT_BUTTONS[action].label if action in CHAT_BUTTONS else "unknown"
        tx.report(ButtonPressed(channel, shown, result, one_line(self.press.user)[:100], name))
