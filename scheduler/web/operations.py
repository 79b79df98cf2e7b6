"""Handles the POST, PUT and DELETE requests of the API: wakes, runs, pauses, lanes, messages, conditions, reloads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

from starlette.concurrency import run_in_threadpool

from heartbeatd import answers
from scheduler.channels import ping_message
from scheduler.engine.config_reload import Reloaded
from scheduler.engine.inbox import Request
from scheduler.engine.pending_runs import CancelRun, ReportResult
from scheduler.engine.requests import (
    AcknowledgeConditions,
    CloseCondition,
    DropMessage,
    HoldLane,
    MuteEntry,
    NoteActivity,
    PauseEntries,
    ReleaseLane,
    ResendMessage,
    ResumeEntries,
    RunJob,
    UnacknowledgeConditions,
    UnmuteEntry,
    WakeAgent,
)
from scheduler.model.entry import Key
from scheduler.model.outcome import Kind, Trigger
from scheduler.model.settings import Channel, Target
from scheduler.model.timestamps import iso_utc
from scheduler.model.wake import Wake
from scheduler.web import alertmanager, queries
from scheduler.web.access import Concern, guard, row_in_path
from scheduler.web.api_request import ApiRequest, caller_of_change
from scheduler.web.http_errors import HttpError, bad_request, not_found
from scheduler.web.request_bodies import (
    AcknowledgeBody,
    ActivityBody,
    AlertmanagerBody,
    CloseConditionBody,
    EmptyBody,
    HoldBody,
    MuteBody,
    PauseBody,
    PingBody,
    ReleaseBody,
    ReloadBody,
    ResultBody,
    WakeBody,
)


@guard("wake", Concern.AGENT, answers.WakeAccepted)
async def wake_agent(request: ApiRequest, body: WakeBody | AlertmanagerBody) -> answers.WakeAccepted:
    """Wake an agent, with a text or with the alerts of Alertmanager. If the wake must wait, the response gives the reason."""
    name = request.path["name"]
    found = (
        _build_wake(request, body)
        if isinstance(body, WakeBody)
        else alertmanager.wake_from_alerts(name, body, request.caller.name)
    )
    number = await call_engine(request, WakeAgent(found, cause=request.headers.get("x-heartbeatd-run")))
    wait = await run_in_threadpool(queries.read_wait, request, number)
    if wait is None or wait.is_starting:
        return answers.WakeAccepted(wake=number)
    return answers.WakeAccepted(wake=number, waits_for=wait.reason, until=wait.until)


def _build_wake(request: ApiRequest, body: WakeBody) -> Wake:
    source, sender = _wake_source(request)
    token = sender if source is Trigger.API else ""
    return Wake(request.path["name"], source=source, sender=sender, text=body.text, token=token)


@guard("operate", Concern.JOB, answers.WakeNumber)
async def run_job(request: ApiRequest, _: EmptyBody) -> dict[str, int]:
    """Run a cron job now."""
    source, _sender = _wake_source(request)
    return {"wake": await call_engine(request, RunJob(request.path["name"], source))}


@guard("operate", Concern.RUN, answers.RunNumber)
async def report_result(request: ApiRequest, body: ResultBody) -> dict[str, int]:
    """Record the result of a run that ended `async`."""
    result = ReportResult(row_in_path(request, Concern.RUN), body.text, body.error, body.truncated, body.parse_findings())
    return {"run": await call_engine(request, result)}


@guard("operate", Concern.RUN, answers.CancelledRun)
async def cancel_run(request: ApiRequest, _: EmptyBody) -> dict[str, Any]:
    """Cancel a run. `ended` is false for a run in progress: it ends within seconds."""
    number = row_in_path(request, Concern.RUN)
    return {"run": number, "ended": await call_engine(request, CancelRun(number))}


@guard("operate", Concern.AGENT, answers.LaneHeld)
async def hold_lane(request: ApiRequest, body: HoldBody) -> dict[str, Any]:
    """Lock an agent's lane for a time, or extend the lock. `run` is the run in progress, which the caller should wait for."""
    name = request.path["name"]
    until = request.app_state.clock() + body.span
    return {"id": body.id, "until": iso_utc(until), "run": await call_engine(request, HoldLane(name, body.id, until))}


@guard("operate", Concern.AGENT, answers.LaneReleased)
async def release_lane(request: ApiRequest, body: ReleaseBody) -> dict[str, Any]:
    """Release an agent's lane."""
    name = request.path["name"]
    await call_engine(request, ReleaseLane(name, body.id))
    return {"id": body.id}


@guard("operate", Concern.AGENT, answers.RecordedActivity)
async def record_activity(request: ApiRequest, body: ActivityBody) -> dict[str, Any]:
    """Record the target that an agent has just talked with, and how much work waits for the agent."""
    name = request.path["name"]
    target = None if body.channel is None or body.target is None else Target(body.channel, body.target)
    recorded: dict[str, Any] = await call_engine(
        request, NoteActivity(name, target, body.title, body.queue, body.pending_approvals)
    )
    return recorded


@guard("operate", Concern.AGENT, answers.PausedEntries)
async def pause_agent(request: ApiRequest, body: PauseBody) -> dict[str, Any]:
    """Pause one agent."""
    return await _pause_entry(request, body, (Kind.HEARTBEAT, request.path["name"]))


@guard("operate", Concern.JOB, answers.PausedEntries)
async def pause_job(request: ApiRequest, body: PauseBody) -> dict[str, Any]:
    """Pause one cron job."""
    return await _pause_entry(request, body, (Kind.CRON, request.path["name"]))


@guard("operate", Concern.ALL, answers.PausedEntries)
async def pause_all(request: ApiRequest, body: PauseBody) -> dict[str, Any]:
    """Pause everything."""
    return await _pause_entry(request, body, None)


@guard("operate", Concern.AGENT, answers.ResumedEntries)
async def resume_agent(request: ApiRequest, _: EmptyBody) -> dict[str, Any]:
    """Resume one agent."""
    return await _resume_entry(request, (Kind.HEARTBEAT, request.path["name"]))


@guard("operate", Concern.JOB, answers.ResumedEntries)
async def resume_job(request: ApiRequest, _: EmptyBody) -> dict[str, Any]:
    """Resume one cron job."""
    return await _resume_entry(request, (Kind.CRON, request.path["name"]))


@guard("operate", Concern.ALL, answers.ResumedEntries)
async def resume_all(request: ApiRequest, _: EmptyBody) -> dict[str, Any]:
    """Resume everything."""
    return await _resume_entry(request, None)


@guard("operate", Concern.AGENT, answers.Muted)
async def mute_agent(request: ApiRequest, body: MuteBody) -> dict[str, Any]:
    """Suppress the messages of an agent. Its runs continue."""
    return await _mute_entry(request, body, (Kind.HEARTBEAT, request.path["name"]))


@guard("operate", Concern.JOB, answers.Muted)
async def mute_job(request: ApiRequest, body: MuteBody) -> dict[str, Any]:
    """Suppress the messages of a cron job. Its runs continue."""
    return await _mute_entry(request, body, (Kind.CRON, request.path["name"]))


@guard("operate", Concern.AGENT, answers.Unmuted)
async def unmute_agent(request: ApiRequest, _: EmptyBody) -> dict[str, Any]:
    """Send the messages of an agent again."""
    return await _unmute_entry(request, (Kind.HEARTBEAT, request.path["name"]))


@guard("operate", Concern.JOB, answers.Unmuted)
async def unmute_job(request: ApiRequest, _: EmptyBody) -> dict[str, Any]:
    """Send the messages of a cron job again."""
    return await _unmute_entry(request, (Kind.CRON, request.path["name"]))


async def _mute_entry(request: ApiRequest, body: MuteBody, key: Key) -> dict[str, Any]:
    until = _pause_end(body, request.app_state.clock())
    wanted = MuteEntry(key, until, _caller_name(request), until_changed=body.until_changed)
    return {"muted_until": iso_utc(await call_engine(request, wanted)), "until_changed": body.until_changed}


async def _unmute_entry(request: ApiRequest, key: Key) -> dict[str, Any]:
    held = await call_engine(request, UnmuteEntry(key, _caller_name(request)))
    return {"was_muted": held is not None, "held": held or 0}


def _caller_name(request: ApiRequest) -> str:
    """Who sends a request: a token by its name, and our own command line as `cli`."""
    _, sender = _wake_source(request)
    return sender


@guard("operate", Concern.ALL, answers.Reloaded)
async def reload_config(request: ApiRequest, body: ReloadBody) -> dict[str, Any]:
    """Apply the config file as it is now, or only return what that would change."""
    return _reload_data(await run_in_threadpool(request.app_state.reload_config, by=caller_of_change(request), dry=body.dry_run))


def _reload_data(reloaded: Reloaded) -> dict[str, Any]:
    diff = reloaded.diff
    return {
        "added": list(diff.added),
        "removed": list(diff.removed),
        "changed": {name: list(keys) for name, keys in diff.changed.items()},
        "unchanged": diff.unchanged,
        "lines": list(reloaded.lines),
        "warnings": list(reloaded.warnings),
    }


async def _pause_entry(request: ApiRequest, body: PauseBody, key: Key | None) -> dict[str, Any]:
    until = _pause_end(body, request.app_state.clock())
    return {"paused": await call_engine(request, PauseEntries(key, until, caller_of_change(request)))}


async def _resume_entry(request: ApiRequest, key: Key | None) -> dict[str, Any]:
    return {"resumed": await call_engine(request, ResumeEntries(key, caller_of_change(request)))}


def _pause_end(body: PauseBody, now: datetime) -> datetime | None:
    """When a pause or a mute ends; None if it lasts until a user ends it. Raises HttpError for a time in the past."""
    if body.span is not None:
        return now + body.span
    if body.until is not None and body.until <= now:
        raise bad_request("until: this time is in the past")
    return body.until


def _wake_source(request: ApiRequest) -> tuple[Trigger, str]:
    """The source and the sender of a wake. Only our own command line may name a person at the terminal as the source."""
    if request.caller.is_local and request.headers.get("x-heartbeatd-source") == "cli":
        return Trigger.MANUAL, "cli"
    return Trigger.API, request.caller.name


async def call_engine(request: ApiRequest, engine_request: Request) -> Any:
    """The engine's answer. Raises HttpError after `answer_timeout`; the engine still processes the request."""
    answer = asyncio.wrap_future(request.app_state.submit_request(engine_request))
    done, _ = await asyncio.wait(
        [answer], timeout=request.app_state.answer_timeout
    )  # unlike wait_for, wait does not cancel the request
    if not done:
        raise HttpError(
            503, "no_answer", "the database cannot be written at the moment; the request will be processed as soon as it can be"
        )
    return answer.result()


@guard("operate", Concern.MESSAGE, answers.ChangedMessage)
async def retry_message(request: ApiRequest, _: EmptyBody) -> dict[str, Any]:
    """Send a message again as soon as possible."""
    return await _change_message(request, ResendMessage)


@guard("operate", Concern.MESSAGE, answers.ChangedMessage)
async def drop_message(request: ApiRequest, _: EmptyBody) -> dict[str, Any]:
    """Drop a message permanently."""
    return await _change_message(request, DropMessage)


async def _change_message(request: ApiRequest, make_request: Callable[[int], Request]) -> dict[str, Any]:
    message_id = row_in_path(request, Concern.MESSAGE)
    return {"message": message_id, "channel": await call_engine(request, make_request(message_id))}


@guard("operate", Concern.NAMED, answers.ClosedCondition)
async def close_condition(request: ApiRequest, body: CloseConditionBody) -> dict[str, Any]:
    """Close an open condition of an agent without a message."""
    return {"agent": body.agent, "key": await call_engine(request, CloseCondition(body.agent, body.key))}


@guard("operate", Concern.NAMED, answers.AcknowledgedConditions)
async def acknowledge_conditions(request: ApiRequest, body: AcknowledgeBody) -> dict[str, Any]:
    """Keep open conditions quiet until they get worse or end."""
    return await _change_acknowledgement(request, body, AcknowledgeConditions)


@guard("operate", Concern.NAMED, answers.AcknowledgedConditions)
async def unacknowledge_conditions(request: ApiRequest, body: AcknowledgeBody) -> dict[str, Any]:
    """Report acknowledged conditions again."""
    return await _change_acknowledgement(request, body, UnacknowledgeConditions)


async def _change_acknowledgement(
    request: ApiRequest, body: AcknowledgeBody, make_request: Callable[[str, str, str | None, int | None], Request]
) -> dict[str, Any]:
    name = body.agent if body.agent is not None else await run_in_threadpool(queries.agent_of_run, request, body.run or 0)
    return {"agent": name, "keys": await call_engine(request, make_request(name, _caller_name(request), body.key, body.run))}


@guard("operate", Concern.ALL, answers.TestedChannels)
async def ping_channels(request: ApiRequest, body: PingBody) -> dict[str, Any]:
    """Send a test message, not through the outbox: to one channel (`chat:4711` with a target) or to all that need no target."""
    channels = _channels_to_ping(request, body.channel)
    network, now = request.app_state.settings().network, request.app_state.clock()
    sent = await asyncio.gather(
        *(run_in_threadpool(ping_message.send_test_message, channel, network, now) for channel in channels)
    )
    return {
        "channels": [
            {"channel": channel.name, "state": each.state, "error": each.error or None}
            for channel, each in zip(channels, sent, strict=True)
        ]
    }


def _channels_to_ping(request: ApiRequest, named: str | None) -> list[Channel]:
    declared = request.app_state.settings().channels
    if named is None:
        return [channel for channel in ping_message.testable_channels(declared) if not channel.needs_target]
    name, _, recipient = named.partition(":")
    if name not in declared:
        raise not_found(f"channel {name!r}")
    try:
        return [ping_message.channel_to_test(declared[name], recipient)]
    except ValueError as error:
        raise bad_request(str(error)) from None
