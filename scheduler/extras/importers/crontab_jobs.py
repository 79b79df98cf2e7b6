"""Converts crontab lines to jobs of the config: the same times, commands and environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cron.crontab_reader import PATH, SHELL, CrontabLine, Identity
from cron.job_names import JobNamer
from heartbeat.words import format_duration
from scheduler.config.file.text_editing import NewEntry

TIMEOUT = "24h"  # cron has no timeout; our default of ten minutes would stop jobs that cron let finish
NOT_FOR_COMMANDS = ("MAILTO", "RANDOM_DELAY", "LOGNAME")


@dataclass(frozen=True, slots=True)
class CrontabAccount:
    """The user who owns the crontab."""

    name: str
    home: str


def build_new_jobs(lines: Iterable[CrontabLine], account: CrontabAccount, taken: Collection[str]) -> list[NewEntry]:
    """The jobs of the lines, with names that are not `taken`. The same lines in the same order get the same names."""
    names = JobNamer(taken)
    return [NewEntry(names.free_name(line.command, line.name), build_job_keys(line, account), line.comment) for line in lines]


def build_job_keys(line: CrontabLine, account: CrontabAccount) -> Mapping[str, object]:
    """The keys of a job. cron sets HOME, SHELL, PATH and LOGNAME for a command, and starts it in the home folder."""
    given = {name: value for name, value in line.variables.items() if name not in NOT_FOR_COMMANDS}
    env = {"HOME": account.home, "LOGNAME": account.name, "PATH": PATH, "SHELL": SHELL, **given}
    shell = {} if env["SHELL"] == SHELL else {"shell": env["SHELL"]}
    stdin = {"stdin": line.stdin} if line.stdin else {}
    stagger = {"stagger": format_duration(line.max_delay)} if line.max_delay else {}
    return {
        "schedule": line.schedule_text,
        "timezone": line.zone.key,
        "command": line.command,
        **stdin,
        **shell,
        "workdir": env["HOME"],
        "env": env,
        **stagger,
        "timeout": TIMEOUT,
        "retries": 0,
    }


def find_missing_lines(lines: Sequence[CrontabLine], there: Iterable[Identity]) -> list[CrontabLine]:
    """The lines without a job. A line that occurs twice needs two jobs."""
    left = Counter(there)
    found = []
    for line in lines:
        if left[line.identity]:
            left[line.identity] -= 1
        else:
            found.append(line)
    return found
