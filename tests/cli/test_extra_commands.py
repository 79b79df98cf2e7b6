"""A package adds commands by entry points, and a command whose package is not there says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def heartbeatd(installed: Path, *words: str) -> tuple[int, str, str]:
    environ = os.environ | {"PYTHONPATH": str(installed)}
    ended = subprocess.run(
        [sys.executable, "-m", "scheduler", *words], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("words", [["greet"], ["cron", "greet"]], ids=" ".join)
def test_a_package_adds_a_command(words: list[str], installed: Path) -> None:
    assert heartbeatd(installed, *words) == (0, "hello\n", "")


def test_the_help_lists_added_commands_and_leaves_out_missing_ones(installed: Path) -> None:
    _, shown, _ = heartbeatd(installed, "--help")
    assert "  greet       Greet.\n" in shown
    assert "lost" not in shown


def test_a_missing_extra_is_one_line_that_says_what_to_install(installed: Path) -> None:
    problem = "lost: this needs an extra that is not installed; write: pip install 'heartbeatd'"
    assert heartbeatd(installed, "lost") == (1, "", f"heartbeatd: {problem}\n")
