"""What config.yaml says about one cron job, every default filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, Protocol
from zoneinfo import ZoneInfo

from cron.job_schedules import CronSchedule
from cron.once import OneTimeSchedule

WakeOn = Literal["always", "success", "failure"]
WakeMode = Literal["now", "next"]
Misfire = Literal["latest", "skip"]


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
