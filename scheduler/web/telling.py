"""Telling: what the interface does for messages, those that could not be delivered and those that try a channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool

from scheduler.engine import channel_test
from scheduler.engine.inbox import Request
from scheduler.engine.outbox_requests import Drop, SendAgain
from scheduler.model.settings import Channel
from scheduler.web import reading
from scheduler.web.asking import ask, check_all
from scheduler.web.call import Call
from scheduler.web.problem import bad, not_found
from scheduler.web.request_bodies import EmptyBody, PingBody


async def send_again(call: Call, _: EmptyBody) -> dict[str, Any]:
    """Have a message sent as soon as possible."""
    return await _move(call, SendAgain)


async def drop(call: Call, _: EmptyBody) -> dict[str, Any]:
    """Give a message up for good."""
    return await _move(call, Drop)


async def _move(call: Call, request: Callable[[int], Request]) -> dict[str, Any]:
    letter_id = await run_in_threadpool(reading.letter, call)
    return {"message": letter_id, "channel": await ask(call, request(letter_id))}


async def ping(call: Call, body: PingBody) -> dict[str, Any]:
    """Try one channel, as `chat:4711` one with a target, or all that need none, with a message that goes past the outbox."""
    check_all(call)
    channels = _tried(call, body.channel)
    network, now = call.reach.settings().network, call.reach.clock()
    sent = await asyncio.gather(*(run_in_threadpool(channel_test.send, channel, network, now) for channel in channels))
    return {
        "channels": [
            {"channel": channel.name, "state": each.state, "error": each.error or None}
            for channel, each in zip(channels, sent, strict=True)
        ]
    }


def _tried(call: Call, named: str | None) -> list[Channel]:
    declared = call.reach.settings().channels
    if named is None:
        return [channel for channel in channel_test.all_of(declared) if not channel.open]
    name, _, whom = named.partition(":")
    if name not in declared:
        raise not_found(f"channel {name!r}")
    try:
        return [channel_test.aimed(declared[name], whom)]
    except ValueError as error:
        raise bad(str(error)) from None
