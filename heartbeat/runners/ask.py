"""One question to one agent, by whichever way its runner reaches it.

Each way is imported when it is first taken: not every fleet talks to models, and their libraries are slow to import.
"""

from __future__ import annotations

from collections.abc import Iterable

from heartbeat.decision import Decision
from heartbeat.runners import Answer, Run
from heartbeat.runners.command import Start
from heartbeat.spec import CommandRunner, HttpRunner, ModelRunner, PythonRunner, Runner


async def ask(run: Run, runner: Runner, start: Start) -> Answer:
    """Ask and wait for the answer; `start` runs the child processes of those runners that need one."""
    match runner:
        case CommandRunner():
            from heartbeat.runners import command

            return command.ask(run, runner, start)
        case PythonRunner():
            from heartbeat.runners import python

            return python.ask(run, runner, start)
        case HttpRunner():
            from heartbeat.runners import http

            return await http.ask(run, runner)
        case ModelRunner():
            return await _ask_model(run, runner)


async def decide(run: Run, runner: ModelRunner) -> Answer | Decision:
    """Have a model decide about `run.prompt`, which is the text of `decision.question`; an Answer is always a failure."""
    if runner.provider.kind == "openai":
        from heartbeat.runners import openai

        return await openai.decide(run, runner)
    from heartbeat.runners import anthropic

    return await anthropic.decide(run, runner)


def warm(runners: Iterable[Runner]) -> None:
    """Import ahead what these runners will need; up to a second of CPU, for a thread of its own."""
    for runner in {_slow(runner) for runner in runners}:
        if runner == "anthropic":
            from heartbeat.runners import anthropic

            anthropic.warm()
        elif runner:
            from heartbeat.runners import wire

            wire.warm()


async def _ask_model(run: Run, runner: ModelRunner) -> Answer:
    if runner.provider.kind == "openai":
        from heartbeat.runners import openai

        return await openai.ask(run, runner)
    from heartbeat.runners import anthropic

    return await anthropic.ask(run, runner)


def _slow(runner: Runner) -> str | None:
    """What is slow to import for this runner."""
    match runner:
        case ModelRunner():
            return runner.provider.kind
        case HttpRunner():
            return "wire"
        case _:
            return None
