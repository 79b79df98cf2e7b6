"""Builds the heartbeat of each agent in the config."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cron.job_schedules import CronSchedule, ScheduleError, parse_schedule
from heartbeat.hours import Hours, window
from heartbeat.schedule_slots import ScheduleSlots
from heartbeat.spec import Heartbeat, ModelRunner
from scheduler.config.keys import models
from scheduler.config.keys.value_parsers import Share
from scheduler.config.settings import entry_timing, prechecks
from scheduler.config.settings.config_node import ConfigContext, ConfigNode, carried_keys
from scheduler.config.settings.delivery_targets import build_on_failure, check_deliver, default_channel
from scheduler.config.settings.runners import NO_TIME, Runners, calls_model, is_enabled, uses_provider

LONGEST_GRACE = timedelta(minutes=10)
LONGEST_REMIND_CRITICAL = timedelta(hours=6)  # the default of remind_critical
ASYNC_RUNNERS = ("http", "python")
# Keys whose fields of the same name are computed below. All others are carried into the spec as they are.
COMPUTED_KEYS = ("enabled", "interval", "stagger", "model", "precheck", "decide", "session_keep", "answer", "deliver")
ALWAYS = Hours()
MISSING_INTERVAL = (
    'is missing; write interval: 30m, schedule: "0 9 * * *", or interval: none for an agent that runs only when woken'
)
SOME_DAY = datetime(2024, 1, 1, tzinfo=UTC)  # any day is enough to check whether they overlap: schedules and hours repeat


def build_heartbeat(name: str, agent: models.Agent, node: ConfigNode, runners: Runners) -> Heartbeat:
    """Build the heartbeat of a checked agent. Errors are added at `node`; after an error the result must not be used."""
    beat = agent.heartbeat
    interval, schedule = _build_interval(agent, node), _build_schedule(agent, node)
    period = schedule.shortest_period() if schedule else interval
    runner = runners.build_runner(agent, node)
    _check_unused_keys(agent, node)
    deliver = _build_deliver(beat, node)
    on_failure = build_on_failure(beat.on_failure, deliver, node, "heartbeat", "on_failure", speaks=True)
    built = Heartbeat(
        **carried_keys(beat, Heartbeat, COMPUTED_KEYS),
        name=name,
        enabled=is_enabled(agent),
        interval=interval,
        stagger=_build_stagger(name, beat, period, node),
        hours=_build_hours(beat, node),
        zone=_choose_zone(beat, node.context),
        grace=entry_timing.build_grace(beat.misfire.grace, period, LONGEST_GRACE),
        workspace=node.context.resolve_path(agent.workspace or f"agents/{name}"),
        runner=runner,
        model=runners.choose_model(agent, runner, node),
        context=agent.context,
        answer=beat.answer or ("structured" if isinstance(runner, ModelRunner) else "text"),
        remind=beat.conditions.remind,
        remind_critical=beat.conditions.remind_critical or min(beat.conditions.remind, LONGEST_REMIND_CRITICAL),
        clear_after=beat.conditions.clear_after,
        dedup_window=beat.dedup.window,
        dedup_normalize=beat.dedup.normalize,
        deliver=deliver,
        decide=runners.build_decide(agent, node),
        session_keep=0 if beat.isolated_session else beat.session_keep,
        precheck=prechecks.build_precheck(beat.precheck, beat.timeout, node, "heartbeat"),
        on_failure_after=on_failure.after,
        on_failure_remind=on_failure.remind,
        on_failure_deliver=on_failure.deliver,
        calendars=entry_timing.build_days(beat, _choose_zone(beat, node.context), node, "heartbeat"),
    )
    runners.warn_if_decide_is_costly(built, node)
    _check_meets_hours(built, schedule, node)
    if built.enabled and built.interval:
        entry_timing.check_interval_fits_hours(built.interval, built.hours, node, "heartbeat", "interval")
    return built


def logs_by_default(agent: models.Agent, context: ConfigContext) -> bool:
    """Whether its messages go to the log because the config sets no `deliver`."""
    return agent.heartbeat.deliver is None and len(context.channels) != 2


def _build_interval(agent: models.Agent, node: ConfigNode) -> timedelta | None:
    interval = agent.heartbeat.interval
    if agent.heartbeat.schedule is not None:
        if interval != "missing":
            node.add_error("interval and schedule exclude each other; keep one of them", "heartbeat", "schedule")
        return None
    if interval == "missing":
        node.add_error(MISSING_INTERVAL, "heartbeat", missing="interval")
        return None
    assert not isinstance(interval, str)
    if not interval:
        return None
    if calls_model(agent):
        entry_timing.check_min_interval(interval, node, "heartbeat", "interval")
    return interval


def _build_schedule(agent: models.Agent, node: ConfigNode) -> CronSchedule | None:
    beat = agent.heartbeat
    if beat.schedule is None:
        return None
    try:
        schedule = parse_schedule(beat.schedule, _choose_zone(beat, node.context))
    except ScheduleError as error:
        node.add_error(str(error), "heartbeat", "schedule")
        return None
    for warning in schedule.warnings:
        node.add_warning(warning, "heartbeat", "schedule")
    if calls_model(agent):
        entry_timing.check_min_schedule_interval(schedule, node, "heartbeat", "schedule")
    return schedule


def _check_meets_hours(beat: Heartbeat, schedule: CronSchedule | None, node: ConfigNode) -> None:
    if schedule is not None and not _ever_fires_in_hours(schedule, beat.hours, beat.stagger):
        node.add_error(
            "no time of the schedule is inside the active hours; change schedule or active_hours", "heartbeat", "schedule"
        )


@lru_cache(maxsize=1024)
def _ever_fires_in_hours(schedule: CronSchedule, hours: Hours, offset: timedelta) -> bool:
    return hours.always or ScheduleSlots(schedule, hours, offset).next(SOME_DAY) is not None


def _check_unused_keys(agent: models.Agent, node: ConfigNode) -> None:
    """Report keys of the agent itself that have no effect. Inherited keys may be meant for other agents."""
    for key, message in _find_unused_keys(agent):
        if node.has_own_key("heartbeat", key):
            node.add_error(message, "heartbeat", key)


def _find_unused_keys(agent: models.Agent) -> Iterator[tuple[str, str]]:
    """Keys that have no effect because of others, each with the error."""
    beat, kind = agent.heartbeat, agent.runner.kind
    if beat.backoff_on_failure and (beat.schedule is not None or beat.interval is None):
        yield "backoff_on_failure", "there is no interval to double; remove backoff_on_failure, or write interval: 30m"
    if not calls_model(agent):
        problem = f"a runner of kind {kind} calls no model and sets its own limits"
        yield "max_output_tokens", f"{problem}; remove max_output_tokens"
    if not uses_provider(agent):
        yield "provider", f"a runner of kind {kind} calls no model; remove provider, or write runner: {{kind: anthropic}}"
    if kind not in ASYNC_RUNNERS:
        yield "async_timeout", f"a runner of kind {kind} answers immediately; remove async_timeout"
    if "run" not in (beat.on_missing, beat.on_empty):
        problem = "memory files are read only in runs without a checklist, which are skipped here"
        yield "memory", f"{problem}; remove memory, or write on_empty: run too"
    if beat.isolated_session:
        also = "" if kind == "command" else ", or write isolated_session: false too"
        yield "session_keep", f"an isolated session keeps no messages; remove session_keep{also}"
    elif kind == "command":
        yield "isolated_session", "a command keeps its own session and gets no earlier messages; remove isolated_session"


def _build_stagger(name: str, beat: models.Heartbeat, period: timedelta | None, node: ConfigNode) -> timedelta:
    """An explicit schedule gets no default stagger, because its times are chosen on purpose."""
    share: Share = beat.stagger if beat.schedule is None or "stagger" in beat.model_fields_set else NO_TIME
    noun = "interval" if beat.schedule is None else "schedule's shortest interval"
    return entry_timing.build_stagger(name, share, period, node, "heartbeat", "stagger", period_noun=noun)


def _choose_zone(beat: models.Heartbeat, context: ConfigContext) -> ZoneInfo:
    if beat.timezone:
        return beat.timezone
    zones = {window.timezone for window in beat.active_hours}
    if len(zones) == 1:
        return zones.pop() or context.zone
    return context.zone


def _build_hours(beat: models.Heartbeat, node: ConfigNode) -> Hours:
    zone = beat.timezone or node.context.zone
    for index, part in enumerate(beat.active_hours):
        if part.start == part.end:
            problem = "start and end are the same; write two different times, or active_hours: always"
            node.add_error(problem, "heartbeat", "active_hours", index)
            return ALWAYS
    return _shared_hours(
        tuple((part.start, part.end, frozenset().union(*part.days), part.timezone or zone) for part in beat.active_hours)
    )


@lru_cache(maxsize=1024)
def _shared_hours(windows: tuple[tuple[int, int, frozenset[int], ZoneInfo], ...]) -> Hours:
    return Hours(tuple(window(*parts) for parts in windows)) if windows else ALWAYS


def _build_deliver(beat: models.Heartbeat, node: ConfigNode) -> tuple[str, ...]:
    if beat.deliver is None:
        return default_channel(node, speaks=True)
    check_deliver(beat.deliver, node, "heartbeat", "deliver", speaks=True)
    return beat.deliver
