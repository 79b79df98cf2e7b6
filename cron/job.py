"""The settings of one cron job with all defaults filled in, the process that it starts, and when it wakes agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, Protocol
from zoneinfo import ZoneInfo

from cron.job_schedules import CronSchedule, OneTimeSchedule

WakeOn = Literal["always", "success", "failure"]
WakeMode = Literal["now", "next"]
Misfire = Literal["latest", "skip"]
SHELL_ERRORS = {126: "the shell could not run a program", 127: "the shell found no such program"}  # by exit code


class CalendarDays(Protocol):
    """The days that calendars leave to a job; `key` is the same text for the same days. `only` None: all but those left out."""

    @property
    def always(self) -> bool: ...
    @property
    def only(self) -> object | None: ...
    def open_at(self, now: datetime) -> bool: ...
    def key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Job:
    """One cron job as declared; exactly one of `schedule`, `every`, `at` and `reboot` says when, and `calendars` on which days.

    `command` is text for `shell`, or an argv that no shell sees; `prompt` is what `agent` is asked instead, by `model` if that is
    not None; a job with neither only wakes. `env` values may be opaque secrets. `stagger` is added to the slot to get the due
    time; the slot itself stays the nominal instant. `zone` is that of its schedule and its days. After `on_failure_after`
    failures in a row (0: never) it is told on `on_failure_deliver`, where that is empty on `deliver`, and again after each
    `on_failure_remind`. `async_timeout` and `strip_reasoning` are about the answer to its prompt: how long one that comes later
    may take, and whether a leading `<think>` block is left out of what is delivered.
    """

    name: str
    enabled: bool
    zone: ZoneInfo
    schedule: CronSchedule | None
    every: timedelta | None
    at: OneTimeSchedule | None
    calendars: CalendarDays
    reboot: bool
    stagger: timedelta
    misfire: Misfire
    grace: timedelta
    command: str | tuple[str, ...] | None
    prompt: str | None
    agent: str | None
    model: str | None
    shell: str
    env: Mapping[str, object]
    workdir: Path
    stdin: str
    timeout: timedelta
    retries: int
    rerun_after_crash: bool
    deliver: tuple[str, ...]
    wake_heartbeat: tuple[str, ...]
    wake_on: WakeOn
    wake_mode: WakeMode
    wake_text: str | None
    on_failure_after: int = 0
    on_failure_remind: timedelta = timedelta(0)
    on_failure_deliver: tuple[str, ...] = ()
    async_timeout: timedelta = timedelta(hours=1)
    strip_reasoning: bool = True


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """A process to start. `env` is all that it gets beside PATH, HOME and LANG; its values may be opaque secrets."""

    argv: tuple[str, ...]
    env: Mapping[str, object]
    cwd: Path
    stdin: bytes


def job_process(job: Job, marks: Mapping[str, str]) -> ChildProcess:
    """The process of a job that has a command; `marks` are the daemon's own variables and win over the job's."""
    assert job.command is not None, "a job that only wakes starts no process"
    argv = (job.shell, "-c", job.command) if isinstance(job.command, str) else job.command
    return ChildProcess(argv, {**job.env, **marks}, job.workdir, job.stdin.encode())


def wakes_after(job: Job, succeeded: bool) -> bool:
    """Whether a run that ended so wakes the heartbeats that the job names."""
    return job.wake_on == "always" or (job.wake_on == "success") is succeeded
