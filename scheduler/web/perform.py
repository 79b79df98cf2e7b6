"""Performs the operations of the API for a caller: `authorize`, then the operation, then `cut`.

The HTTP API, the page and the tools of MCP all call `perform` or `ask`. So none of them can forget the two checks. The engine
carries out most verbs. Those that need no tick have handlers, as questions have: `Reload` and `Ping` at the end of this file.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, cast

from anyio import to_thread
from starlette.concurrency import run_in_threadpool

from heartbeatd.answers import PersonQuestion, Reloaded, ResponseBody, TestedChannels, WakeAccepted
from heartbeatd.operations import AnOperation, Answer, Concern, Endpoint, Operation
from heartbeatd.questions import QUESTION_ENDPOINTS, GetQuestion
from heartbeatd.verbs import VERB_ENDPOINTS, Ask, Ping, Reload, Verb
from scheduler.config.file.diagnostics import ConfigError
from scheduler.engine import ping_message
from scheduler.engine.effects import EFFECTS, Sender, VerbRequest
from scheduler.engine.tick_items import Request
from scheduler.insight import wake_waits
from scheduler.model.local_days import local_text
from scheduler.model.outcome import Kind, Trigger
from scheduler.store import wakes
from scheduler.telemetry.event_feed import EventFeed
from scheduler.web.access import authorize, cut, cut_errors, row_in_path
from scheduler.web.api_request import ApiRequest
from scheduler.web.app_state import open_reader
from scheduler.web.http_errors import HttpError, bad_request

LONGEST_WAIT = timedelta(minutes=1)  # for the answer to a question in one request

Handler = Callable[[ApiRequest, Any], ResponseBody]

_HASH_PATTERN = re.compile(r'"?([0-9a-f]{64})"?')

ENDPOINTS = VERB_ENDPOINTS | QUESTION_ENDPOINTS
HANDLERS: dict[type[Operation], Handler] = {}


def handles(
    operation: type[AnOperation],
) -> Callable[[Callable[[ApiRequest, AnOperation], ResponseBody]], Callable[[ApiRequest, AnOperation], ResponseBody]]:
    """Decorates the function that answers a question, or carries out a verb outside of the engine. It runs in a thread."""

    def register(handler: Callable[[ApiRequest, AnOperation], ResponseBody]) -> Callable[[ApiRequest, AnOperation], ResponseBody]:
        HANDLERS[operation] = handler
        return handler

    return register


def ask(request: ApiRequest, endpoint: str, operation: Operation[Answer]) -> Answer:
    """The answer without what the caller may not see. Blocks. Raises HttpError, Refused or ConfigError.

    `endpoint` is the name of the request in openapi.json, which says what the operation is for: an agent, a job or all.
    """
    wanted = ENDPOINTS[endpoint]
    authorize(request, wanted.may, wanted.concern)
    try:
        answer = HANDLERS[wanted.operation](_with_subject(request, wanted), operation)
    except ConfigError as error:
        raise cut_errors(error, request.caller) from None
    return cast("Answer", cut(answer, request.caller))


async def perform(request: ApiRequest, endpoint: str, operation: Operation[Answer], sender: Sender | None = None) -> Answer:
    """As `ask`, but for verbs too, and without blocking. `sender` replaces the caller in the records of the verb."""
    wanted = ENDPOINTS[endpoint]
    if wanted.operation not in EFFECTS:
        limiter = request.app_state.read_limiter if wanted.method == "GET" else None
        read = partial(to_thread.run_sync, ask, request, endpoint, operation, limiter=limiter)
        wait = operation.wait if isinstance(operation, GetQuestion) else None
        return cast("Answer", await (read() if wait is None else _await_end(request, wait, read, lambda found: found)))
    assert isinstance(operation, Verb)
    await run_in_threadpool(authorize, request, wanted.may, wanted.concern)
    subject = _with_subject(request, wanted).subject
    verb: Verb[Any] = operation
    if isinstance(operation, Ask) and operation.wait is not None and operation.key is None:
        verb = operation.model_copy(update={"key": secrets.token_hex(8)})  # so that it can be asked again after the wait
    wait = operation.wait if isinstance(operation, Ask) else None
    read_answer = partial(call_engine, request, VerbRequest(verb, subject, sender or sender_of(request)))
    answer = await (read_answer() if wait is None else _await_end(request, wait, read_answer, lambda asked: asked.question))
    if isinstance(answer, WakeAccepted):
        answer = await run_in_threadpool(_add_wait, request, answer)
    return cast("Answer", cut(answer, request.caller))


async def _await_end(
    request: ApiRequest, wait: timedelta, read: Callable[[], Awaitable[Any]], question_of: Callable[[Any], PersonQuestion]
) -> Any:
    """The answer of `read` when its question has ended, or after `wait`, or at once if too many wait.

    It is read again at each event of a question.
    """
    news, feed = asyncio.Event(), request.app_state.feed
    if feed.reader_count >= feed.max_readers:
        return await read()
    feed.add_reader(news)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(wait, LONGEST_WAIT).total_seconds()):
                number, _ = feed.find_start(None)
                while question_of(answer := await read()).state == "open" and not feed.is_closed:
                    number = await _next_question_event(feed, news, number)
                return answer
        return await read()
    finally:
        feed.remove_reader(news)


async def _next_question_event(feed: EventFeed, news: asyncio.Event, number: int) -> int:
    """Wait for an event of a question after the event with this number, or for the end of the feed. Returns its number."""
    while not feed.is_closed:
        events, _ = feed.read_after(number)
        number = events[-1].number if events else number
        if any(each.name == "question" for each in events):
            break
        if not events:
            await news.wait()
            news.clear()
    return number


def _add_wait(request: ApiRequest, answer: WakeAccepted) -> WakeAccepted:
    """The answer with what the new wake waits for, unless its run starts. That is known after the tick of the engine."""
    with open_reader(request.app_state) as db:
        wait = wake_waits.wait_of_wake(db, wakes.find_wake(db, answer.wake), request.app_state.clock())
    if wait is None or wait.is_starting:
        return answer
    zone = request.app_state.settings().zone
    says = wake_waits.add_wait(answer.says, wait, lambda instant: local_text(instant, zone))
    return WakeAccepted(wake=answer.wake, waits_for=wait.reason, until=wait.until, says=says)


def _with_subject(request: ApiRequest, endpoint: Endpoint) -> ApiRequest:
    """The request with the entry, run, wake, message or problem that its path names."""
    if endpoint.concern in (Concern.AGENT, Concern.JOB):
        kind = Kind.HEARTBEAT if endpoint.concern is Concern.AGENT else Kind.CRON
        return replace(request, subject=(kind, request.path["name"]))
    if endpoint.subject == "id":
        return replace(request, subject=row_in_path(request, endpoint.concern))
    return request


def parse_hash(named: str | None, how: str) -> str:
    """The SHA-256 by which a caller names the version that it has read. Raises HttpError. `how` says how to send it."""
    if named is None:
        raise HttpError(428, "version_wanted", how)
    if found := _HASH_PATTERN.fullmatch(named):
        return found[1]
    raise bad_request(f"hash: this is not a hash; {how}")


def sender_of(request: ApiRequest) -> Sender:
    """Who sends a verb. Only our own command line may name a person at the terminal as the source."""
    run = request.headers.get("x-heartbeatd-run")
    if request.caller.is_local and request.headers.get("x-heartbeatd-source") == "cli":
        return Sender(run=run)
    caller = request.caller
    return Sender(caller.name, caller.noun, Trigger.API, token=caller.name, run=run)


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


@handles(Reload)
def reload_config(request: ApiRequest, verb: Reload) -> Reloaded:
    """Apply the config file as it is now, or only compare it."""
    found = request.app_state.reloader.reload(by=sender_of(request).by, dry=verb.dry_run)
    changed: dict[str, list[str]] = {}
    for each in found.diff.changes:
        part, _, key = each.key.partition(".")
        for name, inside in [(name, each.key) for name in each.entries] or [(part, key)]:
            changed.setdefault(name, []).append(inside)
    return Reloaded(
        added=list(found.diff.added),
        removed=list(found.diff.removed),
        changed=changed,
        unchanged=found.unchanged,
        lines=found.lines,
        warnings=list(found.warnings),
        says=f"the config file is {'valid' if verb.dry_run else 'active'}",
    )


@handles(Ping)
def ping_channels(request: ApiRequest, verb: Ping) -> TestedChannels:
    """Send a test message to the named channel, or to all that need no target."""
    try:
        return ping_message.send_test_messages(request.app_state.settings(), verb.channel, request.app_state.clock())
    except ping_message.UnknownChannel as error:
        raise HttpError(404, "not_found", str(error)) from None
    except ValueError as error:
        raise bad_request(str(error)) from None
