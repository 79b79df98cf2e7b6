"""Finds prompts whose files leave little room for everything else, or none at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cron.job import Job
from heartbeat.checklist_file import read_file
from heartbeat.prompt import Prompt, PromptFacts, compose_prompt, compose_task, describe_size, estimate_tokens, max_tokens
from heartbeat.spec import Agent, Heartbeat
from scheduler.model.outcome import Kind
from scheduler.model.settings import Settings
from scheduler.model.timestamps import EPOCH

NEAR_LIMIT = 0.8  # the share of the limit above which a prompt is reported: the output of a precheck and wakes need room too


def find_long_prompts(settings: Settings) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """The prompts near their limit or above it: section, name of the entry, steps to the key, and the message.

    The prompt is composed as for a run, with its files, but without wakes, conditions and the output of a precheck.
    """
    for name, beat in settings.heartbeats.items():
        if beat.enabled and (message := _problem(settings, Kind.HEARTBEAT, name, _prompt_of_beat(beat), beat.max_input_tokens)):
            yield "agents", name, ("heartbeat", "checklist"), message
    for name, agent in settings.job_agents.items():
        job = settings.jobs[name]
        if job.enabled and (message := _problem(settings, Kind.CRON, name, _prompt_of_job(job, agent), agent.max_input_tokens)):
            yield "cron", name, ("prompt",), message


def prompt_warnings(settings: Settings) -> Iterator[str]:
    """A line for each of them, without the source position that only `check` knows."""
    for section, name, inside, message in find_long_prompts(settings):
        yield f"warning: {'.'.join((section, name, *inside))}: {message}"


def _problem(settings: Settings, kind: Kind, name: str, prompt: Prompt, limit: int) -> str | None:
    allowance = settings.allowances.get((kind, name))
    reserved = allowance.input_tokens if allowance else None
    size = (estimate_tokens if reserved is None else max_tokens)(prompt.text)
    room = limit if reserved is None else reserved
    if size <= NEAR_LIMIT * room:
        return None
    effect = "its runs are skipped" if size > room else "a wake or the output of a precheck may not fit"
    words = describe_size(size, limit, reserved)
    return f"the prompt with its files has {words}, so {effect}; shorten the files or raise the limit"


def _prompt_of_beat(beat: Heartbeat) -> Prompt:
    checklist = beat.checklist if "\n" in beat.checklist else _text(beat.workspace, beat.checklist)
    return compose_prompt(PromptFacts(EPOCH, checklist=checklist, context=_context(beat.workspace, beat.context_files)), beat)


def _prompt_of_job(job: Job, agent: Agent) -> Prompt:
    return compose_task(job.prompt or "", agent, EPOCH, _context(agent.workspace, agent.context), None)


def _context(workspace: Path, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, _text(workspace, name)) for name in names)


def _text(workspace: Path, name: str) -> str:
    """The text of a file. One that cannot be read is left out of the prompt, or its runs are skipped for another reason."""
    found = read_file(workspace, name)
    return found if isinstance(found, str) else ""
