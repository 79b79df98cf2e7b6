"""The commands with a real daemon, while it runs and after it has ended."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from config_file import write
from daemon_process import run_command
from patience import PATIENCE
from warm_start import Heartbeatd

from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import Diagnostics

pytestmark = pytest.mark.process

CONFIG = """\
state: state/h.db
server: {listen: "127.0.0.1:0"}
limits: {shutdown_grace: 1s, wake_gap: 0s}
agents:
  ops:
    runner: {kind: command, argv: [echo, "disk is full"]}
    heartbeat: {interval: 1h, checklist: "- look\\n", deliver: log}
  slow:
    runner: {kind: command, argv: [sleep, "60"]}
    heartbeat: {interval: none, checklist: "- look\\n", deliver: log}
cron:
  tick: {every: 1h, command: "echo done"}
  broken: {every: 1h, command: "exit 3", deliver: log}
"""


@pytest.fixture
def config(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return write(tmp_path, getattr(request, "param", CONFIG))


def call(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(config, *arguments)


@pytest.fixture
def daemon(config: Path) -> Iterator[Heartbeatd]:
    with Heartbeatd("run", "-c", config, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if " started " in line:
                break
        yield process
        process.kill()


def stop(daemon: Heartbeatd) -> int:
    daemon.send_signal(signal.SIGTERM)
    return daemon.wait(30)


def test_commands_that_wait_print_the_end_of_the_run(config: Path, daemon: Heartbeatd) -> None:
    """Of jobs that work and fail, and of an agent while it is paused and once it is resumed."""
    ran = call(config, "cron", "run", "tick", "--wait")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "done" in ran.stdout
    failed = call(config, "cron", "run", "broken", "--wait")
    assert failed.returncode == 1
    assert "failed (exit)" in failed.stdout
    assert call(config, "pause", "ops").returncode == 0
    refused = call(config, "wake", "ops", "--wait")
    assert refused.returncode == 1
    assert refused.stdout.splitlines()[0].endswith(": skipped (paused)")
    assert call(config, "resume", "--all").returncode == 0
    woken = call(config, "wake", "ops", "--wait")
    assert (woken.returncode, woken.stderr) == (0, "")
    assert woken.stdout.splitlines()[0].endswith(": alert")
    assert "disk is full" in woken.stdout


@pytest.mark.parametrize("config", [json.dumps(marked_yaml.parse_yaml(CONFIG, Diagnostics("")))], indirect=True)
def test_commands_reach_the_daemon_of_a_config_that_is_one_line_of_json(config: Path, daemon: Heartbeatd) -> None:
    woken = call(config, "wake", "ops", "--wait")
    assert (woken.returncode, woken.stderr) == (0, "")
    paused = call(config, "pause", "ops")
    assert (paused.returncode, paused.stderr) == (0, "")


def test_a_reload_is_accepted_or_rejected(config: Path, daemon: Heartbeatd) -> None:
    more = "".join(f"  more{number}: {{schedule: '@daily', command: 'true'}}\n" for number in range(9))
    config.write_text(CONFIG + more)
    assert call(config, "reload").returncode == 0
    config.write_text(
        CONFIG
    )  # removes so many entries that the daemon does not reload by itself, which leaves time for a dry run
    dry = call(config, "reload", "--dry-run")
    assert dry.returncode == 0
    assert dry.stdout.splitlines()[1] == "removed 9 jobs: more0, more1, more2, more3 and 5 more"
    config.write_text(CONFIG.replace("interval: 1h", "interval: soon"))
    refused = call(config, "reload")
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"{config}:7:27: agents.ops.heartbeat.interval: 'soon' is not a duration")


def test_status_shows_whether_the_daemon_runs(config: Path, daemon: Heartbeatd) -> None:
    up = json.loads(call(config, "status", "--format", "json").stdout)["daemon"]
    assert (up["running"], up["pid"]) == (True, daemon.pid)
    assert stop(daemon) == 0
    down = call(config, "status").stdout.splitlines()[0]
    assert down.startswith("daemon: down since ")
    assert down.endswith("shut down")


def wait_until_it_runs(config: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not json.loads(call(config, "status", "--format", "json").stdout)["queue"]["running"]:
        assert time.monotonic() < deadline, "the run does not begin"


def test_an_interrupted_wait_exits_with_130(config: Path, daemon: Heartbeatd) -> None:
    with Heartbeatd("wake", "slow", "--wait", "-c", config, stderr=subprocess.PIPE, text=True) as waiting:
        wait_until_it_runs(config)
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(10) == 130
        assert waiting.stderr is not None
        assert "Traceback" not in waiting.stderr.read()


def test_waiting_for_a_wake_ends_when_the_daemon_ends(config: Path, daemon: Heartbeatd) -> None:
    with Heartbeatd("wake", "slow", "--wait", "-c", config, stderr=subprocess.PIPE, text=True) as waiting:
        wait_until_it_runs(config)
        daemon.kill()
        assert waiting.wait(10) == 1
        assert waiting.stderr is not None
        # the daemon may have ended before its answer to the request, or later
        assert re.search("the (connection to .* was interrupted|daemon is not running)", waiting.stderr.read())
