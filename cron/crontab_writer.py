"""Jobs as a crontab, and what a crontab cannot say of them as comments in it.

A command is written only if it reads back as the same, with the same input.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from cron import crontab_reader, setting
from cron.dst_changes import habits
from cron.expression import REBOOT
from cron.field import DAY, WEEKDAY
from cron.field import read as read_field
from cron.job import Job
from cron.job_names import heading
from cron.job_schedules import Schedule
from cron.percent import joined

ITS_OWN = ("SHELL", "PATH", "HOME")  # what cron sets by itself; LOGNAME it lets nobody change


@dataclass(frozen=True, slots=True)
class Said:
    """A job with its variables as they stand in the config; those that hold a secret are only named."""

    job: Job
    env: Mapping[str, str]
    secret: tuple[str, ...] = ()


class Unsayable(ValueError):
    """Why a job has no line."""


@dataclass(frozen=True, slots=True)
class Host:
    """Where the crontab will be read: the zone of its clock, its user's home, and how one of its users wakes an agent."""

    zone: ZoneInfo
    home: str
    wake: str = "heartbeatd wake"


def written(jobs: Iterable[Said], host: Host) -> str:
    """The text of a crontab of one user; empty if there are no jobs."""
    writer = _Writer(host)
    return "".join(f"{line}\n" for said in jobs for line in writer.lines(said))


class _Writer:
    """Knows what the lines so far have set, since a crontab can change a variable but never take it away."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._zone = host.zone
        self._set = {"SHELL": crontab_reader.SHELL, "PATH": crontab_reader.PATH, "HOME": host.home}

    def lines(self, said: Said) -> Iterator[str]:
        job = said.job
        yield ""
        yield f"# {heading(job.name)}"
        try:
            line = f"{_time(job)} {_command(job) or self._wake(job)}"
        except Unsayable as error:
            yield f"# not in this crontab: {error}"
            yield from self._wakes(job)
            return
        if job.command is None:
            yield f"# it only wakes; the line for it would be: {line}"
            return
        yield from (f"# {remark}" for remark in _left_out(job))
        yield from self._wakes(job)
        if not job.enabled:
            yield f"# disabled: {line}"
            return
        yield from self._move(job)
        yield from self._settings(said)
        yield line

    def _move(self, job: Job) -> Iterator[str]:
        zone = job.schedule.zone if job.schedule else self._zone
        if habits(zone) != habits(self._zone):
            self._zone = zone
            yield "# cronie reads the lines below in this zone; Debian's cron does not know CRON_TZ and reads them in its own"
            yield f"CRON_TZ={zone.key}"

    def _wakes(self, job: Job) -> Iterator[str]:
        if job.wake_heartbeat:
            when = "" if job.wake_on == "always" else f" on {job.wake_on}"
            yield f"# it wakes {', '.join(job.wake_heartbeat)}{when}; in a line of a crontab: {self._wake(job)}"

    def _wake(self, job: Job) -> str:
        return joined("; ".join(f"{self._host.wake} {agent}" for agent in job.wake_heartbeat), "")

    def _settings(self, said: Said) -> Iterator[str]:
        wanted = _environment(said)
        for name in said.secret:
            yield f"# {name} holds a secret; set it here"
        for name in self._set.keys() - wanted.keys() - set(said.secret):
            yield f"# {name} is set above, and a crontab cannot take it away again; here this job has it not"
        for name, value in wanted.items():
            if self._set.get(name) == value:
                continue
            line = setting.written(name, value)
            if line is None:
                yield f"# {name} cannot be set in a crontab as it is: {value!r}"
                continue
            if name == "HOME" and said.env.get("HOME") != value:
                yield "# cron starts a command in HOME; here that is its workdir, and HOME is another"
            self._set[name] = value
            yield line


def _environment(said: Said) -> dict[str, str]:
    """The variables that a job needs; what it does not say itself is as cron has it."""
    job = said.job
    shell = job.shell if isinstance(job.command, str) else crontab_reader.SHELL
    kept = {name: value for name, value in said.env.items() if name not in (*ITS_OWN, "LOGNAME")}
    return {"SHELL": shell, "PATH": said.env.get("PATH", crontab_reader.PATH), "HOME": str(job.workdir), **kept}


def _command(job: Job) -> str:
    """The command of a job as a line has it; empty for one that only wakes. Unsayable where no line would have the same."""
    if job.prompt is not None:
        raise Unsayable(f"it asks {job.agent}, and a crontab only runs commands")
    if job.command is None:
        return ""
    command = job.command if isinstance(job.command, str) else shlex.join(job.command)
    command = command.lstrip(crontab_reader.BLANKS)  # those at its end belong to the command, and make it another job
    if any(not sign.isprintable() and sign != "\t" for sign in command):
        raise Unsayable("its command has several lines, or signs that do not print; put it into a script")
    text = joined(command, job.stdin)
    if "\n" in text or not _reads_back(f"@daily {text}", command, job.stdin):
        raise Unsayable("a crontab would read its command or its stdin in another way; put them into a script")
    return text


def _reads_back(line: str, command: str, stdin: str) -> bool:
    try:
        found = crontab_reader.line(line, crontab_reader.UTC)
    except ValueError:
        return False
    return (found.command, found.stdin) == (command, stdin)


def _time(job: Job) -> str:
    """When it fires, as Debian's cron reads it."""
    if job.reboot:
        return REBOOT
    if job.every:
        raise Unsayable(f"it runs every {job.every} (h:mm:ss) of elapsed time, and a crontab only knows the clock")
    if job.schedule is None:  # at
        raise Unsayable("it fires once, and a crontab only knows what comes again")
    return _plain(job.schedule)


def _plain(schedule: Schedule) -> str:
    text = " ".join(schedule.text.split())
    if text.startswith("@"):
        return text.lower()
    fields = text.split(" ")
    if read_field(DAY, fields[2]).special or read_field(WEEKDAY, fields[4]).special:
        raise Unsayable(f"no crontab knows the L and # of {text}")
    if crontab_reader.wrapped(fields[4]):  # Debian's cron would never run it
        fields[4] = ",".join(map(str, read_field(WEEKDAY, fields[4]).listed))
    return " ".join(fields)


def _left_out(job: Job) -> Iterator[str]:
    """What a line leaves out of a job."""
    if not job.calendars.always:
        yield "its calendars are left out, it fires on the days that they leave out too"
    if job.retries:
        yield f"retries: {job.retries} is left out, a failed command waits for its next time"
    if job.stagger:
        yield f"stagger is left out, it starts on the minute and not {job.stagger} later"
    if job.deliver:
        yield f"its output is not told to {', '.join(job.deliver)}, cron mails it"
