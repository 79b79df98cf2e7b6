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
    """The days on which calendars allow a job to run. `only` is None if all days are allowed except the excluded ones. `key` is
    the same text for the same days.
    """

    @property
    def always(self) -> bool: ...
    @property
    def only(self) -> object | None: ...
    def open_at(self, now: datetime) -> bool: ...
    def key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Job:
    """One cron job as it is configured. Exactly one of `schedule`, `every`, `at` and `reboot` says when it runs, and
    `calendars` say on which days.

    `command` is text for `shell`, or a list of arguments that is run without a shell. `prompt` is sent to `agent` instead, with
    `model` if that is not None. A job without both only wakes agents. `env` values may be opaque secrets. `stagger` is added to
    the slot to get the due time; the slot itself keeps its nominal time. `zone` is the time zone of its schedule and its days.
    After `on_failure_after` failures in a row (0: never) a failure notification goes to `on_failure_deliver`, or to `deliver`
    if that is empty, with a reminder after each `on_failure_remind`. `async_timeout` is how long a later answer to its prompt
    may take. `strip_reasoning` leaves out a leading `<think>` block of the answer from what is delivered.
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
    """A process to start. `env` is its whole environment except PATH, HOME and LANG. Its values may be opaque secrets."""

    argv: tuple[str, ...]
    env: Mapping[str, object]
    cwd: Path
    stdin: bytes


def job_process(job: Job, marks: Mapping[str, str]) -> ChildProcess:
    """The process for a job with a command. `marks` are the daemon's own variables, which override those of the job."""
    assert job.command is not None, "a job that only wakes starts no process"
    argv = (job.shell, "-c", job.command) if isinstance(job.command, str) else job.command
    return ChildProcess(argv, {**job.env, **marks}, job.workdir, job.stdin.encode())


def wakes_after(job: Job, succeeded: bool) -> bool:
    """Whether the job wakes its agents after a run with this result."""
    return job.wake_on == "always" or (job.wake_on == "success") is succeeded
