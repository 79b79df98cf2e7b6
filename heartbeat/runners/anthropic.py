"""Ask a model of Anthropic, or of a server that speaks its Messages API, in one turn and without tools.

The one door of the SDK. Key and address come from the config alone: whatever the SDK would read from its environment
variables or profile files is given or taken away here. Its import takes about a second, so it is made when first needed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from math import ceil
from types import ModuleType
from typing import Any

from heartbeat import decision
from heartbeat.decision import Decision
from heartbeat.runners import Answer, Failure, Run, Tokens, data, model
from heartbeat.runners.trouble import Trouble, json_object, refusal
from heartbeat.runners.veil import Veil, parts_of, reveal
from heartbeat.runners.wire import MALFORMED, post
from heartbeat.spec import ModelRunner

BASE_URL = "https://api.anthropic.com"

_JSON = {"content-type": "application/json"}
FORCED = {
    "tools": [{"name": decision.TOOL, "description": decision.DESCRIPTION, "input_schema": decision.SCHEMA}],
    "tool_choice": {"type": "tool", "name": decision.TOOL},
}


async def ask(run: Run, runner: ModelRunner) -> Answer:
    """One turn: what was said before, then the prompt; the text blocks of what comes back are the answer.

    Makes exactly one request, or none if it cannot succeed: without a key or a model. Takes `run.timeout` at most.
    """
    try:
        return _read(await _call(run, runner, {}))
    except Trouble as trouble:
        return model.of_provider(trouble, runner.provider)


async def decide(run: Run, runner: ModelRunner) -> Answer | Decision:
    """The forced decision about `run.prompt`; an Answer is always a failure."""
    try:
        return _decided(await _call(run, runner, FORCED))
    except Trouble as trouble:
        return model.of_provider(trouble, runner.provider)


def warm() -> None:
    """Import the SDK ahead of the first beat; takes about a second of CPU once, nothing after that."""
    _form("none", BASE_URL, "none", 1, 1.0)


async def _call(run: Run, runner: ModelRunner, more: Mapping[str, Any]) -> dict[str, Any]:
    provider = runner.provider
    key, url = model.key_of(provider), reveal(provider.base_url or BASE_URL)
    if key is None:
        line = f'providers: {{{provider.name}: {{api_key: "${{ANTHROPIC_API_KEY}}"}}}}'
        raise Trouble(Failure.AUTH, f"it has no key; write {line}")
    if run.model is None:
        raise Trouble(Failure.BAD_REQUEST, f"no model is named; write a model: for the agent {run.agent}")
    seconds = run.timeout.total_seconds()
    form = _form(key, url, run.model, runner.max_output_tokens, float(ceil(seconds)))
    body = {**form.body, **more, "messages": data.turns(run)}
    reply = await post(form.url, form.headers, json.dumps(body).encode(), seconds)
    if reply.status != 200:
        raise refusal(reply, Veil([key, *parts_of(url, all_of_it=True)]))
    return json_object(reply)


@dataclass(frozen=True, slots=True, repr=False)
class Form:
    """A request as the SDK makes it, to be filled with what is said. It shows itself to nobody: its headers hold the key."""

    url: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]


@lru_cache(maxsize=256)
def _form(key: str, url: str, name: str, bound: int, seconds: float) -> Form:
    """The SDK's request for a call like this; kept, for the SDK takes as long to make one as all the rest of a beat takes.

    The seconds are whole ones, which it only tells the other side: what a precheck leaves of its time differs at each beat.
    """
    raw = _client(key, url).messages.with_raw_response.create(model=name, max_tokens=bound, messages=[], timeout=seconds)
    request = raw.http_request
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers.raw}
    return Form(str(request.url), headers, json.loads(request.read()))


@lru_cache(maxsize=32)
def _client(key: str, url: str) -> Any:
    """The client for one key and address. It sends nothing itself.

    A given key, address, signing key and tracing keep the SDK from looking for its own. Its one variable that cannot be
    outbid adds headers to every request, so those are dropped.
    """
    import httpx2

    try:
        client = _sdk().Anthropic(
            api_key=key,
            base_url=url,
            webhook_key="",
            max_retries=0,
            open_telemetry=False,
            http_client=_drafts(),
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


def _drafts() -> Any:
    import httpx2

    class Drafts(httpx2.Client):
        """Sends nothing: requests go our own way, which keeps a deadline, asks no proxy and trusts no body."""

        def send(self, request: httpx2.Request, **_: object) -> httpx2.Response:
            return httpx2.Response(200, headers=_JSON, content=b"{}", request=request)

    return Drafts(trust_env=False, transport=httpx2.BaseTransport())  # its own would load all certificates for each client


def _read(message: dict[str, Any]) -> Answer:
    blocks = _blocks(message)
    text = "\n".join(block["text"] for block in blocks if block.get("type") == "text" and isinstance(block.get("text"), str))
    tools = sum(block.get("type") == "tool_use" for block in blocks)
    return model.judged(_spent(message), text, tools, str(message.get("stop_reason")))


def _decided(message: dict[str, Any]) -> Answer | Decision:
    calls = [block for block in _blocks(message) if block.get("type") == "tool_use"]
    given = [block.get("input") for block in calls if block.get("name") == decision.TOOL]
    return model.decided(_spent(message), given if len(given) == len(calls) else [], is_cut=data.truncated(message))


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    blocks = message.get("content")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise Trouble(Failure.BAD_ANSWER, "answered without the list of content that a message has")
    return blocks


def _spent(message: dict[str, Any]) -> Answer:
    return Answer(model_used=data.model(message.get("model")), tokens=_tokens(message.get("usage")))


def _tokens(usage: object) -> Tokens | None:
    if not isinstance(usage, dict):
        return None
    return data.counted(
        input=data.count(usage.get("input_tokens")),
        output=data.count(usage.get("output_tokens")),
        cache_read=data.count(usage.get("cache_read_input_tokens") or 0),
        cache_write=data.count(usage.get("cache_creation_input_tokens") or 0),
    )
