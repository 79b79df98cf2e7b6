"""A task: what an agent is asked outside of its heartbeat, in a run that stands alone."""

from __future__ import annotations

from datetime import datetime

from heartbeat.checklist import FileProblem
from heartbeat.prompt import AgentActivity, Prompt, PromptPart, activity_meta, context_parts, time_meta, time_part
from heartbeat.spec import Agent


def compose_task(task: str, agent: Agent, now: datetime, context: tuple[tuple[str, str | FileProblem], ...]) -> Prompt:
    """The task in its own words, the time, and the agent's context files as (name, text).

    No rule about keeping quiet goes with it: whatever is answered is the result of the task.
    """
    return Prompt((PromptPart("task", task.strip()), time_part(now, agent.zone), *context_parts(context)))


def task_meta(job: str, agent: Agent, now: datetime, activity: AgentActivity | None) -> dict[str, object]:
    """The facts of such a run as plain data for the runner; `job` is the name of what wants it done."""
    return {"agent": agent.name, "job": job, **time_meta(now, agent.zone), **activity_meta(activity)}
