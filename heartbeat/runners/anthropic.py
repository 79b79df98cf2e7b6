"""Asks a model of Anthropic, or of a server that speaks its Messages API, by the SDK: one turn, without tools.

The only module that imports the SDK. Key and address come from the config alone: whatever the SDK would read from its
environment variables or profile files is given or taken away here. Its import takes a second, so it is made when first needed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

from heartbeat import decision
from heartbeat.decision import Decision
from heartbeat.runners import Answer, Failure, HttpClient, Reply, Run, Tokens, agent_json, model_answer
from heartbeat.runners.errors import Trouble, json_object, refusal, request_id
from heartbeat.runners.redaction import Veil, parts_of, reveal
from heartbeat.spec import ModelRunner

BASE_URL = "https://api.anthropic.com"
MALFORMED = "its address is none that can be posted to; write http(s)://host[:port]/path"

FORCED = {
    "tools": [{"name": decision.TOOL, "description": decision.DESCRIPTION, "input_schema": decision.SCHEMA}],
    "tool_choice": {"type": "tool", "name": decision.TOOL},
}


async def ask(run: Run, runner: ModelRunner, http: HttpClient) -> Answer:
    """One turn: what was said before, then the prompt; the text blocks of what comes back are the answer.

    Makes exactly one request, or none if it cannot succeed: without a key or a model. Takes `run.timeout` at most.
    """
    try:
        message, request = await _call(run, runner, {}, http)
        return replace(_read(message), request_id=request)
    except Trouble as trouble:
        return model_answer.of_provider(trouble, runner.provider)


async def decide(run: Run, runner: ModelRunner, http: HttpClient) -> Answer | Decision:
    """The forced decision about `run.prompt`; an Answer is always a failure."""
    try:
        message, request = await _call(run, runner, FORCED, http)
        return replace(_decided(message), request_id=request)
    except Trouble as trouble:
        return model_answer.of_provider(trouble, runner.provider)


def warm() -> None:
    """Import the SDK and all that its first request would import, ahead of the first run; takes about a second of CPU once."""
    _sdk()
    from anthropic.resources.messages import AsyncMessages  # noqa: F401 (imported for its effect)


async def _call(run: Run, runner: ModelRunner, more: Mapping[str, Any], http: HttpClient) -> tuple[dict[str, Any], str | None]:
    """The message that came back, and the provider's name for the request."""
    provider = runner.provider
    key, url = model_answer.key_of(provider), reveal(provider.base_url or BASE_URL)
    if key is None:
        line = f'providers: {{{provider.name}: {{api_key: "${{ANTHROPIC_API_KEY}}"}}}}'
        raise Trouble(Failure.AUTH, f"it has no key; write {line}")
    if run.model is None:
        raise Trouble(Failure.BAD_REQUEST, f"no model is named; write a model: for the agent {run.agent}")
    sdk = _sdk()
    try:
        raw = await _client(http, key, url).messages.with_raw_response.create(
            model=run.model,
            max_tokens=runner.max_output_tokens,
            messages=agent_json.turns(run),
            timeout=run.timeout.total_seconds(),
            **more,
        )
    except sdk.APIStatusError as error:
        raise refusal(_reply(error.response), Veil([key, *parts_of(url, all_of_it=True)])) from None
    except sdk.APIConnectionError as error:  # the SDK puts this around whatever its transport raises
        raise error.__cause__ if isinstance(error.__cause__, Trouble) else error from None
    reply = _reply(raw.http_response)
    if reply.status != 200:
        raise refusal(reply, Veil([key, *parts_of(url, all_of_it=True)]))
    return json_object(reply), request_id(reply.headers)


def _reply(response: Any) -> Reply:
    return Reply(response.status_code, {name.lower(): value for name, value in response.headers.items()}, response.content)


@lru_cache(maxsize=32)
def _client(http: HttpClient, key: str, url: str) -> Any:
    """The SDK's client for one key and address, sending through `http`.

    A given key, address, signing key and tracing keep the SDK from looking for its own. Its one variable that cannot be
    overridden adds headers to every request, so those are dropped. It does not retry: retries are rows of the queue.
    """
    import httpx2

    try:
        client = _sdk().AsyncAnthropic(
            api_key=key,
            base_url=url,
            webhook_key="",
            max_retries=0,
            open_telemetry=False,
            http_client=httpx2.AsyncClient(transport=_transport(http), trust_env=False),
        )
    except httpx2.InvalidURL:
        raise Trouble(Failure.BAD_REQUEST, MALFORMED) from None
    client._custom_headers = {}
    return client


@cache
def _sdk() -> ModuleType:
    import anthropic

    for name in ("anthropic", "httpx2"):  # below a warning they print prompts and addresses, and a variable turns that on
        logging.getLogger(name).setLevel(logging.WARNING)
    return anthropic


def _transport(http: HttpClient) -> Any:
    """The layer of the SDK's HTTP library that sends: over our client, which keeps the deadline, counts what it reads, guards
    and knows whether the request had left. The transport that the SDK brings for aiohttp knows none of these.
    """
    import httpx2

    class Transport(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            seconds = request.extensions["timeout"]["read"]
            reply = await http.post(str(request.url), dict(request.headers), request.content, seconds)
            # The SDK decodes refusals by the charset that their header names, and fails where that is none.
            headers = {**reply.headers, "content-type": reply.headers.get("content-type", "").partition(";")[0]}
            return httpx2.Response(reply.status, headers=headers, content=reply.body, request=request)

    return Transport()


def _read(message: dict[str, Any]) -> Answer:
    blocks = _blocks(message)
    text = "\n".join(block["text"] for block in blocks if block.get("type") == "text" and isinstance(block.get("text"), str))
    tools = sum(block.get("type") == "tool_use" for block in blocks)
    return model_answer.judged(_spent(message), text, tools, str(message.get("stop_reason")))


def _decided(message: dict[str, Any]) -> Answer | Decision:
    calls = [block for block in _blocks(message) if block.get("type") == "tool_use"]
    given = [block.get("input") for block in calls if block.get("name") == decision.TOOL]
    return model_answer.decided(_spent(message), given if len(given) == len(calls) else [], is_cut=agent_json.truncated(message))


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    blocks = message.get("content")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise Trouble(Failure.BAD_ANSWER, "answered without the list of content that a message has")
    return blocks


def _spent(message: dict[str, Any]) -> Answer:
    return Answer(model_used=agent_json.model(message.get("model")), tokens=_tokens(message.get("usage")))


def _tokens(usage: object) -> Tokens | None:
    if not isinstance(usage, dict):
        return None
    return agent_json.counted(
        input=agent_json.count(usage.get("input_tokens")),
        output=agent_json.count(usage.get("output_tokens")),
        cache_read=agent_json.count(usage.get("cache_read_input_tokens") or 0),
        cache_write=agent_json.count(usage.get("cache_creation_input_tokens") or 0),
    )
