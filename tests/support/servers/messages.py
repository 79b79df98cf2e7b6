"""Answers of a server of the Messages API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servers.scripted import Act, Request, Server, reply

USAGE = {"input_tokens": 120, "output_tokens": 30, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 2}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def tool(name: str, given: object) -> dict[str, Any]:
    return {"type": "tool_use", "id": "toolu_1", "name": name, "input": given}


def message(*content: object, **more: object) -> dict[str, Any]:
    """A message with these blocks. A keyword replaces a field, None removes it."""
    usual = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-haiku-5-5",
        "content": list(content),
        "stop_reason": "end_turn",
        "usage": USAGE,
    }
    return {name: value for name, value in (usual | more).items() if value is not None}


def text_answer(words: str) -> Act:
    return reply(message(text(words)))


def error_answer(status: int, kind: str, words: str, **headers: str) -> Act:
    return reply({"type": "error", "error": {"type": kind, "message": words}}, status, **headers)


class Models(Server):
    """A server that answers each request by its content. `answer` may be replaced at any time."""

    def __init__(self, answer: Callable[[Request], Act]) -> None:
        super().__init__([])
        self.answer = answer

    def _next(self, request: Request) -> Act:
        with self._lock:
            self.requests.append(request)
            return self.answer(request)

    def models(self) -> list[str]:
        """The requested models in the order of the requests."""
        return [request.json["model"] for request in self.requests]
