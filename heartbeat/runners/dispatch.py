"""Calls an agent through the runner of its kind.

A runner is imported at its first use: not every installation calls models, and the libraries for it are slow to import.
"""

from __future__ import annotations

from collections.abc import Iterable

from heartbeat.decision import Decision
from heartbeat.runners import AgentRequest, Answer, HttpClient, Resources
from heartbeat.spec import CommandRunner, HttpRunner, ModelRunner, PythonRunner, Runner


async def call_agent(run: AgentRequest, runner: Runner, resources: Resources) -> Answer:
    """Call the agent and wait for its answer."""
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
        case ModelRunner():
            return await _call_model(run, runner, resources.http)


async def request_decision(run: AgentRequest, runner: ModelRunner, http: HttpClient) -> Answer | Decision:
    """Let a model decide about `run.prompt`, the text of `decision.decision_prompt`. An Answer is always a failure."""
    if runner.provider.kind == "openai":
        from heartbeat.runners import openai

        return await openai.request_decision(run, runner, http)
    from heartbeat.runners import anthropic

    return await anthropic.request_decision(run, runner, http)


def import_libraries(runners: Iterable[Runner]) -> None:
    """Import in advance what these runners will need. Takes up to a second of CPU."""
    for kind in {runner.provider.kind for runner in runners if isinstance(runner, ModelRunner)}:
        if kind == "anthropic":
            from heartbeat.runners import anthropic

            anthropic.import_sdk()


async def _call_model(run: AgentRequest, runner: ModelRunner, http: HttpClient) -> Answer:
    if runner.provider.kind == "openai":
        from heartbeat.runners import openai

        return await openai.call_model(run, runner, http)
    from heartbeat.runners import anthropic

    return await anthropic.call_model(run, runner, http)
