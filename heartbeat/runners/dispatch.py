"""Calls an agent through the runner of its kind.

A runner is imported at its first use: not every installation calls models, and the libraries for it are slow to import.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from heartbeat.runners import AgentRequest, Answer, Decision, HttpClient, Resources, model_call
from heartbeat.runners.model_call import ModelApi
from heartbeat.spec import CommandRunner, HttpRunner, ModelRunner, PythonRunner, Runner, Tools
from heartbeat.threads import in_daemon_thread

T = TypeVar("T")
AnswerT = TypeVar("AnswerT", Answer, Answer | Decision)
CallModel = Callable[[ModelApi, AgentRequest, ModelRunner, HttpClient], Awaitable[AnswerT]]


async def call_agent(run: AgentRequest, runner: Runner, resources: Resources) -> Answer:
    """Call the agent and wait for its answer. With a trace in `resources`, the agent gets the ID of its span."""
    if resources.own_agent is not None:
        return resources.own_agent.call_agent(run)
    if resources.trace is not None:
        run = replace(run, traceparent=resources.trace.traceparent)
    match runner:
        case CommandRunner():
            from heartbeat.runners import command

            return await command.call_agent(run, runner, resources.start)
        case PythonRunner():
            from heartbeat.runners import python

            return await python.call_agent(run, runner, resources.start)
        case HttpRunner():
            from heartbeat.runners import http

            return await http.call_agent(run, runner, resources.http)
        case ModelRunner(tools=Tools() as tools):
            from heartbeat.runners import tool_loop

            return await tool_loop.call_model(_model_api(runner), run, runner, tools, resources)
        case ModelRunner():
            return await _with_span(model_call.call_model, run, runner, resources)


async def request_decision(run: AgentRequest, runner: ModelRunner, resources: Resources) -> Answer | Decision:
    """Let a model decide about `run.prompt`, the text of `decision.decision_prompt`. An Answer is always a failure."""
    if resources.own_agent is not None:
        return resources.own_agent.request_decision(run)
    return await _with_span(model_call.request_decision, run, runner, resources)


async def count_tokens(run: AgentRequest, runner: Runner, resources: Resources) -> int | None:
    """The input tokens of a request as its provider counts them; None if there is no such count. Never raises."""
    if not isinstance(runner, ModelRunner) or runner.tools is not None or runner.provider.kind != "anthropic":
        return None
    from heartbeat.runners import anthropic

    return await anthropic.count_tokens(run, runner, resources.http)


async def offload(resources: Resources, function: Callable[[], T]) -> T:
    """Call a function that may block, in a thread of its own unless the caller waits for nothing else anyway."""
    return function() if resources.own_agent is not None else await in_daemon_thread(function)


def import_libraries(runners: Iterable[Runner]) -> None:
    """Import in advance what these runners will need. Takes up to a second of CPU."""
    for kind in {runner.provider.kind for runner in runners if isinstance(runner, ModelRunner)}:
        if kind == "anthropic":
            from heartbeat.runners import anthropic

            anthropic.import_sdk()


def _model_api(runner: ModelRunner) -> ModelApi:
    if runner.provider.kind == "openai":
        from heartbeat.runners import openai

        return openai
    from heartbeat.runners import anthropic

    return anthropic


async def _with_span(call: CallModel[AnswerT], run: AgentRequest, runner: ModelRunner, resources: Resources) -> AnswerT:
    """Call a model, in a span of its own if there are traces."""
    if resources.trace is None:
        return await call(_model_api(runner), run, runner, resources.http)
    provider = runner.provider
    with resources.trace.model_call(provider.name, provider.kind, run.model, runner.max_output_tokens) as span:
        answer = await call(_model_api(runner), replace(run, traceparent=span.traceparent), runner, resources.http)
        failed = answer if isinstance(answer, Answer) else Answer()
        span.set_result(answer.model_used, answer.tokens, failed.failure, failed.status)
        return answer
