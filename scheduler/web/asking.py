"""Asking: what the interface has the engine do."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from starlette.concurrency import run_in_threadpool

from scheduler.config import fields
from scheduler.config.wording import written
from scheduler.engine.inbox import Request
from scheduler.engine.requests import Hold, LetGo, Note, Pause, Resume, RunJob, WakeAgent
from scheduler.engine.runs import Cancel, Report
from scheduler.outcome import Kind, Trigger
from scheduler.reload import Reloaded
from scheduler.tables import holds
from scheduler.tables.targets import Target
from scheduler.tables.times import iso
from scheduler.wake import Wake
from scheduler.web import alertmanager, reading
from scheduler.web.call import Call, instant
from scheduler.web.problem import Problem, bad
from scheduler.web.reading import check_reach
from scheduler.work.entry import Key

LONGEST_WORDS = 200
MANY = 1_000_000
HOLDER = re.compile(r"[A-Za-z0-9._:/@+-]{1,100}")


async def wake(call: Call) -> dict[str, Any]:
    """Wake an agent, with a text for it or with what Alertmanager notifies of; says what it waits for, if it does."""
    name = call.path["name"]
    check_reach(call, Kind.HEARTBEAT, name)
    is_notification = alertmanager.is_notification(call.body)
    found = alertmanager.wake(name, call.body, call.caller.name) if is_notification else _wake(call)
    number = await ask(call, WakeAgent(found, cause=call.headers.get("x-heartbeatd-run")))
    wait = await run_in_threadpool(reading.wait, call, number)
    return {"wake": number} | (wait.as_data() if wait is not None and not wait.starts else {})


def _wake(call: Call) -> Wake:
    call.only("text")
    text = call.body.get("text", "")
    if not isinstance(text, str):
        raise bad("text: write a text in quotes")
    source, sender = _source(call)
    token = sender if source is Trigger.API else ""
    return Wake(call.path["name"], source=source, sender=sender, text=text, token=token)


async def run_job(call: Call) -> dict[str, int]:
    """Run a cron job now."""
    call.only()
    check_reach(call, Kind.CRON, call.path["name"])
    source, _ = _source(call)
    return {"wake": await ask(call, RunJob(call.path["name"], source))}


async def result(call: Call) -> dict[str, int]:
    """Take the result of a run that was to answer later: a text, which may be `truncated`, or an error."""
    call.only("text", "error", "truncated")
    run = await run_in_threadpool(reading.run, replace(call, body={}))
    text, error = call.body.get("text"), call.body.get("error")
    if (text is None) == (error is None) or not all(part is None or isinstance(part, str) for part in (text, error)):
        raise bad("write either text or error, as a text in quotes")
    truncated = call.body.get("truncated", False)
    if not isinstance(truncated, bool):
        raise bad("truncated: write true or false")
    return {"run": await ask(call, Report(run["id"], text, error, truncated))}


async def cancel(call: Call) -> dict[str, Any]:
    """End a run; `ended` is false for one in progress, which ends within seconds."""
    call.only()
    run = await run_in_threadpool(reading.run, call)
    return {"run": run["id"], "ended": await ask(call, Cancel(run["id"]))}


async def hold(call: Call) -> dict[str, Any]:
    """Keep an agent's lane taken for a time, or for longer; `run` is the beat in progress, which is to be waited for."""
    call.only("id", "for")
    name, holder = call.path["name"], _holder(call.body.get("id"))
    check_reach(call, Kind.HEARTBEAT, name)
    until = call.reach.clock() + _span(call, holds.LONGEST)
    return {"id": holder, "until": iso(until), "run": await ask(call, Hold(name, holder, until))}


async def let_go(call: Call) -> dict[str, Any]:
    """Let go of an agent's lane; the id stands in the body or in the query, for not every client sends a body with DELETE."""
    call.only("id")
    name, holder = call.path["name"], _holder(call.body.get("id", call.query.get("id")))
    check_reach(call, Kind.HEARTBEAT, name)
    await ask(call, LetGo(name, holder))
    return {"id": holder}


async def activity(call: Call) -> dict[str, Any]:
    """Take note of whom an agent has just been spoken with, and of what waits there."""
    call.only("channel", "target", "title", "queue", "pending_approvals")
    name = call.path["name"]
    check_reach(call, Kind.HEARTBEAT, name)
    channel, whom, title = (_words(call, key) for key in ("channel", "target", "title"))
    if (channel is None) != (whom is None) or (title is not None and whom is None):
        raise bad("write channel and target together; a title only beside them")
    queue, approvals = _number(call, "queue"), _number(call, "pending_approvals")
    if whom is None and queue is None and approvals is None:
        raise bad("write channel and target, or queue, or pending_approvals")
    target = None if channel is None or whom is None else Target(channel, whom)
    noted: dict[str, Any] = await ask(call, Note(name, target, title, queue, approvals))
    return noted


def _words(call: Call, key: str) -> str | None:
    """A text on one line; what stands for a control character in it is a blank."""
    value = call.body.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > LONGEST_WORDS:
        raise bad(f"{key}: write a text in quotes, of at most {LONGEST_WORDS} characters")
    return "".join(sign if sign.isprintable() else " " for sign in value)


def _number(call: Call, key: str) -> int | None:
    value = call.body.get(key)
    if value is None or (type(value) is int and 0 <= value <= MANY):
        return value
    raise bad(f"{key}: write a number from 0 to {MANY}")


def _holder(value: object) -> str:
    if isinstance(value, str) and HOLDER.fullmatch(value):
        return value
    raise bad("id: write 1 to 100 of A-Z a-z 0-9 . _ : / @ + -, as in chat:4711")


def _span(call: Call, longest: timedelta) -> timedelta:
    try:
        span = fields.some_duration(call.body.get("for"))
    except ValueError as error:
        raise bad(f"for: {error}") from error
    if span > longest:
        raise bad(f"for: at most {written(longest)}, and it can be prolonged")
    return span


async def pause_agent(call: Call) -> dict[str, Any]:
    """Pause one agent."""
    return await _pause(call, (Kind.HEARTBEAT, call.path["name"]))


async def pause_job(call: Call) -> dict[str, Any]:
    """Pause one cron job."""
    return await _pause(call, (Kind.CRON, call.path["name"]))


async def pause_all(call: Call) -> dict[str, Any]:
    """Pause everything."""
    return await _pause(call, None)


async def resume_agent(call: Call) -> dict[str, Any]:
    """Resume one agent."""
    return await _resume(call, (Kind.HEARTBEAT, call.path["name"]))


async def resume_job(call: Call) -> dict[str, Any]:
    """Resume one cron job."""
    return await _resume(call, (Kind.CRON, call.path["name"]))


async def resume_all(call: Call) -> dict[str, Any]:
    """Resume everything."""
    return await _resume(call, None)


async def reload(call: Call) -> dict[str, Any]:
    """Take the config up as it is now, or only say what that would change."""
    call.only("dry_run")
    check_all(call)
    dry = call.body.get("dry_run", False)
    if not isinstance(dry, bool):
        raise bad("dry_run: write true or false")
    return _told(await run_in_threadpool(call.reach.reload, dry=dry))


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


async def _pause(call: Call, key: Key | None) -> dict[str, Any]:
    call.only("for", "until")
    _check_key(call, key)
    until = _until(call)
    return {"paused": await ask(call, Pause(key, until))}


async def _resume(call: Call, key: Key | None) -> dict[str, Any]:
    call.only()
    _check_key(call, key)
    return {"resumed": await ask(call, Resume(key))}


def _until(call: Call) -> datetime | None:
    """When a pause ends: after a time, at a time, or (None) when somebody ends it."""
    now = call.reach.clock()
    if "for" in call.body and "until" in call.body:
        raise bad("write either for or until")
    if "for" in call.body:
        try:
            return now + fields.some_duration(call.body["for"])
        except ValueError as error:
            raise bad(f"for: {error}") from error
    if "until" not in call.body:
        return None
    until = instant("until", call.body["until"])
    if until <= now:
        raise bad("until: that time is over")
    return until


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
