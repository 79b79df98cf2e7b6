"""The result of a precheck, from its exit code and its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from run_async import run_synchronously
from test_checks import OPS

from heartbeat import precheck as prechecks
from heartbeat.precheck import PrecheckResult, PrecheckStatus
from heartbeat.runners import ProcessResult
from heartbeat.spec import Precheck
from scheduler.system.process import Children

look = run_synchronously(prechecks.run_precheck)

MAIL = Precheck("./new-mail.sh | head", "skip", "run", timedelta(seconds=30))
FINE = ProcessResult(0, b"", b"", truncated=False, timed_out=False, problem=None, ended_by=None)


def looked(last: str | None = None, precheck: Precheck = MAIL, **ended: Any) -> PrecheckResult:
    async def start(*_: Any, **__: Any) -> ProcessResult:
        return replace(FINE, **ended)

    return look(OPS, precheck, last, start)


def test_it_is_run_by_the_shell_in_the_workspace_with_its_own_time_and_next_to_nothing_in_its_environment() -> None:
    seen: list[object] = []

    async def start(
        argv: Sequence[str], *, stdin: bytes, env: Mapping[str, object], cwd: Path, keep: int, timeout: timedelta
    ) -> ProcessResult:
        seen.extend([argv, stdin, env, cwd, keep, timeout])
        return FINE

    look(OPS, MAIL, None, start)
    argv = ("/bin/sh", "-c", "./new-mail.sh | head")
    assert seen == [argv, b"", {"HEARTBEATD_AGENT": "ops"}, Path("agents/ops"), 65536, timedelta(seconds=30)]


@pytest.mark.parametrize(
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
def test_the_output_of_a_precheck_says_whether_there_is_work(output: bytes, found: PrecheckStatus) -> None:
    assert looked(output=output).status is found


@pytest.mark.parametrize(
    ("ended", "error"),
    [
        ({"exit_code": 1, "errors": b"no such mailbox\n"}, "exit code 1: no such mailbox"),
        ({"exit_code": 3, "output": b"NO_WORK"}, "exit code 3"),
        ({"exit_code": -15, "timed_out": True, "ended_by": "timeout"}, "did not end within 0:00:30"),
        ({"exit_code": None, "problem": "no such program"}, "no such program"),
    ],
)
def test_every_other_end_of_a_precheck_is_a_failure(ended: dict[str, Any], error: str) -> None:
    found = looked(**ended)
    assert (found.status, found.error, found.digest) == (PrecheckStatus.FAILED, error, None)


@pytest.mark.parametrize("why", ["cancelled", "shutdown"])
def test_a_precheck_that_was_stopped_with_its_run_has_not_failed(why: str) -> None:
    assert looked(exit_code=-15, ended_by=why).status is PrecheckStatus.INTERRUPTED


def test_the_same_output_as_last_time_is_unchanged() -> None:
    last = looked(output=b"2 mails").digest
    assert looked(last, output=b"2 mails").status is PrecheckStatus.UNCHANGED
    assert looked(last, output=b"3 mails").status is PrecheckStatus.WORK


def test_an_output_that_was_cut_or_comes_from_another_command_is_never_the_same() -> None:
    last = looked(output=b"2 mails").digest
    assert looked(output=b"2 mails", truncated=True).digest is None
    assert looked(last, output=b"2 mails", truncated=True).status is PrecheckStatus.WORK
    assert looked(last, replace(MAIL, command="./other.sh"), output=b"2 mails").status is PrecheckStatus.WORK


def test_a_real_precheck_is_run_by_a_shell_in_the_workspace(tmp_path: Path) -> None:
    here = replace(OPS, workspace=tmp_path)
    found = look(
        here, replace(MAIL, command='echo "$HEARTBEATD_AGENT in $(pwd)"; env | grep -c KEY; true'), None, Children("life/1").start
    )
    assert (found.status, found.exit_code, found.output) == (PrecheckStatus.WORK, 0, f"ops in {tmp_path}\n0\n")


def test_a_real_one_that_hangs_is_ended_with_all_that_it_started_and_the_next_program_may_start(tmp_path: Path) -> None:
    here, children = replace(OPS, workspace=tmp_path), Children("life/1")
    hangs = replace(MAIL, command="echo begun; sleep 60 & sleep 60", timeout=timedelta(milliseconds=300))
    found = look(here, hangs, None, children.start)
    assert (found.status, found.output, found.error) == (PrecheckStatus.FAILED, "begun\n", "did not end within 0:00:00.300000")
    assert look(here, replace(MAIL, command="echo fine"), None, children.start).status is PrecheckStatus.WORK


def test_a_real_precheck_whose_run_is_stopped_has_not_failed(tmp_path: Path) -> None:
    children = Children("life/1")
    children.end_all("shutdown")
    assert look(replace(OPS, workspace=tmp_path), MAIL, None, children.start).status is PrecheckStatus.INTERRUPTED
