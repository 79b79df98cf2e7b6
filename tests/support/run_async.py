"""Runs coroutines from synchronous tests, with a real HTTP client where needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from heartbeat.runners import NO_TRACE, AgentRequest, HttpReply, Resources, StartProcess, Trace
from heartbeat.runners import dispatch as runners
from heartbeatd.secret import Secret
from scheduler.channels.channel_kind import SendContext, SendMessage
from scheduler.model.message import DeliveryResult, Message
from scheduler.model.settings import Channel, Network
from scheduler.net.http_client import HttpClient, ResolveName
from scheduler.system.process import Children
from scheduler.work.run_extras import ModelTools

P = ParamSpec("P")
T = TypeVar("T")

DIRECT = Network(proxy="none")
NOW = datetime(2026, 11, 20, 16, 31, tzinfo=UTC)  # when a message is sent


def run_synchronously(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """`work` as a synchronous function."""

    @wraps(work)
    def done(*args: P.args, **more: P.kwargs) -> T:
        return asyncio.run(work(*args, **more))

    return done


def new_http_client(network: Network = DIRECT, **more: Any) -> HttpClient:
    """An HTTP client with these network settings. `resolve` replaces the system's resolver."""
    return HttpClient(lambda: network, **more)


async def with_http(work: Callable[[HttpClient], Coroutine[Any, Any, T]], network: Network = DIRECT, **more: Any) -> T:
    """Run `work` with its own HTTP client and close the client."""
    async with new_http_client(network, **more) as http:
        return await work(http)


def post_with_client(url: str, headers: dict[str, str], body: bytes, seconds: float, **more: Any) -> HttpReply:
    """Send one request of a runner with its own client."""
    return asyncio.run(with_http(lambda http: http.post(url, headers, body, seconds), **more))


def call_agent(run: AgentRequest, runner: Any, start: StartProcess | None = None, trace: Trace = NO_TRACE, **more: Any) -> Any:
    """Call an agent through its runner and return the answer."""
    children = Children("test")

    async def call(http: HttpClient) -> Any:
        resources = Resources(start or children.start, http, trace, ModelTools(children.converse, http))
        return await runners.call_agent(run, runner, resources)

    return asyncio.run(with_http(call, **more))


def call_decider(run: AgentRequest, runner: Any, **more: Any) -> Any:
    """Call a model for a decision and return its answer."""
    return call_agent(replace(run, form="decision"), runner, **more)


def send_message(
    send: SendMessage,
    url: str,
    message: Message,
    *,
    base: str | None = None,
    allow_private: bool = True,
    total: float = 30.0,
    resolve: ResolveName | None = None,
    network: Network = DIRECT,
    **options: Any,
) -> DeliveryResult:
    """Send a message to this URL through a channel with these options, and return the result."""
    channel = Channel("test", "", Secret(url), allow_private, None, base_url=Secret(base) if base else None, **options)
    given = {} if resolve is None else {"resolve": resolve}
    start = Children("test").start
    return asyncio.run(with_http(lambda http: send(channel, message, SendContext(http, start, NOW, total)), network, **given))
