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
from scheduler.work import agent_calls


async def ask_job_agent(
    job: Job, agent: Agent, claim: Claim, resources: Resources, judge: agent_calls.JudgeAnswer
) -> AttemptResult:
    """One attempt: the same gates as before a beat, as far as they are about the agent and not about its heartbeat."""
    obstacle = _first_obstacle(claim)
    if obstacle is not None:
        return AttemptResult(Outcome.SKIPPED, obstacle, error=agent_calls.explain_obstacle(claim, obstacle))
    await agent_calls.make_workspace(agent.workspace, agent.runner)
    files = await in_daemon_thread(agent_calls.read_workspace_files, agent.workspace, agent.context) if agent.context else ()
    prompt = compose_task(job.prompt or "", agent, claim.started_at, files)
    if agent_calls.exceeds_reservation(claim, prompt) or estimate_tokens(prompt.text) > agent.max_input_tokens:
        return AttemptResult(Outcome.SKIPPED, Skip.PROMPT_TOO_LARGE, prompt_parts=dict(prompt.part_sizes))
    run = AgentRequest(
        agent.name, prompt.text, agent.model, agent.workspace, job.timeout, partial(_job_run_facts, job, agent, claim)
    )
    return await agent_calls.ask_agent(run, prompt, agent.runner, resources, judge)


def agent_gates(claim: Claim) -> list[tuple[Skip, bool]]:
    """Each reason not to ask the agent that is known beforehand, with whether it stands in the way."""
    return [
        (Skip.BUSY, claim.busy),
        (Skip.BUDGET, claim.over_budget is not None),
        (Skip.BREAKER_OPEN, claim.breaker_open is not None),
    ]


def _job_run_facts(job: Job, agent: Agent, claim: Claim) -> dict[str, object]:
    return {**task_meta(job.name, agent, claim.started_at, claim.activity), **agent_calls.run_facts(claim)}


def _first_obstacle(claim: Claim) -> Skip | None:
    return next((reason for reason, stands in agent_gates(claim) if stands), None)
