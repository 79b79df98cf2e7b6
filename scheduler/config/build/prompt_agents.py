"""Whom jobs with a prompt ask: an agent without what holds for its heartbeat alone."""

from __future__ import annotations

from dataclasses import replace

from heartbeat.spec import Agent, Heartbeat, ModelRunner
from scheduler.config.build.config_node import Spot
from scheduler.config.build.prices import Prices
from scheduler.config.build.runners import CHEAP, Runners
from scheduler.config.file.marked_yaml import Map
from scheduler.config.keys import models


class Asked:
    """Takes note of the agents that the jobs of a file name, and finds for each job whom it asks: `of_jobs`, by its name."""

    def __init__(self, jobs: Map, defaults: Map, runners: Runners, prices: Prices) -> None:
        parts = (part for part in (defaults, *jobs.values()) if isinstance(part, Map))
        self._named = {name for part in parts if isinstance(name := part.get("agent"), str)}
        self._runners = runners
        self._prices = prices
        self._agents: dict[str, Agent] = {}
        self.of_jobs: dict[str, Agent] = {}

    def note(self, agent: models.Agent, beat: Heartbeat, spot: Spot) -> None:
        """Take note of an agent, whose heartbeat is built already, if a job names it."""
        if beat.name not in self._named:
            return
        runner = self._runners.outside_heartbeat(agent, beat.runner, spot)
        cheap = CHEAP if isinstance(runner, ModelRunner) and runner.provider.kind == "anthropic" else None
        model = agent.model or cheap
        self._agents[beat.name] = Agent(beat.name, beat.zone, beat.workspace, runner, model, beat.context, beat.max_input_tokens)

    def find(self, name: str, job: models.Job, spot: Spot) -> Agent | None:
        """Whom a job's prompt asks, with the job's own model if it has one; None without a prompt, and after a fault."""
        agent = self._agents.get(job.agent) if job.prompt is not None and job.agent is not None else None
        if agent is None:
            return None
        asked = replace(agent, model=job.model or agent.model)
        self._check_model(asked, job, spot)
        self.of_jobs[name] = asked
        return asked

    def _check_model(self, asked: Agent, job: models.Job, spot: Spot) -> None:
        if not isinstance(asked.runner, ModelRunner):
            return
        if asked.model is None:
            spot.fault(f"is missing; write model: NAME, one that {asked.runner.provider.name} has", "model")
        elif job.enabled:
            self._prices.look_up(asked.model, spot, "model" if job.model else "agent")
