"""A job's prompt carried through: see that its agent may be asked, ask it, and say how that ended."""

from __future__ import annotations

from functools import partial

from cron.job import Job
from heartbeat.prompt import compose_task, estimate_tokens, task_meta
from heartbeat.runners import AgentRequest, Resources
from heartbeat.spec import Agent
from heartbeat.threads import in_daemon_thread
from scheduler.model.entry import Claim
from scheduler.model.outcome import AttemptResult, Outcome, Skip
from scheduler.work import asking


async def ask(job: Job, agent: Agent, claim: Claim, resources: Resources, judge: asking.Judge) -> AttemptResult:
    """One attempt: the same gates as before a beat, as far as they are about the agent and not about its heartbeat."""
    obstacle = _obstacle(claim)
    if obstacle is not None:
        return AttemptResult(Outcome.SKIPPED, obstacle, error=asking.why(claim, obstacle))
    await asking.make_room(agent.workspace, agent.runner)
    files = await in_daemon_thread(asking.files, agent.workspace, agent.context) if agent.context else ()
    prompt = compose_task(job.prompt or "", agent, claim.started_at, files)
    if asking.outgrows(claim, prompt) or estimate_tokens(prompt.text) > agent.max_input_tokens:
        return AttemptResult(Outcome.SKIPPED, Skip.PROMPT_TOO_LARGE, prompt_parts=dict(prompt.part_sizes))
    run = AgentRequest(agent.name, prompt.text, agent.model, agent.workspace, job.timeout, partial(_about, job, agent, claim))
    return await asking.ask(run, prompt, agent.runner, resources, judge)


def gates(claim: Claim) -> list[tuple[Skip, bool]]:
    """Each reason not to ask the agent that is known beforehand, with whether it stands in the way."""
    return [
        (Skip.BUSY, claim.busy),
        (Skip.BUDGET, claim.over_budget is not None),
        (Skip.BREAKER_OPEN, claim.breaker_open is not None),
    ]


def _about(job: Job, agent: Agent, claim: Claim) -> dict[str, object]:
    return {**task_meta(job.name, agent, claim.started_at, claim.activity), **asking.about(claim)}


def _obstacle(claim: Claim) -> Skip | None:
    return next((reason for reason, stands in gates(claim) if stands), None)
