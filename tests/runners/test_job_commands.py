"""Tests of a job's command as a real process: its input and environment, its output, and its result."""

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
from scheduler.model.entry import Claim, OpenRun
from scheduler.model.outcome import AttemptResult, Kind, Trigger
from scheduler.system.process import Children
from scheduler.work import plan
from scheduler.work.claimed_attempt import attempt


def run_job(folder: Path, keys: str, environ: dict[str, str] | None = None, after: float | None = None) -> AttemptResult:
    """The result of one attempt of a job with these keys. It is ended as by its timeout after `after` seconds."""
    settings = read(folder, f"cron:\n  measure: {{every: 1h, {keys}}}\n", environ or {}).settings
    entry = plan.make_plan(settings).entries[(Kind.CRON, "measure")]
    now = utc("2026-03-02 08:00")
    claim = Claim(entry, OpenRun(7, "running", now, Trigger.EVERY, 1, 0, 1, "me", now))

    async def run() -> AttemptResult:
        children = Children(claim.run.mark)
        if after is not None:
            asyncio.get_running_loop().call_later(after, children.end_all, "timeout")
        return await attempt(claim, Resources(children.start, new_http_client()), timedelta)

    return asyncio.run(run())


def test_a_text_is_run_by_the_shell_and_a_list_is_not(tmp_path: Path) -> None:
    assert run_job(tmp_path, "command: 'echo $((40 + 2)) | tr 4 5'").text == "52\n"
    assert run_job(tmp_path, 'command: [echo, "$((40 + 2)) | tr 4 5"]').text == "$((40 + 2)) | tr 4 5\n"


def test_a_command_can_be_run_by_another_shell(tmp_path: Path) -> None:
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\necho "arguments: $2"\n')
    shell.chmod(0o755)
    assert run_job(tmp_path, f"command: look around, shell: {shell}").text == "arguments: look around\n"


def test_a_command_reads_its_stdin_or_an_empty_input(tmp_path: Path) -> None:
    assert run_job(tmp_path, 'command: cat, stdin: "grüße\\n"').text == "grüße\n"
    assert run_job(tmp_path, "command: cat").text == ""


def test_a_command_runs_in_the_folder_of_the_config_or_in_its_workdir(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert run_job(tmp_path, "command: pwd").text == f"{tmp_path}\n"
    assert run_job(tmp_path, "command: pwd, workdir: sub").text == f"{tmp_path}/sub\n"
    assert "cannot enter the working folder" in str(run_job(tmp_path, "command: pwd, workdir: none").error)


def test_the_environment_of_a_command_is_path_home_lang_and_the_listed_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEARTBEATD_CANARY", "yellow")
    keys = """command: 'env; [ "$KEY" = s3cret ] && echo GIVEN=1', env: {PLAIN: a b, KEY: "${SECRET}"}"""
    output = run_job(tmp_path, keys, {"SECRET": "s3cret"}).text or ""
    names = {line.partition("=")[0] for line in output.splitlines()} - {"PWD", "SHLVL", "_", "OLDPWD"}
    assert names <= {"PATH", "HOME", "LANG", "HEARTBEATD_RUN", "PLAIN", "KEY", "GIVEN"}
    assert {"PLAIN=a b", "KEY=***", "GIVEN=1", "HEARTBEATD_RUN=me/7"} <= set(output.splitlines())


def test_the_error_of_a_missing_program_names_the_searched_path(tmp_path: Path) -> None:
    assert run_job(tmp_path, "command: [none-such], env: {PATH: /a}").error == "no such program: 'none-such'; PATH is /a"
    assert run_job(tmp_path, "command: [./none]").error == f"no such program: './none'; looked in {tmp_path}"
    (tmp_path / "plain").touch(mode=0o600)
    error = run_job(tmp_path, "command: [./plain]").error or ""
    assert error.endswith(f"it is not executable (chmod +x); looked in {tmp_path}")
    error = run_job(tmp_path, "command: ./none").error or ""
    assert error.startswith(f"exit code 127 (the shell found no such program, in {tmp_path}): ")


def test_a_secret_in_the_environment_is_redacted_in_output_and_errors(tmp_path: Path) -> None:
    keys = """command: 'echo "out $KEY"; echo "err $KEY $PIN" >&2; exit 3', env: {KEY: "${SECRET}", PIN: abc-1234-xyz, HOME: /home/me}"""
    result = run_job(tmp_path, keys, {"SECRET": "k>~canary"})
    assert (result.text, result.error) == ("out ***\n", "exit code 3: err *** ***")
    assert result.message == "measure ended failed: exit code 3: err *** ***\nout ***"


def test_the_rest_of_a_secret_at_the_cut_of_the_output_is_redacted(tmp_path: Path) -> None:
    keys = 'command: \'printf %s "$KEY"; head -c 16376 /dev/zero | tr \\\\0 x\', env: {KEY: "${SECRET}"}'
    output = run_job(tmp_path, keys, {"SECRET": "begin-of-the-secret-and-its-end"}).text or ""
    assert output.partition("\n")[2] == "***" + "x" * 16376


@pytest.mark.parametrize(
    ("command", "outcome", "message"),
    [
        ("echo fine", "ok", "fine"),
        ("'true'", "ok", None),
        ("echo half; echo why >&2; exit 3", "failed", "measure ended failed: exit code 3: why\nhalf"),
        ("kill -9 $$", "failed", "measure ended failed: exit code -9"),
    ],
)
def test_a_message_has_the_output_or_the_error_of_the_command(
    tmp_path: Path, command: str, outcome: str, message: str | None
) -> None:
    result = run_job(tmp_path, f"command: {command}")
    assert (result.outcome, result.message) == (outcome, message)


def test_a_command_that_fails_may_be_retried_and_one_that_cannot_start_is_not(tmp_path: Path) -> None:
    assert not run_job(tmp_path, "command: [none-such]").transient
    assert run_job(tmp_path, "command: exit 3").transient


def test_the_end_of_a_long_output_is_kept_with_its_full_size(tmp_path: Path) -> None:
    text = run_job(tmp_path, "command: 'seq 100000; echo the end'").text or ""
    assert text.startswith("(the last 16,384 of 588,903 bytes)\n")
    assert text.endswith("\n100000\nthe end\n")
    assert len(text) == len("(the last 16,384 of 588,903 bytes)\n") + 16_384


def test_a_command_that_exceeds_its_timeout_is_ended_with_its_children(tmp_path: Path) -> None:
    result: Any = run_job(tmp_path, "command: 'echo begun; sleep 60 & wait'", after=0.5)
    assert (result.outcome, result.reason, result.text) == ("timeout", "timeout", "begun\n")
    assert result.message == "measure ended timeout: did not end within its timeout\nbegun"
