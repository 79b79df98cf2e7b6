"""A chat of Telegram for the simulator: it keeps the messages of the daemon, and people press their buttons and reply to them.

The daemon asks for presses and replies with its own poller. As Telegram does, the chat repeats them until a request confirms them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import count
from typing import Any

from reference import ChatMessage

from scheduler.engine.delivery import Delivery
from scheduler.extras.chat.button_poller import BotCall, ButtonPoller
from scheduler.extras.chat.telegram_buttons import Press, Presses, Reply
from scheduler.work.executor import Done

CHAT, OTHER_CHAT = "-1001", "-1002"
PEOPLE = {"anna": "5", "carl": "77", "eve": "78"}  # and their numbers
MAY_REPLY = ("@Anna", "77")  # of the channel
URL = f"tgram://123456:canary-token/{CHAT}"


class AtOnce:
    """An executor that gets the answer to each request to a bot at once."""

    def __init__(self, answer: Callable[[BotCall], Presses]) -> None:
        self._answer = answer
        self._results: dict[int, Done[BotCall, Presses]] = {}

    def submit(self, number: int, task: BotCall) -> None:
        self._results[number] = Done(task, self._answer(task))

    def results(self) -> list[tuple[int, Done[BotCall, Presses]]]:
        return list(self._results.items())

    def ack(self, numbers: list[int]) -> None:
        for number in numbers:
            self._results.pop(number)

    def inflight(self) -> dict[int, BotCall]:
        return {}

    def cancel(self, number: int, why: str) -> None: ...

    def give_up(self, number: int, done: Done[BotCall, Presses]) -> None: ...


class SimulatedChat:
    """The messages that have arrived, oldest first, and what people have sent."""

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self.answers: list[str] = []  # to people
        self._sent: list[Press | Reply] = []
        self._confirmed = 0
        self._seconds = count(0, 60)

    def start(self, submit: Callable[[Any], Any]) -> None:
        """A daemon starts, and gets what is not confirmed."""
        self._poller = ButtonPoller(AtOnce(self._answer), submit)

    def receive(self, outgoing: Delivery, now: datetime) -> str:
        """A message arrives. Returns its number, by which the daemon recognises replies to it."""
        message, notice = outgoing.message, outgoing.message.notice or ""
        number = len(self.messages) + 1
        question = int(notice.split()[1]) if notice.startswith("question ") and notice.split()[2:] == [] else None
        buttons = {button.label: button.data for button in outgoing.buttons}
        self.messages.append(
            ChatMessage(
                number, message.key, (message.kind, message.name), message.text, now, buttons, question, message.parts == 1
            )
        )
        return str(number)

    def press(self, data: str, person: str, chat: str) -> None:
        """A person presses a button with this data."""
        self._sent.append(Press(chat, "", person, self._names(person), str(len(self._sent)), data))

    def reply(self, number: int, text: str, person: str, chat: str) -> None:
        """A person replies to the message with this number."""
        self._sent.append(Reply(chat, "", person, self._names(person), 9000 + len(self._sent), str(number), text))

    @staticmethod
    def _names(person: str) -> frozenset[str]:
        return frozenset((person, PEOPLE[person]))

    def poll(self, channels: Any, settle: Callable[[], None]) -> None:
        """The daemon asks for what people have sent, carries it out, and confirms it."""
        for _ in range(3):
            self._poller.poll(next(self._seconds), channels)
            settle()

    def _answer(self, call: BotCall) -> Presses:
        """What the bot answers to a request of the poller."""
        new: list[Press | Reply] = []
        if call.press is None:
            self._confirmed = max(self._confirmed, call.offset)
            new = self._sent[self._confirmed :]
        else:
            self.answers.append(call.text)
        presses = tuple(each for each in new if isinstance(each, Press))
        replies = tuple(each for each in new if isinstance(each, Reply))
        return Presses(presses, replies, len(self._sent))
