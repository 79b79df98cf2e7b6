"""Tests the limit of open files: it is raised as far as possible, and a shortage is reported."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
import time
from calendar import timegm
from contextlib import ExitStack
from pathlib import Path

import pytest
from checkout import HOME
from daemon_process import Daemon
from patience import PATIENCE

ALLOWED = "from scheduler.system import file_limits; print(file_limits.set_file_limit(file_limits.files_needed(100)), file_limits.set_file_limit(10))"

BUSY = """\
state: state/h.db
server: {listen: "127.0.0.1:0"}
agents:
  ops:
    runner: {kind: command, argv: [sh, -c, "cat >/dev/null; echo HEARTBEAT_OK"]}
    heartbeat: {interval: 2s, stagger: 0s, checklist: "- look\\n", deliver: log}
cron:
  tick: {every: 1s, command: "true"}
"""


def under(limits: str, *arguments: str, cwd: Path = HOME) -> subprocess.CompletedProcess[str]:
    line = f'{limits}; exec "$0" "$@"'
    return subprocess.run(
        ["sh", "-c", line, sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=True
    )


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        ("ulimit -Sn 64; ulimit -Hn 4096", "1000 1000"),
        ("ulimit -Sn 64; ulimit -Hn 300", "300 300"),
        ("ulimit -Sn 2000; ulimit -Hn 4096", "2000 2000"),
    ],
)
def test_the_limit_of_open_files_is_raised_and_never_lowered(limits: str, allowed: str) -> None:
    assert under(limits, "-c", ALLOWED).stdout.strip() == allowed


@pytest.mark.process
@pytest.mark.parametrize(("concurrency", "warned"), [(1000, True), (8, False)])
def test_a_config_that_needs_more_open_files_than_allowed_causes_a_warning(
    tmp_path: Path, concurrency: int, warned: bool
) -> None:
    (tmp_path / "config.yaml").write_text(
        f"limits: {{concurrency: {concurrency}}}\ncron: {{x: {{every: 1h, command: 'true'}}}}\n"
    )
    log = under("ulimit -Sn 64; ulimit -Hn 400", "-m", "scheduler", "run", "--once", cwd=tmp_path).stderr
    assert ("1000 runs at a time may need 8200 open files, and 400 are allowed" in log) is warned


FILLED = """
import logging, os, resource, sys
from scheduler.system import file_limits, log
log.set_up_log(sys.stdout)
seconds = [0.0]
files = file_limits.FileDescriptors(lambda: seconds[0])
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
print(files.runs_that_fit(5), files.runs_that_fit(1000) < 12)
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError as error:
    assert file_limits.is_scarcity(error)
for seconds[0] in (0.0, 1.0, 59.9, 60.0, 61.0):
    print(files.runs_that_fit(5), files.runs_that_fit(0))
for fd in held[-(file_limits.FILES_KEPT_FREE + 2 * file_limits.FILES_PER_RUN):]:
    os.close(fd)
print(files.runs_that_fit(1), files.runs_that_fit(2), files.runs_that_fit(3), files.runs_that_fit(1000))
for fd in held[:30]:
    os.close(fd)
print(files.runs_that_fit(5))
"""


def test_as_many_runs_start_as_open_files_are_left_and_a_shortage_is_logged_once_a_minute() -> None:
    lines = under("true", "-c", FILLED).stdout.splitlines()
    shortages = [line for line in lines if "descriptors_used_up" in line]
    assert [line for line in lines if line not in shortages] == ["5 True", *["0 0"] * 5, "1 2 2 2", "5"]
    assert len(shortages) == 2
    assert "too many open files: 100 are allowed; no further run or message starts until some are closed" in shortages[0]


@pytest.mark.process
def test_a_daemon_without_free_descriptors_waits_and_logs_that_once_a_minute(tmp_path: Path) -> None:
    it = Daemon(tmp_path, BUSY)
    try:
        it.wait_until(lambda: len(it.runs("--result", "ok")) > 2)
        port = int(json.loads((tmp_path / "state" / "daemon.json").read_text())["url"].rpartition(":")[2])
        _, hard = resource.prlimit(it.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(it.process.pid, resource.RLIMIT_NOFILE, (10, hard))
        lines = len(it.log)
        with ExitStack() as stack:
            for _ in range(50):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            it.expect(" descriptors_used_up ")
            before = len(it.runs())
            time.sleep(5)  # the daemon's own time, in which it must be quiet
        assert len(it.runs()) - before <= 2  # what had begun may have ended
        resource.prlimit(it.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
        it.wait_until(lambda: len([row for row in it.runs("--result", "ok") if row["id"] > before]) > 4)
        assert it.stop() == 0
        logged = it.log[lines:]
        assert sum(" descriptors_used_up " in line for line in logged) == 1
        assert len(logged) < 60, "\n".join(logged)
        assert not it.runs("--result", "failed")
        for name, every in (("ops", 2), ("tick", 1)):
            rows = it.runs(name)
            seconds = [timegm(time.strptime(row["planned_at"], "%Y-%m-%dT%H:%M:%SZ")) for row in rows]
            assert sum(row["planned_runs"] for row in rows) == (max(seconds) - min(seconds)) // every + 1
    finally:
        if it.process.poll() is None:
            it.kill()
