"""Tests of `cron import`: the jobs of a crontab are added to a config, and nothing else in the config changes."""

from __future__ import annotations

import io
import os
import pwd
import stat
import sys
from pathlib import Path

import pytest
from config_file import RIGHT, SMALL, read, write
from loops import loop_over

from cron import crontab_reader
from cron.job import Job
from scheduler.cli.main import main
from scheduler.config.file.diagnostics import Diagnostics
from scheduler.config.file.marked_yaml import parse_yaml as read_tree
from scheduler.config.file.text_editing import EditRefused, NewEntry, add_entries
from scheduler.config.keys import time_zones
from scheduler.system import files

ME = pwd.getpwuid(os.geteuid())
IN_BERLIN = ("--timezone", "Europe/Berlin")

# Lines like those of Debian's own files and packages.
SYSTEM = f"""\
# the system's own table
SHELL=/bin/sh
PATH=/usr/local/sbin:/usr/local/bin:/sbin:/bin:/usr/sbin:/usr/bin

17 *	* * *	{ME.pw_name}	cd / && run-parts --report /etc/cron.hourly
25 6	* * *	{ME.pw_name}	test -x /usr/sbin/anacron || {{ cd / && run-parts --report /etc/cron.daily; }}
47 6	* * 7	{ME.pw_name}	test -x /usr/sbin/anacron || {{ cd / && run-parts --report /etc/cron.weekly; }}
52 6	1 * *	{ME.pw_name}	test -x /usr/sbin/anacron || {{ cd / && run-parts --report /etc/cron.monthly; }}
# every ten minutes, and once to turn the day over
5-55/10 * * * * {ME.pw_name} command -v sa1 > /dev/null && sa1 1 1
59 23 * * * {ME.pw_name} command -v sa1 > /dev/null && sa1 60 2
09,39 *     * * *     {ME.pw_name}   [ -x /usr/lib/php/clean ] && if [ ! -d /run/systemd/system ]; then /usr/lib/php/clean; fi
57 0 * * 0 {ME.pw_name} if [ $(date +\\%d) -le 7 ]; then /usr/share/checkarray --all; fi
0 */12 * * * {ME.pw_name} test -x /usr/bin/certbot -a \\! -d /run/systemd/system && perl -e 'sleep int(rand(43200))' && certbot -q renew
@reboot         {ME.pw_name}    if [ -x /usr/sbin/look ]; then nice -n10 /usr/sbin/look -R; fi
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, list[str]]:
    """The exit code, the output and the lines of standard error."""
    code = main(["cron", "import", *map(str, arguments), *IN_BERLIN])
    captured = capsys.readouterr()
    return code, captured.out, captured.err.splitlines()


def table(folder: Path, text: str | bytes) -> Path:
    file = folder / "crontab"
    file.write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogateescape"))
    return file


def config(folder: Path, text: str = RIGHT) -> Path:
    read(folder, text)
    return folder / "config.yaml"


def jobs(folder: Path, text: str | bytes) -> dict[str, Job]:
    return dict(read(folder, text).settings.jobs)


def test_without_a_config_the_jobs_are_printed_and_summarized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, table(tmp_path, "# of the night\n0 3 * * * /srv/backup.sh --all\n"))
    home = f'{{HOME: {ME.pw_dir}, LOGNAME: {ME.pw_name}, PATH: "/usr/bin:/bin", SHELL: /bin/sh}}'
    assert code == 0
    assert out == (
        "cron:\n"
        "  # of the night\n"
        "  backup:\n"
        '    schedule: "0 3 * * *"\n'
        "    timezone: Europe/Berlin\n"
        "    command: /srv/backup.sh --all\n"
        f"    workdir: {ME.pw_dir}\n"
        f"    env: {home}\n"
        "    timeout: 24h\n"
        "    retries: 0\n"
    )
    assert err[-1] == "1 job; the next 7 days: 7 runs, at the same times as in the crontab"


@pytest.mark.parametrize("command", ["'backup  '", "' backup x'", "[backup, --all, a b]"])
def test_importing_an_exported_crontab_adds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    text = f'timezone: UTC\ncron:\n  a: {{schedule: "0 3 * * *", command: {command}, workdir: {ME.pw_dir}}}\n'
    path = write(tmp_path, text)
    assert main(["cron", "export", "-c", str(path), "--timezone", "UTC"]) == 0
    exported = table(tmp_path, capsys.readouterr().out)
    assert main(["cron", "import", str(exported), "--into", str(path), "--timezone", "UTC"]) == 0
    assert "nothing to add" in capsys.readouterr().out
    assert path.read_text() == text


def test_the_variables_above_a_line_become_the_environment_shell_and_workdir_of_its_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "SHELL=/bin/bash\nHOME=/srv\nA = b c\nMAILTO=me\nRANDOM_DELAY=90\nLOGNAME=x\n0 3 * * * cat%one%two\n"
    _, out, err = run(capsys, table(tmp_path, text))
    job = jobs(tmp_path, out)["cat"]
    assert (job.shell, job.workdir, job.command, job.stdin) == ("/bin/bash", Path("/srv"), "cat", "one\ntwo\n")
    assert job.env == {
        "HOME": "/srv",
        "LOGNAME": ME.pw_name,
        "PATH": "/usr/bin:/bin",
        "SHELL": "/bin/bash",
        "A": "b c",
    }
    assert job.stagger.total_seconds() > 0
    assert err[-1] == "1 job; the next 7 days: 7 runs, at the same times as in the crontab"


def test_a_system_crontab_is_imported_and_exported_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = config(tmp_path, SMALL)
    code, out, _ = run(capsys, table(tmp_path, SYSTEM), "--user-column", "--into", into)
    assert (code, out.splitlines()[0]) == (0, f"{into}: 10 jobs added")
    assert main(["check", "-c", str(into)]) == 0
    assert "1 agent, 10 jobs" in capsys.readouterr().out
    assert main(["cron", "export", "-c", str(into), *IN_BERLIN]) == 0
    berlin = time_zones.find_zone("Europe/Berlin")
    theirs = crontab_reader.read_crontab(SYSTEM, berlin, time_zones.find_zone, user_column=True)
    ours = crontab_reader.read_crontab(capsys.readouterr().out, berlin, time_zones.find_zone)
    assert [line.identity for line in ours.lines] == [line.identity for line in theirs.lines]


def test_an_import_changes_no_byte_outside_the_new_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = config(tmp_path, RIGHT + "# the end, my friend   \n\n\n")
    before = into.read_text().splitlines(keepends=True)
    assert run(capsys, table(tmp_path, "0 3 * * * one\n0 4 * * * two\n"), "--into", into)[0] == 0
    after = into.read_text().splitlines(keepends=True)
    new = len(after) - len(before)
    at = before.index("    wake_heartbeat: ops\n") + 1
    assert after[:at] + after[at + new :] == before
    assert after[at] == "  one:\n"


def test_importing_the_same_file_twice_adds_nothing_and_reports_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, into = table(tmp_path, "0 3 * * * one\n0 3 * * * one\n0 4 * * * one\n"), config(tmp_path)
    assert run(capsys, file, "--into", into)[1].splitlines()[0] == f"{into}: 3 jobs added"
    assert {"one", "one-2", "one-3"} <= jobs(tmp_path, into.read_bytes()).keys()
    once = into.read_bytes()
    assert run(capsys, file, "--into", into)[:2] == (0, f"nothing to add: {into} already has 3 jobs of this file\n")
    assert into.read_bytes() == once
    table(tmp_path, "0 5 * * * new\n0 3 * * * one\n0 3 * * * one\n0 4 * * * one\n")
    assert run(capsys, file, "--into", into)[1].splitlines()[0] == f"{into}: 1 job added, 3 already there"


def test_the_same_command_at_another_time_or_on_a_second_line_is_a_separate_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = config(tmp_path)
    run(capsys, table(tmp_path, "0 3 * * * one\n"), "--into", into)
    for text in ("0 4 * * * one\n", "0 3 * * * one\n0 3 * * * one\n", "CRON_TZ=Asia/Tokyo\n0 3 * * * one\n", "0 3 * * * one%x\n"):
        assert "1 job added" in run(capsys, table(tmp_path, text), "--into", into)[1]


def test_lines_of_another_user_are_rejected_with_the_name_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = table(tmp_path, f"0 3 * * * nobody-we-know x\n0 4 * * * {ME.pw_name} y\n")
    code, out, err = run(capsys, file, "--user-column")
    assert code == 1
    assert err[0].startswith(f"{file}:1: belongs to nobody-we-know, not to {ME.pw_name}; ")
    assert list(jobs(tmp_path, out)) == ["y"]


def test_a_missing_user_column_option_is_suggested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run(capsys, table(tmp_path, "0 3 * * * root x\n0 4 * * * root y\n"))
    assert "hint: every command begins with a user name; is --user-column missing?" in err


def test_invalid_lines_are_reported_by_number_and_the_others_are_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = table(tmp_path, b"0 3 * * * one\nnonsense\n99 * * * * two\n0 4 * * * caf\xe9\n0 5 * * * a\0b\n0 6 * * * three\r\n")
    code, out, err = run(capsys, file)
    assert code == 1
    assert [line.split(": ")[0] for line in err if line.startswith(str(file))] == [f"{file}:{number}" for number in (2, 3, 4, 5)]
    assert list(jobs(tmp_path, out)) == ["one", "three"]


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "A=1\n"])
def test_a_file_without_jobs_is_not_an_error(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, table(tmp_path, text))
    assert (code, out, err[-1]) == (0, "", "there is nothing to import")


def test_a_path_that_is_not_a_file_is_rejected_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "none"):
        code, out, err = run(capsys, path)
        assert (code, out, len(err)) == (2, "", 1)
        assert err[0].startswith(f"heartbeatd: {path} cannot be read: ")


def test_standard_input_is_read_for_a_dash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"0 3 * * * one")))
    code, out, err = run(capsys, "-")
    assert code == 0
    assert list(jobs(tmp_path, out)) == ["one"]
    assert "hint: line 1: the last line has no line break; Debian's cron then ignores the whole file" in err


def test_an_invalid_config_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = config(tmp_path)
    into.write_text(into.read_text().replace("interval: 30m", "interval: soon"))
    before = into.read_bytes()
    code, out, err = run(capsys, table(tmp_path, "0 3 * * * one\n"), "--into", into)
    assert (code, out) == (2, "")
    assert err[-1].startswith(f"{into}:14:17: agents.ops.heartbeat.interval: 'soon' is not a duration")
    assert into.read_bytes() == before
    assert list(tmp_path.glob(".config*")) == []


def test_an_error_in_the_config_is_reported_before_a_missing_place_for_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = config(tmp_path)
    into.write_text(f"{SMALL}cron: [a]\n")
    code, _, err = run(capsys, table(tmp_path, "0 3 * * * one\n"), "--into", into)
    assert (code, err[-1]) == (2, f"{into}:2:7: cron: this must be a map of names with values; write {{NAME: VALUE}}")


def test_a_config_that_everybody_may_write_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = config(tmp_path)
    into.chmod(0o666)
    code, _, err = run(capsys, table(tmp_path, "0 3 * * * one\n"), "--into", into)
    assert code == 2
    assert "everybody may write this file" in err[-1]


def test_the_keys_that_the_jobs_inherit_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = config(tmp_path, f"{SMALL}defaults: {{cron: {{deliver: log}}}}\n")
    _, _, err = run(capsys, table(tmp_path, "0 3 * * * one\n"), "--into", into)
    assert "hint: the new jobs inherit from defaults: cron.deliver" in err


@pytest.mark.parametrize(
    ("inherited", "summary"),
    [
        ("retries: 1", "14 runs, at the same times as in the crontab"),
        ("enabled: false", "0 of the crontab's 14 runs, because of defaults.cron"),
        ("only_on: workdays", "10 of the crontab's 14 runs, because of defaults.cron"),
        ("stagger: 10m", "14 of the crontab's 14 runs, up to 4m38s later, because of defaults.cron"),
    ],
)
def test_the_summary_counts_the_runs_of_the_next_week(
    inherited: str, summary: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yaml = f"calendars: {{workdays: {{days: mon-fri}}}}\ndefaults: {{cron: {{{inherited}}}}}\n"
    code, out, _ = run(capsys, table(tmp_path, "0 3 * * * one\n0 4 * * * two\n"), "--into", config(tmp_path, SMALL + yaml))
    assert (code, out.splitlines()[1]) == (0, f"2 jobs; the next 7 days: {summary}")


def test_jobs_that_inherited_keys_would_change_are_not_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = config(tmp_path, f"{SMALL}defaults: {{cron: {{stdin: hello}}}}\n")
    before = into.read_bytes()
    code, _, err = run(capsys, table(tmp_path, "0 3 * * * one\n"), "--into", into)
    assert code == 2
    assert err[-1] == "heartbeatd: line 1 and cron/one would differ because of defaults.cron; nothing was written"
    assert into.read_bytes() == before


def test_a_byte_order_mark_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = config(tmp_path, "\ufeffcron:\n  old: {schedule: '@daily', command: x}\n")
    assert run(capsys, table(tmp_path, "0 3 * * * one\n"), "--into", into)[0] == 0
    assert into.read_text().startswith("\ufeffcron:\n  old: {schedule: '@daily', command: x}\n  one:\n")


def test_jobs_are_added_to_a_config_without_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = tmp_path / "config.yaml"
    into.write_text("# mine\ntimezone: Europe/Berlin")
    assert run(capsys, table(tmp_path, "0 3 * * * one\n"), "--into", into)[0] == 0
    assert into.read_text().startswith("# mine\ntimezone: Europe/Berlin\n\ncron:\n  one:\n")


def test_the_mode_and_a_symbolic_link_of_the_config_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = tmp_path / "real"
    real.mkdir()
    into = tmp_path / "link.yaml"
    config(real).chmod(0o640)
    into.symlink_to("real/config.yaml")
    assert run(capsys, table(tmp_path, "0 3 * * * one\n"), "--into", into)[0] == 0
    assert into.is_symlink()
    assert stat.S_IMODE((real / "config.yaml").stat().st_mode) == 0o640
    assert "  one:\n" in (real / "config.yaml").read_text()


def test_a_file_that_was_changed_in_the_meantime_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(b"theirs")
    with pytest.raises(files.FileChanged, match="was changed in the meantime; nothing was written, try again"):
        files.replace_file(file, b"before", b"after")
    assert file.read_bytes() == b"theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


ONE = [NewEntry("new", {"schedule": "0 3 * * *", "command": "x"})]
NEW = '  new:\n    schedule: "0 3 * * *"\n    command: x\n'


@loop_over(
    ("before", "after"),
    [
        ("", f"cron:\n{NEW}"),
        ("# only this\n", f"# only this\n\ncron:\n{NEW}"),
        ("a: 1\n", f"a: 1\n\ncron:\n{NEW}"),
        ("a: 1", f"a: 1\n\ncron:\n{NEW[:-1]}"),
        ("cron:\n", f"cron:\n{NEW}"),
        ("cron:   # jobs\n# of the agents\na: 1\n", f"cron:   # jobs\n{NEW}# of the agents\na: 1\n"),
        ("cron:\n  old: {x: 1}   # old\n", f"cron:\n  old: {{x: 1}}   # old\n{NEW}"),
        ("cron:\n  old: {x: 1}\n\n# agents\na: 1\n", f"cron:\n  old: {{x: 1}}\n{NEW}\n# agents\na: 1\n"),
        ("cron:\n  old: {x: 1}\n  # more?\n\na: 1\n", f"cron:\n  old: {{x: 1}}\n  # more?\n{NEW}\na: 1\n"),
        ("cron:\n  old: {x: 1}\na: |\n  # text\n", f"cron:\n  old: {{x: 1}}\n{NEW}a: |\n  # text\n"),
        ("cron:\n  old:\n    x: |+\n      text\n\n\na: 1\n", f"cron:\n  old:\n    x: |+\n      text\n\n\n{NEW}a: 1\n"),
        ("cron:\n    old:\n          x: 1\n", 'cron:\n    old:\n          x: 1\n    new:\n          schedule: "0 3 * * *"\n          command: x\n'),
        ("  cron:\n    old: {x: 1}\n  a: 1\n", '  cron:\n    old: {x: 1}\n    new:\n      schedule: "0 3 * * *"\n      command: x\n  a: 1\n'),
        ("a: 1\r\ncron:\r\n  old: {x: 1}\r\n", "a: 1\r\ncron:\r\n  old: {x: 1}\r\n" + NEW.replace("\n", "\r\n")),
        ("---\ncron:\n  old: {x: 1}\n", f"---\ncron:\n  old: {{x: 1}}\n{NEW}"),
        ("---\ncron:\n  old: {x: 1}\n...\n", f"---\ncron:\n  old: {{x: 1}}\n{NEW}...\n"),
        ("a: 1\n... # the end\n", f"a: 1\n\ncron:\n{NEW}... # the end\n"),
        ("cron: {old: {x: 1}}\n", 'cron: {old: {x: 1}, new: {schedule: "0 3 * * *", command: x}}\n'),
        ("cron: {}\n", f"cron:\n{NEW}"),
        ("cron: ~\n", f"cron:\n{NEW}"),
        ("x-j: &j {o: {x: 1}}\ncron:\n  <<: *j\n  old: {x: 1}\n", f"x-j: &j {{o: {{x: 1}}}}\ncron:\n  <<: *j\n  old: {{x: 1}}\n{NEW}"),
    ],
)  # fmt: skip
def test_new_jobs_are_inserted_after_the_others(before: str, after: str) -> None:
    assert add_entries(before, "cron", ONE) == after


@pytest.mark.parametrize(
    "text",
    [
        "{a: 1,\n b: 2}\n",
        "x-j: &j {o: {x: 1}}\ncron: *j\n",
        "- a\n",
        "cron: [a]\n",
    ],
)
def test_without_a_place_for_jobs_none_is_inserted(text: str) -> None:
    with pytest.raises(EditRefused):
        add_entries(text, "cron", ONE)


@loop_over(
    "value",
    ["x", "yes", "null", "~", "1e3", "0x1f", "a: b", "a #b", "'", '"', "\\", "é", "\u2028", "\x7f", "a\nb\n", "{", "a:", " a", "-x", "@x", "1:30"],
)  # fmt: skip
def test_every_text_is_read_back_unchanged(value: str) -> None:
    made = add_entries("", "cron", [NewEntry(f"n{value}", {"command": value, "stdin": value, "env": {"A": value}})])
    found = read_tree(made, Diagnostics(""))["cron"]
    assert found == {f"n{value}": {"command": value, "stdin": value, "env": {"A": value}}}


@pytest.mark.parametrize(
    ("theirs", "host", "added"),
    [
        ("UTC", "Etc/UTC", 0),
        ("Etc/GMT", "Zulu", 0),
        ("Europe/Berlin", "Europe/Stockholm", 0),
        ("Europe/Berlin", "Europe/London", 1),
        ("UTC", "Europe/London", 1),
    ],
)
def test_a_job_is_recognized_under_any_name_of_its_time_zone(
    theirs: str, host: str, added: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = config(tmp_path, f'timezone: {theirs}\ncron:\n  x:\n    schedule: "1 2 * * *"\n    command: date\n')
    assert main(["cron", "import", str(table(tmp_path, "1 2 * * * date\n")), "--timezone", host, "--into", str(into)]) == 0
    assert capsys.readouterr().out.startswith(
        f"{into}: 1 job added" if added else f"nothing to add: {into} already has 1 job of this file"
    )


def test_the_next_step_names_the_imported_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = config(tmp_path, SMALL)
    file = table(tmp_path, "0 3 * * * one\n")
    assert "doctor` looks for them there" in run(capsys, file, "--into", into)[1]
    file = table(tmp_path, f"0 3 * * * {ME.pw_name} two\n")
    last_line = run(capsys, file, "--user-column", "--into", into)[1].splitlines()[-1]
    assert (
        last_line
        == f"next: remove the lines from {file}, or cron and the daemon both run them; `heartbeatd doctor` does not check this"
    )
