"""A package adds commands by entry points, and a command whose package is not there says what to install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from checkout import HOME
from patience import PATIENCE
from warm_start import run_heartbeatd

MODULE = """
import click

@click.command()
def greet():
    "Greet."
    click.echo("hello")
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder in which a package is installed that adds `greet`, `cron greet`, and a command without its module."""
    (tmp_path / "greetings.py").write_text(MODULE)
    info = tmp_path / "greetings-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: greetings\nVersion: 1\n")
    names = ("greet = greetings:greet", "cron.greet = greetings:greet", "lost = nowhere:lost")
    (info / "entry_points.txt").write_text("\n".join(("[heartbeatd.commands]", *names)))
    return tmp_path


def heartbeatd(installed: Path, *words: str, environ: Mapping[str, str] = {}) -> tuple[int, str, str]:
    ended = run_heartbeatd(*words, env={**os.environ, "PYTHONPATH": str(installed), **environ})
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("words", [["greet"], ["cron", "greet"]], ids=" ".join)
def test_a_package_adds_a_command(words: list[str], installed: Path) -> None:
    assert heartbeatd(installed, *words) == (0, "hello\n", "")


def test_a_package_adds_a_command_although_the_files_of_others_cannot_be_read(installed: Path) -> None:
    for number in range(20):  # as files that belong to root: reading them fails too, but not if the tests run as root
        (installed / f"unreadable{number}-1.dist-info" / "entry_points.txt").mkdir(parents=True)
    assert heartbeatd(installed, "greet") == (0, "hello\n", "")


def test_the_help_lists_added_commands_and_leaves_out_missing_ones(installed: Path) -> None:
    _, shown, _ = heartbeatd(installed, "--help")
    assert re.search(r"^  greet +Greet\.$", shown, re.MULTILINE)
    assert "lost" not in shown


@pytest.mark.parametrize("module", ["wrong", "wrong.commands"])
def test_a_command_that_cannot_be_imported_is_named_and_the_others_are_listed(module: str, installed: Path) -> None:
    (installed / "wrong").mkdir()
    (installed / "wrong" / "__init__.py").write_text("raise ValueError('no licence')")
    with (installed / "greetings-1.dist-info" / "entry_points.txt").open("a") as file:
        file.write(f"\nwave = {module}:wave")
    broken = f"wave: {module} cannot be imported: ValueError: no licence; repair or remove the package greetings"
    code, shown, errors = heartbeatd(installed, "--help")
    assert (code, errors, f" wave (broken) {broken} " in " ".join(shown.split())) == (0, "", True), shown
    assert heartbeatd(installed, "greet") == (0, "hello\n", "")
    assert heartbeatd(installed, "wave") == (1, "", f"heartbeatd: {broken}\n")
    code, shown, errors = heartbeatd(installed, "doctor")
    assert (errors, f" warn command {broken} " in " ".join(shown.split())) == ("", True), shown


def test_a_subcommand_that_cannot_be_imported_is_named_and_the_others_are_listed_and_completed(installed: Path) -> None:
    (installed / "wrong.py").write_text("import nowhere")
    with (installed / "greetings-1.dist-info" / "entry_points.txt").open("a") as file:
        file.write("\ncron.wave = wrong:wave")
    problem = "wrong cannot be imported: ModuleNotFoundError: No module named 'nowhere'"
    broken = f"cron.wave: {problem}; repair or remove the package greetings"
    code, shown, errors = heartbeatd(installed, "cron", "--help")
    assert (code, errors, f" wave (broken) {broken} " in " ".join(shown.split()) + " ") == (0, "", True), shown
    assert heartbeatd(installed, "cron", "wave") == (1, "", f"heartbeatd: {broken}\n")
    completing = {"_HEARTBEATD_COMPLETE": "bash_complete", "COMP_WORDS": "heartbeatd cron ", "COMP_CWORD": "2"}
    code, words, errors = heartbeatd(installed, environ=completing)
    assert (code, errors, {"plain,greet", "plain,wave"} <= {*words.split()}) == (0, "", True), words


def test_a_missing_extra_is_one_line_that_says_what_to_install(installed: Path) -> None:
    assert heartbeatd(installed, "lost") == (1, "", f"heartbeatd: lost: {MISSING}{THERE}\n")


CONFIG = """\
agents:
  ops:
    runner: {kind: command, argv: [echo, HEARTBEAT_OK]}
    heartbeat: {interval: 1h, deliver: log, checklist: "- look\\n"}
"""
WITH_EXTRAS = """\
state: postgresql://me@db/x
telemetry: {traces: true}
executor: {kind: procrastinate, dsn: "postgresql://me@db/x"}
providers: {anthropic: {api_key: "${KEY}"}}
channels: {phone: {url: "tgram://${TOKEN}/1", buttons: true}}
agents:
  ops:
    runner: {kind: anthropic, tools: {mcp: [{name: disk, url: "https://x.test/mcp", allow: [free]}]}}
    heartbeat: {interval: 1h, deliver: phone, budget: unlimited, on_missing: create}
"""
MISSING = "this needs an extra that is not installed; run pipx install --force './heartbeatd"
THERE = "' in the parent folder of the checkout, with all extras that you use"


@pytest.mark.process
def test_without_the_folder_of_extras_the_daemon_runs_and_check_names_what_is_missing(tmp_path: Path) -> None:
    for package in ("scheduler", "heartbeat", "cron", "heartbeatd"):
        shutil.copytree(HOME / package, tmp_path / package, ignore=shutil.ignore_patterns("extras"))
    config = tmp_path / "config.yaml"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "scheduler", *words]
        environ = os.environ | {"KEY": "sk-ant-0123456789", "TOKEN": "123456789:" + "A" * 35}
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)

    config.write_text(CONFIG)
    ended = run("run", "--once")
    assert (ended.returncode, "result=ok" in ended.stderr) == (0, True), ended.stderr
    config.write_text(WITH_EXTRAS)
    lines = run("check").stderr.splitlines()
    assert [line.removeprefix("warning: ") for line in lines if MISSING in line] == [
        f"config.yaml:2:21: telemetry.traces: {MISSING}[otel]{THERE}",
        f"config.yaml:1:8: state: {MISSING}[cluster]{THERE}",
        f"config.yaml:3:18: executor.kind: {MISSING}[cluster]{THERE}",
        f"config.yaml:5:56: channels.phone.buttons: {MISSING}{THERE}",
        f"config.yaml:8:31: agents.ops.runner.tools: {MISSING}[mcp]{THERE}",
    ]
    assert run("worker").stderr == f"heartbeatd: worker: {MISSING}[cluster]{THERE}\n"
    assert run("config", "import", "openclaw", "x").stderr == f"heartbeatd: config.import: {MISSING}{THERE}\n"
