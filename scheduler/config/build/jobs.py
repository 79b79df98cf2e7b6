"""A job of the file as the one that the daemon runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from cron import once
from cron.job import Job
from cron.job_schedules import CronSchedule, ScheduleError, is_reboot, parse_schedule
from cron.once import OneTimeSchedule
from heartbeat.interval_slots import stagger_for
from heartbeat.spec import Agent, Heartbeat, ModelRunner
from scheduler.config.build import calendar_days, entry_timing
from scheduler.config.build.config_node import UNKNOWN, Spot
from scheduler.config.build.delivery_targets import on_failure
from scheduler.config.file.message_parts import written
from scheduler.config.file.remedies import Remedy, Wrong, removing
from scheduler.config.keys import models
from scheduler.config.keys.schedule_hints import of_moment, of_schedule
from scheduler.config.keys.value_parsers import fits_period, share

LONGEST_GRACE = timedelta(hours=1)
NO_TIME = timedelta(0)
NO_TIME_SAID = Wrong(
    "nothing says when",
    Remedy(inside=(("schedule", "0 3 * * *"),)),
    Remedy(inside=(("every", "6h"),)),
    words='write schedule: "0 3 * * *", every: 6h or at: "2030-12-24T18:00"',
)


def understood(spot: Spot, *keys: str) -> bool:
    """Whether none of these keys is there in a form that nobody could understand."""
    return (UNKNOWN,) not in spot.lost and all(spot.knows(key) for key in keys)


def build(name: str, job: models.Job, spot: Spot, beats: Mapping[str, Heartbeat | None], asked: Agent | None) -> Job:
    """The job of a checked part; `beats` are the agents of the file, None for one with faults. Faults are noted at `spot`.

    `asked` is whom its prompt asks, None where it has none or asks nobody that there is.
    """
    reboot = job.schedule is not None and is_reboot(job.schedule)
    _check_says_when(job, spot)
    schedule = None if reboot else _schedule(job, spot)
    moment = _moment(job, spot)
    period = job.every or (schedule.shortest_period() if schedule else None)
    _check_purpose(job, spot, beats)
    _check_heeded(job, spot)
    if asked and isinstance(asked.runner, ModelRunner):
        _check_often(job, schedule, spot)
    spot.reached(job.deliver, "deliver", speaks=job.agent is not None)
    told = on_failure(job.on_failure, job.deliver, spot, "on_failure", speaks=job.agent is not None)
    return Job(
        name=name,
        enabled=job.enabled,
        zone=job.timezone or spot.frame.zone,
        schedule=schedule,
        every=job.every,
        at=moment,
        calendars=calendar_days.days(job, job.timezone or spot.frame.zone, spot),
        reboot=reboot,
        stagger=_stagger(name, job, period, spot),
        misfire=job.misfire.policy,
        grace=_grace(job.misfire.grace, period),
        command=job.command,
        prompt=job.prompt,
        agent=job.agent,
        model=job.model,
        shell=job.shell,
        env=spot.variables(job.env, "env", used=job.enabled),
        workdir=spot.frame.path(job.workdir) if job.workdir else spot.frame.folder,
        stdin=job.stdin,
        timeout=job.timeout,
        async_timeout=job.async_timeout,
        strip_reasoning=job.strip_reasoning,
        retries=job.retries,
        rerun_after_crash=job.rerun_after_crash,
        deliver=job.deliver,
        wake_heartbeat=job.wake_heartbeat,
        wake_on=job.wake_on,
        wake_mode=job.wake_mode,
        wake_text=job.wake_text,
        on_failure_after=told.after,
        on_failure_remind=told.remind,
        on_failure_deliver=told.deliver,
    )


def _check_says_when(job: models.Job, spot: Spot) -> None:
    said = [key for key in ("schedule", "every", "at") if getattr(job, key) is not None or not spot.knows(key)]
    if len(said) > 1:
        spot.fault(removing(f"{' and '.join(said)} exclude each other", "keep one of them"), said[1])
    if not said and understood(spot, "schedule", "every", "at"):
        spot.fault(NO_TIME_SAID)


def _moment(job: models.Job, spot: Spot) -> OneTimeSchedule | None:
    if job.at is None:
        return None
    try:
        return once.parse_one_time(job.at, job.timezone or spot.frame.zone)
    except ScheduleError as error:
        spot.fault(of_moment(job.at, str(error)), "at")
        return None


def _schedule(job: models.Job, spot: Spot) -> CronSchedule | None:
    if job.schedule is None:
        return None
    try:
        schedule = parse_schedule(job.schedule, job.timezone or spot.frame.zone)
    except ScheduleError as error:
        least = spot.frame.min_interval if job.prompt is not None else NO_TIME
        spot.fault(of_schedule(job.schedule, str(error), "every", least), "schedule")
        return None
    for warning in schedule.warnings:
        spot.warn(warning, "schedule")
    return schedule


def _check_purpose(job: models.Job, spot: Spot, beats: Mapping[str, Heartbeat | None]) -> None:
    nothing = job.command is None and job.prompt is None and not job.wake_heartbeat
    if nothing and understood(spot, "command", "prompt", "wake_heartbeat"):
        spot.fault("nothing says what to do; write command: ./script.sh, prompt: TEXT with agent: NAME, or wake_heartbeat: AGENT")
    if job.prompt is not None:
        _check_prompt(job, spot, beats)
    spot.known(job.wake_heartbeat, beats, "agent", "wake_heartbeat")
    for index, agent in enumerate(job.wake_heartbeat):
        beat = beats.get(agent)
        if beat and not beat.enabled:
            spot.warn(f"the heartbeat of {agent} is disabled, so that it will not wake", "wake_heartbeat", index)
        elif beat and job.wake_mode == "next" and beat.interval is None and beat.schedule is None:
            spot.warn(f"{agent} has no next slot, and hears of this when somebody else wakes it; write now", "wake_mode")


def _check_prompt(job: models.Job, spot: Spot, beats: Mapping[str, Heartbeat | None]) -> None:
    """A prompt is for one agent, which is there and is not switched off."""
    if job.command is not None:
        wrong = removing("prompt and command exclude each other", "keep one of them, or write a second job")
        spot.fault(wrong, "prompt")
    if job.agent is None:
        if understood(spot, "agent"):
            spot.fault("nothing says who is asked; write agent: NAME", "prompt")
        return
    spot.known((job.agent,), beats, "agent", "agent", several=False)
    if job.enabled and (beat := beats.get(job.agent)) and not beat.enabled:
        spot.fault(
            f"{job.agent} is disabled, and nobody asks it; write heartbeat: {{interval: none}} there for one that only jobs ask",
            "agent",
        )


OF_A_PROMPT = ("budget", "agent", "model", "async_timeout", "strip_reasoning")
OF_A_COMMAND = ("env", "workdir", "stdin", "shell")


def _check_heeded(job: models.Job, spot: Spot) -> None:
    """Note what the job writes itself and nothing would heed; what it inherits is for those whom it fits."""
    if spot.wrote("stagger") and (job.stagger or not spot.knows("stagger")):
        _check_stagger(job, spot)
    for key in OF_A_PROMPT:
        if job.prompt is None and spot.wrote(key) and understood(spot, "prompt"):
            spot.fault(removing("nobody is asked, for there is no prompt", f"remove {key}, or write prompt: TEXT"), key)
    for key in OF_A_COMMAND:
        if job.prompt is not None and job.command is None and spot.wrote(key) and understood(spot, "command"):
            spot.fault(removing("this is for a command, and a prompt runs none", f"remove {key}"), key)


def _check_stagger(job: models.Job, spot: Spot) -> None:
    if job.schedule is not None and is_reboot(job.schedule):
        spot.fault(removing("@reboot is when the daemon starts, and is not put off", "remove stagger"), "stagger")
    elif job.at is not None and isinstance(job.stagger, float):
        words = "write a duration, such as 10m"
        spot.fault(Wrong("what comes once has no period to take a part of", Remedy("10m"), words=words), "stagger")
    elif job.at is not None:
        spot.narrow(lambda value: not isinstance(share(value), float), "10m", "stagger")


def _check_often(job: models.Job, schedule: CronSchedule | None, spot: Spot) -> None:
    entry_timing.narrow(spot, "every")
    if job.every:
        entry_timing.check_interval(job.every, spot, "every")
    elif schedule:
        entry_timing.check_schedule(schedule, spot, "schedule")


def _stagger(name: str, job: models.Job, period: timedelta | None, spot: Spot) -> timedelta:
    part = job.stagger
    if period:
        spot.narrow(lambda value: fits_period(value, period), "10%", "stagger")
    if isinstance(part, float):
        return stagger_for(name, period * part) if period else NO_TIME
    if period and part > period:
        spot.fault(f"{written(part)} is more than the period of {written(period)}", "stagger")
    return stagger_for(name, part)


def _grace(grace: timedelta | None, period: timedelta | None) -> timedelta:
    if grace is not None:
        return grace
    return min(period / 2, LONGEST_GRACE) if period else LONGEST_GRACE
