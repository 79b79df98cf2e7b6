"""A local server that imitates sendMessage of api.telegram.org for one bot and chat, with its rules and errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from servers.scripted import Act, Request, Server, reply

TOKEN = "123456:canary-token"
CHAT = "-1001"
URL = f"tgram://{TOKEN}/{CHAT}"


def refusal(code: int, description: str, status: int | None = None, **parameters: int) -> Act:
    """An error answer of Telegram. `status` is the HTTP status if it differs from the code."""
    body: dict[str, Any] = {"ok": False, "error_code": code, "description": description}
    return reply(body | ({"parameters": parameters} if parameters else {}), code if status is None else status)


@dataclass
class Telegram(Server):
    """A context manager. Answers from `script` come first, then it behaves like Telegram. `messages` has the chat's messages."""

    script: list[Act] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        return [message["text"] for message in self.messages]

    def _next(self, request: Request) -> Act:
        with self._lock:
            self.requests.append(request)
            return self.script.pop(0) if self.script else self._answer(request)

    def _answer(self, request: Request) -> Act:
        if request.path != f"/bot{TOKEN}/sendMessage":
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
