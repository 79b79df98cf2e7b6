"""A local server that imitates a webhook of discord.com with its rules and errors."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from servers.scripted import Act, Imitation, Request, reply

TOKEN = "canary-token"
URL = f"discord://42/{TOKEN}"

MENTION = re.compile(r"@everyone|@here|<@[!&]?\d+>")


def refusal(status: int, message: str, code: int = 0) -> Act:
    """An error answer of Discord."""
    return reply({"message": message, "code": code}, status)


def slow_down(seconds: float) -> Act:
    """A rate-limit answer of Discord."""
    body = {"message": "You are being rate limited.", "retry_after": seconds, "global": False}
    return reply(body, 429, retry_after=str(int(seconds) + 1))


@dataclass
class Discord(Imitation):
    """A context manager. Answers from `script` come first, then it behaves like Discord.

    `messages` has the messages of the channel, `pinged` the users they mention.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    pinged: list[str] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        return [message["content"] for message in self.messages]

    def _answer(self, request: Request) -> Act:
        path, _, query = request.path.partition("?")
        if not path.startswith("/api/v10/webhooks/42/"):
            return refusal(404, "Unknown Webhook", 10015)
        if not path.endswith(f"/{TOKEN}"):
            return refusal(401, "Invalid Webhook Token", 50027)
        message = request.json
        if not message["content"].strip():
            return refusal(400, "Cannot send an empty message", 50006)
        if len(message["content"]) > 2000:
            return reply({"message": "Invalid Form Body", "code": 50035, "errors": {"content": {}}}, 400)
        self.messages.append(message)
        if "allowed_mentions" not in message or "everyone" in message["allowed_mentions"]["parse"]:
            self.pinged += MENTION.findall(message["content"])
        return reply({"id": str(len(self.messages)), **message}) if "wait=true" in query else reply(b"", 204)
