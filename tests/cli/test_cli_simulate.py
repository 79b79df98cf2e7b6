"""`simulate`: what it prints, what it refuses, and that it changes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import HOME
from loops import loop_over
from patience import PATIENCE, wait_until
from warm_start import Heartbeatd

from scheduler.cli.main import main

CONFIG = """
timezone: Europe/Berlin
channels: {hook: {kind: webhook, url: "https://example.com/x"}}
providers: {anthropic: {api_key: "${KEY}"}}
prices: {claude-haiku-5-5: {input: 1.0, output: 5.0}}
defaults: {runner: {kind: anthropic}, model: claude-haiku-5-5}
agents:
  ops: {heartbeat: {interval: 6h, deliver: hook, checklist: HEARTBEAT.md, budget: {usd_per_day: 1.0}}}
  woken: {heartbeat: {interval: none, deliver: hook, checklist: "- look\\n", budget: unlimited}}
cron:
  backup: {schedule: "0 3 * * *", command: "touch was-called", wake_heartbeat: woken}
"""
ARGUMENTS = ("--from", "2026-10-10T00:00", "--for", "5d")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG, "utf-8")
    workspace = tmp_path / "agents" / "ops"
    workspace.mkdir(parents=True)
    (workspace / "HEARTBEAT.md").write_text("- look\n", "utf-8")
    return path


def files_below(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_simulation_shows_the_figures_and_changes_no_file(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_below(config.parent)
    assert main(["simulate", "-c", str(config), *ARGUMENTS, "--answers", "quiet:1"]) == 0
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert shown[0] == "2026-10-10 00:00 to 2026-10-15 00:00, Europe/Berlin (5d), 3 seeds from 1"
    assert "30 runs, 0 failed, 25 calls, 0 messages, " in " ".join(shown)
    assert [line.split(" $")[0] for line in shown if line.startswith(("agent/", "cron/"))][:3] == [
        "agent/ops 20 20 0",
        "agent/woken 5 5 0",
        "cron/backup 5 0 0 -",
    ]
    assert files_below(config.parent) == before


def test_json_has_every_figure_with_its_range(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "-c", str(config), *ARGUMENTS, "--seeds", "2", "--seed", "5", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seeds"] == [5, 6]
    assert found["runs"] == {"mean": 30.0, "low": 30.0, "high": 30.0}
    assert found["calls"]["low"] <= found["calls"]["mean"] <= found["calls"]["high"]
    assert [len(each["by_hour"]) for each in found["recipients"]] == [24] * len(found["recipients"])
    assert len(found["days"]) == 5


@loop_over(
    ("arguments", "error"),
    [
        (["--answers", "quiet:0.5"], "--answers: the shares add up to 0.5, not to 1; write quiet:0.97,problem:0.02,fail:0.01"),
        (["--answers", "silent:1"], "--answers: unknown answer 'silent'; write quiet:0.97,problem:0.02,fail:0.01"),
        (["--answers", "quiet:0.5,quiet:0.5"], "--answers: quiet is given twice; write quiet:0.97,problem:0.02,fail:0.01"),
        (["--from", "9999-12-31T00:00"], "--from: write a time that is at most 3660d from now"),
        (["--from", "0001-01-02T00:00"], "--from: write a time that is at most 3660d from now"),
        (["--faults", "daemon-down:2h@9999-12-30T00:00"], "--faults: write a time that is at most 3660d from now"),
        (["--answers", "quiet:much"], "--answers: 'much' is not a share; write a number from 0 to 1, such as 0.02"),
        (["--work", "2"], "--work: '2' is not a share; write a number from 0 to 1, such as 0.02"),
        (
            ["--faults", "provider-down"],
            "--faults: 'provider-down' is not a fault; write provider-down:2h@tue 03:00, with provider, channel or daemon",
        ),
        (
            ["--faults", "provider-down:2h@someday 03:00"],
            "--faults: 'provider-down:2h@someday 03:00': the time after @ is not clear; write tue 03:00, 03:00 or 2026-12-24T18:00",
        ),
        (["--faults", "provider-down:2x@03:00"], "--faults: '2x' is not a duration; write 90s, 30m or 1h30m"),
        (["--faults", "channel-down=fax:2h@03:00"], "--faults: no channel 'fax'; write hook or log"),
        (["--faults", "provider-down=openai:2h@03:00"], "--faults: no provider 'openai'; write anthropic"),
        (["--faults", "daemon-down=a:2h@03:00"], "--faults: 'daemon-down=a:2h@03:00': there is one daemon; write daemon-down:2h@03:00"),
        (["--like-history"], "--like-history: no run of the last 30 days is recorded; write --answers instead"),
        (["--for", "500d"], "--for: write a time of at most 400d"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_in_one_line(
    arguments: list[str], error: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "-c", str(config), *arguments]) == 2
    assert capsys.readouterr().err == f"heartbeatd: {error}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_temporary_folder(number: int, config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    with Heartbeatd("simulate", "-c", config, "--for", "400d", env={**os.environ, "TMPDIR": str(folder)}) as running:
        wait_until(lambda: list(folder.glob("heartbeatd-*/seed-1")))
        running.send_signal(number)
        assert running.wait(PATIENCE) == 128 + number
    assert list(folder.iterdir()) == []


ENDED_AT = """
import os, signal, sys
from scheduler.foresight.playback import temporary_folder

def end(frame, event, called):
    if (event, getattr(called, "__name__", "")) == tuple(sys.argv[1:]):
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGTERM)

sys.setprofile(end)
with temporary_folder():
    pass
print("ended by itself" if sys.getprofile() else "got the signal")
"""


@pytest.mark.process
@pytest.mark.parametrize(("moment", "code"), [(("c_return", "mkdir"), 128 + signal.SIGTERM), (("c_call", "rmdir"), 0)])
def test_a_signal_while_the_folder_is_created_or_removed_leaves_no_folder(
    moment: tuple[str, str], code: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", ENDED_AT, *moment]
    ended = subprocess.run(command, cwd=HOME, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout) == (code, b"" if code else b"got the signal\n")
    assert list(tmp_path.iterdir()) == []
