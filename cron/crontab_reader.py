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

    `schedule_text` is the schedule as written, `schedule` its meaning in `zone`, None for @reboot. `variables` are the
    variables that are set above the line. `user` is None if the file has no user column. `comment` holds the lines of comment
    right above the line, without those about a line that is commented out. `name` is the job name that our export wrote above
    the line.
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
        """The longest random delay before a start. A job at the start of the daemon is never delayed."""
        return timedelta(minutes=int(self.variables.get("RANDOM_DELAY", 0))) if self.schedule else timedelta()


@dataclass(frozen=True, slots=True)
class LineNote:
    """A remark about a line, or about the whole file (line 0)."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Crontab:
    """The content of a file: its jobs in order, the wrong lines with the reason, and hints for its owner."""

    lines: tuple[CrontabLine, ...]
    errors: tuple[LineNote, ...]
    hints: tuple[LineNote, ...]


def job_identity(job: Job) -> Identity:
    """What makes a configured job the same as a crontab line: when it fires, what it runs, and what it reads.

    A line has no blanks before its command, and a list of arguments is compared as the shell would write it.
    """
    command = shlex.join(job.command) if isinstance(job.command, tuple) else (job.command or "").lstrip(BLANKS)
    return _make_identity(job.schedule, command, job.stdin)


def read_crontab(text: str, zone: ZoneInfo, find_zone: Callable[[str], ZoneInfo], *, user_column: bool = False) -> Crontab:
    """The jobs of a crontab whose cron ran in `zone`. `find_zone` returns the zone of a name, or raises ValueError with one
    line.

    Bytes that are not UTF-8 must be passed as lone surrogates.
    """
    reader = _CrontabReader(zone, find_zone, user_column)
    ends = text.split("\n")
    for number, line in enumerate(ends, 1):
        reader.read_line(number, line.removesuffix("\r"))
        if line.endswith("\r"):
            reader.add_hint(number, "a Windows line break; cron passes the extra character to the shell, here it is removed")
    if ends[-1]:
        reader.add_hint(len(ends), "the last line has no line break; Debian's cron then ignores the whole file")
    return Crontab(tuple(reader.lines), tuple(reader.errors), tuple(reader.hints))


def parse_line(text: str, zone: ZoneInfo, number: int = 0, *, user_column: bool = False) -> CrontabLine:
    """The job in one line, which has no blanks at its start. Raises ValueError with one line of text if it is not a job."""
    schedule, rest = _split_schedule(text)
    when = None if is_reboot(schedule) else parse_schedule(schedule, zone)
    user, rest = _split_user(rest) if user_column else (None, rest)
    command, stdin = split_command(rest)
    _refuse_bad_command(command)
    return CrontabLine(number, schedule, when, zone, user, command, stdin, MappingProxyType({}), ())


@dataclass(slots=True)
class _CrontabReader:
    """The state that applies to the following lines."""

    host: ZoneInfo
    find_zone: Callable[[str], ZoneInfo]
    user_column: bool
    lines: list[CrontabLine] = field(default_factory=list)
    errors: list[LineNote] = field(default_factory=list)
    hints: list[LineNote] = field(default_factory=list)
    variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    zone: ZoneInfo | None = None
    zone_error: int = 0  # the line whose CRON_TZ is not a time zone
    comment: tuple[str, ...] = ()
    name: str = ""  # of the next job

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
            self.add_hint(number, "a leading - keeps the line out of the system log in some crons; here every run is recorded")
            text = text[1:]
        if self.zone_error:
            raise ValueError(f"is below the CRON_TZ of line {self.zone_error}, which is no time zone")
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
        self.add_hint(number, "CRON_TZ sets the time zone of the lines below, as in cronie; Debian's cron does not support it")


def _is_job_text(text: str) -> bool:
    """Whether a comment is a job that was commented out, or an example of one. The comment lines above it are then about that
    job.
    """
    try:
        parse_line(text, UTC)
    except ValueError:
        return False
    return True


def _split_schedule(text: str) -> tuple[str, str]:
    """The schedule of a line, and the rest. Raises ValueError."""
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
        raise ValueError(f"{found[1][:40]!r} is not a user name; if the file has no user column, leave out --user-column")
    return found[1], found[2]


def _refuse_bad_command(command: str) -> None:
    if not command.strip():  # also if it has only Unicode blanks, as copied text may have
        raise ValueError("has no command")
    word = command.split(None, 1)[0]
    if _TIME_FIELD.fullmatch(word):
        raise ValueError(f"has more than five time fields ({word} is the sixth), or is a line of an anacrontab; write five")


def _refuse_unreadable(text: str) -> None:
    for sign in text if not text.isascii() else ():
        if "\ud800" <= sign <= "\udfff":
            raise ValueError(f"the byte 0x{ord(sign) & 0xFF:02x} is not UTF-8; save the file as UTF-8")
    if "\0" in text:
        raise ValueError("contains the character U+0000")


def _refuse_variable(name: str, value: str) -> None:
    if not _VARIABLE_NAME.fullmatch(name):
        raise ValueError(f"{name[:40]!r} is not the name of a variable")
    if name in ("SHELL", "HOME") and not value:
        raise ValueError(f"{name} is empty, so cron could not start any command; write a path, or remove the line")
    if "${" in value:
        raise ValueError(
            f"{name} holds ${{, which cron leaves as it is and a config interpolates; set {name} in the commands instead"
        )
    if name == "RANDOM_DELAY" and not (value.isascii() and value.isdigit() and len(value) < 5):
        raise ValueError("RANDOM_DELAY must be a whole number of minutes")


def _refuse_delay(line: CrontabLine) -> None:
    if line.schedule and line.max_delay > line.schedule.shortest_period():
        minutes = line.schedule.shortest_period() // timedelta(minutes=1)
        often = f"{minutes} minutes" if minutes > 1 else "minute"
        raise ValueError(f"may fire every {often}, and RANDOM_DELAY is longer; set one of at most {minutes} above it")


def _variable_hint(name: str, value: str) -> str:
    """What the owner of a crontab should know about a variable. Empty if there is nothing to say."""
    if name == "MAILTO" and value:
        return (
            f"cron mails output to {value}; here a channel sends it: "
            'channels: {mail: "mailtos://USER:PASSWORD@HOST?to=ADDRESS"}, and deliver: mail in the jobs'
        )
    if name == "LOGNAME":
        return "cron does not let a crontab change LOGNAME; it is ignored"
    if name == "TZ":
        return "TZ is only passed to the commands; it does not change schedules (CRON_TZ does, in crons that support it)"
    return ""


def _differences_from_debian(found: CrontabLine, text: str) -> list[str]:
    """Remarks where Debian's cron reads the line differently."""
    hints = []
    if found.schedule is None and "RANDOM_DELAY" in found.variables:
        hints.append("RANDOM_DELAY does not delay a job that runs at each start of the daemon")
    weekday = found.schedule_text.split()[-1]
    if "#" in weekday:
        hints.append(
            f"Debian's cron ignores everything from # on and runs {weekday} every week; here it is only that day of the month"
        )
    if has_wrapped_range(weekday):
        hints.append(f"Debian's cron never runs on {weekday}, a range that runs backwards; here it continues into the next week")
    if "\\\\" in text:
        hints.append(r"\\ is one backslash in Debian's cron and here; other crons pass both to the shell")
    return hints


def has_wrapped_range(weekday: str) -> bool:
    """Whether a day-of-week field has a range over the end of the week, which Debian's cron does not support."""
    return any(_weekday_number(first) > _weekday_number(last) for first, last in _WEEKDAY_RANGE.findall(weekday))


def _weekday_number(day: str) -> int:
    return WEEKDAY.names[day.lower()] if day.lower() in WEEKDAY.names else int(day) if day.isdigit() else 0


def _make_identity(when: CronSchedule | None, command: object, stdin: str) -> Identity:
    return when.key() if when else REBOOT, command, stdin


def parse_assignment(text: str) -> tuple[str, str] | None:
    """The name and the value of a variable. None for a line that is not an assignment. `text` has no blanks at its start.

    Values are not expanded, and quotes around a value do not keep the blanks at its end. `NAME=` sets an empty value, as in
    other crons; Debian's cron rejects it.
    """
    found = _ASSIGNMENT.fullmatch(text)
    if not found:
        return None
    name = found["double"] or found["single"] or found["bare"] or ""
    value = (found["in_double"] or found["in_single"] or found["plain"] or "").rstrip(" \t\v\f\r")
    if len(value) >= 2 and value[0] in "'\"" and value[-1] == value[0]:
        value = value[1:-1]
    return name, value


def format_assignment(name: str, value: str) -> str | None:
    """The line that sets the variable. None if no line can set this value."""
    for line in (f"{name}={value}", f'{name}="{value}"', f"{name}='{value}'"):
        if value.isprintable() and (value or '"' in line) and parse_assignment(line) == (name, value):
            return line
    return None


def split_command(text: str) -> tuple[str, str]:
    r"""The command and its standard input.

    The first unescaped `%` ends the command. In the command `\%` is a percent sign and two backslashes are one. In the input
    `\%` is a percent sign, every other `%` is a line break, and the last line always ends with one.
    """
    found = _END.match(text)
    assert found is not None  # it matches anywhere
    end = found.end()
    command = _ESCAPE.sub(r"\1", text[:end])
    given = text[end + 1 :].replace("\\%", "\0").replace("%", "\n").replace("\0", "%")
    return command, f"{given}\n" if given and not given.endswith("\n") else given


def join_command(command: str, stdin: str) -> str:
    """The inverse of `split_command`. Commands that no line can express (see docs/crontab.md) come back changed."""
    text = _TO_ESCAPE.sub(r"\\\g<0>", command)
    if not stdin:
        return text
    if stdin.endswith("\n") and stdin.strip("\n") and not stdin.endswith("\n\n"):
        stdin = stdin[:-1]
    return f"{text}%{stdin.replace('%', chr(92) + '%').replace(chr(10), '%')}"
