"""Whom jobs with a prompt ask: an agent without what holds for its heartbeat alone."""

from __future__ import annotations

from dataclasses import replace

from heartbeat.spec import Agent, Heartbeat, ModelRunner
from scheduler.config.build.config_node import ConfigNode
from scheduler.config.build.prices import Prices
from scheduler.config.build.runners import DEFAULT_MODEL, Runners
from scheduler.config.file.marked_yaml import MarkedMap
from scheduler.config.keys import models


class PromptAgents:
    """Takes note of the agents that the jobs of a file name, and finds for each job whom it asks: `of_jobs`, by its name."""

    def __init__(self, jobs: MarkedMap, defaults: MarkedMap, runners: Runners, prices: Prices) -> None:
        parts = (part for part in (defaults, *jobs.values()) if isinstance(part, MarkedMap))
        self._named = {name for part in parts if isinstance(name := part.get("agent"), str)}
        self._runners = runners
        self._prices = prices
        self._agents: dict[str, Agent] = {}
        self.by_job: dict[str, Agent] = {}

    def add_agent(self, agent: models.Agent, beat: Heartbeat, node: ConfigNode) -> None:
        """Take note of an agent, whose heartbeat is built already, if a job names it."""
        if beat.name not in self._named:
            return
        runner = self._runners.build_job_runner(agent, beat.runner, node)
        cheap = DEFAULT_MODEL if isinstance(runner, ModelRunner) and runner.provider.kind == "anthropic" else None
        model = agent.model or cheap
        self._agents[beat.name] = Agent(beat.name, beat.zone, beat.workspace, runner, model, beat.context, beat.max_input_tokens)

    def find_agent(self, name: str, job: models.Job, node: ConfigNode) -> Agent | None:
        """Whom a job's prompt asks, with the job's own model if it has one; None without a prompt, and after a fault."""
        agent = self._agents.get(job.agent) if job.prompt is not None and job.agent is not None else None
        if agent is None:
            return None
        asked = replace(agent, model=job.model or agent.model)
        self._check_model(asked, job, node)
        self.by_job[name] = asked
        return asked

    def _check_model(self, asked: Agent, job: models.Job, node: ConfigNode) -> None:
        if not isinstance(asked.runner, ModelRunner):
            return
        if asked.model is None:
            node.add_error(f"is missing; write model: NAME, one that {asked.runner.provider.name} has", "model")
        elif job.enabled:
            self._prices.check_price(asked.model, node, "model" if job.model else "agent")
