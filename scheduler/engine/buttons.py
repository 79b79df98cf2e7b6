"""Puts buttons below messages, and carries out what a pressed button asks for.

The data of a button names an action and a message. A code over both, which only the daemon can compute, shows that it is genuine.
It holds for a day and can be used once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from scheduler.channels import target_urls, telegram
from scheduler.channels.message import Button
from scheduler.channels.telegram_buttons import Press
from scheduler.engine.inbox import Refused
from scheduler.engine.requests import AcknowledgeConditions, MuteEntry, RunJob, WakeAgent
from scheduler.engine.tick import Tick
from scheduler.model.events import ButtonPressed
from scheduler.model.outcome import Kind, Trigger
from scheduler.model.settings import Channel
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.model.wake import Wake
from scheduler.store import conditions, outbox, used_buttons
from scheduler.store.outbox import OutboxMessage
from scheduler.store.transaction import Transaction
from scheduler.system.text import one_line

LIFETIME = timedelta(hours=24)  # for which a button can be used
MUTE_TIME = timedelta(hours=2)
CODE_BYTES = 16  # of the HMAC; Telegram accepts 64 bytes of data
PURPOSE = b"buttons of heartbeatd"  # the key is derived from the token of the bot for this purpose alone

MUTE, ACKNOWLEDGE, RUN = "m", "a", "r"
LABELS = {MUTE: "Mute 2h", ACKNOWLEDGE: "Acknowledge", RUN: "Run again"}

PressResult = Literal["applied", "failed", "forged", "expired", "wrong_chat", "replayed"]
REFUSALS: dict[PressResult, str] = {
    "forged": "This button is not valid.",
    "expired": "This button has expired. Use the command line instead.",
    "wrong_chat": "This button is not valid in this chat.",
    "replayed": "This button was used before.",
}


def buttons_of(tx: Transaction, message: OutboxMessage, channel: Channel) -> tuple[Button, ...]:
    """The buttons below a message; none unless its channel has buttons, and only below the last part of a long message."""
    if not channel.buttons or message.part != message.parts or channel.url is None:
        return ()
    has_conditions = bool(conditions.keys_of_message(tx.db, message.id))
    actions = (MUTE, ACKNOWLEDGE, RUN) if has_conditions else (MUTE, RUN)
    expires = to_millis(tx.now + LIFETIME) // 1000
    return tuple(Button(LABELS[action], _button_data(channel, message, action, expires)) for action in actions)


def _button_data(channel: Channel, message: OutboxMessage, action: str, expires: int) -> str:
    return f"{action}:{message.id:x}:{expires:x}:{_code(channel, message, action, expires)}"


def _code(channel: Channel, message: OutboxMessage, action: str, expires: int) -> str:
    """The code that makes a button genuine. The key of the message is part of it, as numbers begin again in a new database."""
    assert channel.url is not None
    key = hmac.digest(telegram.parse_token(channel.url.reveal()).encode(), PURPOSE, "sha256")
    signed = f"{action}:{message.id}:{expires}:{message.key}".encode()
    return base64.urlsafe_b64encode(hmac.new(key, signed, hashlib.sha256).digest()[:CODE_BYTES]).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class PressButton:
    """Carry out the action of a pressed button. `channel` is one that has the bot. Answers the text for the person."""

    channel: str
    press: Press

    def apply(self, tick: Tick) -> str:
        """A button that is forged, expired, used before or from another chat has no effect. Each press is counted."""
        action, _, _ = self.press.data.partition(":")
        found = self._genuine_message(tick)
        if not isinstance(found, tuple):
            self._report(tick, action, found, None)
            return REFUSALS[found]
        message, expires = found
        result = self._check(tick, message, action, expires)
        if result is not None:
            self._report(tick, action, result, message)
            return REFUSALS[result]
        try:
            text = self._act(tick, message, action)
        except Refused as refused:
            self._report(tick, action, "failed", message)
            return str(refused)
        used_buttons.record_use(tick.tx, message.id, action)
        self._report(tick, action, "applied", message)
        return text

    def _genuine_message(self, tick: Tick) -> tuple[OutboxMessage, int] | PressResult:
        """The message of the button and when the button expires, if its code is right."""
        try:
            action, number, expires, code = self.press.data.split(":")
            found = outbox.find_message(tick.tx.db, int(number, 16)) if action in LABELS else None
            until = int(expires, 16)
        except (ValueError, OverflowError):
            return "forged"
        if found is None:
            return "forged"
        message, _ = found
        channel = tick.plan.settings.channels.get(message.channel)
        if channel is None or not channel.buttons or channel.url is None:
            return "forged"
        is_genuine = hmac.compare_digest(_code(channel, message, action, until).encode(), code.encode(errors="replace"))
        return (message, until) if is_genuine else "forged"

    def _check(self, tick: Tick, message: OutboxMessage, action: str, expires: int) -> PressResult | None:
        """Why a genuine button must not be obeyed; None if it may be."""
        if not self._is_from_its_chat(tick, message):
            return "wrong_chat"
        if from_millis(expires * 1000) < tick.now:
            return "expired"
        return "replayed" if used_buttons.is_used(tick.tx.db, message.id, action) else None

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
        kind, name, by = Kind(message.kind), message.name, one_line(f"{self.press.user} on {message.channel}")[:100]
        if action == MUTE:
            MuteEntry((kind, name), tick.now + MUTE_TIME, by).apply(tick)
            return f"{name} is muted for two hours."
        if action == ACKNOWLEDGE:
            keys = conditions.keys_of_message(tick.tx.db, message.id)
            labels = [label for key in keys for label in AcknowledgeConditions(name, by, key).apply(tick)]
            if not labels:
                labels = AcknowledgeConditions(name, by, run_id=message.run_id).apply(tick)
            return f"{', '.join(labels)}: quiet until worse or over."
        if kind is Kind.HEARTBEAT:
            WakeAgent(Wake(name, source=Trigger.API, sender="button")).apply(tick)
        else:
            RunJob(name, Trigger.API).apply(tick)
        return f"{name} runs again."

    def _report(self, tick: Tick, action: str, result: PressResult, message: OutboxMessage | None) -> None:
        channel = message.channel if message else self.channel
        name = message.name if message else None
        shown = LABELS.get(action, "unknown")
        tick.tx.report(ButtonPressed(channel, shown, result, one_line(self.press.user)[:100], name))
