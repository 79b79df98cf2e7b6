"""The features of other heartbeat systems: a test for each row of parity.py, and a check of tests/parity.md."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from checkout import HOME
from config_file import complaints, read
from parity import SYSTEMS, page, row, shown_by
from test_story_explain import fact_of
from world import MakeWorld, utc

from heartbeatd.verbs import NoteActivity
from scheduler.cli.main import main
from scheduler.engine.effects import VerbRequest
from scheduler.model.events import RunClosed
from scheduler.model.outcome import Kind

NOW = utc("2026-03-02 08:00")


def agent(**keys: str) -> str:
    """The config of one agent `ops` with these heartbeat keys."""
    words = {"interval": "30m", "stagger": "0s", "checklist": '"- look\\n"', "deliver": "log"} | keys
    heartbeat = ", ".join(f"{key}: {value}" for key, value in words.items() if value)
    return (
        f"agents:\n  ops:\n    context: [SOUL.md]\n    runner: {{kind: command, argv: [agent]}}\n    heartbeat: {{{heartbeat}}}\n"
    )


def answers_in_turn(*texts: object) -> dict[str, Callable[..., object]]:
    """An agent that gives these answers in turn and repeats the last one."""
    left = list(texts)
    return {"ops": lambda call: left.pop(0) if len(left) > 1 else left[0]}


@row("claw0", 2)
def test_claw0_each_check_can_be_previewed(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world(agent(checklist='"# nothing\\n"', show_alerts="false"))
    world.run(minutes=1)
    assert main(["explain", "ops", "-c", str(world.config), "--format", "json"]) == 0
    now = json.loads(capsys.readouterr().out)["now"]
    assert (now["would_run"], now["why"]) == (False, "checklist_empty")
    assert [gate["gate"] for gate in now["gates"] if gate["stands_in_the_way"]] == ["checklist_empty", "not_shown"]


@row("claw0", 9)
def test_claw0_status_shows_enabled_in_hours_due_and_duplicates(
    make_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(agent(active_hours='"08:00-22:00"'), scripts=answers_in_turn("the disk is full"))
    world.run(minutes=40)
    assert main(["explain", "ops", "-c", str(world.config), "--format", "json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["pace"]["interval"]) == ("active", 1800.0)
    assert fact_of(status, "next")["at"] == "2026-03-02T09:00:00Z"
    assert fact_of(status, "last run")["at"] == "2026-03-02T08:30:00Z"
    assert ", alert duplicate, " in fact_of(status, "last run")["says"]
    assert [gate["gate"] for gate in status["now"]["gates"]][:4] == ["disabled", "paused", "calendar", "active_hours"]


@row("GoClaw", 1)
def test_goclaw_every_setting_of_a_heartbeat_has_a_key(tmp_path: Path) -> None:
    text = """
channels: {chat: {kind: webhook, url: "https://example.org/x"}}
providers: {local: {kind: openai, base_url: "http://127.0.0.1:1/v1"}}
prices: {small: {input: 0, output: 0}}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {enabled: true, interval: 30m, prompt: "Look.", provider: local, model: small, isolated_session: true, light_context: true,
      retries: 2, active_hours: {start: "22:00", end: "06:00", timezone: Asia/Tokyo}, deliver: chat, ack_max_chars: 5}
"""
    beat = read(tmp_path, text.replace("kind: command, argv: [agent]", "kind: openai, provider: local")).settings.heartbeats[
        "ops"
    ]
    assert (beat.interval, beat.prompt, beat.model, beat.light_context, beat.retries) == (
        timedelta(minutes=30),
        "Look.",
        "small",
        True,
        2,
    )
    assert (beat.hours.key(), beat.deliver, beat.ack_max_chars) == (
        "22:00-06:00 mon,tue,wed,thu,fri,sat,sun Asia/Tokyo",
        ("chat",),
        5,
    )
    too_often = text.replace("interval: 30m", "interval: 4m").replace("command, argv: [agent]", "openai, provider: local")
    assert "limits.min_interval" in "".join(complaints(tmp_path, too_often))


@row("GoClaw", 2)
def test_goclaw_the_daemon_sleeps_until_the_next_entry_is_due(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="20s"))
    world.run(seconds=1)
    assert world.engine.tick(world.clock.read()) == NOW + timedelta(seconds=20)


@row("PicoClaw", 5)
def test_picoclaw_a_run_does_not_know_the_run_before(make_world: MakeWorld) -> None:
    world = make_world(agent(), scripts=answers_in_turn("The disk of b is full", "HEARTBEAT_OK"))
    world.run(minutes=31)
    assert len(world.calls) == 2
    assert "disk of b" not in world.calls[1].stdin


@row("PicoClaw", 7)
def test_picoclaw_the_texts_for_the_user_and_for_the_log_can_differ(make_world: MakeWorld) -> None:
    world = make_world(agent(), scripts=answers_in_turn(json.dumps({"text": "Disk full", "log": "looked at 3 hosts"})))
    world.run(minutes=1)
    assert [text for _, _, text in world.delivered] == ["Disk full"]
    assert (world.records()[0]["log"], world.records()[0]["text"]) == ("looked at 3 hosts", "Disk full")
    assert [event.result.log for event in world.events if isinstance(event, RunClosed)] == ["looked at 3 hosts"]


@row("PicoClaw", 9)
def test_picoclaw_the_tools_used_are_recorded(make_world: MakeWorld) -> None:
    tools = [{"name": "ssh", "duration_ms": 1250}, {"name": "df"}]
    world = make_world(
        agent(retries="0"),
        scripts=answers_in_turn(*(json.dumps({"text": "x", "error": error, "tool_calls": tools}) for error in ("", "boom"))),
    )
    world.run(minutes=31)
    tools = [{"name": "ssh", "count": 1, "duration_ms": 1250}, {"name": "df", "count": 1, "duration_ms": None}]
    assert [(row["result"], row["tool_calls"]) for row in world.records()] == [("alert", tools), ("failed", tools)]


@row("MisterMorph", 1)
def test_mistermorph_an_interval_of_0m_disables_and_a_workspace_path_can_begin_with_a_tilde(tmp_path: Path) -> None:
    text = agent(interval="0m").replace("  ops:\n", "  ops:\n    workspace: ~/ops\n")
    beat = read(tmp_path, text).settings.heartbeats["ops"]
    assert (beat.enabled, beat.workspace) == (False, Path.home() / "ops")


@row("MisterMorph", 3)
def test_mistermorph_a_run_gets_its_metadata(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"), scripts=answers_in_turn(1, "HEARTBEAT_OK"))
    world.run(minutes=31)
    world.request(VerbRequest(NoteActivity(queue=3, pending_approvals=1), (Kind.HEARTBEAT, "ops")))
    world.run(minutes=30)
    failed, fine = (json.loads(str(call.env["HEARTBEATD_META"])) for call in world.calls[1:])
    assert (failed["trigger"], failed["planned_at"], failed["failures"]) == ("interval", "2026-03-02T08:30:00Z", 1)
    assert (failed["last_success"], failed["last_error"]) == (None, "exit code 1")
    assert (fine["last_success"], fine["last_error"]) == ("2026-03-02T08:30:00Z", None)
    assert (fine["interval_seconds"], fine["deliver"], fine["uptime_seconds"]) == (1800, ["log"], 3600)
    assert (fine["queue"], fine["pending_approvals"], failed["queue"]) == (3, 1, None)


@row("MisterMorph", 7)
@pytest.mark.parametrize(("isolated", "session"), [("false", "main"), ("true", "isolated")])
def test_mistermorph_the_metadata_names_the_session(make_world: MakeWorld, isolated: str, session: str) -> None:
    runner = "runner: {kind: python, call: 'agent:beat'}"
    world = make_world(
        agent(isolated_session=isolated).replace("runner: {kind: command, argv: [agent]}", runner), scripts=answers_in_turn("{}")
    )
    world.run(minutes=1)
    assert json.loads(world.calls[0].stdin)["meta"]["session"] == session


@row("MisterMorph", 9)
def test_mistermorph_alerts_without_a_chat_go_to_the_log(make_world: MakeWorld) -> None:
    world = make_world(agent(deliver=""), scripts=answers_in_turn("Disk full"))
    world.run(minutes=1)
    assert world.records()[0]["delivery"]["targets"][0]["channel"] == "log"


def functions(file: str) -> set[str]:
    tree = ast.parse(next((HOME / "tests").rglob(file)).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_row_has_a_test_or_names_its_missing_part() -> None:
    for system, rows in SYSTEMS.items():
        for number, each in enumerate(rows, 1):
            shown = shown_by(system, number)
            assert shown or each.waits, f"{system} {number} is neither shown nor waited for"
            for name in shown:
                file, _, function = name.partition("::")
                assert function in functions(file), f"there is no {name}"


def test_the_page_in_docs_is_up_to_date() -> None:
    assert (HOME / "tests" / "parity.md").read_text("utf-8") == page(), (
        "do: python tests/extras/importers/parity.py > tests/parity.md"
    )
