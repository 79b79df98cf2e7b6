"""Calls a model of Anthropic, or of a server with the same Messages API, through the SDK.

This is the only module that imports the SDK. The key and the address come from the config only: everything that the SDK would
read from environment variables or profile files is set or removed here. The import takes a second, so it happens at the first
use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

from heartbeat.runners import AgentRequest, Answer, Failure, HttpClient, HttpReply, OfferedTool
from heartbeat.runners.agent_json import clean_text, model_name, parse_usage, token_count
from heartbeat.runners.call_errors import INVALID_ADDRESS, CallError, error_from_reply, find_request_id, parse_json_object
from heartbeat.runners.model_call import (
    Message,
    ModelRequest,
    Response,
    ToolChoice,
    ToolUse,
    read_access,
    request_for_answer,
)
from heartbeat.runners.redaction import reveal_secret
from heartbeat.spec import ModelRunner

BASE_URL = "https://api.anthropic.com"
_WITHOUT_MARKS = set[tuple[str, str, str | None]]()
"""Providers with their address and a model that refuse the marks for the cache."""


async def send(request: ModelRequest, http: HttpClient) -> Response:
    """Send one request, or none if the key or the model is missing. Takes its `run.timeout` at most. Raises CallError.

    A server with the same Messages API need not know the marks for the cache. If it refuses them, they are left out, and for this
    model until this process ends. That is not stored, because the server may learn them with an update.
    """
    provider = request.runner.provider
    place = provider.name, reveal_secret(provider.base_url or ""), request.run.model
    most, plain = request.runner.max_output_tokens, [*request.conversation]
    marked = plain if place in _WITHOUT_MARKS else _with_cache_marks(request)
    ends = asyncio.get_running_loop().time() + request.run.timeout.total_seconds()
    try:
        reply = await _send_request(replace(request, conversation=marked), http, max_tokens=most)
    except CallError as error:
        left = timedelta(seconds=ends - asyncio.get_running_loop().time())
        is_refused = error.answer.failure is Failure.BAD_REQUEST and marked != plain and provider.base_url is not None
        if not is_refused or left <= timedelta():
            raise
        again = replace(request, run=replace(request.run, timeout=left))
        reply = await _send_request(again, http, max_tokens=most)
        _WITHOUT_MARKS.add(place)  # the marks were the reason, because the same request without them was not refused
    return _parse_reply(reply)


async def count_tokens(run: AgentRequest, runner: ModelRunner, http: HttpClient) -> int | None:
    """The input tokens of the request for an answer, as the provider counts them; None if it does not."""
    try:
        found = parse_json_object(await _send_request(request_for_answer(run, runner), http))
    except CallError:
        return None  # a server with the same Messages API need not have this endpoint
    return token_count(found.get("input_tokens")) or None


def tool_results(results: Sequence[tuple[ToolUse, str, bool]]) -> list[Message]:
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


async def _send_request(request: ModelRequest, http: HttpClient, *, max_tokens: int | None = None) -> HttpReply:
    """The successful reply. Without `max_tokens` it has the number of tokens of the request, and no message."""
    run, provider = request.run, request.runner.provider
    key, url, redactor = read_access(provider, BASE_URL)
    if key is None:
        line = f'providers: {{{provider.name}: {{api_key: "${{ANTHROPIC_API_KEY}}"}}}}'
        raise CallError(Failure.AUTH, f"it has no API key; write {line}")
    if run.model is None:
        raise CallError(Failure.BAD_REQUEST, f"no model is set; write a model: for the agent {run.agent}")
    sdk = _load_sdk()
    body: dict[str, object] = {
        "model": run.model,
        "messages": request.conversation,
        "timeout": run.timeout.total_seconds(),
        "extra_headers": {"traceparent": run.traceparent} if run.traceparent else None,
        **_offer_tools(request.tools, request.choice),
        **({"output_config": {"effort": run.effort}} if run.effort else {}),
    }
    try:
        api = _sdk_client(http, key, url).messages.with_raw_response
        sent = api.create(max_tokens=max_tokens, **body) if max_tokens else api.count_tokens(**body)
        reply = _to_reply((await sent).http_response)
    except sdk.APIStatusError as error:
        reply = _to_reply(error.response)
    except sdk.APIConnectionError as error:  # the SDK wraps every exception of its transport in this
        raise error.__cause__ if isinstance(error.__cause__, CallError) else error from None
    if reply.status != 200:
        raise error_from_reply(reply, redactor)
    return reply


def _with_cache_marks(request: ModelRequest) -> list[Message]:
    """The conversation with a mark at the end of each part that the provider is asked to keep, or to use if it still has it.

    The tools come before the conversation, so they are kept with it. A part that is too short for the model is not kept, and
    costs nothing more.
    """
    run, messages = request.run, [*request.conversation]
    static, first = clean_text(run.static), messages[0]["content"]
    if run.cache.ttl and static and isinstance(first, str) and first.startswith(static) and len(first) > len(static):
        begin = {"type": "text", "text": static, "cache_control": {"type": "ephemeral", "ttl": run.cache.ttl}}
        messages[0] = {**messages[0], "content": [begin, {"type": "text", "text": first[len(static) :]}]}
    for number in request.kept:
        content = messages[number]["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else [*content]  # type: ignore[misc]
        blocks[-1] = {**blocks[-1], "cache_control": {"type": "ephemeral"}}
        messages[number] = {**messages[number], "content": blocks}
    return messages


def _offer_tools(tools: Sequence[OfferedTool], choice: ToolChoice) -> dict[str, object]:
    """The part of a request that offers tools, and says whether the model must, may or must not call one."""
    if not tools:
        return {}
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
        raise CallError(Failure.BAD_REQUEST, INVALID_ADDRESS) from None
    client._custom_headers = {}  # private: `with_options` reads the variable again. test_runner_anthropic.py sets the variable
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


def _parse_reply(reply: HttpReply) -> Response:
    message = parse_json_object(reply)
    blocks = message.get("content")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise CallError(Failure.BAD_ANSWER, "answered without a list of content blocks")
    texts = [block["text"] for block in blocks if block.get("type") == "text" and isinstance(block.get("text"), str)]
    return Response(
        "\n".join(texts),
        tuple(ToolUse(each.get("id"), each.get("name"), each.get("input")) for each in blocks if each.get("type") == "tool_use"),
        str(message.get("stop_reason")),
        {"role": "assistant", "content": blocks},
        Answer(
            model_used=model_name(message.get("model")),
            tokens=parse_usage(message.get("usage"), is_whole=True),
            request_id=find_request_id(reply.headers),
        ),
    )
