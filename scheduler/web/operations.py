"""Asking: what the interface has the engine do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

from starlette.concurrency import run_in_threadpool

from scheduler.engine import channel_test
from scheduler.engine.config_reload import Reloaded
from scheduler.engine.inbox import Request
from scheduler.engine.outbox_requests import Drop, SendAgain
from scheduler.engine.pending_runs import Cancel, Report
from scheduler.engine.requests import Hold, LetGo, Note, Pause, Resume, RunJob, WakeAgent
from scheduler.model.entry import Key
from scheduler.model.outcome import Kind, Trigger
from scheduler.model.settings import Channel
from scheduler.model.timestamps import iso
from scheduler.model.wake import Wake
from scheduler.store.targets import Target
from scheduler.web import alertmanager, queries
from scheduler.web.api_request import Call
from scheduler.web.http_errors import Problem, bad, not_found
from scheduler.web.queries import check_reach
from scheduler.web.request_bodies import (
    ActivityBody,
    AlertmanagerBody,
    EmptyBody,
    HoldBody,
    PauseBody,
    PingBody,
    ReleaseBody,
    ReloadBody,
    ResultBody,
    WakeBody,
)


async def wake(call: Call, body: WakeBody | AlertmanagerBody) -> dict[str, Any]:
    """Wake an agent, with a text for it or with what Alertmanager notifies of; says what it waits for, if it does."""
    name = call.path["name"]
    check_reach(call, Kind.HEARTBEAT, name)
    found = _wake(call, body) if isinstance(body, WakeBody) else alertmanager.wake(name, body, call.caller.name)
    number = await ask(call, WakeAgent(found, cause=call.headers.get("x-heartbeatd-run")))
    wait = await run_in_threadpool(queries.wait, call, number)
    return {"wake": number} | (wait.as_data() if wait is not None and not wait.starts else {})


def _wake(call: Call, body: WakeBody) -> Wake:
    source, sender = _source(call)
    token = sender if source is Trigger.API else ""
    return Wake(call.path["name"], source=source, sender=sender, text=body.text, token=token)


async def run_job(call: Call, _: EmptyBody) -> dict[str, int]:
    """Run a cron job now."""
    check_reach(call, Kind.CRON, call.path["name"])
    source, _sender = _source(call)
    return {"wake": await ask(call, RunJob(call.path["name"], source))}


async def result(call: Call, body: ResultBody) -> dict[str, int]:
    """Take the result of a run that was to answer later."""
    run = await run_in_threadpool(queries.run, call)
    return {"run": await ask(call, Report(run["id"], body.text, body.error, body.truncated))}


async def cancel(call: Call, _: EmptyBody) -> dict[str, Any]:
    """End a run; `ended` is false for one in progress, which ends within seconds."""
    run = await run_in_threadpool(queries.run, call)
    return {"run": run["id"], "ended": await ask(call, Cancel(run["id"]))}


async def hold(call: Call, body: HoldBody) -> dict[str, Any]:
    """Keep an agent's lane taken for a time, or for longer; `run` is the beat in progress, which is to be waited for."""
    name = call.path["name"]
    check_reach(call, Kind.HEARTBEAT, name)
    until = call.reach.clock() + body.span
    return {"id": body.id, "until": iso(until), "run": await ask(call, Hold(name, body.id, until))}


async def let_go(call: Call, body: ReleaseBody) -> dict[str, Any]:
    """Let go of an agent's lane."""
    name = call.path["name"]
    check_reach(call, Kind.HEARTBEAT, name)
    await ask(call, LetGo(name, body.id))
    return {"id": body.id}


async def activity(call: Call, body: ActivityBody) -> dict[str, Any]:
    """Take note of whom an agent has just been spoken with, and of what waits there."""
    name = call.path["name"]
    check_reach(call, Kind.HEARTBEAT, name)
    target = None if body.channel is None or body.target is None else Target(body.channel, body.target)
    noted: dict[str, Any] = await ask(call, Note(name, target, body.title, body.queue, body.pending_approvals))
    return noted


async def pause_agent(call: Call, body: PauseBody) -> dict[str, Any]:
    """Pause one agent."""
    return await _pause(call, body, (Kind.HEARTBEAT, call.path["name"]))


async def pause_job(call: Call, body: PauseBody) -> dict[str, Any]:
    """Pause one cron job."""
    return await _pause(call, body, (Kind.CRON, call.path["name"]))


async def pause_all(call: Call, body: PauseBody) -> dict[str, Any]:
    """Pause everything."""
    return await _pause(call, body, None)


async def resume_agent(call: Call, _: EmptyBody) -> dict[str, Any]:
    """Resume one agent."""
    return await _resume(call, (Kind.HEARTBEAT, call.path["name"]))


async def resume_job(call: Call, _: EmptyBody) -> dict[str, Any]:
    """Resume one cron job."""
    return await _resume(call, (Kind.CRON, call.path["name"]))


async def resume_all(call: Call, _: EmptyBody) -> dict[str, Any]:
    """Resume everything."""
    return await _resume(call, None)


async def reload(call: Call, body: ReloadBody) -> dict[str, Any]:
    """Take the config up as it is now, or only say what that would change."""
    check_all(call)
    return _told(await run_in_threadpool(call.reach.reload, dry=body.dry_run))


def _told(reloaded: Reloaded) -> dict[str, Any]:
    diff = reloaded.diff
    return {
        "added": list(diff.added),
        "removed": list(diff.removed),
        "changed": {name: list(keys) for name, keys in diff.changed.items()},
        "unchanged": diff.unchanged,
        "lines": diff.lines(),
        "warnings": list(reloaded.warnings),
    }


async def _pause(call: Call, body: PauseBody, key: Key | None) -> dict[str, Any]:
    _check_key(call, key)
    until = _until(body, call.reach.clock())
    return {"paused": await ask(call, Pause(key, until))}


async def _resume(call: Call, key: Key | None) -> dict[str, Any]:
    _check_key(call, key)
    return {"resumed": await ask(call, Resume(key))}


def _until(body: PauseBody, now: datetime) -> datetime | None:
    """When a pause ends: after a time, at a time, or (None) when somebody ends it."""
    if body.span is not None:
        return now + body.span
    if body.until is not None and body.until <= now:
        raise bad("until: that time is over")
    return body.until


def _check_key(call: Call, key: Key | None) -> None:
    if key is None:
        check_all(call)
    else:
        check_reach(call, *key)


def check_all(call: Call) -> None:
    """Raises Problem when the caller's token is only for some agents."""
    if call.caller.agents is not None:
        raise Problem(403, "forbidden", f"the token {call.caller.name!r} is only for some agents, and this concerns all")


def _source(call: Call) -> tuple[Trigger, str]:
    """Where a wake comes from. Only our own command line may say that somebody sits at it."""
    if call.caller.local and call.headers.get("x-heartbeatd-source") == "cli":
        return Trigger.MANUAL, "cli"
    return Trigger.API, call.caller.name


async def ask(call: Call, request: Request) -> Any:
    """The engine's answer. The request is not taken back when the answer is late: the engine may be at it."""
    answer = asyncio.wrap_future(call.reach.ask(request))
    done, _ = await asyncio.wait([answer], timeout=call.reach.answer_within)  # unlike wait_for, this cancels nothing
    if not done:
        raise Problem(503, "no_answer", "the database cannot be written just now; this will be done once it can be")
    return answer.result()


async def send_again(call: Call, _: EmptyBody) -> dict[str, Any]:
    """Have a message sent as soon as possible."""
    return await _move(call, SendAgain)


async def drop(call: Call, _: EmptyBody) -> dict[str, Any]:
    """Give a message up for good."""
    return await _move(call, Drop)


async def _move(call: Call, request: Callable[[int], Request]) -> dict[str, Any]:
    message_id = await run_in_threadpool(queries.message_id, call)
    return {"message": message_id, "channel": await ask(call, request(message_id))}


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
