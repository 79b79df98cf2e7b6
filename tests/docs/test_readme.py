"""The README: its config is valid without a warning, its commands print what it shows, and its agent sends the messages of its picture."""

from __future__ import annotations

import json
import os
import re
import subprocess
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape
from zoneinfo import ZoneInfo

import pytest
import warm_start
from checkout import HOME
from config_file import write
from patience import PATIENCE
from servers.messages import message, tool
from world import World

from heartbeat.runners import HttpReply
from scheduler.cli.main import main

PAGE = (HOME / "README.md").read_text("utf-8")
(CONFIG,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
OUTPUTS = re.findall(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ENVIRONMENT = {"ANTHROPIC_API_KEY": "key", "TG_TOKEN": "123456:ABC", "TG_CHAT": "4711"}


def test_the_config_has_no_warning_and_a_maximum_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an empty folder, as a reader would paste it."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    file = write(tmp_path, CONFIG)
    assert main(["-c", str(file), "check"]) == 0
    valid, prices = capsys.readouterr().out.splitlines()
    assert (valid, prices.partition(":")[0]) == (f"{file} is valid: 1 agent, 0 jobs", "prices of claude-haiku-5-5")
    assert main(["-c", str(file), "plan", "--worst"]) == 0
    assert capsys.readouterr().out.endswith("all: at most 0.5000 USD a day\n")


def without_times(output: str) -> str:
    return re.sub(r"\b\d\d:\d\d:\d\d\b", "TIME", re.sub(r"\b\d+\.\ds\b", "TOOK", output))


@pytest.mark.process
def test_the_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    """On a host with empty disks, after one run. The last command checks a config with a misspelt interval."""
    programs = {"heartbeatd": warm_start.FOR_SCRIPTS, "df": 'echo "Use% Mounted on\n 12% /"'}
    (tmp_path / "bin").mkdir()
    for name, script in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    server = warm_start.open_for_scripts()
    environ = {**os.environ, **ENVIRONMENT, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "WARM_START": str(server)}

    def printed(command: str) -> str:
        ended = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env=environ, pass_fds=[server], stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        return ended.stdout + ended.stderr

    write(tmp_path, CONFIG)
    printed("heartbeatd run --once")
    for shown in OUTPUTS:
        command, _, output = shown.removeprefix("$ ").partition("\n")
        if command == "heartbeatd check":
            write(tmp_path, CONFIG.replace("interval: 15m", "interval: soon"))
        assert without_times(printed(command)) == without_times(output)
    assert [shown.partition("\n")[0] for shown in OUTPUTS][-1] == "$ heartbeatd check"
    assert len(OUTPUTS) == 4  # one for each promise


def test_the_page_is_short() -> None:
    assert len(CONFIG.splitlines()) == 11
    assert len(PAGE.split()) <= 640


class FullDisk:
    """The model and the precheck of a host whose disk fills up, and is then cleaned. Later, others are busy, which is no problem."""

    lines = "NO_WORK"
    findings: Sequence[Mapping[str, Any]] = ()
    input_tokens = 1_000

    def fill(self, line: str, **finding: str) -> None:
        self.lines, self.findings = line, [{"key": "disk:/var", "resolved": False, **finding}]

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> HttpReply:
        report = tool("report_findings", {"findings": self.findings})
        answer = message(report, stop_reason="tool_use", usage={"input_tokens": self.input_tokens, "output_tokens": 100})
        return HttpReply(200, {"content-type": "application/json"}, json.dumps(answer).encode())


def play(folder: Path) -> list[tuple[str, str]]:
    """The messages of a day with their local times."""
    host = FullDisk()
    prechecks = {"ops": lambda call: host.lines}
    fixed = CONFIG + "prices: {claude-haiku-5-5: {input: 1.0, output: 5.0}}\n"  # the prices of the list change
    world = World(folder, fixed, "2026-11-20 16:00", prechecks=prechecks, http=host, environ=ENVIRONMENT)
    world.run(minutes=31)
    assert world.delivered == []
    host.fill("/var   91%", text="/var is 91 % full. Delete the old logs first.", severity="warning")
    world.run(minutes=30)
    host.fill("/var  100%", text="/var is full. Mail is no longer accepted.", severity="critical")
    world.run(minutes=30)
    host.lines = "NO_WORK"
    world.run(minutes=40)
    host.findings, host.input_tokens = (), 40_000
    for used in range(90, 100):
        host.lines = f"/mnt/scratch   {used}%"
        world.run(minutes=15)
    world.store.close()
    zone = ZoneInfo("Europe/Berlin")
    return [(f"{at.astimezone(zone):%H:%M}", " ".join(text.partition("\n")[0].split())) for at, _, text in world.delivered]


COLOURS = {"warning": "#b45309", "CRITICAL": "#b91c1c", "over": "#15803d", "info": "#1d4ed8"}


def draw_phone(messages: list[tuple[str, str]]) -> str:
    """A picture in the format SVG: each message in a bubble, with the colour of its first word."""
    top, parts = 96, []
    for at, text in messages:
        kind, _, rest = text.partition(" ")
        lines = textwrap.wrap(rest, 40)
        height = 46 + 20 * len(lines)
        parts += [
            f'<rect x="30" y="{top}" width="360" height="{height}" rx="14" fill="#ffffff"/>',
            f'<text x="46" y="{top + 26}" font-weight="bold" fill="{COLOURS[kind]}">{kind}</text>',
            f'<text x="374" y="{top + 26}" text-anchor="end" fill="#64748b">{at}</text>',
            *(f'<text x="46" y="{top + 48 + 20 * row}">{escape(line)}</text>' for row, line in enumerate(lines)),
        ]
        top += height + 12
    frame = f'<rect x="4" y="4" width="412" height="{top + 40}" rx="44" fill="#0f172a"/>'
    screen = f'<rect x="16" y="16" width="388" height="{top + 16}" rx="34" fill="#dbe4ee"/>'
    head = '<text x="210" y="62" text-anchor="middle" font-size="19" font-weight="bold">heartbeatd</text>'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 420 {top + 48}" width="420" font-family="sans-serif" font-size="15">'
    return "\n".join([start, frame, screen, head, *parts, "</svg>"]) + "\n"


def test_the_phone_shows_the_messages_of_the_agent(tmp_path: Path) -> None:
    messages = play(tmp_path)
    assert [text.partition(" ")[0] for _, text in messages] == list(COLOURS)
    drawn = tmp_path / "phone.svg"
    drawn.write_text(draw_phone(messages))
    assert (HOME / "docs/pictures/phone.svg").read_text() == drawn.read_text(), f"copy {drawn} to docs/pictures/"
