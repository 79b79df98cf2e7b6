"""The commands `cron import` and `cron export`: convert crontabs to cron jobs and back."""

from __future__ import annotations

import os
import pwd
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import click

from cron import crontab_reader, crontab_writer
from cron.crontab_reader import PATH, SHELL, Crontab, CrontabLine, Identity, LineNote
from cron.job import Job
from cron.job_names import JobNamer
from cron.job_schedules import CronSchedule, SlotRange
from heartbeat.words import format_count, format_duration, list_names, one_line
from scheduler.cli import output
from scheduler.cli.config_edits import find_source_zone, parse_config, print_inherited, read_config, report_refusal, write_config
from scheduler.config.file.diagnostics import ConfigError, Diagnostics
from scheduler.config.file.text_editing import NewEntry, add_entries
from scheduler.config.keys import time_zones
from scheduler.config.settings import config_data, load
from scheduler.config.settings.secrets import has_reference
from scheduler.model import entry_schedule
from scheduler.model.expected_error import InputError
from scheduler.system import files

WEEK = timedelta(days=7)
MAX_LINE_NUMBERS = 5  # that a note lists; the rest is counted
TIMEOUT = "24h"  # cron has no timeout; our default of ten minutes would stop jobs that cron let finish
NOT_FOR_COMMANDS = ("MAILTO", "RANDOM_DELAY", "LOGNAME")


@load.pause_garbage_collection()
def import_jobs(file: str, user_column: bool, user: str | None, timezone: str | None, into: Path | None) -> int:
    """Print the jobs of a crontab, or add them to a config. Returns 1 if a line cannot be imported."""
    account = _find_account(user)
    found = crontab_reader.read_crontab(
        _read_crontab(file), find_source_zone(timezone), time_zones.find_zone, user_column=user_column
    )
    mine, foreign = _split_by_user(account, found)
    _print_notes(file, found, foreign, _general_notes(found, account))
    if not mine:
        click.echo("there is nothing to import", err=True)
    elif into is None:
        _print_jobs(mine, account)
    else:
        _add_to_config(mine, account, into, _next_step(file, user_column=user_column))
    return 1 if found.errors or foreign else 0


def print_crontab(user: str | None, timezone: str | None, path: Path) -> None:
    """Print the jobs of a config as a crontab."""
    jobs = load.load_config(path, os.environ, resolve_secrets=False).settings.jobs
    wake = f"heartbeatd -c {shlex.quote(str(path.absolute()))} wake"
    host = crontab_writer.TargetHost(find_source_zone(timezone), _find_account(user).pw_dir, wake)
    click.echo(f"# The jobs of {path.name}, for crontab(1). cron does not catch up on missed runs or stop commands that hang.")
    click.echo(crontab_writer.format_crontab(_jobs_to_export(path, jobs.values()), host), nl=False)


def _find_account(name: str | None) -> pwd.struct_passwd:
    """The user who owns the crontab."""
    try:
        return pwd.getpwnam(name) if name is not None else pwd.getpwuid(os.geteuid())
    except KeyError:
        raise InputError(
            f"{name or os.geteuid()} is not a user of this host; name the user of the commands with --user"
        ) from None


def _read_crontab(file: str) -> str:
    content = sys.stdin.buffer.read() if file == "-" else _read_file(Path(file))
    return content.decode(errors="surrogateescape").removeprefix("\ufeff")


def _read_file(path: Path) -> bytes:
    try:
        return files.read_file(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; other input can be piped into `import -`") from error


def _split_by_user(account: pwd.struct_passwd, found: Crontab) -> tuple[list[CrontabLine], list[LineNote]]:
    """The lines of this user, and a note for each line of another user, whose commands must not run as this one."""
    mine = [line for line in found.lines if line.user in (None, account.pw_name)]
    advice = "import it with --user into the config of that user's daemon"
    return mine, [
        LineNote(line.number, f"belongs to {line.user}, not to {account.pw_name}; {advice}")
        for line in found.lines
        if line.user not in (None, account.pw_name)
    ]


def _general_notes(found: Crontab, account: pwd.struct_passwd) -> list[LineNote]:
    """Notes about the file as a whole."""
    remarks = []
    users = {entry.pw_name for entry in pwd.getpwall()}
    if found.lines and all(line.user is None and line.command.split()[0] in users for line in found.lines):
        remarks.append(LineNote(0, "every command begins with a user name; is --user-column missing?"))
    remarks += [
        LineNote(
            line.number, "@reboot runs at each start of the daemon, not only of the host; run a permanent program as a service"
        )
        for line in found.lines
        if line.schedule is None
    ]
    if account.pw_uid != os.geteuid():
        remarks.append(LineNote(0, f"the commands belong to {account.pw_name}; the daemon runs them as its own user"))
    if any("MAILTO" not in line.variables for line in found.lines):
        remarks.append(
            LineNote(0, "cron mails the output of commands; here `heartbeatd show` prints it, and `deliver: CHANNEL` sends it")
        )
    return remarks


def _print_notes(file: str, found: Crontab, foreign: Sequence[LineNote], remarks: Sequence[LineNote]) -> None:
    for note in sorted((*found.errors, *foreign), key=lambda note: note.number):
        click.echo(f"{file}:{note.number}: {one_line(note.text)}", err=True)
    numbers: dict[str, list[int]] = {}
    for note in (*found.hints, *remarks):
        numbers.setdefault(one_line(note.text), []).append(note.number)
    for text, where in numbers.items():
        click.echo(f"hint: {_format_line_numbers(where)}{text}", err=True)


def _format_line_numbers(numbers: Sequence[int]) -> str:
    if not any(numbers):
        return ""
    return f"line{'' if len(numbers) == 1 else 's'} {list_names(list(map(str, numbers)), MAX_LINE_NUMBERS)}: "


def _print_jobs(lines: Sequence[CrontabLine], account: pwd.struct_passwd) -> None:
    made = build_new_jobs(lines, account, ())
    text = add_entries("", "cron", made)
    jobs = load.load_config(Path("config.yaml"), {}, resolve_secrets=False, content=text.encode()).settings.jobs
    click.echo(text, nl=False)
    click.echo(_verify_jobs(lines, made, jobs), err=True)


def _add_to_config(lines: Sequence[CrontabLine], account: pwd.struct_passwd, path: Path, next_step: str) -> None:
    before = read_config(path)
    new = _find_missing_lines(lines, map(crontab_reader.job_identity, _existing_jobs(path, before).values()))
    there = len(lines) - len(new)
    if not new:
        click.echo(f"nothing to add: {path} already has {format_count(there, 'job')} of this file")
        return
    root = parse_config(path, before)
    entries = build_new_jobs(new, account, config_data.map_at(root, "cron"))
    with report_refusal(path, before):
        after = add_entries(before.decode(), "cron", entries).encode()
    loaded = load.load_config(path, os.environ, resolve_secrets=False, content=after)
    proof = _verify_jobs(new, entries, loaded.settings.jobs)
    write_config(path, before, after)
    output.print_warnings(loaded.warnings)
    print_inherited(root, agents=False, jobs=True)
    click.echo(f"{path}: {format_count(len(new), 'job')} added" + (f", {there:,} already there" if there else ""))
    click.echo(proof)
    click.echo(f"next: {next_step}")


def build_new_jobs(lines: Iterable[CrontabLine], account: pwd.struct_passwd, taken: Collection[str]) -> list[NewEntry]:
    """The jobs of the lines, with names that are not `taken`. The same lines in the same order get the same names."""
    names = JobNamer(taken)
    return [NewEntry(names.free_name(line.command, line.name), _build_job_keys(line, account), line.comment) for line in lines]


def _build_job_keys(line: CrontabLine, account: pwd.struct_passwd) -> Mapping[str, object]:
    """The keys of a job. cron sets HOME, SHELL, PATH and LOGNAME for a command, and starts it in the home folder."""
    given = {name: value for name, value in line.variables.items() if name not in NOT_FOR_COMMANDS}
    env = {"HOME": account.pw_dir, "LOGNAME": account.pw_name, "PATH": PATH, "SHELL": SHELL, **given}
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


def _find_missing_lines(lines: Sequence[CrontabLine], there: Iterable[Identity]) -> list[CrontabLine]:
    """The lines without a job. A line that occurs twice needs two jobs."""
    left = Counter(there)
    found = []
    for line in lines:
        if left[line.identity]:
            left[line.identity] -= 1
        else:
            found.append(line)
    return found


def _next_step(file: str, *, user_column: bool) -> str:
    """What the user has to do next.

    `doctor` checks the user's own crontab, but may have no permission to read the system's files.
    """
    if user_column:
        there = "the file" if file == "-" else one_line(file)
        return f"remove the lines from {there}, or cron and the daemon both run them; `heartbeatd doctor` does not check this"
    return "remove the lines from the crontab, or cron and the daemon both run them; `heartbeatd doctor` looks for them there"


def _existing_jobs(path: Path, content: bytes) -> Mapping[str, Job]:
    """The jobs in the config; none if it has errors, which are reported when the new config is checked."""
    try:
        return load.load_config(path, os.environ, resolve_secrets=False, content=content).settings.jobs
    except ConfigError:
        return {}


def _verify_jobs(lines: Sequence[CrontabLine], entries: Sequence[NewEntry], jobs: Mapping[str, Job]) -> str:
    """Compare the jobs, as the daemon reads them, with the lines of the crontab, and sum up the next seven days.

    Raises InputError if a command or a schedule differs.
    """
    week = _NextWeek(output.utc_now())
    due = runs = 0
    later = timedelta()
    for line, entry in zip(lines, entries, strict=True):
        job = jobs[entry.name]
        found = week.find_slots(job.schedule)
        if line.identity != crontab_reader.job_identity(job):
            raise InputError(
                f"line {line.number} and cron/{entry.name} would differ because of defaults.cron; nothing was written"
            )
        due += found.count if found else 0
        runs += week.count_runs(job)
        later = max(later, timedelta() if line.max_delay else job.stagger)
    return f"{format_count(len(lines), 'job')}; the next 7 days: {_compare_runs(due, runs, later)}"


def _compare_runs(due: int, runs: int, later: timedelta) -> str:
    """How many of the crontab's runs the jobs will have, and how much later they are.

    There are fewer or later runs only if the jobs inherit calendars or a stagger.
    """
    if runs == due and not later:
        return f"{format_count(runs, 'run')}, at the same times as in the crontab"
    put_off = f", up to {format_duration(later)} later" if later else ""
    return f"{runs:,} of the crontab's {format_count(due, 'run')}{put_off}, because of defaults.cron"


class _NextWeek:
    """The scheduled times of the next seven days. Each schedule is computed once."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._known: dict[str, SlotRange | None] = {}

    def find_slots(self, schedule: CronSchedule | None) -> SlotRange | None:
        if schedule is None:
            return None
        key = schedule.key()
        if key not in self._known:
            self._known[key] = schedule.slots(self._now, self._now + WEEK)
        return self._known[key]

    def count_runs(self, job: Job) -> int:
        """How many of these times the daemon would run the job."""
        if not job.enabled:
            return 0
        if job.calendars.always:
            found = self.find_slots(job.schedule)
            return found.count if found else 0
        kept = entry_schedule.parse_schedule(entry_schedule.job_schedule_text(job), self._now).slots(self._now, self._now + WEEK)
        return kept.count if kept else 0


def _jobs_to_export(path: Path, jobs: Iterable[Job]) -> list[crontab_writer.ExportedJob]:
    written = config_data.read_config_data(path, os.environ, Diagnostics(str(path)))
    found = []
    for job in jobs:
        env = written.merged["cron"][job.name].get("env") or {}
        open_ = {name: value for name, value in env.items() if not has_reference(value)}
        found.append(crontab_writer.ExportedJob(job, open_, tuple(name for name in env if name not in open_)))
    return found
