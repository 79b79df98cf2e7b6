"""Reading a crontab as Debian's cron does. Its handling of quotes, percent signs and backslashes was tested with Debian's cron."""

from __future__ import annotations

from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from loops import loop_over

from cron.crontab_reader import (
    Crontab,
    format_assignment,
    join_command,
    parse_assignment,
    read_crontab,
    split_command,
)
from cron.job_names import JobNamer, name_from_command
from scheduler.config.keys import time_zones

BERLIN = ZoneInfo("Europe/Berlin")


def taken(text: str, *, user_column: bool = False) -> Crontab:
    return read_crontab(text, BERLIN, time_zones.find_zone, user_column=user_column)


def faults(text: str, *, user_column: bool = False) -> list[tuple[int, str]]:
    return [(note.number, note.text) for note in taken(text, user_column=user_column).errors]


def hints(text: str, *, user_column: bool = False) -> list[str]:
    return [f"{note.number}: {note.text}" for note in taken(text, user_column=user_column).hints]


@loop_over(
    ("text", "command", "stdin"),
    [
        ("backup", "backup", ""),
        ("backup --to 'a b'  ", "backup --to 'a b'  ", ""),
        (r"date +\%Y-\%m", "date +%Y-%m", ""),
        ("cat%one%two", "cat", "one\ntwo\n"),
        (r"cat%one%two\%\\%three%%", "cat", "one\ntwo%\\%three\n\n"),
        ("cat%a\\", "cat", "a\\\n"),
        ("cat%", "cat", ""),
        ("mail -s hi%%", "mail -s hi", "\n"),
        (r"printf 'a\\b' 'c\d' 'e\\\\f'", r"printf 'a\b' 'c\d' 'e\\f'", ""),
        (r"echo \\%x", "echo \\", "x\n"),
        ("echo \\", "echo \\", ""),
    ],
)
def test_a_percent_sign_ends_the_command_and_begins_its_input(text: str, command: str, stdin: str) -> None:
    assert split_command(text) == (command, stdin)


@given(st.text(alphabet="a%\\ '"))
@example("\\")
@example("\\\\%")
def test_every_command_can_be_written_so_that_it_reads_the_same(command: str) -> None:
    assert split_command(join_command(command, "")) == (command, "")


@given(st.text(alphabet="a%\\ "), st.text(alphabet="b%\n "))
def test_the_input_of_a_command_can_be_written_if_its_last_line_ends(command: str, lines: str) -> None:
    stdin = f"{lines}\n"
    assert split_command(join_command(command, stdin)) == (command, stdin)


@loop_over(
    ("line", "found"),
    [
        ("A = one two  ", ("A", "one two")),
        ('B="  quoted  "', ("B", "  quoted")),
        ("C=\"'x'\"", ("C", "x")),
        ("D = 'sq'", ("D", "sq")),
        ('"E"=e', ("E", "e")),
        ('G="it\'s"', ("G", "it's")),
        ("PATH=$HOME/bin:$PATH", ("PATH", "$HOME/bin:$PATH")),
        ("MAILTO=", ("MAILTO", "")),
        ('MAILTO=""', ("MAILTO", "")),
        ("H=a=b", ("H", "a=b")),
        ("I=5%", ("I", "5%")),
        ('J="a" b', None),
        ("K='a", None),
        ("0 5 * * * L=1 run", None),
        ("=x", None),
    ],
)
def test_a_line_sets_a_variable_as_debians_cron_has_it(line: str, found: tuple[str, str] | None) -> None:
    assert parse_assignment(line) == found


@given(st.text(st.characters(codec="utf-8")))
def test_a_variable_is_written_only_if_it_reads_the_same(value: str) -> None:
    line = format_assignment("NAME", value)
    assert line is None or parse_assignment(line) == ("NAME", value)


def test_variables_hold_for_the_lines_after_them() -> None:
    found = taken("0 1 * * * one\nA=1\nB=2\n0 2 * * * two\nA=3\n0 3 * * * three\n")
    assert [dict(line.variables) for line in found.lines] == [{}, {"A": "1", "B": "2"}, {"A": "3", "B": "2"}]


def test_cron_tz_is_the_zone_from_its_line_on_and_tz_is_only_a_variable() -> None:
    found = taken('TZ=Asia/Tokyo\n0 1 * * * one\nCRON_TZ=Asia/Tokyo\n0 1 * * * two\nCRON_TZ=""\n0 1 * * * three\n')
    assert [line.zone.key for line in found.lines] == ["Europe/Berlin", "Asia/Tokyo", "Europe/Berlin"]
    assert found.lines[0].variables == {"TZ": "Asia/Tokyo"}
    assert "does not change schedules" in found.hints[0].text


def test_lines_below_an_invalid_zone_are_errors() -> None:
    found = taken("CRON_TZ=Europe/Berln\n0 1 * * * one\nCRON_TZ=Europe/Paris\n0 1 * * * two\n")
    assert [line.command for line in found.lines] == ["two"]
    assert [note.number for note in found.errors] == [1, 2]
    assert "did you mean Europe/Berlin?" in found.errors[0].text
    assert "the CRON_TZ of line 1" in found.errors[1].text


def test_macros_and_reboot_are_accepted() -> None:
    found = taken("@daily one\n@reboot\ttwo\n@Midnight three\n")
    assert [(line.schedule_text, line.schedule is None, line.command) for line in found.lines] == [
        ("@daily", False, "one"),
        ("@reboot", True, "two"),
        ("@Midnight", False, "three"),
    ]


def test_blanks_and_tabs_separate_the_fields_and_are_kept_in_the_command() -> None:
    (line,) = taken(" \t17 *\t* *  *  echo  'a  b' \n").lines
    assert (line.schedule_text, line.command) == ("17 * * * *", "echo  'a  b' ")


def test_the_comment_right_above_a_line_belongs_to_it() -> None:
    found = taken("# a file\n\n# of the night\n#  long\n0 3 * * * one\n0 4 * * * two\n")
    assert [line.comment for line in found.lines] == [("of the night", "long"), ()]


def test_a_name_in_a_comment_is_that_of_the_next_line_only() -> None:
    found = taken("# heartbeatd: cron/night\n0 3 * * * backup\n0 4 * * * verify\n")
    assert [line.name for line in found.lines] == ["night", ""]


def test_a_user_column_is_read_if_there_is_one() -> None:
    (line,) = taken("17 * * * *\troot\tcd / && run-parts x\n", user_column=True).lines
    assert (line.user, line.command) == ("root", "cd / && run-parts x")


@loop_over(
    ("text", "message"),
    [
        ("hello", "is neither NAME=value nor five fields and a command, such as 0 3 * * * /usr/local/bin/backup"),
        ("0 3 * *", "is neither NAME=value nor five fields and a command, such as 0 3 * * * /usr/local/bin/backup"),
        ("0 3 * * *", "has no command"),
        ("@daily", "has no command"),
        ("0 3 * * * \u00a0\x0b", "has no command"),
        ("0 3 * * * \r\r", "has no command"),
        ("@dayly x", "'@dayly' is not a macro; write @daily"),
        ("99 3 * * * x", "minute '99' is out of range; write 0 to 59"),
        ("0 22-6 * * * x", "hour '22-6' ends before it starts; write 22-23,0-6"),
        ("0 0 3 * * * x", "has more than five time fields (* is the sixth), or is a line of an anacrontab; write five"),
        ("0 0 1 1 * mon-fri x", "has more than five time fields (mon-fri is the sixth), or is a line of an anacrontab; write five"),
        ("1 5 cron.daily run-parts --report x", "day-of-month 'cron.daily' is not a value; write *, */n, a, a-b or a-b/n with 1 to 31"),
        ("0 3 * * * a\0b", "contains the character U+0000"),
        ("0 3 * * * \udce9t\udce9", "the byte 0xe9 is not UTF-8; save the file as UTF-8"),
        ("1X=2", "'1X' is not the name of a variable"),
        ("A=${B}/x", "A holds ${, which cron leaves as it is and a config interpolates; set A in the commands instead"),
        ("RANDOM_DELAY=soon", "RANDOM_DELAY must be a whole number of minutes"),
        ("SHELL=", "SHELL is empty, so cron could not start any command; write a path, or remove the line"),
        ("HOME=''", "HOME is empty, so cron could not start any command; write a path, or remove the line"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_reported_by_number_and_the_others_are_read(text: str, message: str) -> None:
    found = taken(f"# first\n{text}\n0 4 * * * good\n")
    assert [(note.number, note.text) for note in found.errors] == [(2, message)]
    assert [line.command for line in found.lines] == ["good"]


def test_a_random_delay_longer_than_the_time_between_two_runs_is_rejected_and_ignored_for_reboot() -> None:
    found = taken("RANDOM_DELAY=90\n0 3 * * * daily\n0 * * * * hourly\n@reboot boot\n")
    assert [(note.number, note.text) for note in found.errors] == [
        (3, "may fire every 60 minutes, and RANDOM_DELAY is longer; set one of at most 60 above it")
    ]
    assert [(line.command, line.max_delay) for line in found.lines] == [("daily", timedelta(minutes=90)), ("boot", timedelta())]
    assert [note.number for note in found.hints if "RANDOM_DELAY does not delay" in note.text] == [4]


def test_a_path_in_place_of_the_user_means_that_there_is_no_user_column() -> None:
    assert faults("0 3 * * * /usr/bin/x\n", user_column=True) == [
        (1, "'/usr/bin/x' is not a user name; if the file has no user column, leave out --user-column")
    ]
    assert faults("0 3 * * * root\n", user_column=True) == [(1, "has no command")]


def test_a_comment_may_contain_any_bytes() -> None:
    assert taken("# caf\udce9 \0\n0 3 * * * x\n").errors == ()


def test_windows_line_breaks_are_removed_with_a_hint() -> None:
    found = taken("A=1\r\n0 3 * * * x\r\n0 4 * * * y\r\n")
    assert [(line.command, line.variables["A"]) for line in found.lines] == [("x", "1"), ("y", "1")]
    assert [(note.number, note.text[:21]) for note in found.hints] == [(line, "a Windows line break;") for line in (1, 2, 3)]


def test_a_last_line_without_a_line_break_is_read_with_a_hint() -> None:
    found = taken("0 3 * * * x")
    assert [line.command for line in found.lines] == ["x"]
    assert hints("0 3 * * * x") == ["1: the last line has no line break; Debian's cron then ignores the whole file"]


def test_an_empty_file_has_no_jobs() -> None:
    assert taken("") == taken("\n# only a comment\n\n") == Crontab((), (), ())


def test_twenty_thousand_lines_are_read() -> None:
    found = taken("".join(f"{number % 60} {number % 24} * * * /srv/run{number}\n" for number in range(20_000)))
    assert len(found.lines) == 20_000


@loop_over(
    ("text", "message"),
    [
        ("0 3 * * fri-mon x", "Debian's cron never runs on fri-mon, a range that runs backwards"),
        ("0 3 * * 6-1 x", "Debian's cron never runs on 6-1"),
        ("0 3 * * 5#3 x", "Debian's cron ignores everything from # on and runs 5#3 every week"),
        (r"0 3 * * * sed 's/\\/x/'", r"\\ is one backslash in Debian's cron and here"),
        ("-*/5 * * * * x", "a leading - keeps the line out of the system log in some crons"),
        ("MAILTO=ops@example.org", "cron mails output to ops@example.org; here a channel sends it: channels: "),
        ("LOGNAME=me", "cron does not let a crontab change LOGNAME"),
        ("CRON_TZ=UTC", "CRON_TZ sets the time zone of the lines below, as in cronie; Debian's cron does not support it"),
    ],
)
def test_a_line_that_debians_cron_reads_differently_gets_a_hint(text: str, message: str) -> None:
    (hint,) = hints(f"{text}\n")
    assert hint.startswith(f"1: {message}")


@pytest.mark.parametrize("text", ["0 3 * * mon-fri x", "0 3 * * 5-7 x", 'MAILTO=""', "PATH=/bin", "0 3 * * * x -1"])
def test_an_ordinary_line_gets_no_hint(text: str) -> None:
    assert hints(f"{text}\n") == []


@loop_over(
    ("command", "name"),
    [
        ("/usr/local/bin/backup.sh --full", "backup"),
        ("cd / && run-parts --report /etc/cron.hourly", "cron.hourly"),
        ("test -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.daily; }", "cron.daily"),
        ("[ -x /usr/lib/php/clean ] && if [ ! -d /run/systemd/system ]; then /usr/lib/php/clean; fi", "clean"),
        ("perl -e 'sleep int(rand(43200))' && certbot -q renew", "certbot"),
        ("if [ -x /a ] && [ $(date +%d) -le 7 ]; then /usr/share/mdadm/checkarray --all; fi", "checkarray"),
        ("nice -n 10 ionice -c3 /srv/index", "index"),
        ("python3 -u /srv/report.py daily", "report"),
        ("FOO=bar /srv/x", "x"),
        ("flock -n /run/lock.x /srv/sync", "sync"),
        ("bash -c 'one two'", "bash"),
        ("$HOME/bin/daily.job >> $HOME/out", "daily.job"),
        ("'/srv/a b/c'", "job"),
        ("...", "job"),
        ("/srv/übung", "bung"),
        ("/" + "x" * 300, "x" * 50),
    ],
)
def test_a_job_is_named_after_its_program(command: str, name: str) -> None:
    assert name_from_command(command) == name


def test_a_name_that_is_taken_gets_a_number() -> None:
    names = JobNamer({"backup", "backup-3"})
    assert [names.free_name(command) for command in ("backup a", "backup b", "restore", "backup c")] == [
        "backup-2",
        "backup-4",
        "restore",
        "backup-5",
    ]


@given(st.text())
def test_every_name_is_valid_in_the_config(command: str) -> None:
    from scheduler.config.keys.value_types import parse_name

    assert parse_name(name_from_command(command))


def test_the_comment_above_a_disabled_job_does_not_belong_to_the_next_job() -> None:
    example = "# Example of job definition:\n# .----- minute (0 - 59)\n# |  |  |  |  |\n# *  *  *  *  * user-name command to be executed\n"
    found = taken(f"{example}17 * * * * one\n# old\n# @daily old\n# new\n0 4 * * * two\n")
    assert [line.comment for line in found.lines] == [(), ("new",)]
