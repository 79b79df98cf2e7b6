"""An agent of the file as the heartbeat that the daemon runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cron.job_schedules import CronSchedule, ScheduleError, parse_schedule
from heartbeat.hours import Hours, window
from heartbeat.interval_slots import stagger_for
from heartbeat.schedule_slots import ScheduleSlots
from heartbeat.spec import Heartbeat, Precheck
from scheduler.config.build import calendar_days, entry_timing
from scheduler.config.build.config_node import Frame, Spot
from scheduler.config.build.delivery_targets import on_failure, only_channel
from scheduler.config.build.runners import NO_TIME, Runners, asks_provider, calls_model, is_enabled
from scheduler.config.file.marked_yaml import Map
from scheduler.config.file.message_parts import written
from scheduler.config.file.remedies import Remedy, Wrong, removing
from scheduler.config.keys import models
from scheduler.config.keys.schedule_hints import of_schedule
from scheduler.config.keys.value_parsers import Share, fits_period

LONGEST_GRACE = timedelta(minutes=10)
LONGEST_PRECHECK = timedelta(seconds=30)
ANSWERS_LATER = ("http", "python")
CONDITIONAL = frozenset(
    (
        "async_timeout",
        "backoff_on_failure",
        "isolated_session",
        "max_output_tokens",
        "memory",
        "provider",
        "session_keep",
    )
)  # keys of a heartbeat without effect where others have certain values
ALWAYS = Hours()
NO_INTERVAL = Wrong(
    "is missing",
    Remedy("30m"),
    Remedy("none"),
    words='write interval: 30m, schedule: "0 9 * * *", or interval: none for an agent that beats only when woken',
)
SOME_DAY = datetime(2024, 1, 1, tzinfo=UTC)  # schedules and hours repeat, so that any day will do to ask whether they meet


def build(name: str, agent: models.Agent, spot: Spot, runners: Runners) -> Heartbeat:
    """The heartbeat of a checked agent. Faults are noted at `spot`; what is given back then is of no use."""
    beat = agent.heartbeat
    interval, schedule = _interval(agent, spot), _schedule(agent, spot)
    period = schedule.shortest_period() if schedule else interval
    runner = runners.runner(agent, spot)
    if spot.knows("runner"):
        _check_heeded(agent, spot)
    deliver = _deliver(beat, spot)
    told = on_failure(beat.on_failure, deliver, spot, "heartbeat", "on_failure", speaks=True)
    built = Heartbeat(
        name=name,
        enabled=is_enabled(agent),
        interval=interval,
        stagger=_stagger(name, beat, period, spot),
        hours=_hours(beat, spot),
        zone=_zone(beat, spot.frame),
        grace=_grace(beat.misfire.grace, period),
        workspace=spot.frame.path(agent.workspace or f"agents/{name}"),
        runner=runner,
        model=runners.model(agent, runner, spot),
        prompt=beat.prompt,
        checklist=beat.checklist,
        on_missing=beat.on_missing,
        on_empty=beat.on_empty,
        context=agent.context,
        light_context=beat.light_context,
        retries=beat.retries,
        timeout=beat.timeout,
        async_timeout=beat.async_timeout,
        ok_match=beat.ok_match,
        ack_max_chars=beat.ack_max_chars,
        strip_reasoning=beat.strip_reasoning,
        show_ok=beat.show_ok,
        show_alerts=beat.show_alerts,
        dedup_window=beat.dedup.window,
        dedup_normalize=beat.dedup.normalize,
        deliver=deliver,
        decide=runners.decide(agent, spot),
        session_keep=0 if beat.isolated_session else beat.session_keep,
        schedule=beat.schedule,
        backoff_on_failure=beat.backoff_on_failure,
        precheck=_precheck(beat, spot),
        memory=beat.memory,
        max_input_tokens=beat.max_input_tokens,
        on_failure_after=told.after,
        on_failure_remind=told.remind,
        on_failure_deliver=told.deliver,
        calendars=calendar_days.days(beat, _zone(beat, spot.frame), spot, "heartbeat"),
    )
    _check_meets_hours(built, schedule, spot)
    if built.enabled and built.interval:
        entry_timing.check_fits(built.interval, built.hours, spot, "heartbeat", "interval")
    return built


def silent_by_default(agent: models.Agent, frame: Frame) -> bool:
    """Whether its messages go to the log only because nobody said where to."""
    return agent.heartbeat.deliver is None and len(frame.channels) != 2


def _interval(agent: models.Agent, spot: Spot) -> timedelta | None:
    interval = agent.heartbeat.interval
    if agent.heartbeat.schedule is not None:
        if interval != "missing" or not spot.knows("heartbeat", "interval"):
            words = "keep one of them"
            spot.fault(removing("interval and schedule exclude each other", words), "heartbeat", "schedule")
        return None
    if interval == "missing":
        if spot.knows("heartbeat", "schedule"):
            spot.missing("interval", NO_INTERVAL, "heartbeat")
        if calls_model(agent) and spot.knows("runner"):
            entry_timing.narrow(spot, "heartbeat", "interval")
        return None
    assert not isinstance(interval, str)
    if not interval:
        return None
    if calls_model(agent) and spot.knows("runner"):
        entry_timing.check_interval(interval, spot, "heartbeat", "interval")
    return interval


def _schedule(agent: models.Agent, spot: Spot) -> CronSchedule | None:
    beat = agent.heartbeat
    if beat.schedule is None:
        return None
    try:
        schedule = parse_schedule(beat.schedule, _zone(beat, spot.frame))
    except ScheduleError as error:
        least = spot.frame.min_interval if calls_model(agent) else NO_TIME
        wrong = of_schedule(beat.schedule, str(error), "interval", least)
        spot.fault(wrong, "heartbeat", "schedule")
        return _meant(wrong, _zone(beat, spot.frame))
    for warning in schedule.warnings:
        spot.warn(warning, "heartbeat", "schedule")
    if calls_model(agent) and spot.knows("runner"):
        entry_timing.check_schedule(schedule, spot, "heartbeat", "schedule")
    return schedule


def _meant(wrong: Wrong, zone: ZoneInfo) -> CronSchedule | None:
    """The schedule that must have been meant by one with a fault."""
    value = next((remedy.value for remedy in wrong.remedies if remedy.means and not remedy.key), None)
    return parse_schedule(value, zone) if isinstance(value, str) else None


def _check_meets_hours(beat: Heartbeat, schedule: CronSchedule | None, spot: Spot) -> None:
    if schedule is not None and not _ever_opens(schedule, beat.hours, beat.stagger):
        spot.fault("none of its firings lies inside the active hours; change one of them", "heartbeat", "schedule")


@lru_cache(maxsize=1024)
def _ever_opens(schedule: CronSchedule, hours: Hours, offset: timedelta) -> bool:
    return hours.always or ScheduleSlots(schedule, hours, offset).next(SOME_DAY) is not None


def _check_heeded(agent: models.Agent, spot: Spot) -> None:
    """Note what the agent writes itself and nothing would heed; what it inherits is for those whom it fits."""
    written = spot.own.get("heartbeat") if spot.own else None
    if not isinstance(written, Map) or CONDITIONAL.isdisjoint(written):
        return  # as of nearly every agent
    for key, of, wrong in _unheeded(agent):
        if spot.wrote("heartbeat", key) and all(spot.knows("heartbeat", other) for other in of):
            spot.fault(wrong, "heartbeat", key)


def _unheeded(agent: models.Agent) -> Iterator[tuple[str, tuple[str, ...], Wrong]]:
    """Keys without effect, the keys that decide that, and what is said of it."""
    beat, kind = agent.heartbeat, agent.runner.kind
    if beat.backoff_on_failure and (beat.schedule is not None or beat.interval is None):
        words = "remove backoff_on_failure, or write interval: 30m"
        yield "backoff_on_failure", ("interval", "schedule"), removing("there is no interval to double", words)
    if not calls_model(agent):
        problem = f"a runner of kind {kind} calls no model and has bounds of its own"
        yield "max_output_tokens", ("decide",), removing(problem, "remove max_output_tokens")
    if not asks_provider(agent):
        words = "remove provider, or write runner: {kind: anthropic}"
        yield "provider", ("decide",), removing(f"a runner of kind {kind} calls no model", words)
    if kind not in ANSWERS_LATER:
        yield "async_timeout", (), removing(f"a runner of kind {kind} answers at once", "remove async_timeout")
    if "run" not in (beat.on_missing, beat.on_empty):
        problem = "nothing is read where a missing or empty checklist is skipped"
        also = Remedy(beside=(("on_empty", "run"),))
        yield "memory", ("on_missing", "on_empty"), removing(problem, "remove memory, or write on_empty: run too", also)
    if beat.isolated_session:
        kept = () if kind == "command" else (Remedy(beside=(("isolated_session", False),)),)
        words = "remove session_keep" + (", or write isolated_session: false too" if kept else "")
        yield "session_keep", ("isolated_session",), removing("nothing is kept in an isolated session", words, *kept)
    elif kind == "command":
        problem = "a command is told nothing of earlier beats and keeps its own session"
        yield "isolated_session", (), removing(problem, "remove isolated_session")


def _precheck(beat: models.Heartbeat, spot: Spot) -> Precheck | None:
    part = beat.precheck
    if part is None:
        return None
    timeout = part.timeout or min(beat.timeout / 2, LONGEST_PRECHECK)
    if timeout >= beat.timeout and spot.knows("heartbeat", "timeout"):
        spot.fault(
            f"{written(timeout)} leaves the agent no time; write less than the heartbeat's timeout of {written(beat.timeout)}",
            "heartbeat",
            "precheck",
            "timeout",
        )
    return Precheck(part.command, part.unchanged, part.on_error, timeout)


def _stagger(name: str, beat: models.Heartbeat, period: timedelta | None, spot: Spot) -> timedelta:
    """Who names a time means it: with a schedule there is no stagger unless it is written."""
    share: Share = beat.stagger if beat.schedule is None or "stagger" in beat.model_fields_set else NO_TIME
    if isinstance(share, float):
        if period:
            spot.narrow(lambda value: fits_period(value, period), "10%", "heartbeat", "stagger")
        return stagger_for(name, period * share) if period else NO_TIME
    if period:
        spot.narrow(lambda value: fits_period(value, period), "10%", "heartbeat", "stagger")
    if period and share > period:
        noun = "interval" if beat.schedule is None else "schedule's shortest interval"
        spot.fault(f"{written(share)} is more than the {noun} of {written(period)}", "heartbeat", "stagger")
    return stagger_for(name, share)


def _grace(grace: timedelta | None, period: timedelta | None) -> timedelta:
    if grace is not None:
        return grace
    return min(period / 2, LONGEST_GRACE) if period else LONGEST_GRACE


def _zone(beat: models.Heartbeat, frame: Frame) -> ZoneInfo:
    if beat.timezone:
        return beat.timezone
    zones = {window.timezone for window in beat.active_hours}
    if len(zones) == 1:
        return zones.pop() or frame.zone
    return frame.zone


def _hours(beat: models.Heartbeat, spot: Spot) -> Hours:
    zone = beat.timezone or spot.frame.zone
    for index, part in enumerate(beat.active_hours):
        if part.start == part.end:
            only = len(beat.active_hours) == 1 and isinstance(spot.written["heartbeat"]["active_hours"], Map)
            remedies, more = ([Remedy("always")], ", or active_hours: always") if only else ([], "")
            wrong = Wrong("start and end are the same", *remedies, words=f"write two different times{more}")
            spot.fault(wrong, "heartbeat", "active_hours", index)
            return ALWAYS
    return _shared_hours(tuple((part.start, part.end, part.days, part.timezone or zone) for part in beat.active_hours))


@lru_cache(maxsize=1024)
def _shared_hours(windows: tuple[tuple[int, int, frozenset[int], ZoneInfo], ...]) -> Hours:
    return Hours(tuple(window(*parts) for parts in windows)) if windows else ALWAYS


def _deliver(beat: models.Heartbeat, spot: Spot) -> tuple[str, ...]:
    if beat.deliver is None:
        return only_channel(spot, speaks=True)
    spot.reached(beat.deliver, "heartbeat", "deliver", speaks=True)
    return beat.deliver
