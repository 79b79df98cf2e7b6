"""Writes cron jobs as a crontab, with comments for everything that a crontab cannot express.

A command is written only if reading the line gives the same command and the same input.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from cron import crontab_reader
from cron.crontab_reader import format_assignment, join_command
from cron.dst_changes import zone_fingerprint
from cron.expression import REBOOT
from cron.field import DAY, WEEKDAY
from cron.field import parse_field as read_field
from cron.job import Job
from cron.job_names import name_comment
from cron.job_schedules import CronSchedule

SET_BY_CRON = ("SHELL", "PATH", "HOME")  # set by cron itself; LOGNAME cannot be changed at all


@dataclass(frozen=True, slots=True)
class ExportedJob:
    """A job with its variables as written in the config. Variables with a secret are only named."""

    job: Job
    env: Mapping[str, str]
    secret_names: tuple[str, ...] = ()


class NotExpressible(ValueError):
    """The reason why a job has no crontab line."""


@dataclass(frozen=True, slots=True)
class TargetHost:
    """The host that will read the crontab: its time zone, its user's home, and the command with which its users wake an agent."""

    zone: ZoneInfo
    home: str
    wake_command: str = "heartbeatd wake"


def format_crontab(jobs: Iterable[ExportedJob], host: TargetHost) -> str:
    """The text of one user's crontab. Empty if there are no jobs."""
    writer = _CrontabWriter(host)
    return "".join(f"{line}\n" for exported in jobs for line in writer.job_lines(exported))


class _CrontabWriter:
    """Knows the variables that are already set, because a crontab can change a variable but never unset it."""

    def __init__(self, host: TargetHost) -> None:
        self._host = host
        self._zone = host.zone
        self._set = {"SHELL": crontab_reader.SHELL, "PATH": crontab_reader.PATH, "HOME": host.home}

    def job_lines(self, exported: ExportedJob) -> Iterator[str]:
        job = exported.job
        yield ""
        yield f"# {name_comment(job.name)}"
        try:
            line = f"{_schedule_text(job)} {_command_text(job) or self._wake_command(job)}"
        except NotExpressible as error:
            yield f"# not in this crontab: {error}"
            yield from self._wake_lines(job)
            return
        if job.command is None:
            yield f"# it only wakes; the line for it would be: {line}"
            return
        yield from (f"# {remark}" for remark in _lost_settings(job))
        yield from self._wake_lines(job)
        if not job.enabled:
            yield f"# disabled: {line}"
            return
        yield from self._zone_lines(job)
        yield from self._variable_lines(exported)
        yield line

    def _zone_lines(self, job: Job) -> Iterator[str]:
        zone = job.schedule.zone if job.schedule else self._zone
        if zone_fingerprint(zone) != zone_fingerprint(self._zone):
            self._zone = zone
            yield "# cronie reads the lines below in this time zone; Debian's cron ignores it and uses its own"
            yield f"CRON_TZ={zone.key}"

    def _wake_lines(self, job: Job) -> Iterator[str]:
        if job.wake_heartbeat:
            when = "" if job.wake_on == "always" else f" on {job.wake_on}"
            yield f"# it wakes {', '.join(job.wake_heartbeat)}{when}; the command for a crontab line: {self._wake_command(job)}"

    def _wake_command(self, job: Job) -> str:
        return join_command("; ".join(f"{self._host.wake_command} {agent}" for agent in job.wake_heartbeat), "")

    def _variable_lines(self, exported: ExportedJob) -> Iterator[str]:
        wanted = _job_variables(exported)
        for name in exported.secret_names:
            yield f"# {name} holds a secret; set it here"
        for name in self._set.keys() - wanted.keys() - set(exported.secret_names):
            yield f"# {name} is set above, and a crontab cannot unset it; here this job does not have it"
        for name, value in wanted.items():
            if self._set.get(name) == value:
                continue
            line = format_assignment(name, value)
            if line is None:
                yield f"# {name} cannot be set in a crontab as it is: {value!r}"
                continue
            if name == "HOME" and exported.env.get("HOME") != value:
                yield "# cron starts a command in HOME; here HOME is not the job's workdir"
            self._set[name] = value
            yield line


def _job_variables(exported: ExportedJob) -> dict[str, str]:
    """The variables that a job needs. Those that it does not set itself have cron's values."""
    job = exported.job
    shell = job.shell if isinstance(job.command, str) else crontab_reader.SHELL
    kept = {name: value for name, value in exported.env.items() if name not in (*SET_BY_CRON, "LOGNAME")}
    return {"SHELL": shell, "PATH": exported.env.get("PATH", crontab_reader.PATH), "HOME": str(job.workdir), **kept}


def _command_text(job: Job) -> str:
    """The command of a job as it is written in a line. Empty for a job that only wakes. Raises NotExpressible if no line has
    the same meaning.
    """
    if job.prompt is not None:
        raise NotExpressible(f"it sends a prompt to {job.agent}, and a crontab can only run commands")
    if job.command is None:
        return ""
    command = job.command if isinstance(job.command, str) else shlex.join(job.command)
    command = command.lstrip(crontab_reader.BLANKS)  # blanks at its end belong to the command
    if any(not sign.isprintable() and sign != "\t" for sign in command):
        raise NotExpressible("its command has several lines or unprintable characters; put it into a script")
    text = join_command(command, job.stdin)
    if "\n" in text or not _reads_back(f"@daily {text}", command, job.stdin):
        raise NotExpressible("a crontab would read its command or its stdin differently; put them into a script")
    return text


def _reads_back(line: str, command: str, stdin: str) -> bool:
    try:
        found = crontab_reader.parse_line(line, crontab_reader.UTC)
    except ValueError:
        return False
    return (found.command, found.stdin) == (command, stdin)


def _schedule_text(job: Job) -> str:
    """The schedule in the notation of Debian's cron."""
    if job.reboot:
        return REBOOT
    if job.every:
        raise NotExpressible(f"it runs every {job.every} (h:mm:ss) of elapsed time, and a crontab only supports times of day")
    if job.after:
        raise NotExpressible(f"it runs after the job {job.after.job}, and a crontab only supports times of day")
    if job.schedule is None:  # at
        raise NotExpressible("it runs once, and a crontab only supports repeated jobs")
    return _plain_cron_text(job.schedule)


def _plain_cron_text(schedule: CronSchedule) -> str:
    text = " ".join(schedule.text.split())
    if text.startswith("@"):
        return text.lower()
    fields = text.split(" ")
    if read_field(DAY, fields[2]).special or read_field(WEEKDAY, fields[4]).special:
        raise NotExpressible(f"a crontab does not support the L and # of {text}")
    if crontab_reader.has_wrapped_range(fields[4]):  # Debian's cron would never run it
        fields[4] = ",".join(map(str, read_field(WEEKDAY, fields[4]).sorted_numbers))
    return " ".join(fields)


def _lost_settings(job: Job) -> Iterator[str]:
    """The settings of a job that its line cannot express."""
    if not job.calendars.always:
        yield "its calendars are left out: it also fires on the days that they exclude"
    if job.retries:
        yield f"retries: {job.retries} is left out: a failed command is not retried"
    if job.stagger:
        yield f"stagger is left out: it starts on the minute instead of {job.stagger} later"
    if job.deliver:
        yield f"its output is not sent to {', '.join(job.deliver)}, cron mails it"
