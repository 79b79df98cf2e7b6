"""Answers of a server of OpenAI's chat completions."""

from __future__ import annotations

import json
from typing import Any

from servers.scripted import Act, reply

USAGE = {"prompt_tokens": 127, "completion_tokens": 30, "prompt_tokens_details": {"cached_tokens": 7}}


def tool(name: str, given: object) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}


def completion(content: object, finish: str = "stop", *, calls: list[Any] | None = None, **more: object) -> dict[str, Any]:
    """A completion with this content. A keyword replaces a field, None removes it."""
    message = {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls is not None else {})
    usual = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "llama-9",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": USAGE,
    }
    return {name: value for name, value in (usual | more).items() if value is not None}


def text_answer(words: str) -> Act:
    return reply(completion(words))


def error_answer(status: int, words: str, code: str | None = None, **headers: str) -> Act:
    return reply({"error": {"message": words, "type": "error", "code": code}}, status, **headers)
