"""A job's command as a real process: what it is given, what is kept of it, how its end is told."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from config_file import read
from run_async import new_http_client
from world import utc

from heartbeat.runners import Resources
from scheduler.model.entry import Claim
from scheduler.model.outcome import AttemptResult, Kind, Trigger
from scheduler.system.process import Children
from scheduler.work import plan


def carried(folder: Path, keys: str, environ: dict[str, str] | None = None, after: float | None = None) -> AttemptResult:
    """How one attempt of a job with these keys ends; `after` seconds its time is over."""
    settings = read(folder, f"cron:\n  measure: {{every: 1h, {keys}}}\n", environ or {}).settings
    entry = plan.make_plan(settings).entries[(Kind.CRON, "measure")]
    now = utc("2026-03-02 08:00")
    claim = Claim(7, 1, "me", entry, now, Trigger.EVERY, 1, 0, now, paused=False, wakes=(), last_beat=None, failures=0)

    async def carry() -> AttemptResult:
        children = Children(claim.run_mark)
        if after is not None:
            asyncio.get_running_loop().call_later(after, children.end_all, "timeout")
        return await entry.run_attempt(claim, Resources(children.start, new_http_client()), timedelta)

    return asyncio.run(carry())


def test_text_is_a_line_for_the_shell_and_a_list_is_not(tmp_path: Path) -> None:
    assert carried(tmp_path, "command: 'echo $((40 + 2)) | tr 4 5'").text == "52\n"
    assert carried(tmp_path, 'command: [echo, "$((40 + 2)) | tr 4 5"]').text == "$((40 + 2)) | tr 4 5\n"


def test_another_shell_may_run_it(tmp_path: Path) -> None:
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\necho "I was told: $2"\n')
    shell.chmod(0o755)
    assert carried(tmp_path, f"command: look around, shell: {shell}").text == "I was told: look around\n"


def test_it_reads_its_stdin_and_nothing_where_there_is_none(tmp_path: Path) -> None:
    assert carried(tmp_path, 'command: cat, stdin: "grüße\\n"').text == "grüße\n"
    assert carried(tmp_path, "command: cat").text == ""


def test_it_runs_in_the_folder_of_the_config_or_in_its_own(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert carried(tmp_path, "command: pwd").text == f"{tmp_path}\n"
    assert carried(tmp_path, "command: pwd, workdir: sub").text == f"{tmp_path}/sub\n"
    assert "cannot enter the working folder" in str(carried(tmp_path, "command: pwd, workdir: none").error)


def test_its_environment_is_path_home_lang_and_what_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTBEATD_CANARY", "yellow")
    keys = """command: 'env; [ "$KEY" = s3cret ] && echo GIVEN=1', env: {PLAIN: a b, KEY: "${SECRET}"}"""
    said = carried(tmp_path, keys, {"SECRET": "s3cret"}).text or ""
    names = {line.partition("=")[0] for line in said.splitlines()} - {"PWD", "SHLVL", "_", "OLDPWD"}
    assert names <= {"PATH", "HOME", "LANG", "HEARTBEATD_RUN", "PLAIN", "KEY", "GIVEN"}
    assert {"PLAIN=a b", "KEY=***", "GIVEN=1", "HEARTBEATD_RUN=me/7"} <= set(said.splitlines())


def test_an_error_says_where_a_program_was_looked_for(tmp_path: Path) -> None:
    assert carried(tmp_path, "command: [none-such], env: {PATH: /a}").error == "no such program: 'none-such'; PATH is /a"
    assert carried(tmp_path, "command: [./none]").error == f"no such program: './none'; looked in {tmp_path}"
    (tmp_path / "plain").touch(mode=0o600)
    error = carried(tmp_path, "command: [./plain]").error or ""
    assert error.endswith(f"it is not executable (chmod +x); looked in {tmp_path}")
    error = carried(tmp_path, "command: ./none").error or ""
    assert error.startswith(f"exit code 127 (the shell found no such program, in {tmp_path}): ")


def test_a_secret_of_its_environment_is_covered_in_whatever_it_prints(tmp_path: Path) -> None:
    keys = """command: 'echo "out $KEY"; echo "err $KEY $PIN" >&2; exit 3', env: {KEY: "${SECRET}", PIN: abc-1234-xyz, HOME: /home/me}"""
    result = carried(tmp_path, keys, {"SECRET": "k>~canary"})
    assert (result.text, result.error) == ("out ***\n", "exit code 3: err *** ***")
    assert result.message == "measure ended failed: exit code 3: err *** ***\nout ***"


def test_the_end_of_a_secret_at_which_the_output_was_cut_is_covered(tmp_path: Path) -> None:
    keys = 'command: \'printf %s "$KEY"; head -c 16376 /dev/zero | tr \\\\0 x\', env: {KEY: "${SECRET}"}'
    said = carried(tmp_path, keys, {"SECRET": "begin-of-the-secret-and-its-end"}).text or ""
    assert said.partition("\n")[2] == "***" + "x" * 16376


@pytest.mark.parametrize(
    ("command", "outcome", "message"),
    [
        ("echo fine", "ok", "fine"),
        ("'true'", "ok", None),
        ("echo half; echo why >&2; exit 3", "failed", "measure ended failed: exit code 3: why\nhalf"),
        ("kill -9 $$", "failed", "measure ended failed: exit code -9"),
    ],
)
def test_how_it_ended_is_told(tmp_path: Path, command: str, outcome: str, message: str | None) -> None:
    result = carried(tmp_path, f"command: {command}")
    assert (result.outcome, result.message) == (outcome, message)


def test_what_cannot_be_started_is_not_tried_again_and_what_failed_may_be(tmp_path: Path) -> None:
    assert not carried(tmp_path, "command: [none-such]").transient
    assert carried(tmp_path, "command: exit 3").transient


def test_of_much_output_the_end_is_kept_and_how_much_there_was(tmp_path: Path) -> None:
    text = carried(tmp_path, "command: 'seq 100000; echo the end'").text or ""
    assert text.startswith("(the last 16,384 of 588,903 bytes)\n")
    assert text.endswith("\n100000\nthe end\n")
    assert len(text) == len("(the last 16,384 of 588,903 bytes)\n") + 16_384


def test_what_does_not_end_in_its_time_is_ended_with_its_children(tmp_path: Path) -> None:
    result: Any = carried(tmp_path, "command: 'echo begun; sleep 60 & wait'", after=0.5)
    assert (result.outcome, result.reason, result.text) == ("timeout", "timeout", "begun\n")
    assert result.message == "measure ended timeout: did not end within its timeout\nbegun"
