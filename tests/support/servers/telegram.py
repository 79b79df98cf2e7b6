"""A local server that imitates sendMessage of api.telegram.org for one bot and chat, with its rules and errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from servers.scripted import Act, Imitation, Request, after, reply

TOKEN = "123456:canary-token"
CHAT = "-1001"
URL = f"tgram://{TOKEN}/{CHAT}"


def refusal(code: int, description: str, status: int | None = None, **parameters: int) -> Act:
    """An error answer of Telegram. `status` is the HTTP status if it differs from the code."""
    body: dict[str, Any] = {"ok": False, "error_code": code, "description": description}
    return reply(body | ({"parameters": parameters} if parameters else {}), code if status is None else status)


@dataclass
class Telegram(Imitation):
    """A context manager. Answers from `script` come first, then it behaves like Telegram.

    `messages` has the chat's messages, and `answers` the texts that were shown after presses of buttons. A request for updates is
    answered after `poll_seconds` if there are none.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    updates: list[dict[str, Any]] = field(default_factory=list)
    poll_seconds: float = 0.0

    @property
    def texts(self) -> list[str]:
        return [message["text"] for message in self.messages]

    def buttons(self, message: int = -1) -> dict[str, str]:
        """The buttons of a message: their data, by label."""
        markup = self.messages[message].get("reply_markup", {"inline_keyboard": [[]]})
        return {button["text"]: button["callback_data"] for row in markup["inline_keyboard"] for button in row}

    def press(self, data: str, chat: str = CHAT, user: str = "anna", text: str = "", user_id: int = 5) -> None:
        """A person presses a button with this data in a chat, below a message with this text."""
        number = 700 + len(self.updates)
        about = {"message_id": 1, "chat": {"id": int(chat), "type": "group"}, "text": text}
        query = {"id": str(number), "from": {"id": user_id, "username": user}, "message": about, "data": data}
        self.updates.append({"update_id": number, "callback_query": query})

    def reply(self, text: str, message: int = -1, chat: str = CHAT, user: str = "anna", user_id: int = 5) -> None:
        """A person replies to a message."""
        number = 700 + len(self.updates)
        to = {"message_id": range(1, len(self.messages) + 1)[message]}
        sender, about = {"id": user_id, "username": user, "is_bot": False}, {"id": int(chat), "type": "group"}
        content = {"message_id": 9000 + number, "from": sender, "chat": about, "text": text, "reply_to_message": to}
        self.updates.append({"update_id": number, "message": content})

    def _answer(self, request: Request) -> Act:
        method = request.path.removeprefix(f"/bot{TOKEN}/")
        if method == "getUpdates":
            new = [update for update in self.updates if update["update_id"] >= request.json["offset"]]
            wanted = [update for update in new if {*update} & {*request.json["allowed_updates"]}]
            return after(0.0 if wanted else self.poll_seconds, reply({"ok": True, "result": wanted[: request.json["limit"]]}))
        if method == "answerCallbackQuery":
            self.answers.append(request.json["text"])
            return reply({"ok": True, "result": True})
        if method != "sendMessage":
            return refusal(401, "Unauthorized")
        message = request.json
        if str(message["chat_id"]) != CHAT:
            return refusal(400, "Bad Request: chat not found")
        if not message["text"].strip():
            return refusal(400, "Bad Request: message text is empty")
        if len(message["text"].encode("utf-16-le")) > 2 * 4096:
            return refusal(400, "Bad Request: message is too long")
        self.messages.append(message)
        return reply({"ok": True, "result": {"message_id": len(self.messages), "text": message["text"]}})
