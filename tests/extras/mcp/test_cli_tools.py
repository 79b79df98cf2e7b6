"""`check` says which tools the models of agents may use, and `check --tools` asks their servers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from checkout import SERVERS
from config_file import write

from scheduler.cli.main import main

HOSTILE = SERVERS / "hostile_tools.py"


def config(folder: Path, allow: str = "free", mode: str = "ok") -> str:
    (folder / "agents" / "ops").mkdir(parents=True)
    text = f"""
providers: {{anthropic: {{api_key: "${{KEY}}"}}}}
prices: {{claude-haiku-5-5: {{input: 1, output: 5}}}}
agents:
  ops:
    runner:
      kind: anthropic
      tools:
        mcp:
          - {{name: disk, command: ["{sys.executable}", "{HOSTILE}", {mode}], allow: [{allow}]}}
          - {{name: mail, command: ["{sys.executable}", "{HOSTILE}", ok], allow: [free], read_only: false}}
    heartbeat: {{interval: 1h, deliver: log, budget: unlimited, on_missing: create}}
  web: {{heartbeat: {{interval: 1h, deliver: log, budget: unlimited, on_missing: create}}}}
"""
    return str(write(folder, text))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "sk-canary-41d8")


def test_check_names_the_tools_without_a_connection(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, allow="free, usage", mode="dead")
    assert main(["check", "-c", path]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{path} is valid: 2 agents, 0 jobs",
        "agent/ops may use 3 tools: disk__free, disk__usage, mail__free (may change something)",
    ]


def test_check_names_the_tools_of_a_fallback_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(config(tmp_path))
    (tmp_path / "agents" / "web").mkdir()
    server = f"{{name: web, command: [{sys.executable}, {HOSTILE}, ok], allow: [free]}}"
    more = f"runners: {{spare: {{kind: anthropic, tools: {{mcp: [{server}]}}}}}}\n"
    text = path.read_text().replace("web: {", "web: {fallbacks: [{runner: spare, model: claude-haiku-5-5}], ")
    write(tmp_path, more + text.replace("    runner:\n", "    fallbacks: [claude-sonnet-5]\n    runner:\n"))
    assert main(["check", "-c", str(path)]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("agent")] == [
        "agent/ops may use 2 tools: disk__free, mail__free (may change something)",
        "agent/web may use 1 tool: web__free",
    ]
    assert main(["check", "--tools", "-c", str(path)]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["ops", "disk__free"],
        ["ops", "mail__free"],
        ["web", "web__free"],
    ]


def test_check_warns_about_a_program_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(config(tmp_path))
    write(
        tmp_path, path.read_text().replace(f'"{sys.executable}", "{HOSTILE}", ok], allow: [free]}}', "./no-tools], allow: free}")
    )
    assert main(["check", "-c", str(path)]) == 0
    missing = tmp_path / "agents" / "ops" / "no-tools"
    assert f"agents.ops.runner.tools.mcp[0].command: there is no program {missing}\n" in capsys.readouterr().err


def test_check_tools_lists_what_the_servers_offer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--tools", "-c", config(tmp_path)]) == 0
    head, *rows = (line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines())
    assert head == ["AGENT", "TOOL", "READ-ONLY", "DESCRIPTION"]
    assert [row[:3] for row in rows] == [["ops", "disk__free", "yes"], ["ops", "mail__free", "yes"]]


def test_check_tools_names_a_server_that_does_not_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--tools", "-c", config(tmp_path, mode="dead")]) == 1
    assert capsys.readouterr().err == "agent/ops: server disk of the tools: it has ended: no licence\n"


def test_check_tools_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--tools", "--format", "json", "-c", config(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(tool["agent"], tool["tool"], tool["read_only"]) for tool in found["tools"]] == [
        ("ops", "disk__free", True),
        ("ops", "mail__free", True),
    ]
    assert found["errors"] == []


def test_check_tools_without_tools_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "agents: {ops: {runner: {kind: command, argv: [cat]}, heartbeat: {interval: 1h, deliver: log, on_missing: create}}}"
    assert main(["check", "--tools", "-c", str(write(tmp_path, text))]) == 0
    assert capsys.readouterr().out == "no agent has tools\n"
