"""The command `conditions` lists what agents have reported, and closes a condition, with the daemon up and down."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len
from test_cli_writing import Daemon
from world import MakeWorld, World

from scheduler.channels.message import DeliveryResult
from scheduler.cli.daemon_files import DaemonFiles
from scheduler.cli.main import main

CONFIG = """
timezone: UTC
channels:
  phone: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}
  chat: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}
defaults:
  agent: {runner: {kind: command, argv: [agent]}}
  heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: [phone, chat]}
agents: {ops: {}, web: {}, close: {}}
"""
OPS = "[disk:/var!] 97 % full\n[mail] 20 mails wait"

Command = Callable[..., list[str]]


@pytest.fixture
def world(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> World:
    """`ops` has two open conditions, `web` and `close` have one each, which has the same key."""
    monkeypatch.setenv("COLUMNS", "80")
    answers = {"ops": OPS, "web": "[Disk:/VAR] almost full", "close": "[a door] is open"}
    scripts = {name: (lambda call, text=text: text) for name, text in answers.items()}
    world = make_world(CONFIG, scripts=scripts, send=lambda _: DeliveryResult("delivered"))
    world.run(minutes=40)
    world.stop()
    return world


@pytest.fixture
def command(world: World, capsys: pytest.CaptureFixture[str]) -> Command:
    """`command("conditions", "ops")` runs a command and returns the printed lines. It fails the test unless the code is `code`."""

    def run(*words: str, code: int = 0) -> list[str]:
        assert main(["-c", str(world.config), *words]) == code
        out, err = capsys.readouterr()
        return (out + err).splitlines()

    return run


def test_open_conditions_are_listed_the_most_severe_first(command: Command) -> None:
    assert command("conditions", "ops") == [
        "AGENT  KEY        SEVERITY  SINCE        LAST SEEN    REPORTED     TO",
        "ops    disk:/var  critical  03-02 08:00  03-02 08:30  03-02 08:00  chat",
        "    also to phone 03-02 08:00",
        "    “97 % full”",
        "ops    mail       warning   03-02 08:00  03-02 08:30  03-02 08:00  chat",
        "    also to phone 03-02 08:00",
        "    “20 mails wait”",
        "times in UTC",
    ]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], ["close", "ops", "ops", "web"]),
        (["ops"], ["ops", "ops"]),
        (["agent/close"], ["close"]),
        (["--all", "web"], ["web"]),
        (["web", "--all"], ["web"]),
    ],
    ids=" ".join,
)
def test_the_list_can_be_limited_to_one_agent(words: list[str], names: list[str], command: Command) -> None:
    found = json.loads("\n".join(command("conditions", *words, "--format", "json")))
    assert [each["name"] for each in found] == names


def test_conditions_as_json_have_their_times_and_reports(command: Command) -> None:
    found = json.loads("\n".join(command("conditions", "--format", "json", "web")))
    report = {"kind": "open", "severity": "warning", "reported_at": "2026-03-02T08:00:00Z"}
    assert found == [
        {
            "name": "web",
            "key": "Disk:/VAR",
            "severity": "warning",
            "state": "open",
            "text": "almost full",
            "opened_at": "2026-03-02T08:00:00Z",
            "last_seen_at": "2026-03-02T08:30:00Z",
            "closed_at": None,
            "ended_by": None,
            "missed": 0,
            "acknowledged_at": None,
            "acknowledged_by": None,
            "openings": ["2026-03-02T08:00:00Z"],
            "first_run": found[0]["first_run"],
            "last_run": found[0]["last_run"],
            "reports": [{"channel": each, "says": f"delivered to {each}"} | report for each in ("chat", "phone")],
        }
    ]


def test_a_condition_is_closed_in_the_database_while_the_daemon_is_down(command: Command) -> None:
    assert command("conditions", "close", "MAIL ") == ["the condition mail of agent/ops is closed"]
    assert "mail" not in "".join(command("conditions"))
    lines = command("conditions", "ops", "--all")
    assert lines[4].startswith("ops    mail       warning")
    assert any(line.startswith("    closed ") and line.endswith(": a user closed it") for line in lines[5:])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["disk:/var"], "several agents have the condition 'disk:/var'; add --agent ops or --agent web"),
        (["mial"], "no open condition 'mial'; did you mean mail?"),
        (["backup"], "no open condition 'backup'; `heartbeatd conditions` lists them"),
        (["mail", "--agent", "web"], "agent 'web' has no condition 'mail'; `heartbeatd conditions` lists them"),
        (["disk:/usr", "--agent", "web"], "agent 'web' has no condition 'disk:/usr'; `heartbeatd conditions` lists them"),
        (["mail", "--agent", "cron/ops"], "'cron/ops' is not agent/NAME; only agents have conditions"),
        (["mail", "--agent", "opps"], "no agent 'opps' in config.yaml; did you mean ops?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_condition_that_cannot_be_found_is_named_in_one_line(words: list[str], said: str, command: Command) -> None:
    assert command("conditions", "close", *words, code=2) == [f"heartbeatd: {said}"]


def test_the_agent_decides_between_equal_keys(command: Command) -> None:
    assert command("conditions", "close", "disk:/var", "--agent", "web") == ["the condition Disk:/VAR of agent/web is closed"]
    assert command("conditions", "close", "disk:/var") == ["the condition disk:/var of agent/ops is closed"]
    assert command("conditions", "close", "disk:/var", "--agent", "ops", code=1) == [
        "heartbeatd: the condition 'disk:/var' of agent 'ops' is closed already"
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["opps"], "no agent 'opps'; did you mean ops?"),
        (["cron/ops"], "'cron/ops' is not agent/NAME; only agents have conditions"),
        (["ops", "web"], "unexpected argument 'web'; see `heartbeatd conditions --help`"),
        (["ops", "close", "mail"], "unexpected argument 'ops'; see `heartbeatd conditions --help`"),
        (["close"], "Missing argument 'KEY'; see `heartbeatd conditions close --help`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_call_is_answered_in_one_line(words: list[str], said: str, command: Command) -> None:
    assert command("conditions", *words, code=2) == [f"heartbeatd: {said}"]


def test_an_empty_list_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = str(tmp_path / "heartbeatd.db")
    assert main(["conditions", "--state", state]) == 0
    assert main(["conditions", "--all", "--state", state]) == 0
    assert capsys.readouterr().out == "there are no open conditions\nthere are no conditions\n"
    assert main(["conditions", "--state", state, "--format", "json"]) == 0
    assert capsys.readouterr().out == "[]\n"


def test_conditions_are_listed_with_an_invalid_config(world: World, command: Command) -> None:
    world.config.write_text("agents: [[[\n")
    assert len(command("conditions")) == 14


def test_hostile_texts_and_long_names_fit_into_eighty_columns(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name, key = "an-agent-with-a-name-of-forty-characters", "disk:/" + "宽" * 50
    world = make_world(
        CONFIG.replace("agents: {ops: {},", f"agents: {{{name}: {{}},"),
        scripts={name: lambda _: f"[{key}] \x1b[2J full\u202e " + "x" * 300},
    )
    world.run(minutes=5)
    for words in (["conditions"], ["conditions", name, "--all"]):
        assert main([*words, "-c", str(world.config)]) == 0
        out = capsys.readouterr().out
        assert max(map(cell_len, out.splitlines())) <= 80
        assert out.replace("\n", "").isprintable()
        assert out.count(f"    {key[:20]}") == 1  # the table has cut the key, so it is on a line of its own


def test_a_condition_is_acknowledged_by_agent_and_key_or_by_run(command: Command) -> None:
    assert command("ack", "ops", "Mail") == ["the condition mail of agent/ops: no messages until worse or over"]
    (line,) = (line for line in command("conditions", "ops") if "acknowledged" in line)
    assert line.endswith(" by cli: quiet until it gets worse or ends")
    (printed,) = command("ack", "1")
    assert printed.endswith("of agent/ops: no messages until worse or over")


def test_an_acknowledgement_is_taken_back_by_agent_and_key_or_by_run(command: Command) -> None:
    command("ack", "ops", "mail")
    assert command("unack", "ops", "Mail") == ["the condition mail of agent/ops: acknowledgement removed"]
    assert not [line for line in command("conditions", "ops") if "acknowledged" in line]
    assert command("unack", "ops", "mail") == ["the condition mail of agent/ops was not acknowledged"]
    (printed,) = command("unack", "1")
    assert printed.endswith("of agent/ops were not acknowledged")


def test_a_condition_is_closed_by_the_running_daemon(world: World, command: Command) -> None:
    place = DaemonFiles(world.state)
    daemon = Daemon(place)
    daemon.write_address()
    daemon.answers["/api/v1/conditions/close"] = (
        200,
        {"agent": "ops", "key": "mail", "says": "the condition mail of agent/ops is closed"},
    )
    try:
        assert command("conditions", "close", "Mail") == ["the condition mail of agent/ops is closed"]
    finally:
        daemon.close()
    assert daemon.asked == [("/api/v1/conditions/close", {"agent": "ops", "key": "Mail"})]
