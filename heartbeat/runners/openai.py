"""Calls a model of any server with OpenAI's chat completions API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from heartbeat.runners import Answer, Failure, HttpClient, HttpReply, OfferedTool
from heartbeat.runners.agent_json import model_name, parse_usage
from heartbeat.runners.call_errors import (
    CallError,
    error_from_reply,
    find_message,
    find_request_id,
    parse_json_object,
    redacted_line,
)
from heartbeat.runners.model_call import Message, ModelRequest, Response, ToolChoice, ToolUse, read_access
from heartbeat.runners.redaction import Redactor

BASE_URL = "https://api.openai.com/v1"


async def send(request: ModelRequest, http: HttpClient) -> Response:
    """Send exactly one request. The key is optional, and so is the model, for servers that have only one. Takes its
    `run.timeout` at most. Raises CallError.
    """
    run, runner = request.run, request.runner
    key, url, redactor = read_access(runner.provider, BASE_URL)
    # OpenAI's own newer models accept the limit only under this name, most other servers only under the older name.
    bound = "max_tokens" if runner.provider.base_url else "max_completion_tokens"
    body = {"messages": request.conversation, bound: runner.max_output_tokens, "stream": False}
    body |= _offer_tools(request.tools, request.choice)
    body |= {"model": run.model} if run.model else {}
    body |= {"reasoning_effort": run.effort} if run.effort else {}
    headers = {"authorization": f"Bearer {key}"} if key else {}
    headers |= {"traceparent": run.traceparent} if run.traceparent else {}
    reply = await http.post(
        f"{url.rstrip('/')}/chat/completions", headers, json.dumps(body).encode(), run.timeout.total_seconds()
    )
    if reply.status != 200:
        raise _refusal_error(reply, redactor)
    completion = parse_json_object(reply)
    if completion.get("error"):
        raise _embedded_error(completion["error"], reply, redactor)
    return _parse_completion(completion, find_request_id(reply.headers))


def tool_results(results: Sequence[tuple[ToolUse, str, bool]]) -> list[Message]:
    """The messages with the results of tools. Each result is a text, and whether it is an error, which the text itself says."""
    return [{"role": "tool", "tool_call_id": use.id, "content": text} for use, text, _ in results]


def _offer_tools(tools: Sequence[OfferedTool], choice: ToolChoice) -> dict[str, object]:
    """The part of a request that offers tools, and says whether the model must, may or must not call one."""
    if not tools:
        return {}
    functions = [{"name": tool.name, "description": tool.description, "parameters": tool.schema} for tool in tools]
    word = {"auto": "auto", "any": "required", "none": "none"}.get(choice)
    return {
        "tools": [{"type": "function", "function": function} for function in functions],
        "tool_choice": word or {"type": "function", "function": {"name": choice}},
    }


def _refusal_error(reply: HttpReply, redactor: Redactor) -> CallError:
    """The error for the status. An account without credit has status 429 too, but waiting does not help."""
    error = error_from_reply(reply, redactor)
    if reply.status == 429 and b"insufficient_quota" in reply.body:
        return CallError(Failure.PAYMENT, error.answer.error, status=reply.status)
    return error


def _embedded_error(error: object, reply: HttpReply, redactor: Redactor) -> CallError:
    """The error in a response with status 200, as gateways for several providers send it. Its code may be the real status."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 600:
        return error_from_reply(HttpReply(code, reply.headers, json.dumps({"error": error}).encode()), redactor)
    return CallError(
        Failure.BAD_ANSWER, redacted_line(f"answered with an error: {find_message(error) or 'no message'}", redactor)
    )


def _parse_completion(completion: Mapping[str, object], request_id: str | None) -> Response:
    choices = completion.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise CallError(Failure.BAD_ANSWER, "answered without a choice")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise CallError(Failure.BAD_ANSWER, "answered with malformed tool calls")
    model, tokens = model_name(completion.get("model")), parse_usage(completion.get("usage"), is_whole=True)
    return Response(
        _message_text(message.get("content")),
        tuple(map(_tool_use, calls)),
        "refusal" if message.get("refusal") else str(choice.get("finish_reason")),
        {"role": "assistant", "content": message.get("content"), "tool_calls": calls},
        Answer(model_used=model, tokens=tokens, request_id=request_id),
    )


def _tool_use(call: Mapping[str, object]) -> ToolUse:
    """A call. Its arguments are JSON in a text, or the object itself, as some servers send it."""
    function = call.get("function")
    named = function if isinstance(function, dict) else {}
    return ToolUse(call.get("id"), named.get("name"), named.get("arguments"))


def _message_text(content: object) -> str:
    """The text of a message: its content is a text, nothing, or a list of parts of which only the texts count."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise CallError(Failure.BAD_ANSWER, "answered with content that is not text")
    texts = (part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text")
    return "\n".join(text for text in texts if isinstance(text, str))
