"""Asks one agent one question, by whichever way its runner reaches it.

Each way is imported when it is first taken: not every fleet talks to models, and their libraries are slow to import.
"""

from __future__ import annotations

from collections.abc import Iterable

from heartbeat.decision import Decision
from heartbeat.runners import Answer, HttpClient, Resources, Run
from heartbeat.spec import CommandRunner, HttpRunner, ModelRunner, PythonRunner, Runner


async def ask(run: Run, runner: Runner, resources: Resources) -> Answer:
    """Ask and wait for the answer."""
    match runner:
        case CommandRunner():
            from heartbeat.runners import command

            return await command.ask(run, runner, resources.start)
        case PythonRunner():
            from heartbeat.runners import python

            return await python.ask(run, runner, resources.start)
        case HttpRunner():
            from heartbeat.runners import http

            return await http.ask(run, runner, resources.http)
        case ModelRunner():
            return await _ask_model(run, runner, resources.http)


async def decide(run: Run, runner: ModelRunner, http: HttpClient) -> Answer | Decision:
    """Have a model decide about `run.prompt`, which is the text of `decision.question`; an Answer is always a failure."""
    if runner.provider.kind == "openai":
        from heartbeat.runners import openai

        return await openai.decide(run, runner, http)
    from heartbeat.runners import anthropic

    return await anthropic.decide(run, runner, http)


def warm(runners: Iterable[Runner]) -> None:
    """Import ahead what these runners will need; up to a second of CPU."""
    for kind in {runner.provider.kind for runner in runners if isinstance(runner, ModelRunner)}:
        if kind == "anthropic":
            from heartbeat.runners import anthropic

            anthropic.warm()


async def _ask_model(run: Run, runner: ModelRunner, http: HttpClient) -> Answer:
    if runner.provider.kind == "openai":
        from heartbeat.runners import openai

        return await openai.ask(run, runner, http)
    from heartbeat.runners import anthropic

    return await anthropic.ask(run, runner, http)
