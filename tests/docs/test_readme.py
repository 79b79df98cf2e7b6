"""The README: its config is valid without a warning, its commands print what it shows, and its agent sends the messages that it shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from checkout import HOME
from config_file import write
from patience import PATIENCE
from servers.messages import message, tool
from world import World

from heartbeat.runners import HttpReply
from scheduler.cli.main import main

PAGE = (HOME / "README.md").read_text("utf-8")
(CONFIG,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
MESSAGES, *OUTPUTS = re.findall(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ENVIRONMENT = {"ANTHROPIC_API_KEY": "key", "TG_TOKEN": "123456:ABC", "TG_CHAT": "4711"}


def test_the_config_has_no_warning_and_a_maximum_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an empty folder, as a reader would paste it."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    file = write(tmp_path, CONFIG)
    assert main(["-c", str(file), "check"]) == 0
    assert capsys.readouterr() == (f"{file} is valid: 1 agent, 0 jobs\n", "")
    assert main(["-c", str(file), "plan", "--worst"]) == 0
    assert capsys.readouterr().out.endswith("all: at most 0.5000 USD a day\n")


def without_times(output: str) -> str:
    return re.sub(r"\b\d\d:\d\d:\d\d\b", "TIME", re.sub(r"\b\d+\.\ds\b", "TOOK", output))


@pytest.mark.process
def test_the_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    """On a host with empty disks, after one run. The last command checks a config with a misspelt interval."""
    programs = {"heartbeatd": f'exec "{sys.executable}" -m scheduler "$@"', "df": 'echo "Use% Mounted on\n 12% /"'}
    (tmp_path / "bin").mkdir()
    for name, script in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environ = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(HOME), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}

    def printed(command: str) -> str:
        ended = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        return ended.stdout + ended.stderr

    write(tmp_path, CONFIG)
    printed("heartbeatd run --once")
    for shown in OUTPUTS:
        command, _, output = shown.removeprefix("$ ").partition("\n")
        if command == "heartbeatd check":
            write(tmp_path, CONFIG.replace("interval: 15m", "interval: soon"))
        assert without_times(printed(command)) == without_times(output)
    assert [shown.partition("\n")[0] for shown in OUTPUTS][-1] == "$ heartbeatd check"


class FullDisk:
    """The model and the precheck of a host whose disk fills up, and is then cleaned."""

    lines = "NO_WORK"
    finding: Mapping[str, Any] = {}

    def fill(self, line: str, **finding: str) -> None:
        self.lines, self.finding = line, {"key": "disk:/var", "resolved": False, **finding}

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> HttpReply:
        answer = message(tool("report_findings", {"findings": [self.finding]}), stop_reason="tool_use")
        return HttpReply(200, {"content-type": "application/json"}, json.dumps(answer).encode())


def test_the_agent_sends_the_messages_that_the_page_shows(tmp_path: Path) -> None:
    host = FullDisk()
    prechecks = {"ops": lambda call: host.lines}
    world = World(tmp_path, CONFIG, "2026-11-20 16:00", prechecks=prechecks, http=host, environ=ENVIRONMENT)
    world.run(minutes=31)
    assert world.delivered == []
    host.fill("nearly full: /var 91%", text="/var is 91 % full. Delete the old logs first.", severity="warning")
    world.run(minutes=30)
    host.fill("nearly full: /var 100%", text="/var is full. Mail is no longer accepted.", severity="critical")
    world.run(minutes=30)
    host.lines = "NO_WORK"
    world.run(hours=12)
    world.store.close()
    assert [text.partition("\n")[0] for _, _, text in world.delivered] == MESSAGES.splitlines()
