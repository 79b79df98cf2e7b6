"""Reads the lines of a crontab as Debian's cron reads them (crontab(5), entry.c, env.c, do_command.c).

Debian's cron ignores the whole file if one line is wrong or if the last line has no line break. This reader keeps the correct
lines and reports each wrong line by its number. The rules for variables and percent signs were tested against Debian's cron.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from zoneinfo import ZoneInfo

from cron import job_names
from cron.expression import REBOOT, is_reboot
from cron.field import WEEKDAY, WEEKDAYS
from cron.job import Job
from cron.job_schedules import CronSchedule, ScheduleError, parse_schedule

BLANKS = " \t"
SHELL = "/bin/sh"
PATH = "/usr/bin:/bin"
UTC = ZoneInfo("UTC")

_FIVE_FIELDS = re.compile(r"((?:[^ \t]+[ \t]+){4}[^ \t]+)[ \t]*(.*)")
_FIRST_WORD = re.compile(r"([^ \t]+)[ \t]*(.*)")
_DAYS = "|".join(WEEKDAYS)
_TIME_FIELD = re.compile(rf"[*?]|[*0-9][*0-9,/-]*|(?:{_DAYS})(?:[,-](?:{_DAYS}))*", re.IGNORECASE)
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")
_WEEKDAY_RANGE = re.compile(r"([a-z0-9]+)-([a-z0-9]+)", re.IGNORECASE)

# A line NAME = value, by the rules of Debian's cron (env.c).
_ENV_BLANKS = r"[ \t\v\f\r]*"
_ASSIGNMENT = re.compile(
    rf"""(?:"(?P<double>[^"=]*)"|'(?P<single>[^'=]*)'|(?P<bare>[^ \t\v\f\r='"][^ \t\v\f\r=]*)){_ENV_BLANKS}={_ENV_BLANKS}"""
    rf"""(?:"(?P<in_double>[^"]*)"{_ENV_BLANKS}|'(?P<in_single>[^']*)'{_ENV_BLANKS}|(?P<plain>[^"' \t\v\f\r].*)?)"""
)
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# The percent signs of a command, by the rules of Debian's cron (do_command.c).
_ESCAPE = re.compile(r"\\([%\\])")
_END = re.compile(r"(?:[^\\%]+|\\.|\\\Z)*", re.DOTALL)
_TO_ESCAPE = re.compile(r"%|\\(?=[%\\]|\Z)")

Identity = tuple[str, object, str]


@dataclass(frozen=True, slots=True)
class CrontabLine:
    """One job of a crontab.

    `schedule` is its text, `when` what it means in its zone, None for @reboot. `settings` are the variables set above it, as they
    are written. `user` is None where the file has no column of users. `comment` are the lines of comment right above it,
    without those that stand over a line that is commented out. `name` is what our export calls it, if that wrote the line.
    """

    number: int
    schedule_text: str
    schedule: CronSchedule | None
    zone: ZoneInfo
    user: str | None
    command: str
    stdin: str
    variables: Mapping[str, str]
    comment: tuple[str, ...]
    name: str = ""

    @property
    def identity(self) -> Identity:
        return _make_identity(self.schedule, self.command, self.stdin)

    @property
    def max_delay(self) -> timedelta:
        """Up to how much later it may start; a start of the daemon is put off by nothing."""
        return timedelta(minutes=int(self.variables.get("RANDOM_DELAY", 0))) if self.schedule else timedelta()


@dataclass(frozen=True, slots=True)
class LineNote:
    """Something to say about a line, or about the whole file (line 0)."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Crontab:
    """What a file says: its jobs in order, the lines that are no use with the reason, and what else its owner should know."""

    lines: tuple[CrontabLine, ...]
    errors: tuple[LineNote, ...]
    hints: tuple[LineNote, ...]


def job_identity(job: Job) -> Identity:
    """What makes a job of the config the same as a line: when it fires, what it runs, what that reads.

    A line has no blanks before its command, and a list stands in it as the shell reads it.
    """
    command = shlex.join(job.command) if isinstance(job.command, tuple) else (job.command or "").lstrip(BLANKS)
    return _make_identity(job.schedule, command, job.stdin)


def read_crontab(text: str, zone: ZoneInfo, find_zone: Callable[[str], ZoneInfo], *, user_column: bool = False) -> Crontab:
    """The jobs of a crontab that ran in `zone`; `named` gives the zone of a name, or ValueError with one line.

    Bytes that are no UTF-8 are expected as lone surrogates.
    """
    reader = _CrontabReader(zone, find_zone, user_column)
    ends = text.split("\n")
    for number, line in enumerate(ends, 1):
        reader.read_line(number, line.removesuffix("\r"))
        if line.endswith("\r"):
            reader.add_hint(number, "a line end as on Windows; cron hands the extra character to the shell, here it is left out")
    if ends[-1]:
        reader.add_hint(len(ends), "the last line does not end; Debian's cron ignores the whole file for it")
    return Crontab(tuple(reader.lines), tuple(reader.errors), tuple(reader.hints))


def parse_line(text: str, zone: ZoneInfo, number: int = 0, *, user_column: bool = False) -> CrontabLine:
    """The job that one line is, without blanks at its start; ValueError with one line of text for one that is none."""
    schedule, rest = _split_schedule(text)
    when = None if is_reboot(schedule) else parse_schedule(schedule, zone)
    user, rest = _split_user(rest) if user_column else (None, rest)
    command, stdin = split_command(rest)
    _refuse_bad_command(command)
    return CrontabLine(number, schedule, when, zone, user, command, stdin, MappingProxyType({}), ())


@dataclass(slots=True)
class _CrontabReader:
    """What holds from the lines so far on."""

    host: ZoneInfo
    find_zone: Callable[[str], ZoneInfo]
    user_column: bool
    lines: list[CrontabLine] = field(default_factory=list)
    errors: list[LineNote] = field(default_factory=list)
    hints: list[LineNote] = field(default_factory=list)
    variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    zone: ZoneInfo | None = None
    zone_error: int = 0  # the line whose CRON_TZ names no zone
    comment: tuple[str, ...] = ()
    name: str = ""  # of the job to come

    def read_line(self, number: int, raw: str) -> None:
        text = raw.lstrip(BLANKS)
        if text.startswith("#"):
            self._read_comment(text[1:].strip())
            return
        comment, self.comment = self.comment, ()
        if not text:
            self.name = ""
            return
        try:
            _refuse_unreadable(text)
            if found := parse_assignment(text):
                self._set_variable(number, *found)
            else:
                self._add_job(number, text, comment)
        except ValueError as error:
            self.errors.append(LineNote(number, str(error)))

    def _read_comment(self, text: str) -> None:
        if name := job_names.name_in_comment(text):
            self.name = name
        else:
            self.comment = () if _is_job_text(text) else (*self.comment, text)

    def add_hint(self, number: int, text: str) -> None:
        self.hints.append(LineNote(number, text))

    def _add_job(self, number: int, text: str, comment: tuple[str, ...]) -> None:
        if text[0] == "-" and text[1:2] in "*@0123456789":
            self.add_hint(number, "a leading - keeps the line out of the system's log in some crons; here every run has its row")
            text = text[1:]
        if self.zone_error:
            raise ValueError(f"stands under the CRON_TZ of line {self.zone_error}, which is no time zone")
        found = parse_line(text, self.zone or self.host, number, user_column=self.user_column)
        placed = replace(found, variables=self.variables, comment=comment, name=self.name)
        self.name = ""
        _refuse_delay(placed)
        for hint in _differences_from_debian(placed, text):
            self.add_hint(number, hint)
        self.lines.append(placed)

    def _set_variable(self, number: int, name: str, value: str) -> None:
        if name == "CRON_TZ":
            self._set_zone(number, value)
            return
        _refuse_variable(name, value)
        if hint := _variable_hint(name, value):
            self.add_hint(number, hint)
        self.variables = MappingProxyType({**self.variables, name: value})

    def _set_zone(self, number: int, value: str) -> None:
        self.zone_error = number
        self.zone = self.find_zone(value) if value else None
        self.zone_error = 0
        self.add_hint(number, "CRON_TZ is taken at its word, as cronie does; Debian's cron does not know it")


def _is_job_text(text: str) -> bool:
    """Whether a comment is a job that somebody has put out of action, or the example of one: what stands over it is about it."""
    try:
        parse_line(text, UTC)
    except ValueError:
        return False
    return True


def _split_schedule(text: str) -> tuple[str, str]:
    """The schedule of a line and what is left. Raises ValueError."""
    found = (_FIRST_WORD if text.startswith("@") else _FIVE_FIELDS).fullmatch(text)
    if not found:
        raise ScheduleError("is neither NAME=value nor five fields and a command, such as 0 3 * * * /usr/local/bin/backup")
    schedule, rest = found.groups()
    return (REBOOT if is_reboot(schedule) else " ".join(schedule.split())), rest


def _split_user(rest: str) -> tuple[str, str]:
    found = _FIRST_WORD.fullmatch(rest)
    if not found:
        raise ValueError("has no user and no command")
    if not _USER.fullmatch(found[1]):
        raise ValueError(f"{found[1][:40]!r} is no name of a user; if the file has no such column, leave --user-column out")
    return found[1], found[2]


def _refuse_bad_command(command: str) -> None:
    if not command.strip():  # of blanks that cron does not know either, as a copied text may have them
        raise ValueError("has no command")
    word = command.split(None, 1)[0]
    if _TIME_FIELD.fullmatch(word):
        raise ValueError(f"has more than five time fields ({word} is the sixth), or is a line of an anacrontab; write five")


def _refuse_unreadable(text: str) -> None:
    for sign in text if not text.isascii() else ():
        if "\ud800" <= sign <= "\udfff":
            raise ValueError(f"the byte 0x{ord(sign) & 0xFF:02x} is not UTF-8; save the file as UTF-8")
    if "\0" in text:
        raise ValueError("holds the character U+0000")


def _refuse_variable(name: str, value: str) -> None:
    if not is_variable_name(name):
        raise ValueError(f"{name[:40]!r} is not the name of a variable")
    if name in ("SHELL", "HOME") and not value:
        raise ValueError(f"{name} is empty, and cron could start no command with it; write a path, or remove the line")
    if "${" in value:
        raise ValueError(f"{name} holds ${{, which cron takes as it is and a config fills in; set {name} in the commands instead")
    if name == "RANDOM_DELAY" and not (value.isascii() and value.isdigit() and len(value) < 5):
        raise ValueError("RANDOM_DELAY is a whole number of minutes")


def _refuse_delay(line: CrontabLine) -> None:
    if line.schedule and line.max_delay > line.schedule.shortest_period():
        minutes = line.schedule.shortest_period() // timedelta(minutes=1)
        often = f"{minutes} minutes" if minutes > 1 else "minute"
        raise ValueError(f"may fire every {often}, and RANDOM_DELAY is longer; set one of at most {minutes} above it")


def _variable_hint(name: str, value: str) -> str:
    """What the owner of a crontab should know of a variable."""
    if name == "MAILTO" and value:
        return (
            f"cron mails output to {value}; here a channel tells it: "
            'channels: {mail: "mailtos://USER:PASSWORD@HOST?to=ADDRESS"}, and deliver: mail in the jobs'
        )
    if name == "LOGNAME":
        return "cron does not let a crontab change LOGNAME; it is left out"
    if name == "TZ":
        return "TZ is only given to the commands; it moves no schedule (CRON_TZ does, where cron knows it)"
    return ""


def _differences_from_debian(found: CrontabLine, text: str) -> list[str]:
    """Where Debian's cron reads a line in another way than we do."""
    told = []
    if found.schedule is None and "RANDOM_DELAY" in found.variables:
        told.append("RANDOM_DELAY does not put off what runs at each start of the daemon")
    weekday = found.schedule_text.split()[-1]
    if "#" in weekday:
        told.append(
            f"Debian's cron passes over everything from # on and runs {weekday} every week; here it is that one of the month"
        )
    if has_wrapped_range(weekday):
        told.append(f"Debian's cron never runs on {weekday}, a range that goes backwards; here the week has no end")
    if "\\\\" in text:
        told.append(r"\\ is one backslash to Debian's cron, and so it is here; other crons hand both to the shell")
    return told


def has_wrapped_range(weekday: str) -> bool:
    """Whether a day-of-week field has a range over the end of the week, which only we read."""
    return any(_weekday_number(first) > _weekday_number(last) for first, last in _WEEKDAY_RANGE.findall(weekday))


def _weekday_number(day: str) -> int:
    return WEEKDAY.names[day.lower()] if day.lower() in WEEKDAY.names else int(day) if day.isdigit() else 0


def _make_identity(when: CronSchedule | None, command: object, stdin: str) -> Identity:
    return when.key() if when else REBOOT, command, stdin


def parse_assignment(text: str) -> tuple[str, str] | None:
    """Name and value; None for a line that sets nothing. `text` has no blanks at its start.

    `NAME=` alone sets the empty value, as in other crons; to Debian's it is a mistake.
    """
    found = _ASSIGNMENT.fullmatch(text)
    if not found:
        return None
    name = found["double"] or found["single"] or found["bare"] or ""
    value = (found["in_double"] or found["in_single"] or found["plain"] or "").rstrip(" \t\v\f\r")
    if len(value) >= 2 and value[0] in "'\"" and value[-1] == value[0]:
        value = value[1:-1]
    return name, value


def is_variable_name(text: str) -> bool:
    """Whether a shell could use a variable of this name."""
    return _VARIABLE_NAME.fullmatch(text) is not None


def format_assignment(name: str, value: str) -> str | None:
    """The line that sets it; None for a value that no line can set."""
    for line in (f"{name}={value}", f'{name}="{value}"', f"{name}='{value}'"):
        if value.isprintable() and (value or '"' in line) and parse_assignment(line) == (name, value):
            return line
    return None


def split_command(text: str) -> tuple[str, str]:
    r"""The command and its standard input.

    The first `%` that no backslash escapes ends the command. In the command `\%` is a percent sign and two backslashes are
    one; in the input `\%` is a percent sign and any other `%` a line break, and the last line is always ended.
    """
    end = _command_end(text)
    command = _ESCAPE.sub(r"\1", text[:end])
    given = text[end + 1 :].replace("\\%", "\0").replace("%", "\n").replace("\0", "%")
    return command, f"{given}\n" if given and not given.endswith("\n") else given


def join_command(command: str, stdin: str) -> str:
    """The text that `split` takes apart again; what no text can say (see docs/crontab.md) comes back as something else."""
    text = _TO_ESCAPE.sub(r"\\\g<0>", command)
    if not stdin:
        return text
    if stdin.endswith("\n") and stdin.strip("\n") and not stdin.endswith("\n\n"):
        stdin = stdin[:-1]
    return f"{text}%{stdin.replace('%', chr(92) + '%').replace(chr(10), '%')}"


def _command_end(text: str) -> int:
    found = _END.match(text)
    return found.end() if found else 0
