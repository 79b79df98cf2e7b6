"""Calls an agent through the runner of its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from heartbeat.runners import AgentRequest, Answer, Resources, anthropic, command, http, model_call, openai, python, tool_loop
from heartbeat.runners.call_errors import CallError
from heartbeat.runners.model_call import ModelApi
from heartbeat.spec import CommandRunner, HttpRunner, ModelRunner, PythonRunner, Runner, Tools
from heartbeat.threads import in_daemon_thread

T = TypeVar("T")


async def call_agent(run: AgentRequest, runner: Runner, resources: Resources) -> Answer:
    """Call the agent and wait for its answer, or its failure."""
    try:
        if resources.own_agent is not None:
            return resources.own_agent(run)
        match runner:
            case CommandRunner():
                return await command.call_agent(run, runner, resources.start)
            case PythonRunner():
                return await python.call_agent(run, runner, resources.start)
            case HttpRunner():
                return await http.call_agent(run, runner, resources.http)
            case ModelRunner(tools=Tools() as tools):
                return await tool_loop.call_model(_model_api(runner), run, runner, tools, resources)
            case ModelRunner():
                return await model_call.call_model(_model_api(runner), run, runner, resources)
    except CallError as error:
        return error.answer


async def count_tokens(run: AgentRequest, runner: Runner, resources: Resources) -> int | None:
    """The input tokens of a request as its provider counts them; None if there is no such count. Never raises."""
    if not isinstance(runner, ModelRunner) or runner.tools is not None or runner.provider.kind != "anthropic":
        return None
    return await anthropic.count_tokens(run, runner, resources.http)


async def offload(resources: Resources, function: Callable[[], T]) -> T:
    """Call a function that may block, in a thread of its own unless this attempt may block its thread."""
    return function() if resources.may_block else await in_daemon_thread(function)


def import_libraries(runners: Iterable[Runner]) -> None:
    """Import in advance what these runners will need. Takes up to a second of CPU."""
    if any(isinstance(runner, ModelRunner) and runner.provider.kind == "anthropic" for runner in runners):
        anthropic.import_sdk()


def _model_api(runner: ModelRunner) -> ModelApi:
    return openai if runner.provider.kind == "openai" else anthropic
