"""Writing jobs as a crontab: the lines have the same meaning, and comments explain everything that a line cannot express."""

from __future__ import annotations

import pwd
import shlex
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from config_file import read as read_config
from hypothesis import given
from hypothesis import strategies as st
from loops import loop_over

from cron import crontab_reader
from cron.crontab_writer import ExportedJob, TargetHost, format_crontab
from cron.job import Job
from cron.job_schedules import parse_one_time, parse_schedule
from heartbeat.hours import ALL_DAYS, AllowedDays, Calendar
from scheduler.config.keys import time_zones
from scheduler.extras.importers import convert_crontab

BERLIN = ZoneInfo("Europe/Berlin")
TOKYO = ZoneInfo("Asia/Tokyo")
HOST = TargetHost(BERLIN, "/home/me")
JOB = Job(
    name="job",
    zone=BERLIN,
    schedule=parse_schedule("0 3 * * *", BERLIN),
    calendars=ALL_DAYS,
    grace=timedelta(hours=1),
    command="backup",
    workdir=Path("/home/me"),
)


def text(*jobs: Job, **env: str) -> str:
    return format_crontab([ExportedJob(job, env) for job in jobs], HOST)


def lines(*jobs: Job, **env: str) -> list[str]:
    return [line for line in text(*jobs, **env).splitlines() if line and line != "# heartbeatd: cron/job"]


FIELDS = st.sampled_from(["*", "*/7", "0", "1,5", "2-4", "1-5/2"])
DAYS_OF_WEEK = st.sampled_from(["*", "fri-mon", "6-1", "mon,wed", "7", "5-7", "*/2"])
TIMES = st.one_of(
    st.builds("{} {} {} {} {}".format, FIELDS, FIELDS, FIELDS.filter(lambda field: field != "0"), st.just("*"), DAYS_OF_WEEK),
    st.sampled_from(["@daily", "@Hourly", "@reboot", "  0  3 * * * "]),
)
COMMANDS = st.text(st.sampled_from("ab%\\'\" $#=-*5/"), min_size=1).map(lambda found: f"run {found}")
INPUTS = st.one_of(st.just(""), st.text(st.sampled_from("ab% \n")).map(lambda found: f"{found}\n"))


@st.composite
def any_jobs(draw: st.DrawFn) -> list[Job]:
    found = []
    for number in range(draw(st.integers(1, 4))):
        time, zone = draw(TIMES), draw(st.sampled_from([BERLIN, TOKYO]))
        reboot = time == "@reboot"
        schedule = None if reboot else parse_schedule(time, zone)
        found.append(
            replace(JOB, name=f"job{number}", schedule=schedule, reboot=reboot, command=draw(COMMANDS), stdin=draw(INPUTS))
        )
    return found


@given(any_jobs())
def test_exporting_and_importing_gives_the_same_jobs(jobs: list[Job]) -> None:
    found = crontab_reader.read_crontab(
        format_crontab([ExportedJob(job, {}) for job in jobs], HOST), BERLIN, time_zones.find_zone
    )
    assert found.errors == ()
    assert [(line.schedule and line.schedule.key(), line.command, line.stdin) for line in found.lines] == [
        (job.schedule and job.schedule.key(), job.command, job.stdin) for job in jobs
    ]


@given(st.lists(st.text(min_size=1), min_size=1))
def test_a_list_is_quoted_for_the_shell_or_not_exported(argv: list[str]) -> None:
    found = crontab_reader.read_crontab(text(replace(JOB, command=("run", *argv))), BERLIN, time_zones.find_zone)
    assert found.errors == ()
    assert [shlex.split(line.command) for line in found.lines] in ([["run", *argv]], [])


def test_a_job_is_a_line_under_its_name() -> None:
    assert text(JOB) == "\n# heartbeatd: cron/job\n0 3 * * * backup\n"


def test_variables_are_set_once_and_the_workdir_is_home() -> None:
    twice = lines(JOB, replace(JOB, workdir=Path("/srv")), A="1", PATH="/bin")
    assert twice == [
        "PATH=/bin",
        "A=1",
        "0 3 * * * backup",
        "# cron starts a command in HOME; here HOME is not the job's workdir",
        "HOME=/srv",
        "0 3 * * * backup",
    ]


def test_a_variable_of_another_job_gets_a_comment_because_it_cannot_be_unset() -> None:
    found = format_crontab([ExportedJob(JOB, {"A": "1"}), ExportedJob(replace(JOB, name="two"), {})], HOST)
    assert "# A is set above, and a crontab cannot unset it; here this job does not have it\n" in found
    secret = format_crontab([ExportedJob(JOB, {"A": "1"}), ExportedJob(replace(JOB, name="two"), {}, ("A",))], HOST)
    assert "# A holds a secret; set it here\n" in secret and "unset" not in secret


def test_what_cron_sets_itself_is_not_taken_from_the_environment_of_a_job() -> None:
    found = format_crontab([ExportedJob(JOB, {"LOGNAME": "backup", "SHELL": "/bin/zsh"})], HOST)
    assert "LOGNAME" not in found
    assert "zsh" not in found


def test_a_secret_is_named_but_not_shown() -> None:
    assert "# TOKEN holds a secret; set it here\n" in format_crontab([ExportedJob(JOB, {}, ("TOKEN",))], HOST)


def test_a_shell_of_its_own_is_set_and_set_back_for_a_list() -> None:
    found = lines(replace(JOB, shell="/bin/bash"), replace(JOB, shell="/bin/bash", command=("echo", "a b")))
    assert found == ["SHELL=/bin/bash", "0 3 * * * backup", "SHELL=/bin/sh", "0 3 * * * echo 'a b'"]


def test_another_time_zone_is_set_with_a_comment() -> None:
    assert lines(replace(JOB, schedule=parse_schedule("0 3 * * *", TOKYO))) == [
        "# cronie reads the lines below in this time zone; Debian's cron ignores it and uses its own",
        "CRON_TZ=Asia/Tokyo",
        "0 3 * * * backup",
    ]


def test_a_wrapped_range_of_weekdays_is_written_out_for_debians_cron() -> None:
    assert lines(replace(JOB, schedule=parse_schedule("0 3 * * fri-mon", BERLIN))) == ["0 3 * * 0,1,5,6 backup"]


@loop_over(
    ("change", "comment"),
    [
        (
            {"schedule": None, "every": timedelta(hours=6)},
            "it runs every 6:00:00 (h:mm:ss) of elapsed time, and a crontab only supports times of day",
        ),
        (
            {"schedule": None, "at": parse_one_time("2026-12-24T18:00", BERLIN)},
            "it runs once, and a crontab only supports repeated jobs",
        ),
        ({"schedule": parse_schedule("0 3 L * *", BERLIN)}, "a crontab does not support the L and # of 0 3 L * *"),
        ({"schedule": parse_schedule("0 3 * * fri#2", BERLIN)}, "a crontab does not support the L and # of 0 3 * * fri#2"),
        (
            {"command": None, "prompt": "what is new?", "agent": "ops"},
            "it sends a prompt to ops, and a crontab can only run commands",
        ),
        ({"command": "one\ntwo"}, "its command has several lines or unprintable characters; put it into a script"),
        ({"command": "*/5 x"}, "a crontab would read its command or its stdin differently; put them into a script"),
        ({"stdin": "no end"}, "a crontab would read its command or its stdin differently; put them into a script"),
        ({"stdin": "a\\\nb\n"}, "a crontab would read its command or its stdin differently; put them into a script"),
    ],
)
def test_settings_that_a_crontab_cannot_express_are_comments_with_the_reason(change: dict[str, object], comment: str) -> None:
    assert lines(replace(JOB, **change)) == [f"# not in this crontab: {comment}"]  # type: ignore[arg-type]


def test_settings_that_a_line_leaves_out_are_named() -> None:
    weekdays = AllowedDays(BERLIN, Calendar(weekdays=frozenset({5, 6})))
    job = replace(JOB, calendars=weekdays, retries=2, stagger=timedelta(minutes=2), deliver=("phone",))
    assert lines(replace(job, wake_heartbeat=("ops",), wake_on="failure")) == [
        "# its calendars are left out: it also fires on the days that they exclude",
        "# retries: 2 is left out: a failed command is not retried",
        "# stagger is left out: it starts on the minute instead of 0:02:00 later",
        "# its output is not sent to phone, cron mails it",
        "# it wakes ops on failure; the command for a crontab line: heartbeatd wake ops",
        "0 3 * * * backup",
    ]


def test_a_job_that_only_wakes_is_the_line_that_would_wake() -> None:
    assert lines(replace(JOB, command=None, wake_heartbeat=("ops", "web"))) == [
        "# it only wakes; the line for it would be: 0 3 * * * heartbeatd wake ops; heartbeatd wake web"
    ]


def test_a_disabled_job_is_a_comment() -> None:
    assert lines(replace(JOB, enabled=False)) == ["# disabled: 0 3 * * * backup"]


def test_the_command_exports_the_config_without_its_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from scheduler.cli.main import main

    read_config(
        tmp_path,
        'defaults: {cron: {env: {TOKEN: "${TOKEN}"}}}\n'
        "cron:\n"
        '  nightly: {schedule: "0 3 * * *", timezone: Europe/Berlin, command: ./backup.sh, env: {A: b}}\n'
        "  often: {every: 6h, command: look}\n",
    )
    assert main(["cron", "export", "--timezone", "Europe/Berlin", "-c", str(tmp_path / "config.yaml")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# The jobs of config.yaml, for crontab(1).")
    assert f"\nHOME={tmp_path}\nA=b\n0 3 * * * ./backup.sh\n" in out
    assert "# TOKEN holds a secret; set it here\n" in out
    assert "# heartbeatd: cron/often\n# not in this crontab: it runs every 6:00:00" in out


def test_a_percent_sign_in_the_config_s_path_does_not_end_the_line_that_wakes() -> None:
    host = TargetHost(BERLIN, "/home/deploy", "heartbeatd -c '/srv/50% off/config.yaml' wake")
    text = format_crontab([ExportedJob(replace(JOB, command=None, wake_heartbeat=("ops",)), {})], host)
    assert text.endswith(r"0 3 * * * heartbeatd -c '/srv/50\% off/config.yaml' wake ops" + "\n")


def test_names_survive_export_and_import() -> None:
    jobs = [replace(JOB, name=name, workdir=Path(f"/{name}"), command="date") for name in ("x", "date", "a" * 63)]
    out = format_crontab(
        [
            ExportedJob(jobs[0], {}),
            ExportedJob(replace(JOB, name="gone", command=None, every=None), {}),
            *(ExportedJob(job, {}) for job in jobs[1:]),
        ],
        HOST,
    )
    found = crontab_reader.read_crontab(out + "\n0 3 * * * mine\n", BERLIN, time_zones.find_zone).lines
    assert [line.name for line in found] == ["x", "date", "a" * 63, ""]
    entries = convert_crontab.build_new_jobs(found, pwd.struct_passwd(("me", "", 0, 0, "", "/home/me", "")), {"x", "a" * 63})
    assert [entry.name for entry in entries] == ["x-2", "date", "a" * 50 + "-2", "mine"]
    assert not any("heartbeatd" in comment for entry in entries for comment in entry.comment)


def test_equal_zones_need_no_cron_tz() -> None:
    job = replace(JOB, schedule=parse_schedule("0 3 * * *", time_zones.find_zone("UTC")))
    assert "CRON_TZ" not in format_crontab([ExportedJob(job, {})], TargetHost(time_zones.find_zone("Etc/Zulu"), "/home/me"))
