"""The summary at the end of `make test`: which tests were skipped because a program is missing, and where to get it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import HOME
from patience import PATIENCE
from required_programs import summarize_skipped


def test_without_skipped_tests_the_summary_is_one_sentence() -> None:
    assert list(summarize_skipped([])) == ["Every program that tests need is here: none was skipped."]


def test_skipped_tests_are_counted_by_missing_program() -> None:
    lacks = "Skipped: needs strace (Debian: apt-get install strace)"
    skipped = [
        ("tests/daemon/test_power_cuts.py::a", lacks),
        ("tests/daemon/test_power_cuts.py::b", lacks),
        ("tests/test_x.py::c[1]", "needs a user who is not root"),
    ]
    assert list(summarize_skipped(skipped)) == [
        "NOT TESTED:",
        "  needs strace (Debian: apt-get install strace): 2 tests of test_power_cuts.py",
        "  needs a user who is not root: 1 test of test_x.py",
    ]


@pytest.mark.process
@pytest.mark.ci
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_test_run_ends_with_a_summary_of_skipped_tests(workers: str, tmp_path: Path) -> None:
    """On a machine without any of the programs."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        workers,
        "-p",
        "no:cacheprovider",
        "tests/daemon/test_power_cuts.py",
        "tests/docs/test_waking_docs.py",
        "-k",
        "cut or curl",
    ]
    environ = os.environ | {"PATH": str(tmp_path)}
    environ = {name: value for name, value in environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(command, cwd=HOME, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
    lines = ended.stdout.splitlines()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert lines[lines.index("NOT TESTED:") :] == [
        "NOT TESTED:",
        "  needs strace (Debian: apt-get install strace): 2 tests of test_power_cuts.py",
        "  needs curl (Debian: apt-get install curl): 1 test of test_waking_docs.py",
    ]
