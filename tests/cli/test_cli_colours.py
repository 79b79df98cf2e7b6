"""Colours have a meaning: errors are red, warnings yellow, good results green and planned skips dim. Pipes get none."""

from __future__ import annotations

import os
import pty
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from checkout import HOME
from patience import PATIENCE
from warm_start import Heartbeatd, run_heartbeatd
from world import MakeWorld, World

from scheduler.cli.main import main

CONFIG = """\
defaults:
  runner: {kind: command, argv: [ask]}
  heartbeat: {interval: 30m, stagger: 0, checklist: "look\\n", deliver: log}
agents:
  good: {}
  broken: {}
  loud: {}
  idle: {heartbeat: {checklist: "# nothing\\n"}}
"""
Coloured = Callable[..., str]


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    scripts = {"broken": lambda _: 1, "loud": lambda _: "ALERT the disk is full"}
    world = make_world(CONFIG, scripts=scripts)
    world.run(hours=2)
    return world


@pytest.fixture
def coloured(world: World, capsys: pytest.CaptureFixture[str]) -> Coloured:
    """The output of a command with `--color always`."""

    def call(*words: str) -> str:
        main(["-c", str(world.config), "--color", "always", *words])
        return capsys.readouterr().out

    return call


def line_with(text: str, part: str) -> str:
    return next(line for line in text.splitlines() if part in line)


def test_outcomes_have_the_colour_of_their_meaning(coloured: Coloured) -> None:
    listed = coloured("runs")
    assert click.style("failed", fg="red") in line_with(listed, "failed")
    assert click.style("ok", fg="green") in line_with(listed, "agent/good")
    assert click.style("alert", fg="yellow") in line_with(listed, "agent/loud")
    assert click.style("checklist_empty", fg="yellow") in line_with(listed, "agent/idle")


def test_status_colours_the_label_of_a_problem(coloured: Coloured) -> None:
    listed = coloured("status")
    assert line_with(listed, "agent/broken").startswith(click.style("warning", fg="yellow") + ": agent/broken failed: ")
    assert click.style("ok", fg="green") in line_with(listed, "agent/good")


def _starts_of_lines(text: str) -> list[str]:
    """Without figures: the free space of the disk changes between two calls of doctor."""
    return [re.sub(r"\d", "0", line)[:20] for line in text.splitlines()]


@pytest.mark.parametrize("words", [["runs"], ["status"], ["explain"], ["explain", "broken"], ["plan"], ["doctor"], ["check"]])
def test_colours_change_no_character_of_the_text(
    words: list[str], world: World, coloured: Coloured, capsys: pytest.CaptureFixture[str]
) -> None:
    painted = coloured(*words)
    main(["-c", str(world.config), *words])
    plain = capsys.readouterr().out
    assert "\x1b" in painted
    assert "\x1b" not in plain
    assert _starts_of_lines(click.unstyle(painted)) == _starts_of_lines(plain)


def test_json_has_no_colours(coloured: Coloured) -> None:
    assert "\x1b" not in coloured("runs", "--format", "json")


def test_errors_of_check_are_red(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("agents: {ops: {intervall: 3}}\n")
    assert main(["check", "-c", str(config), "--color", "always"]) == 2
    assert f"\x1b[31m{config}:1:16\x1b[0m: agents.ops.intervall: unknown key" in capsys.readouterr().err


def on_a_terminal(words: list[str], **environ: str) -> str:
    """The output of a command whose standard output is a terminal."""
    mine, theirs = pty.openpty()
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(HOME), "TERM": "xterm", "COLUMNS": "200", **environ}
    code = Heartbeatd(*words, env=environ, stdout=theirs, stderr=theirs).wait(PATIENCE)
    os.close(theirs)
    assert code == 0
    with os.fdopen(mine, "rb") as screen:
        return screen.read1().decode()


def test_a_terminal_shows_colours_unless_somebody_does_not_want_them(world: World) -> None:
    words = ["-c", str(world.config), "status"]
    assert "\x1b[33mwarning" in on_a_terminal(words)
    assert "\x1b" not in on_a_terminal(words, NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(words, TERM="dumb")
    assert "\x1b" not in on_a_terminal([*words, "--color", "never"])
    assert "\x1b[33mwarning" in on_a_terminal([*words, "--color", "always"], NO_COLOR="1")


def test_a_pipe_gets_the_whole_text_of_a_problem(make_world: MakeWorld) -> None:
    text = "the disk is full " * 9
    world = make_world(CONFIG, scripts={"good": lambda _: f"[disk] {text}"})
    world.run(hours=1)
    ended = run_heartbeatd("-c", world.config, "problems", env={"PYTHONPATH": str(HOME)})
    assert text.strip() in ended.stdout
