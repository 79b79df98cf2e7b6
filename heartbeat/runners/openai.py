"""Ask a model of any server that speaks OpenAI's chat completions, in one turn and without tools."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from heartbeat import decision
from heartbeat.decision import Decision
from heartbeat.runners import Answer, Failure, HttpClient, Reply, Run, Tokens, agent_json, model_answer
from heartbeat.runners.errors import Trouble, json_object, message_in, one_line, refusal, request_id
from heartbeat.runners.redaction import Veil, parts_of, reveal
from heartbeat.spec import ModelRunner

BASE_URL = "https://api.openai.com/v1"

FORCED = {
    "tools": [
        {
            "type": "function",
            "function": {"name": decision.TOOL, "description": decision.DESCRIPTION, "parameters": decision.SCHEMA},
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": decision.TOOL}},
}


async def ask(run: Run, runner: ModelRunner, http: HttpClient) -> Answer:
    """One turn: what was said before, then the prompt; the content of the first choice is the answer.

    Makes exactly one request. The key is optional, and so is the model where the server has but one. Takes
    `run.timeout` at most.
    """
    try:
        completion, request = await _call(run, runner, {}, http)
        return replace(_read(completion), request_id=request)
    except Trouble as trouble:
        return model_answer.of_provider(trouble, runner.provider)


async def decide(run: Run, runner: ModelRunner, http: HttpClient) -> Answer | Decision:
    """The forced decision about `run.prompt`; an Answer is always a failure."""
    try:
        completion, request = await _call(run, runner, FORCED, http)
        return replace(_decided(completion), request_id=request)
    except Trouble as trouble:
        return model_answer.of_provider(trouble, runner.provider)


async def _call(run: Run, runner: ModelRunner, more: dict[str, Any], http: HttpClient) -> tuple[dict[str, Any], str | None]:
    key, url = model_answer.key_of(runner.provider), reveal(runner.provider.base_url or BASE_URL)
    body = json.dumps({**_question(run, runner), **more}).encode()
    headers = {"authorization": f"Bearer {key}"} if key else {}
    reply = await http.post(f"{url.rstrip('/')}/chat/completions", headers, body, run.timeout.total_seconds())
    if reply.status != 200:
        raise _refused(reply, _veil(key, url))
    completion = json_object(reply)
    if completion.get("error"):
        raise _failed(completion["error"], reply, _veil(key, url))
    return completion, request_id(reply.headers)


def _veil(key: str | None, url: str) -> Veil:
    return Veil([key, *parts_of(url, all_of_it=True)])


def _question(run: Run, runner: ModelRunner) -> dict[str, Any]:
    # OpenAI's own newer models take the bound under this name alone, most other servers under the older one alone.
    bound = "max_tokens" if runner.provider.base_url else "max_completion_tokens"
    question = {"messages": agent_json.turns(run), bound: runner.max_output_tokens, "stream": False}
    return question | ({"model": run.model} if run.model else {})


def _refused(reply: Reply, veil: Veil) -> Trouble:
    """As the status says, but an account without money is no matter of waiting, though it is told as 429."""
    trouble = refusal(reply, veil)
    if reply.status == 429 and b"insufficient_quota" in reply.body:
        return Trouble(Failure.PAYMENT, trouble.answer.error, status=reply.status)
    return trouble


def _failed(error: object, reply: Reply, veil: Veil) -> Trouble:
    """A failure that comes with status 200, as gateways in front of several providers have it; its code may be the status."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 600:
        return refusal(Reply(code, reply.headers, json.dumps({"error": error}).encode()), veil)
    return Trouble(Failure.BAD_ANSWER, one_line(f"answered with an error: {message_in(error) or 'no words for it'}", veil))


def _read(completion: dict[str, Any]) -> Answer:
    choice, message = _message(completion)
    stopped = "refusal" if message.get("refusal") else str(choice.get("finish_reason"))
    return model_answer.judged(_spent(completion), _text(message), len(_calls(message)), stopped)


def _decided(completion: dict[str, Any]) -> Answer | Decision:
    choice, message = _message(completion)
    functions = [call.get("function") for call in _calls(message)]
    given = [
        _arguments(function) for function in functions if isinstance(function, dict) and function.get("name") == decision.TOOL
    ]
    return model_answer.decided(
        _spent(completion), given if len(given) == len(functions) else [], is_cut=agent_json.truncated(choice)
    )


def _message(completion: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    choices = completion.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise Trouble(Failure.BAD_ANSWER, "answered without the choice that a completion has")
    return choice, message


def _text(message: dict[str, Any]) -> str:
    """The content: a text, nothing, or parts of which the texts count."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise Trouble(Failure.BAD_ANSWER, "answered with content that is not text")
    texts = (part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text")
    return "\n".join(text for text in texts if isinstance(text, str))


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise Trouble(Failure.BAD_ANSWER, "answered with tool calls that are none")
    return calls


def _arguments(function: dict[str, Any]) -> object:
    """What the tool was given: JSON in a text, or, as some servers have it, the object itself; None if it is broken."""
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed: object = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return parsed


def _spent(completion: dict[str, Any]) -> Answer:
    return Answer(model_used=agent_json.model(completion.get("model")), tokens=_tokens(completion.get("usage")))


def _tokens(usage: object) -> Tokens | None:
    """Tokens by kind: here the prompt's tokens count those from the cache too."""
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    cached = agent_json.count(details.get("cached_tokens") or 0) if isinstance(details, dict) else 0
    prompt, output = agent_json.count(usage.get("prompt_tokens")), agent_json.count(usage.get("completion_tokens"))
    if prompt is None or cached is None:
        return None
    return agent_json.counted(input=max(prompt - cached, 0), output=output, cache_read=min(cached, prompt))
