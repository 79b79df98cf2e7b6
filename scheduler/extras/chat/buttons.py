"""Puts buttons below messages, and carries out the action of a pressed button.

The data of a button names an action and a message. A code over both, which only the daemon can compute, shows that it is genuine.
It holds for a day and can be used once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from heartbeatd.operations import Concern
from heartbeatd.secret import Secret
from heartbeatd.verbs import RESUME, RUN_AGAIN, VERB_ENDPOINTS, VERBS, Resume, Verb
from scheduler.channels import registry, telegram
from scheduler.engine.ask_people import answer_question
from scheduler.engine.delivery import open_problems_in
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.tick_items import Refused, Tick
from scheduler.extras.chat.telegram_buttons import FromPerson, Press, bot_of
from scheduler.model.events import ButtonPressed
from scheduler.model.message import Button
from scheduler.model.outcome import Kind, Trigger
from scheduler.model.problem import PAUSED
from scheduler.model.settings import Channel
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store import asked_questions, outbox
from scheduler.store.outbox import OutboxMessage
from scheduler.store.transaction import Transaction

LIFETIME = timedelta(hours=24)  # for which a button can be used
CODE_BYTES = 16  # of the HMAC; Telegram accepts 64 bytes of data
PURPOSE = b"buttons of heartbeatd"  # the key is derived from the token of the bot for this purpose alone

NO_PROBLEM = "this message is about no open problem"

CHAT_BUTTONS = {verb.in_chat.letter: verb.in_chat for verb in VERBS if issubclass(verb, Verb) and verb.in_chat}  # by letter


CONCERNS: Mapping[str, Concern] = {Kind.HEARTBEAT: Concern.AGENT, Kind.CRON: Concern.JOB}


def _verbs_of(message: OutboxMessage) -> dict[str, type[Verb]]:
    """The verb that each button sends for the agent or job of a message, or for its problems, by the letter of the button.

    A message about a provider, a channel or the daemon, or about several entries, has those for its problems, and Resume for what
    is paused.
    """
    is_about_entry = outbox.is_about_entry(message)
    concerns = (Concern.PROBLEM, CONCERNS[message.kind] if is_about_entry else None)
    listed = [each.operation for each in VERB_ENDPOINTS.values() if each.concern in concerns]
    if not is_about_entry:
        listed.append(Resume)
    return {verb.in_chat.letter: verb for verb in listed if issubclass(verb, Verb) and verb.in_chat}


def _requests_of(tick: Tick, message: OutboxMessage, letter: str, person: Sender) -> list[VerbRequest]:
    """What the button with this letter asks of the engine. Raises Refused if there is no problem that it could be about."""
    verb, sent = _verbs_of(message).get(letter), CHAT_BUTTONS[letter].keys
    if verb is not None and outbox.is_about_entry(message) and not _is_about_problems(verb):
        return [VerbRequest(verb.of(**sent), (Kind(message.kind), message.name), person)]
    about = open_problems_in(tick.tx.db, outbox.whole_message(tick.tx.db, message))
    if verb is Resume:
        about = [each for each in about if each.key == PAUSED]
    if verb is None or not about:
        raise Refused("not_found", NO_PROBLEM)
    if verb is Resume:
        return [VerbRequest(verb.of(**sent), (Kind(each.subject.kind), each.subject.name), person) for each in about]
    return [VerbRequest(verb.of(**sent), each.id, person) for each in about]


def _is_about_problems(verb: type[Verb]) -> bool:
    return any(each.operation is verb and each.concern is Concern.PROBLEM for each in VERB_ENDPOINTS.values())


ANSWER = "q"  # begins the action of a button with an answer to a question, before the number of the option

PressResult = Literal["applied", "failed", "forged", "expired", "wrong_chat", "replayed", "not_allowed"]
REFUSALS: dict[PressResult, str] = {
    "forged": "This button is not valid.",
    "expired": "This button has expired. Use the command line instead.",
    "wrong_chat": "This button is not valid in this chat.",
    "replayed": "This button was used before.",
    "not_allowed": "Only the people whom the question is for may answer it.",
}


def buttons_of(tx: Transaction, message: OutboxMessage, channel: Channel) -> tuple[Button, ...]:
    """The buttons below a message; none unless its channel has buttons, and only below the last part of a long message."""
    bot = bot_of(channel)
    if message.part != message.parts or bot is None:
        return ()
    if (question := asked_questions.question_of_notice(tx.db, message.notice)) is not None:
        ends = to_millis(question.until) // 1000
        return tuple(
            Button("answer", option, _signed_data(bot.token, message, f"{ANSWER}{number}", ends))
            for number, option in enumerate(question.options)
        )
    if not channel.buttons:
        return ()
    about = open_problems_in(tx.db, outbox.whole_message(tx.db, message))
    is_paused = any(each.key == PAUSED for each in about)
    hidden = RUN_AGAIN if is_paused else RESUME  # a paused entry does not run
    expires = to_millis(tx.now + LIFETIME) // 1000
    made = []
    for letter, verb in sorted(_verbs_of(message).items()):
        if verb.in_chat is not hidden and (about or not _is_about_problems(verb)):
            data = _signed_data(bot.token, message, letter, expires)
            made.append(Button(CHAT_BUTTONS[letter].name, CHAT_BUTTONS[letter].label, data))
    return tuple(made)


def use_once(tick: Tick, message: OutboxMessage, action: str) -> bool:
    """Record that a message was acted on in this way. False if it was recorded before."""
    return bool(
        tick.tx.db.execute(
            "insert into used_button (outbox_id, action, used_at) values (?, ?, ?) on conflict do nothing",
            (message.id, action, to_millis(tick.now)),
        ).rowcount
    )


def delete_old_uses(tx: Transaction) -> None:
    """Forget the uses of buttons that have expired since."""
    tx.db.execute("delete from used_button where used_at < ?", (to_millis(tx.now - 2 * LIFETIME),))


def _signed_data(token: Secret, message: OutboxMessage, action: str, expires: int) -> str:
    return f"{action}:{message.id:x}:{expires:x}:{_code(token, message, action, expires)}"


def _code(token: Secret, message: OutboxMessage, action: str, expires: int) -> str:
    """The code that makes a button genuine. Its key is derived from the token of the bot.

    The key of the message is part of what is signed, as numbers begin again in a new database.
    """
    key = hmac.digest(token.reveal().encode(errors="surrogateescape"), PURPOSE, "sha256")
    signed = f"{action}:{message.id}:{expires}:{message.key}".encode()
    return base64.urlsafe_b64encode(hmac.new(key, signed, hashlib.sha256).digest()[:CODE_BYTES]).decode().rstrip("=")


def is_from_its_chat(press: FromPerson, channel: Channel, message: OutboxMessage) -> bool:
    """Whether a press or a reply comes from the chat that its message was sent to. A channel's chat may be known by its @name."""
    place = registry.channel_for_recipient(channel, message.recipient)
    try:
        chat = telegram.parse_chat_url(place.url.reveal()).chat if place.url else ""
    except ValueError:
        return False
    return bool(chat) and (chat == press.chat or chat.casefold() == f"@{press.chat_name}".casefold())


@dataclass(frozen=True, slots=True)
class PressButton:
    """Carry out the action of a pressed button. `channel` is one that has the bot."""

    channel: str
    press: Press

    def __call__(self, tick: Tick) -> str:
        """The text for the person. A button that is forged, expired, used before or from another chat has no effect.

        Each press is counted.
        """
        action, _, _ = self.press.data.partition(":")
        message, refusal = self._check(tick)
        if message is None or refusal is not None:
            self._report(tick.tx, action, refusal or "forged", message)
            return REFUSALS[refusal or "forged"]
        try:
            text = self._act(tick, message, action)
        except Refused as refused:
            self._report(tick.tx, action, "failed", message)
            return str(refused)
        use_once(tick, message, action)
        self._report(tick.tx, action, "applied", message)
        return text

    def _check(self, tick: Tick) -> tuple[OutboxMessage | None, PressResult | None]:
        """The message of a button whose code is right, and why it must not be obeyed all the same; None if it may be."""
        try:
            action, number, expires, code = self.press.data.split(":")
            found = outbox.find_message(tick.tx.db, int(number, 16))
            until = int(expires, 16)
        except (ValueError, OverflowError):
            return None, "forged"
        message = found[0] if found else None
        channel = tick.plan.settings.channels.get(message.channel) if message else None
        question = asked_questions.question_of_notice(tick.tx.db, message.notice) if message else None
        bot = bot_of(channel) if channel and (channel.buttons or question) else None
        if message is None or channel is None or bot is None:
            return None, "forged"
        if not hmac.compare_digest(_code(bot.token, message, action, until).encode(), code.encode(errors="replace")):
            return None, "forged"
        if not is_from_its_chat(self.press, channel, message):
            return message, "wrong_chat"
        if question is not None:  # its own end decides, and says more
            is_allowed = self.press.people & {*(question.people or channel.people)}
            return message, None if is_allowed else "not_allowed"
        if from_millis(until * 1000) < tick.now:
            return message, "expired"
        query = "select 1 from used_button where outbox_id = ? and action = ?"
        return message, "replayed" if tick.tx.db.execute(query, (message.id, action)).fetchone() else None

    def _act(self, tick: Tick, message: OutboxMessage, action: str) -> str:
        name = self.press.sender_on(message.channel)
        question = asked_questions.question_of_notice(tick.tx.db, message.notice)
        if question is not None:
            return answer_question(tick, question.id, question.options[int(action.removeprefix(ANSWER))], name).course
        person = Sender(name, source=Trigger.API)
        return "; ".join(each(tick).says for each in _requests_of(tick, message, action, person))

    def _report(self, tx: Transaction, action: str, result: PressResult, message: OutboxMessage | None) -> None:
        channel = message.channel if message else self.channel
        name = message.name if message else None
        shown = CHAT_BUTTONS[action].label if action in CHAT_BUTTONS else "Answer" if action.startswith(ANSWER) else "unknown"
        tx.report(ButtonPressed(channel, shown, result, self.press.user, name))
