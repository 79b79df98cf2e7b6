"""Open files: the daemon asks for what a thousand runs need, and says where it does not get what its config wants."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parent.parent
ALLOWED = "from scheduler import descriptors; print(descriptors.allow(descriptors.needed(100)), descriptors.allow(10))"


def under(limits: str, *arguments: str, cwd: Path = HOME) -> subprocess.CompletedProcess[str]:
    line = f'{limits}; exec "$0" "$@"'
    return subprocess.run(
        ["sh", "-c", line, sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=True
    )


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        ("ulimit -Sn 64; ulimit -Hn 4096", "1000 1000"),
        ("ulimit -Sn 64; ulimit -Hn 300", "300 300"),
        ("ulimit -Sn 2000; ulimit -Hn 4096", "2000 2000"),
    ],
)
def test_more_open_files_are_asked_for_and_never_fewer(limits: str, allowed: str) -> None:
    assert under(limits, "-c", ALLOWED).stdout.strip() == allowed


@pytest.mark.process
@pytest.mark.parametrize(("concurrency", "warned"), [(1000, True), (8, False)])
def test_a_config_that_wants_more_than_is_allowed_is_warned_of(tmp_path: Path, concurrency: int, warned: bool) -> None:
    (tmp_path / "config.yaml").write_text(
        f"limits: {{concurrency: {concurrency}}}\ncron: {{x: {{every: 1h, command: 'true'}}}}\n"
    )
    log = under("ulimit -Sn 64; ulimit -Hn 400", "-m", "scheduler", "run", "--once", cwd=tmp_path).stderr
    assert ("1000 runs at a time may need 8200 open files, and 400 are allowed" in log) is warned
