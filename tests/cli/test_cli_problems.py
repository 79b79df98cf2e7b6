"""The command `problems` lists everything that is wrong, and explains the number that a message has."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from test_story_notices import process_result
from world import MakeWorld, World

from scheduler.channels.message import DeliveryResult
from scheduler.cli.main import main

CONFIG = """
timezone: UTC
channels:
  phone: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}
agents:
  ops: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: phone}}
cron:
  backup: {every: 30m, command: backup, deliver: phone}
"""
JOB_LINES = [
    "p1       cron/backup  failed    warning   03-02 08:30  open",
    "    exit: exit code 2: tape 1 torn",
    "    delivered to phone 03-02 08:30",
]

Command = Callable[..., list[str]]


@pytest.fixture
def world(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> World:
    """A job fails, and an agent reports that a disk is full."""
    monkeypatch.setenv("COLUMNS", "80")
    world = make_world(CONFIG, send=lambda _: DeliveryResult("delivered"))
    world.scripts |= {"backup": lambda _: process_result(2, "tape 1 torn"), "ops": lambda _: "[disk:/var!] 97 % full"}
    world.run(minutes=31)
    return world


@pytest.fixture
def command(world: World, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `heartbeatd problems` with these words and returns the printed lines."""

    def run(*words: str, code: int = 0) -> list[str]:
        assert main(["-c", str(world.config), "problems", *words]) == code
        out, err = capsys.readouterr()
        return (out + err).splitlines()

    return run


def subjects(command: Command, *words: str) -> list[tuple[str | None, str, str]]:
    found = json.loads("\n".join(command(*words, "--format", "json")))
    return [(each["number"], each["subject"], each["state"]) for each in found]


def test_the_number_in_a_message_is_explained(world: World, command: Command) -> None:
    texts = [text.splitlines()[0] for _, who, text in world.delivered if who == "backup"]
    assert texts == ["warning  cron/backup failed: exit: exit code 2: tape 1 torn (since 2026-03-02 08:30 UTC)   p1"]
    title = "PROBLEM  SUBJECT      KEY     SEVERITY  SINCE        STATE"
    assert command("p1") == [title, *(line.replace("failed    ", "failed  ") for line in JOB_LINES), "times in UTC"]


def test_one_command_lists_everything_that_is_wrong_the_most_severe_first(command: Command) -> None:
    assert command() == [
        "PROBLEM  SUBJECT      KEY        SEVERITY  SINCE        STATE",
        "-        agent/ops    disk:/var  critical  03-02 08:00  open",
        "    97 % full",
        "    delivered to phone 03-02 08:00",
        *(line.replace("failed    ", "failed     ") for line in JOB_LINES),
        "times in UTC",
    ]
    for name in ("backup", "cron/backup"):
        assert subjects(command, name) == [("p1", "cron/backup", "open")]


def test_a_problem_that_is_over_is_only_listed_with_all_or_by_its_number(world: World, command: Command) -> None:
    world.scripts["backup"] = lambda _: "well"
    world.run(minutes=30)
    assert subjects(command) == [(None, "agent/ops", "open")]
    assert command("backup") == ["there are no open problems"]
    over = ("p1", "cron/backup", "over")
    assert (subjects(command, "--all", "backup"), subjects(command, "p1")) == ([over], [over])
    assert command("p1")[1].endswith("over 03-02 09:00")


def test_an_acknowledged_condition_says_so(world: World, command: Command) -> None:
    assert main(["-c", str(world.config), "ack", "ops", "disk:/var"]) == 0
    assert "critical  03-02 08:00  open, acknowledged" in "\n".join(command("agent/ops"))


def test_a_failure_that_is_not_reported_yet_is_only_listed_with_all(world: World, command: Command) -> None:
    world.scripts["ops"] = lambda _: process_result(1, "no network")
    world.run(minutes=30)
    assert ("p2", "agent/ops", "seen") in subjects(command, "--all")
    assert ("p2", "agent/ops", "seen") not in subjects(command)
    assert "    not reported: it was not found often enough" in command("p2")


def test_an_unknown_number_or_name_is_answered_in_one_line(command: Command) -> None:
    for named, what in {"p99": "problem p99", "opps": "agent, job or problem 'opps'"}.items():
        assert command(named, code=2) == [f"heartbeatd: no {what}; `heartbeatd problems --all` lists all problems"]
