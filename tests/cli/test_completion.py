"""Completion scripts, and the man page. `test_docs` compares the page with the help texts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import click
import pytest
from checkout import HOME
from patience import PATIENCE
from warm_start import run_heartbeatd

from scheduler.cli.main import commands, main

PAGE = HOME / "packaging" / "heartbeatd.1"


def complete(words: str, folder: Path = HOME) -> list[str]:
    """What bash offers for the last word, in a folder."""
    count = len(words.split(" ")) - 1
    asked = run_heartbeatd(
        env={
            "_HEARTBEATD_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(count),
            "PYTHONPATH": str(HOME),
            "PATH": "",
        },
        cwd=folder,
    )
    assert asked.returncode == 0
    return [line.partition(",")[2] for line in asked.stdout.splitlines() if line]


@pytest.mark.parametrize(("shell", "call"), [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --no-files")])
def test_each_shell_gets_a_script(shell: str, call: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["files", "completion", shell]) == 0
    script = capsys.readouterr().out
    assert call in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True, timeout=PATIENCE)


def test_an_unknown_shell_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["files", "completion", "tcsh"]) == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err


def test_commands_and_options_are_completed() -> None:
    assert complete("heartbeatd files comp") == ["completion", "compose"]
    assert "--worst" in complete("heartbeatd plan --")
    assert "next" in complete("heartbeatd cron ")


NAMED = """\
agents:
  ops: {}
  otto: {}
  mail: {}
cron:
  offload: {}
  mail: {}
"""


def test_names_of_agents_and_jobs_are_completed_from_the_config(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(NAMED)
    assert complete("heartbeatd -c other.yaml explain o", tmp_path) == ["ops", "otto", "offload"]
    assert complete("heartbeatd wake -c other.yaml o", tmp_path) == ["ops", "otto"]
    assert complete("heartbeatd -c other.yaml cron run o", tmp_path) == ["offload"]
    assert complete("heartbeatd -c other.yaml check --effective ot", tmp_path) == ["otto"]


def test_a_name_of_an_agent_and_a_job_is_completed_with_its_kind(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(NAMED)
    assert complete("heartbeatd mute m", tmp_path) == ["agent/mail", "cron/mail"]
    assert complete("heartbeatd mute cron/", tmp_path) == ["cron/offload", "cron/mail"]


@pytest.mark.parametrize("text", ["agents: [[[", "agents: 7\ncron: [a]\n", "- 1\n", None])
def test_a_missing_or_damaged_config_completes_no_name(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    assert complete("heartbeatd explain o", tmp_path) == []


def test_the_man_page_names_every_command_and_option() -> None:
    page = PAGE.read_text("utf-8").replace("\\-", "-")
    for name in commands.list_commands(click.Context(commands)):
        assert f"heartbeatd {name}" in page
    plan = commands.get_command(click.Context(commands), "plan")
    assert plan is not None
    for option in plan.params:
        assert all(spelling in page for spelling in option.opts)


def test_groff_finds_nothing_in_the_man_page() -> None:
    if not shutil.which("groff"):
        pytest.skip("needs groff (Debian: apt-get install groff)")
    read = subprocess.run(["groff", "-man", "-ww", "-z", PAGE], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (read.returncode, read.stderr) == (0, "")
