"""Builds the jobs of the config, and finds the agents that their prompts call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from zoneinfo import ZoneInfo

from cron.job import After, Job, follow_chain
from cron.job_schedules import OneTimeSchedule, ScheduleError, is_reboot, parse_one_time
from heartbeat.spec import Agent, Heartbeat, ModelRunner
from scheduler.config.keys import models
from scheduler.config.settings.config_data import JOB_SCHEDULE_KEYS
from scheduler.config.settings.config_node import ConfigContext, ConfigNode, build_spec
from scheduler.config.settings.entry_parts import (
    build_precheck,
    build_schedule,
    build_shared_fields,
    check_min_interval,
    choose_effort,
    further_calls,
)
from scheduler.config.settings.runners import Runners, find_usd_limit, is_enabled, require_model

LONGEST_GRACE = timedelta(hours=1)
MISSING_SCHEDULE = 'the job has no times; write schedule: "0 3 * * *", every: 6h, at: "2030-12-24T18:00", or after: JOB'


def build_job(
    name: str, job: models.Job, node: ConfigNode, heartbeats: Mapping[str, Heartbeat], called_agent: Agent | None
) -> Job:
    """Build a checked job. Errors are added at `node`. `heartbeats` are those of all agents.

    `called_agent` is the agent that its prompt calls; None without a prompt, or if there is no such agent.
    """
    zone = job.timezone or node.context.zone
    reboot = job.schedule is not None and is_reboot(job.schedule)
    is_limited = called_agent is not None and isinstance(called_agent.runner, ModelRunner)
    written = [key for key in JOB_SCHEDULE_KEYS if getattr(job, key) is not None]
    if len(written) > 1:
        node.add_error(f"{' and '.join(written)} exclude each other; keep one of them", written[1])
    if not written:
        node.add_error(MISSING_SCHEDULE)
    schedule = build_schedule(job.schedule, zone, node, calls_model=is_limited) if job.schedule and not reboot else None
    if job.every and is_limited:
        check_min_interval(job.every, node, "every")
    _check_purpose(job, node, heartbeats)
    node.report_unused(_find_unused_keys(job))
    if "clear_after" in node.below("problems").own_keys and job.answer == "text":
        advice = "write answer: structured" if job.prompt is not None else "write prompt: TEXT with answer: structured"
        node.add_warning(f"only findings end in this way; remove clear_after, or {advice}", "problems", "clear_after")
    return build_spec(
        job,
        Job,
        **build_shared_fields(
            name,
            job,
            node,
            zone=zone,
            period=job.every or (schedule.shortest_period() if schedule else None),
            longest_grace=LONGEST_GRACE,
            share=job.stagger,
            speaks=job.agent is not None,
        ),
        queue=job.executor.queue or (called_agent.queue if called_agent else None),
        schedule=schedule,
        at=_build_moment(job, zone, node),
        after=After(job.after.job, job.after.on) if job.after else None,
        previous=(name,) if job.previous is True else job.previous or (),
        reboot=reboot,
        misfire=job.misfire.policy,
        env=node.build_variables(job.env, "env"),
        workdir=node.context.resolve_path(job.workdir) if job.workdir else node.context.folder,
    )


def _build_moment(job: models.Job, zone: ZoneInfo, node: ConfigNode) -> OneTimeSchedule | None:
    if job.at is None:
        return None
    try:
        return parse_one_time(job.at, zone)
    except ScheduleError as error:
        node.add_error(str(error), "at")
        return None


def _check_purpose(job: models.Job, node: ConfigNode, heartbeats: Mapping[str, Heartbeat]) -> None:
    if job.command is None and job.prompt is None and not job.wake_heartbeat:
        node.add_error(
            "the job does nothing; write command: ./script.sh, prompt: TEXT with agent: NAME, or wake_heartbeat: AGENT"
        )
    if job.prompt is not None:
        _check_prompt(job, node, heartbeats)
    node.check_declared(job.wake_heartbeat, heartbeats, "agent", "wake_heartbeat")
    for index, agent in enumerate(job.wake_heartbeat):
        beat = heartbeats.get(agent)
        if beat and not beat.enabled:
            node.add_warning(f"the heartbeat of {agent} is disabled, so it cannot be woken", "wake_heartbeat", index)
        elif beat and job.wake_mode == "next" and beat.interval is None and beat.schedule is None:
            node.add_warning(
                f"{agent} has no schedule, so this wake waits until something else wakes the agent; write now", "wake_mode"
            )


def _check_prompt(job: models.Job, node: ConfigNode, heartbeats: Mapping[str, Heartbeat]) -> None:
    """Check that a prompt has one agent, which is declared and enabled."""
    if job.command is not None:
        node.add_error("prompt and command exclude each other; keep one of them, or write a second job", "prompt")
    if job.agent is None:
        node.add_error("no agent is named for the prompt; write agent: NAME", "prompt")
        return
    node.check_declared((job.agent,), heartbeats, "agent", "agent")
    if job.enabled and (beat := heartbeats.get(job.agent)) and not beat.enabled:
        node.add_error(
            f"{job.agent} is disabled and cannot be called; if only jobs call it, write heartbeat: {{interval: none}} there",
            "agent",
        )


def _find_unused_keys(job: models.Job) -> Iterator[tuple[str, str]]:
    """Keys that have no effect because of others, each with the error."""
    if job.stagger and job.schedule is not None and is_reboot(job.schedule):
        yield "stagger", "@reboot runs when the daemon starts and cannot be delayed; remove stagger"
    elif job.stagger and job.after is not None:
        yield "stagger", "the job starts when the other one has ended, and cannot be delayed; remove stagger"
    elif job.stagger and job.at is not None and isinstance(job.stagger, float):
        yield "stagger", "a job that runs once has no period to take a percentage of; write a duration, such as 10m"
    if job.after is not None:
        yield "misfire", "a job after another one has no times of its own that it could miss; remove misfire"
    if job.backoff_on_failure and job.every is None:
        yield "backoff_on_failure", "there is no interval to double; remove backoff_on_failure, or write every: 1h"
    if job.prompt is not None and job.answer == "text":
        yield "ask_again", "only an answer with findings can be incomplete; remove ask_again, or write answer: structured"
    for key, form in models.definition("Job")["properties"].items():
        needed = form.get("x-applies-to")
        if not needed or getattr(job, needed) is not None:
            continue
        advice = ", or write prompt: TEXT" if needed == "prompt" else ""
        if advice or job.prompt is not None:
            yield key, f"this key applies only to a {needed}, and the job has none; remove {key}{advice}"


def check_chains(jobs: Mapping[str, Job], agents: Mapping[str, Agent], context: ConfigContext) -> None:
    """Check the jobs that name others: these must exist, and a chain must have a beginning. A job that runs after another one
    must not call a model more often than limits.min_interval allows. `agents` are those of jobs with a prompt.
    """
    reported: set[str] = set()
    for name, job in jobs.items():
        node = context.entry("cron", name)
        node.check_declared(job.previous, jobs, "job", "previous")
        if job.after is None:
            continue
        others = [each for each in jobs if each != name]
        node.check_declared((job.after.job,), jobs, "job", "after", "job", offered=others)
        chain, is_circle = follow_chain(jobs, name)
        if is_circle and chain[-1] == name and not reported & {*chain}:
            reported.update(chain)
            node.add_error(f"{' -> '.join([name, *chain])} is a circle; give one of these jobs times of its own", "after")
        first = jobs.get(chain[-1])
        period = first and (first.every or (first.schedule.shortest_period() if first.schedule else None))
        if name in agents and isinstance(agents[name].runner, ModelRunner) and period and not is_circle:
            check_min_interval(period, node, "after")
        before = jobs.get(job.after.job)
        if job.enabled and before and not before.enabled:
            node.add_warning(f"{job.after.job} is disabled, so this job does not run", "after")


def build_called_agent(job: models.Job, node: ConfigNode, heartbeats: Mapping[str, Heartbeat], runners: Runners) -> Agent | None:
    """The agent of a job's prompt, with the model of the job if it sets one; None without a prompt, or without such an agent."""
    beat = heartbeats.get(job.agent or "")
    if job.prompt is None or beat is None:
        return None
    agent = node.context.config.agents[beat.name]
    place = node.context.entry("agents", beat.name, used=is_enabled(agent))
    runner = runners.build_job_runner(agent, beat.runner, place)
    model = require_model(job.model or agent.model, runner, node, "model" if job.model else "agent")
    given, place = (agent.fallbacks, replace(place, used=job.enabled)) if job.fallbacks is None else (job.fallbacks, node)
    fallbacks = runners.build_fallbacks(given, (runner, model), agent, place)
    has_findings = job.answer == "structured"
    called_agent = build_spec(
        job,
        Agent,
        name=beat.name,
        zone=beat.zone,
        workspace=beat.workspace,
        context=beat.context,
        max_input_tokens=beat.max_input_tokens,
        queue=beat.queue,
        runner=runner,
        model=model,
        effort=choose_effort(job.effort, agent.effort),
        fallbacks=fallbacks,
        usd_per_try=find_usd_limit(job.budget, runner, fallbacks),
        ok_match=job.ok_match if job.ok_match != "none" else "edges" if has_findings else None,
        ask_again=further_calls(job.ask_again, runner) if has_findings else 0,
        clear_after=job.problems.clear_after,
        problems_remind=job.problems.remind,
        precheck=build_precheck(job.precheck, job.timeout, node),
    )
    if isinstance(runner, ModelRunner) and model:
        runners.prices.check_price(model, runner.provider, node, "model" if job.model else "agent")
    return called_agent
