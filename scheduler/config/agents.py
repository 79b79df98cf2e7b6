"""An agent of the file as the heartbeat that the daemon runs."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from heartbeat.cadence import stagger_of
from heartbeat.hours import Hours, window
from heartbeat.spec import CommandRunner, Heartbeat
from scheduler.config import models
from scheduler.config.fields import Share, written
from scheduler.config.frame import Frame, Spot

LONGEST_GRACE = timedelta(minutes=10)
NO_TIME = timedelta(0)
ALWAYS = Hours()


def build(name: str, agent: models.Agent, spot: Spot) -> Heartbeat:
    """The heartbeat of a checked agent. Faults are noted at `spot`; what is given back then is of no use."""
    beat = agent.heartbeat
    interval = _interval(agent, spot)
    return Heartbeat(
        name=name,
        enabled=beat.enabled and beat.interval != NO_TIME,
        interval=interval,
        stagger=_stagger(name, beat.stagger, interval, spot),
        hours=_hours(beat, spot),
        zone=_zone(beat, spot.frame),
        grace=_grace(beat.misfire.grace, interval),
        workspace=spot.frame.path(agent.workspace or f"agents/{name}"),
        runner=_runner(agent, spot),
        model=beat.model or agent.model,
        prompt=beat.prompt,
        checklist=beat.checklist,
        on_missing=beat.on_missing,
        on_empty=beat.on_empty,
        context=agent.context,
        light_context=beat.light_context,
        retries=beat.retries,
        timeout=beat.timeout,
        ok_match=beat.ok_match,
        ack_max_chars=beat.ack_max_chars,
        show_ok=beat.show_ok,
        show_alerts=beat.show_alerts,
        dedup_window=beat.dedup.window,
        dedup_normalize=beat.dedup.normalize,
        deliver=_deliver(beat, spot),
    )


def silent_by_default(agent: models.Agent, frame: Frame) -> bool:
    """Whether its messages go to the log only because nobody said where to."""
    return agent.heartbeat.deliver is None and len(frame.channels) != 2


def _interval(agent: models.Agent, spot: Spot) -> timedelta | None:
    interval = agent.heartbeat.interval
    if interval == "missing":
        spot.fault(
            "is missing; write interval: 30m, or interval: none for an agent that beats only when woken", "heartbeat", "interval"
        )
        return None
    assert not isinstance(interval, str)
    if not interval:
        return None
    if agent.runner and agent.runner.calls_model and interval < spot.frame.min_interval:
        least = written(spot.frame.min_interval)
        spot.fault(
            f"{written(interval)} is below limits.min_interval; write {least} or more, or lower the limit",
            "heartbeat",
            "interval",
        )
    return interval


def _runner(agent: models.Agent, spot: Spot) -> CommandRunner:
    if agent.runner is None:
        spot.fault("is missing; write runner: {kind: command, argv: [program, argument]}, the only kind so far", "runner")
        return CommandRunner((), {})
    used = agent.heartbeat.enabled and agent.heartbeat.interval != NO_TIME
    env = spot.environment(agent.runner.env, "runner", "env", used=used)
    return _shared_runner(agent.runner.argv) if not env else CommandRunner(agent.runner.argv, env)


@lru_cache(maxsize=1024)
def _shared_runner(argv: tuple[str, ...]) -> CommandRunner:
    """Agents that differ in nothing but their name share what they have in common."""
    return CommandRunner(argv, {})


def _stagger(name: str, share: Share, interval: timedelta | None, spot: Spot) -> timedelta:
    if isinstance(share, float):
        return stagger_of(name, interval * share) if interval else NO_TIME
    if interval and share > interval:
        spot.fault(f"{written(share)} is more than the interval of {written(interval)}", "heartbeat", "stagger")
    return stagger_of(name, share)


def _grace(grace: timedelta | None, interval: timedelta | None) -> timedelta:
    if grace is not None:
        return grace
    return min(interval / 2, LONGEST_GRACE) if interval else LONGEST_GRACE


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
            spot.fault(
                "start and end are the same; write two different times, or active_hours: always",
                "heartbeat",
                "active_hours",
                index,
            )
            return ALWAYS
        if part.start == 1440:
            spot.fault("24:00 cannot be a start; write 00:00", "heartbeat", "active_hours", index, "start")
            return ALWAYS
    return _shared_hours(tuple((part.start, part.end, part.days, part.timezone or zone) for part in beat.active_hours))


@lru_cache(maxsize=1024)
def _shared_hours(windows: tuple[tuple[int, int, frozenset[int], ZoneInfo], ...]) -> Hours:
    return Hours(tuple(window(*parts) for parts in windows)) if windows else ALWAYS


def _deliver(beat: models.Heartbeat, spot: Spot) -> tuple[str, ...]:
    if beat.deliver is None:
        return _only_channel(tuple(spot.frame.channels))
    spot.known(beat.deliver, spot.frame.channels, "channel", "heartbeat", "deliver")
    return beat.deliver


@lru_cache(maxsize=8)
def _only_channel(channels: tuple[str, ...]) -> tuple[str, ...]:
    declared = tuple(name for name in channels if name != "log")
    return declared if len(declared) == 1 else ("log",)
