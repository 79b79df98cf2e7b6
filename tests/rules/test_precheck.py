"""Tests of how a precheck is run, and of its result by exit code and output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from loops import loop_over
from run_async import run_synchronously
from test_checks import OPS

from heartbeat import precheck as prechecks
from heartbeat.precheck import PrecheckResult, PrecheckStatus
from heartbeat.runners import ProcessResult
from heartbeat.spec import Precheck
from scheduler.system.process import Children

run_precheck = run_synchronously(prechecks.run_command)

MAIL = Precheck("./new-mail.sh | head", "skip", "run", timedelta(seconds=30))
FINE = ProcessResult(0)


def result_of(last: str | None = None, precheck: Precheck = MAIL, **process: Any) -> PrecheckResult:
    async def start(*_: Any, **__: Any) -> ProcessResult:
        return replace(FINE, **process)

    return run_precheck(OPS, precheck, last, start)


def test_a_precheck_is_run_by_the_shell_in_the_workspace_with_its_timeout_and_a_minimal_environment() -> None:
    seen: list[object] = []

    async def start(
        argv: Sequence[str], *, stdin: bytes, env: Mapping[str, object], cwd: Path, keep: int, timeout: timedelta
    ) -> ProcessResult:
        seen.extend([argv, stdin, env, cwd, keep, timeout])
        return FINE

    run_precheck(OPS, MAIL, None, start)
    argv = ("/bin/sh", "-c", "./new-mail.sh | head")
    assert seen == [argv, b"", {"HEARTBEATD_AGENT": "ops"}, Path("agents/ops"), 65536, timedelta(seconds=30)]


@loop_over(
    ("output", "found"),
    [
        (b"", PrecheckStatus.WORK),
        (b"2 new mails\n", PrecheckStatus.WORK),
        (b"NO_WORK\n", PrecheckStatus.NOTHING),
        (b"  NO_WORK  ", PrecheckStatus.NOTHING),
        (b"NO_WORK yet\n", PrecheckStatus.WORK),
        (b"looked\nNO_WORK\n", PrecheckStatus.WORK),
        (b'{"wakeAgent": false}\n', PrecheckStatus.NOTHING),
        (b'{\n "wakeAgent": false,\n "data": []\n}', PrecheckStatus.NOTHING),
        (b'looked at 3 folders\n{"wakeAgent": false}\n', PrecheckStatus.NOTHING),
        (b'{"wakeAgent": true, "data": 1}', PrecheckStatus.WORK),
        (b'{"wakeAgent": 0}', PrecheckStatus.WORK),
        (b'{"wakeAgent": null}', PrecheckStatus.WORK),
        (b'{"wakeAgent": false', PrecheckStatus.WORK),
        (b'["wakeAgent", false]', PrecheckStatus.WORK),
        (b"{" * 60_000, PrecheckStatus.WORK),
        (b'{"a":' * 10_000, PrecheckStatus.WORK),
        (b"\xff\xfe\x00", PrecheckStatus.WORK),
    ],
)
def test_the_output_of_a_precheck_decides_whether_there_is_work(output: bytes, found: PrecheckStatus) -> None:
    assert result_of(output=output).status is found


@pytest.mark.parametrize(
    ("process", "error"),
    [
        ({"exit_code": 1, "errors": b"no such mailbox\n"}, "exit code 1: no such mailbox"),
        ({"exit_code": 3, "output": b"NO_WORK"}, "exit code 3"),
        ({"exit_code": 127}, "exit code 127 (the shell found no such program, in agents/ops)"),
        ({"exit_code": 126}, "exit code 126 (the shell could not run a program, in agents/ops)"),
        ({"exit_code": -15, "ended_by": "timeout"}, "did not end within 0:00:30"),
        ({"exit_code": None, "problem": "no such program"}, "no such program"),
    ],
)
def test_every_other_end_of_a_precheck_is_a_failure(process: dict[str, Any], error: str) -> None:
    found = result_of(**process)
    assert (found.status, found.error, found.digest) == (PrecheckStatus.FAILED, error, None)


@pytest.mark.parametrize("why", ["cancelled", "shutdown"])
def test_a_precheck_stopped_with_its_run_has_not_failed(why: str) -> None:
    assert result_of(exit_code=-15, ended_by=why).status is PrecheckStatus.INTERRUPTED


def test_the_same_output_as_last_time_is_unchanged() -> None:
    last = result_of(output=b"2 mails").digest
    assert result_of(last, output=b"2 mails").status is PrecheckStatus.UNCHANGED
    assert result_of(last, output=b"3 mails").status is PrecheckStatus.WORK


def test_a_truncated_output_and_the_output_of_another_command_are_never_unchanged() -> None:
    last = result_of(output=b"2 mails").digest
    assert result_of(output=b"2 mails", truncated=True).digest is None
    assert result_of(last, output=b"2 mails", truncated=True).status is PrecheckStatus.WORK
    assert result_of(last, replace(MAIL, command="./other.sh"), output=b"2 mails").status is PrecheckStatus.WORK


def test_a_real_precheck_is_run_by_a_shell_in_the_workspace(tmp_path: Path) -> None:
    here = replace(OPS, workspace=tmp_path)
    found = run_precheck(
        here, replace(MAIL, command='echo "$HEARTBEATD_AGENT in $(pwd)"; env | grep -c KEY; true'), None, Children("life/1").start
    )
    assert (found.status, found.exit_code, found.output) == (PrecheckStatus.WORK, 0, f"ops in {tmp_path}\n0\n")


@loop_over(("last", "found"), [('{"wakeAgent": false}\\n', PrecheckStatus.NOTHING), ('{"wakeAgent": true}', PrecheckStatus.WORK)])
def test_the_last_line_of_a_long_output_decides_too(last: str, found: PrecheckStatus) -> None:
    long = replace(MAIL, command=f"seq 60000; printf '{last}'")
    assert run_precheck(replace(OPS, workspace=Path("/")), long, None, Children("life/1").start).status is found


def test_a_hanging_precheck_is_ended_with_its_children_and_the_next_program_can_start(tmp_path: Path) -> None:
    here, children = replace(OPS, workspace=tmp_path), Children("life/1")
    hangs = replace(MAIL, command="echo begun; sleep 60 & sleep 60", timeout=timedelta(milliseconds=300))
    found = run_precheck(here, hangs, None, children.start)
    assert (found.status, found.output, found.error) == (PrecheckStatus.FAILED, "begun\n", "did not end within 0:00:00.300000")
    assert run_precheck(here, replace(MAIL, command="echo fine"), None, children.start).status is PrecheckStatus.WORK


def test_a_real_precheck_whose_run_is_stopped_has_not_failed(tmp_path: Path) -> None:
    children = Children("life/1")
    children.end_all("shutdown")
    assert run_precheck(replace(OPS, workspace=tmp_path), MAIL, None, children.start).status is PrecheckStatus.INTERRUPTED
