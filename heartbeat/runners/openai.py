"""Calls a model of any server with OpenAI's chat completions API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from heartbeat.decision import Decision
from heartbeat.runners import AgentRequest, Answer, Failure, HttpClient, HttpReply, Tokens, agent_json, model_answer
from heartbeat.runners.errors import CallError, error_from_reply, find_message, find_request_id, parse_json_object, redacted_line
from heartbeat.runners.model_answer import ModelTurn, Tool, ToolChoice, ToolUse
from heartbeat.runners.redaction import Redactor, reveal_secret, secret_parts
from heartbeat.spec import ModelRunner

BASE_URL = "https://api.openai.com/v1"


async def call_model(run: AgentRequest, runner: ModelRunner, http: HttpClient) -> Answer:
    """Send the earlier messages and the prompt. The answer is the findings in the arguments of the forced tool if the request is
    `structured`, or else the content of the first choice.

    Sends exactly one request. The key is optional, and so is the model, for servers that have only one. Takes `run.timeout` at
    most.
    """
    forced = model_answer.REPORT_FINDINGS if run.structured else None
    try:
        completion, request = await _send_request(run, runner, agent_json.conversation(run), _force_tool(forced), http)
        return replace(_parse_completion(completion, forced), request_id=request)
    except CallError as error:
        return model_answer.with_provider_name(error, runner.provider, structured=run.structured)


async def request_decision(run: AgentRequest, runner: ModelRunner, http: HttpClient) -> Answer | Decision:
    """Make the model decide about `run.prompt` with a forced tool. If an Answer is returned, it is a failure."""
    try:
        conversation = agent_json.conversation(run)
        completion, request = await _send_request(run, runner, conversation, _force_tool(model_answer.DECIDE), http)
        return replace(_parse_decision(completion), request_id=request)
    except CallError as error:
        return model_answer.with_provider_name(error, runner.provider)


async def request_turn(
    run: AgentRequest,
    runner: ModelRunner,
    conversation: Sequence[Mapping[str, Any]],
    tools: Sequence[Tool],
    choice: ToolChoice,
    http: HttpClient,
) -> ModelTurn:
    """Send a conversation, and offer `tools` to the model. Raises CallError."""
    completion, request = await _send_request(run, runner, conversation, _offer_tools(tools, choice), http)
    answer = replace(_parse_completion(completion, model_answer.REPORT_FINDINGS if run.structured else None), request_id=request)
    picked, message = _first_choice(agent_json.clean_data(completion))
    made = _tool_calls(message)
    calls = [ToolUse(call.get("id"), function.get("name"), _parse_json(function.get("arguments"))) for call, function in made]
    said = {"role": "assistant", "content": message.get("content"), "tool_calls": [call for call, _ in made]}
    return ModelTurn(answer, model_answer.uses_of_turn(calls, str(picked.get("finish_reason"))), said)


def tool_results(results: Sequence[tuple[ToolUse, str, bool]]) -> list[dict[str, Any]]:
    """The messages with the results of tools. Each result is a text, and whether it is an error, which the text itself says."""
    return [{"role": "tool", "tool_call_id": use.id, "content": text} for use, text, _ in results]


async def _send_request(
    run: AgentRequest,
    runner: ModelRunner,
    conversation: Sequence[Mapping[str, Any]],
    tools: Mapping[str, Any],
    http: HttpClient,
) -> tuple[dict[str, Any], str | None]:
    """Return the completion and the provider's ID of the request. `tools` is the part of the request about tools."""
    key, url = model_answer.read_api_key(runner.provider), reveal_secret(runner.provider.base_url or BASE_URL)
    body = json.dumps({**_request_body(run, runner, conversation), **tools}).encode()
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if run.traceparent:
        headers["traceparent"] = run.traceparent
    reply = await http.post(f"{url.rstrip('/')}/chat/completions", headers, body, run.timeout.total_seconds())
    if reply.status != 200:
        raise _refusal_error(reply, _redactor_for(key, url))
    completion = parse_json_object(reply)
    if completion.get("error"):
        raise _embedded_error(completion["error"], reply, _redactor_for(key, url))
    return completion, find_request_id(reply.headers)


def _force_tool(tool: Tool | None) -> dict[str, Any]:
    """The part of a request that makes the model call this tool."""
    return _offer_tools([tool], tool.name) if tool else {}


def _offer_tools(tools: Sequence[Tool], choice: ToolChoice) -> dict[str, Any]:
    """The part of a request that offers tools, and says whether the model must, may or must not call one."""
    functions = [{"name": tool.name, "description": tool.description, "parameters": tool.schema} for tool in tools]
    word = {"auto": "auto", "any": "required", "none": "none"}.get(choice)
    return {
        "tools": [{"type": "function", "function": function} for function in functions],
        "tool_choice": word or {"type": "function", "function": {"name": choice}},
    }


def _redactor_for(key: str | None, url: str) -> Redactor:
    return Redactor([key, *secret_parts(url, whole_url=True)])


def _request_body(run: AgentRequest, runner: ModelRunner, conversation: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    # OpenAI's own newer models accept the limit only under this name, most other servers only under the older name.
    bound = "max_tokens" if runner.provider.base_url else "max_completion_tokens"
    question = {"messages": conversation, bound: runner.max_output_tokens, "stream": False}
    return question | ({"model": run.model} if run.model else {})


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


def _parse_completion(completion: dict[str, Any], forced: Tool | None) -> Answer:
    choice, message = _first_choice(completion)
    stopped = "refusal" if message.get("refusal") else str(choice.get("finish_reason"))
    given, others = _tool_arguments(message, forced)
    return model_answer.answer_from_response(_usage_answer(completion), _message_text(message), given, others, stopped)


def _parse_decision(completion: dict[str, Any]) -> Answer | Decision:
    choice, message = _first_choice(completion)
    given, others = _tool_arguments(message, model_answer.DECIDE)
    return model_answer.decision_or_failure(
        _usage_answer(completion), [] if others else [_parse_json(each) for each in given], is_cut=agent_json.is_truncated(choice)
    )


def _first_choice(completion: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    choices = completion.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise CallError(Failure.BAD_ANSWER, "answered without a choice")
    return choice, message


def _message_text(message: dict[str, Any]) -> str:
    """The content: a text, nothing, or a list of parts of which only the texts count."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise CallError(Failure.BAD_ANSWER, "answered with content that is not text")
    texts = (part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text")
    return "\n".join(text for text in texts if isinstance(text, str))


def _tool_calls(message: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each tool call, and the function in it; an empty map if it has none."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise CallError(Failure.BAD_ANSWER, "answered with malformed tool calls")
    functions = (call.get("function") for call in calls)
    return [(call, function if isinstance(function, dict) else {}) for call, function in zip(calls, functions, strict=True)]


def _tool_arguments(message: dict[str, Any], forced: Tool | None) -> tuple[list[object], int]:
    """The arguments of each call of the forced tool, and the number of calls of other tools.

    Arguments are JSON in a text, or the object itself, as some servers send it.
    """
    functions = [function for _, function in _tool_calls(message)]
    given = [function.get("arguments") for function in functions if forced and function.get("name") == forced.name]
    return given, len(functions) - len(given)


def _parse_json(arguments: object) -> object:
    """The arguments as an object. None if their JSON is broken."""
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed: object = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return parsed


def _usage_answer(completion: dict[str, Any]) -> Answer:
    return Answer(model_used=agent_json.model_name(completion.get("model")), tokens=_parse_usage(completion.get("usage")))


def _parse_usage(usage: object) -> Tokens | None:
    """Tokens by kind. In this API the prompt tokens include those read from the cache."""
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    cached = agent_json.token_count(details.get("cached_tokens") or 0) if isinstance(details, dict) else 0
    prompt, output = agent_json.token_count(usage.get("prompt_tokens")), agent_json.token_count(usage.get("completion_tokens"))
    if prompt is None or cached is None:
        return None
    return agent_json.tokens_from_counts(input=max(prompt - cached, 0), output=output, cache_read=min(cached, prompt))
