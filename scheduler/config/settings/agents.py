"""Builds the heartbeat of each agent in the config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cron.job_schedules import CronSchedule
from heartbeat.hours import Hours
from heartbeat.slots import ScheduleSlots
from heartbeat.spec import Heartbeat, HttpRunner, ModelRunner, PythonRunner, Runner
from scheduler.config.keys import models
from scheduler.config.settings.config_node import ConfigContext, ConfigNode, build_spec
from scheduler.config.settings.entry_parts import (
    NO_TIME,
    build_hours,
    build_precheck,
    build_schedule,
    build_shared_fields,
    check_interval_fits_hours,
    check_min_interval,
    choose_effort,
    further_calls,
)
from scheduler.config.settings.runners import Runners, calls_claude, calls_model, find_usd_limit, is_enabled, uses_provider

LONGEST_GRACE = timedelta(minutes=10)
ASYNC_RUNNERS = ("http", "python")
PROGRAMS = ("claude-code", "command")
MISSING_INTERVAL = (
    'is missing; write interval: 30m, schedule: "0 9 * * *", or interval: none for an agent that runs only when woken'
)
SOME_DAY = datetime(2024, 1, 1, tzinfo=UTC)  # any day is enough to check whether they overlap: schedules and hours repeat


def build_heartbeat(name: str, agent: models.Agent, node: ConfigNode, runners: Runners) -> Heartbeat:
    """Build the heartbeat of a checked agent. Errors are added at `node`; after an error the result must not be used."""
    beat, keys = agent.heartbeat, node.below("heartbeat")
    zone = _choose_zone(beat, node.context)
    interval = _build_interval(agent, keys)
    schedule = build_schedule(beat.schedule, zone, keys, calls_model=calls_model(agent)) if beat.schedule is not None else None
    runner = runners.build_runner(agent, node)
    model = runners.choose_model(agent, runner, node)
    given, place = (agent.fallbacks, node) if beat.fallbacks is None else (beat.fallbacks, keys)
    fallbacks = runners.build_fallbacks(given, (runner, model), agent, place)
    keys.report_unused(_find_unused_keys(agent, [each.runner for each in fallbacks]))
    built = build_spec(
        beat,
        Heartbeat,
        **build_shared_fields(
            name,
            beat,
            keys,
            zone=zone,
            period=schedule.shortest_period() if schedule else interval,
            longest_grace=LONGEST_GRACE,
            # The times of a schedule are chosen on purpose, so it has no default stagger.
            share=beat.stagger if beat.schedule is None or "stagger" in beat.model_fields_set else NO_TIME,
            speaks=True,
        ),
        enabled=is_enabled(agent),
        interval=interval,
        hours=build_hours(beat.active_hours, beat.timezone or node.context.zone, keys, "active_hours"),
        workspace=node.context.resolve_path(agent.workspace or f"agents/{name}"),
        runner=runner,
        model=model,
        fallbacks=fallbacks,
        usd_per_try=find_usd_limit(beat.budget, runner, fallbacks),
        effort=choose_effort(beat.effort, agent.effort),
        context=agent.context,
        queue=agent.executor.queue,
        answer=beat.answer or ("structured" if isinstance(runner, ModelRunner) or calls_claude(runner) else "text"),
        ask_again=further_calls(beat.ask_again, runner),
        dedup_window=beat.dedup.window,
        dedup_normalize=beat.dedup.normalize,
        decide=runners.build_decide(agent, node),
        session_keep=0 if beat.isolated_session else beat.session_keep,
        precheck=build_precheck(beat.precheck, beat.timeout, keys),
    )
    runners.warn_if_decide_is_costly(built, node)
    if schedule is not None and not _ever_fires_in_hours(schedule, built.hours, built.stagger):
        keys.add_error("no time of the schedule is inside the active hours; change schedule or active_hours", "schedule")
    if built.enabled and built.interval:
        check_interval_fits_hours(built.interval, built.hours, keys)
    return built


def _build_interval(agent: models.Agent, node: ConfigNode) -> timedelta | None:
    interval = agent.heartbeat.interval
    if agent.heartbeat.schedule is not None:
        if "interval" in agent.heartbeat.model_fields_set:
            node.add_error("interval and schedule exclude each other; keep one of them", "schedule")
        return None
    if "interval" not in agent.heartbeat.model_fields_set:
        node.add_error(MISSING_INTERVAL, missing="interval")
        return None
    if not interval:
        return None
    if calls_model(agent):
        check_min_interval(interval, node, "interval")
    return interval


@lru_cache(maxsize=1024)
def _ever_fires_in_hours(schedule: CronSchedule, hours: Hours, offset: timedelta) -> bool:
    return hours.always or ScheduleSlots(schedule, hours, offset).next(SOME_DAY) is not None


def _find_unused_keys(agent: models.Agent, others: Sequence[Runner]) -> Iterator[tuple[str, str]]:
    """Keys that have no effect because of others, each with the error. `others` are the runners of the fallbacks."""
    beat, kind = agent.heartbeat, agent.runner.kind
    if beat.backoff_on_failure and (beat.schedule is not None or (beat.interval is None and "interval" in beat.model_fields_set)):
        yield "backoff_on_failure", "there is no interval to double; remove backoff_on_failure, or write interval: 30m"
    if not (calls_model(agent) or any(isinstance(each, ModelRunner) for each in others)):
        for key, form in models.definition("Heartbeat")["properties"].items():
            if form.get("x-applies-to") == "model":
                yield key, f"a runner of kind {kind} calls no model and sets its own limits; remove {key}"
    if not uses_provider(agent):
        yield "provider", f"a runner of kind {kind} calls no model; remove provider, or write runner: {{kind: anthropic}}"
    if kind not in ASYNC_RUNNERS and not any(isinstance(each, HttpRunner | PythonRunner) for each in others):
        yield "async_timeout", f"a runner of kind {kind} answers immediately; remove async_timeout"
    if "run" not in (beat.on_missing, beat.on_empty):
        problem = "memory files are read only in runs without a checklist, which are skipped here"
        yield "memory", f"{problem}; remove memory, or write on_empty: run too"
    if beat.isolated_session:
        also = "" if kind in PROGRAMS else ", or write isolated_session: false too"
        yield "session_keep", f"an isolated session keeps no messages; remove session_keep{also}"
    elif kind in PROGRAMS:
        yield "isolated_session", "a command keeps its own session and gets no earlier messages; remove isolated_session"


def _choose_zone(beat: models.Heartbeat, context: ConfigContext) -> ZoneInfo:
    if beat.timezone:
        return beat.timezone
    zones = {window.timezone for window in beat.active_hours}
    if len(zones) == 1:
        return zones.pop() or context.zone
    return context.zone
