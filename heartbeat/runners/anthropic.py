"""Calls a model of Anthropic, or of a server with the same Messages API, through the SDK.

This is the only module that imports the SDK. The key and the address come from the config only: everything that the SDK would
read from environment variables or profile files is set or removed here. The import takes a second, so it happens at the first
use.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from types import ModuleType
from typing import Any

from heartbeat.decision import Decision
from heartbeat.runners import AgentRequest, Answer, Failure, HttpClient, HttpReply, Tokens, agent_json, model_answer
from heartbeat.runners.errors import CallError, error_from_reply, find_request_id, parse_json_object
from heartbeat.runners.model_answer import ModelTurn, Tool, ToolChoice, ToolUse
from heartbeat.runners.redaction import Redactor, reveal_secret, secret_parts
from heartbeat.spec import ModelRunner

BASE_URL = "https://api.anthropic.com"
MALFORMED = "its address is not valid; write http(s)://host[:port]/path"


async def call_model(run: AgentRequest, runner: ModelRunner, http: HttpClient) -> Answer:
    """Send the earlier messages and the prompt. The answer is the findings in the arguments of the forced tool if the request is
    `structured`, or else the text blocks of the response.

    Sends exactly one request, or none if the key or the model is missing. Takes `run.timeout` at most.
    """
    forced = model_answer.REPORT_FINDINGS if run.structured else None
    try:
        message, request = await _send_request(run, runner, agent_json.conversation(run), _force_tool(forced), http)
        return replace(_parse_message(message, forced), request_id=request)
    except CallError as error:
        return model_answer.with_provider_name(error, runner.provider, structured=run.structured)


async def count_tokens(run: AgentRequest, runner: ModelRunner, http: HttpClient) -> int | None:
    """The input tokens of the request of `call_model`, as the provider counts them; None if it does not."""
    forced = model_answer.REPORT_FINDINGS if run.structured else None
    try:
        found, _ = await _send_request(run, runner, agent_json.conversation(run), _force_tool(forced), http, only_count=True)
    except CallError:
        return None  # a server with the same Messages API need not have this endpoint
    counted = found.get("input_tokens")
    return counted if type(counted) is int and counted > 0 else None


async def request_decision(run: AgentRequest, runner: ModelRunner, http: HttpClient) -> Answer | Decision:
    """Make the model decide about `run.prompt` with a forced tool. If an Answer is returned, it is a failure."""
    try:
        conversation = agent_json.conversation(run)
        message, request = await _send_request(run, runner, conversation, _force_tool(model_answer.DECIDE), http)
        return replace(_parse_decision(message), request_id=request)
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
    message, request = await _send_request(run, runner, conversation, _offer_tools(tools, choice), http)
    answer = replace(_parse_message(message, model_answer.REPORT_FINDINGS if run.structured else None), request_id=request)
    blocks = agent_json.clean_data(_content_blocks(message))
    calls = [
        ToolUse(block.get("id"), block.get("name"), block.get("input")) for block in blocks if block.get("type") == "tool_use"
    ]
    said = {"role": "assistant", "content": blocks}
    return ModelTurn(answer, model_answer.uses_of_turn(calls, str(message.get("stop_reason"))), said)


def tool_results(results: Sequence[tuple[ToolUse, str, bool]]) -> list[dict[str, Any]]:
    """The messages with the results of tools. Each result is a text, and whether it is an error."""
    blocks = [
        {"type": "tool_result", "tool_use_id": use.id, "content": text, **({"is_error": True} if failed else {})}
        for use, text, failed in results
    ]
    return [{"role": "user", "content": blocks}]


def import_sdk() -> None:
    """Import the SDK and everything that its first request would import. Takes about a second of CPU once."""
    _load_sdk()
    from anthropic.resources.messages import AsyncMessages  # noqa: F401 (imported for its effect)


async def _send_request(
    run: AgentRequest,
    runner: ModelRunner,
    conversation: Sequence[Mapping[str, Any]],
    tools: Mapping[str, Any],
    http: HttpClient,
    *,
    only_count: bool = False,
) -> tuple[dict[str, Any], str | None]:
    """Return the message that came back and the provider's ID of the request. `tools` is the part of the request about tools.

    `only_count`: the number of its tokens comes back instead of a message.
    """
    provider = runner.provider
    key, url = model_answer.read_api_key(provider), reveal_secret(provider.base_url or BASE_URL)
    if key is None:
        line = f'providers: {{{provider.name}: {{api_key: "${{ANTHROPIC_API_KEY}}"}}}}'
        raise CallError(Failure.AUTH, f"it has no API key; write {line}")
    if run.model is None:
        raise CallError(Failure.BAD_REQUEST, f"no model is set; write a model: for the agent {run.agent}")
    sdk = _load_sdk()
    try:
        messages = _sdk_client(http, key, url).messages.with_raw_response
        send = messages.count_tokens if only_count else partial(messages.create, max_tokens=runner.max_output_tokens)
        raw = await send(
            model=run.model,
            messages=conversation,
            timeout=run.timeout.total_seconds(),
            extra_headers={"traceparent": run.traceparent} if run.traceparent else None,
            **tools,
        )
    except sdk.APIStatusError as error:
        raise error_from_reply(_to_reply(error.response), Redactor([key, *secret_parts(url, whole_url=True)])) from None
    except sdk.APIConnectionError as error:  # the SDK wraps every exception of its transport in this
        raise error.__cause__ if isinstance(error.__cause__, CallError) else error from None
    reply = _to_reply(raw.http_response)
    if reply.status != 200:
        raise error_from_reply(reply, Redactor([key, *secret_parts(url, whole_url=True)]))
    return parse_json_object(reply), find_request_id(reply.headers)


def _force_tool(tool: Tool | None) -> dict[str, Any]:
    """The part of a request that makes the model call this tool."""
    return _offer_tools([tool], tool.name) if tool else {}


def _offer_tools(tools: Sequence[Tool], choice: ToolChoice) -> dict[str, Any]:
    """The part of a request that offers tools, and says whether the model must, may or must not call one."""
    kind = choice if choice in ("auto", "any", "none") else "tool"
    return {
        "tools": [{"name": tool.name, "description": tool.description, "input_schema": tool.schema} for tool in tools],
        "tool_choice": {"type": kind, **({"name": choice} if kind == "tool" else {})},
    }


def _to_reply(response: Any) -> HttpReply:
    return HttpReply(response.status_code, {name.lower(): value for name, value in response.headers.items()}, response.content)


@lru_cache(maxsize=32)
def _sdk_client(http: HttpClient, key: str, url: str) -> Any:
    """The SDK's client for one key and one address, which sends through `http`.

    A given key, address, webhook key and tracing setting keep the SDK from looking for its own. One environment variable cannot
    be overridden: it adds headers to every request, so these headers are removed. The client does not retry, because retries
    are rows of the queue.
    """
    import httpx2

    try:
        client = _load_sdk().AsyncAnthropic(
            api_key=key,
            base_url=url,
            webhook_key="",
            max_retries=0,
            open_telemetry=False,
            http_client=httpx2.AsyncClient(transport=_make_transport(http), trust_env=False),
        )
    except httpx2.InvalidURL:
        raise CallError(Failure.BAD_REQUEST, MALFORMED) from None
    client._custom_headers = {}
    return client


@cache
def _load_sdk() -> ModuleType:
    import anthropic

    for name in (
        "anthropic",
        "httpx2",
    ):  # at lower levels, which an environment variable turns on, they log prompts and addresses
        logging.getLogger(name).setLevel(logging.WARNING)
    return anthropic


def _make_transport(http: HttpClient) -> Any:
    """The transport for the SDK's HTTP library. It sends through our client, which keeps the deadline, limits the size of the
    response, checks the address and knows whether the request was sent. The SDK's own transport for aiohttp does none of
    that.
    """
    import httpx2

    class Transport(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            seconds = request.extensions["timeout"]["read"]
            reply = await http.post(str(request.url), dict(request.headers), request.content, seconds)
            # The SDK decodes error responses with the charset in their header, and fails if it is invalid.
            headers = {**reply.headers, "content-type": reply.headers.get("content-type", "").partition(";")[0]}
            return httpx2.Response(reply.status, headers=headers, content=reply.body, request=request)

    return Transport()


def _parse_message(message: dict[str, Any], forced: Tool | None) -> Answer:
    blocks = _content_blocks(message)
    text = "\n".join(block["text"] for block in blocks if block.get("type") == "text" and isinstance(block.get("text"), str))
    given, others = _tool_inputs(blocks, forced)
    return model_answer.answer_from_response(_usage_answer(message), text, given, others, str(message.get("stop_reason")))


def _parse_decision(message: dict[str, Any]) -> Answer | Decision:
    given, others = _tool_inputs(_content_blocks(message), model_answer.DECIDE)
    return model_answer.decision_or_failure(
        _usage_answer(message), [] if others else given, is_cut=agent_json.is_truncated(message)
    )


def _tool_inputs(blocks: list[dict[str, Any]], forced: Tool | None) -> tuple[list[object], int]:
    """The arguments of each call of the forced tool, and the number of calls of other tools."""
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    given = [block.get("input") for block in calls if forced and block.get("name") == forced.name]
    return given, len(calls) - len(given)


def _content_blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    blocks = message.get("content")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise CallError(Failure.BAD_ANSWER, "answered without a list of content blocks")
    return blocks


def _usage_answer(message: dict[str, Any]) -> Answer:
    return Answer(model_used=agent_json.model_name(message.get("model")), tokens=_parse_usage(message.get("usage")))


def _parse_usage(usage: object) -> Tokens | None:
    if not isinstance(usage, dict):
        return None
    return agent_json.tokens_from_counts(
        input=agent_json.token_count(usage.get("input_tokens")),
        output=agent_json.token_count(usage.get("output_tokens")),
        cache_read=agent_json.token_count(usage.get("cache_read_input_tokens") or 0),
        cache_write=agent_json.token_count(usage.get("cache_creation_input_tokens") or 0),
    )
