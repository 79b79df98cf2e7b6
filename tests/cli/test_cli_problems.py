"""`problems` lists everything that is wrong; `ack`, `unack` and `close` take its numbers, with the daemon up and down."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len
from test_cli_writing import Daemon
from test_story_notices import process_result
from world import MakeWorld, World

from scheduler.cli.daemon_files import DaemonFiles
from scheduler.cli.main import main
from scheduler.model.message import DeliveryResult

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
    "p2       cron/backup  failed    warning   03-02 08:30  open",
    "    exit code 2: tape 1 torn",
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
    """Runs `heartbeatd problems` with these words, or (`verb`) a command that changes something, and returns the printed lines."""

    stopped: list[bool] = []  # because a command that changes something takes the database, as no daemon runs

    def run(*words: str, code: int = 0, verb: bool = False) -> list[str]:
        if verb and not stopped:
            stopped.append(True)
            world.stop()
        assert main(["-c", str(world.config), *([] if verb else ["problems"]), *words]) == code
        out, err = capsys.readouterr()
        return (out + err).splitlines()

    return run


def subjects(command: Command, *words: str) -> list[tuple[str | None, str, str]]:
    found = json.loads("\n".join(command(*words, "--format", "json")))
    return [(each["number"], each["subject"], each["state"]) for each in found]


def test_the_number_in_a_message_is_explained(world: World, command: Command) -> None:
    texts = [text.splitlines()[0] for _, who, text in world.delivered if who == "backup"]
    assert texts == ["warning  cron/backup failed: exit code 2: tape 1 torn (since 2026-03-02 08:30 UTC)   p2"]
    title = "PROBLEM  SUBJECT      KEY     SEVERITY  SINCE        STATE"
    assert command("p2") == [title, *(line.replace("failed    ", "failed  ") for line in JOB_LINES), "times in UTC"]


def test_one_command_lists_everything_that_is_wrong_the_most_severe_first(command: Command) -> None:
    assert command() == [
        "PROBLEM  SUBJECT      KEY        SEVERITY  SINCE        STATE",
        "p1       agent/ops    disk:/var  critical  03-02 08:00  open",
        "    97 % full",
        "    delivered to phone 03-02 08:00",
        *(line.replace("failed    ", "failed     ") for line in JOB_LINES),
        "times in UTC",
    ]
    for name in ("backup", "cron/backup"):
        assert subjects(command, name) == [("p2", "cron/backup", "open")]


def test_a_channel_or_a_daemon_that_works_has_no_problems(command: Command) -> None:
    for name in ("phone", "channel/phone", "log", "daemon"):
        assert command(name) == ["there are no open problems"]
        assert command(name, "--all") == ["there are no problems"]
    assert command("phones", code=2) == [
        "heartbeatd: no agent, job, channel or problem 'phones'; `heartbeatd problems --all` lists all problems"
    ]


def test_a_problem_that_is_over_is_only_listed_with_all_or_by_its_number(world: World, command: Command) -> None:
    world.scripts["backup"] = lambda _: "well"
    world.run(minutes=30)
    assert subjects(command) == [("p1", "agent/ops", "open")]
    assert command("backup") == ["there are no open problems"]
    over = ("p2", "cron/backup", "over")
    assert (subjects(command, "--all", "backup"), subjects(command, "p2")) == ([over], [over])
    assert command("p2")[1].endswith("over 03-02 09:00")


def test_a_problem_is_acknowledged_and_closed_by_its_number_or_by_name_and_key(world: World, command: Command) -> None:
    def say(*words: str, code: int = 0) -> str:
        return "\n".join(command(*words, code=code, verb=True))

    assert say("problems", "ack", "ops", "DISK: /var") == (
        "problem p1 (agent/ops disk:/var) is acknowledged: no messages until it is worse or over"
    )
    assert "critical  03-02 08:00  open, acknowledged" in "\n".join(command("agent/ops"))
    assert any(line.endswith("by command: no messages until it is worse or over") for line in command("p1"))
    assert say("problems", "unack", "p1") == "problem p1 (agent/ops disk:/var) is not acknowledged any more"
    assert say("problems", "unack", "p1", code=1) == "heartbeatd: problem p1 was not acknowledged"
    assert say("problems", "ack", "p2").startswith("problem p2 (cron/backup failed) is acknowledged")
    assert say("problems", "close", "backup", "failed") == "problem p2 (cron/backup failed) is closed"
    assert "over: a user closed it, or removed its agent or job" in "\n".join(command("p2"))
    assert say("problems", "close", "p2", code=1) == "heartbeatd: problem p2 (cron/backup failed) is over already"


def test_a_problem_that_cannot_be_found_is_named_in_one_line(command: Command) -> None:
    for words, said in {
        ("ops",): "give the number of a problem, such as p12, or a name and a key; `heartbeatd problems` lists them",
        ("7",): "give the number of a problem, such as p12, or a name and a key; `heartbeatd problems` lists them",
        ("ops", "disk:/vra"): "ops has no open problem 'disk:/vra'; did you mean disk:/var?",
        ("backup", "mail"): "backup has no open problem 'mail'; `heartbeatd problems` lists them",
        ("opps", "mail"): "no agent, job, channel or problem 'opps'; `heartbeatd problems` lists them",
    }.items():
        assert command("problems", "close", *words, code=2, verb=True) == [f"heartbeatd: {said}"]
    assert command("problems", "close", "p99", code=2, verb=True) == [
        "heartbeatd: no problem p99; `heartbeatd problems` lists them"
    ]


def test_an_agent_and_a_job_of_one_name_with_the_same_problem_are_closed_only_by_their_numbers(
    make_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(CONFIG.replace("backup: {every", "ops: {every"), scripts={"ops": lambda _: process_result(2, "torn")})
    world.run(minutes=31)
    world.stop()
    assert main(["-c", str(world.config), "problems", "close", "ops", "failed"]) == 2
    assert capsys.readouterr().err == "heartbeatd: several problems have the key 'failed'; write p1 or p2\n"


def test_an_empty_list_is_no_error_and_an_invalid_config_neither(
    world: World, command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = str(tmp_path / "other.db")
    assert main(["problems", "--state", state]) == 0
    assert main(["problems", "--all", "--state", state]) == 0
    assert capsys.readouterr().out == "there are no open problems\nthere are no problems\n"
    world.config.write_text("agents: [[[\n")
    assert len(command()) == 8


def test_hostile_texts_and_long_names_fit_into_eighty_columns(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name, key = "an-agent-with-a-name-of-forty-characters", "disk:/" + "宽" * 50
    world = make_world(
        CONFIG.replace("  ops: {runner", f"  {name}: {{runner"),
        scripts={name: lambda _: f"[{key}] \x1b[2J full\u202e " + "x" * 300},
    )
    world.run(minutes=5)
    for words in (["problems"], ["problems", name, "--all"]):
        assert main([*words, "-c", str(world.config)]) == 0
        out = capsys.readouterr().out
        assert max(map(cell_len, out.splitlines())) <= 80
        assert out.replace("\n", "").isprintable()
        assert out.count(f"    {key[:20]}") == 1  # the table has cut the key, so it is on a line of its own


def test_a_problem_is_closed_by_the_running_daemon(world: World, command: Command) -> None:
    daemon = Daemon(DaemonFiles(world.state))
    daemon.write_address()
    path = "/api/v1/problems/1/close"
    daemon.answers[path] = (200, {"problem": "p1", "subject": "agent/ops", "key": "disk:/var", "says": "problem p1 is closed"})
    try:
        assert command("problems", "close", "ops", "disk:/var", verb=True) == ["problem p1 is closed"]
    finally:
        daemon.close()
    assert daemon.asked == [(path, {})]


def test_a_failure_that_is_not_reported_yet_is_only_listed_with_all(world: World, command: Command) -> None:
    world.scripts["ops"] = lambda _: process_result(1, "no network")
    world.run(minutes=30)
    assert ("p3", "agent/ops", "seen") in subjects(command, "--all")
    assert ("p3", "agent/ops", "seen") not in subjects(command)
    assert "    not sent because it was not found often enough" in command("p3")


def test_an_unknown_number_or_name_is_answered_in_one_line(command: Command) -> None:
    for named, what in {"p99": "problem p99", "opps": "agent, job, channel or problem 'opps'"}.items():
        assert command(named, code=2) == [f"heartbeatd: no {what}; `heartbeatd problems --all` lists all problems"]


def test_explain_ends_a_sentence_with_one_full_stop_also_after_an_error_with_its_own(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.scripts["backup"] = lambda _: process_result(2, "there is no tape.")
    world.run(minutes=31)
    main(["-c", str(world.config), "explain", "cron/backup", "--on", "2026-03-02"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "there is no tape. `heartbeatd show 5`" in printed
    assert ".." not in printed


def test_a_key_names_only_a_problem_that_is_not_over(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(CONFIG, scripts={"ops": lambda call: "[disk] full" if call.at.hour == 8 else "[disk] resolved"})
    for minutes, code, says in (
        (31, 0, "problem p1 (agent/ops disk) is acknowledged"),
        (30, 2, "ops has no open problem 'DISK'"),
    ):
        world.run(minutes=minutes)
        assert main(["-c", str(world.config), "problems", "ack", "ops", "DISK"]) == code
        assert says in "".join(capsys.readouterr())
