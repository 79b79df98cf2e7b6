"""`status`, `explain`, `show`, `report` and the log show open problems, and why an answer was or was not sent."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.cells import cell_len
from test_story_explain import fact_of
from world import MakeWorld, World

from heartbeat.words import Word
from scheduler.cli.main import main
from scheduler.model.outcome import Skip, Suppression
from scheduler.model.problem import Effect, EndedBy
from scheduler.model.wake import RejectedBecause
from scheduler.telemetry.event_log import EventLog

CONFIG = """
timezone: UTC
channels: {phone: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}
defaults:
  runner: {kind: command, argv: [agent]}
  heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: phone}
agents:
  ops: {}
  web: {}
cron:
  backup: {schedule: "0 3 1 1 *", command: backup, wake_heartbeat: ops}
"""

Print = Callable[..., list[str]]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Print:
    """`printed(world, "status")` runs a command for the config of the world and returns its lines, of at most 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(world: World, *words: str) -> list[str]:
        capsys.readouterr()
        assert main(["-c", str(world.config), *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        formatted = lines[: lines.index("")] if "show" in words and "" in lines else lines  # the answer follows as it is
        assert "json" in words or max(map(cell_len, formatted)) <= 80
        return lines

    return run


def data(lines: list[str]) -> Any:
    return json.loads("\n".join(lines))


def facts(lines: list[str], word: str) -> list[str]:
    """The values after a label, each with its wrapped lines."""
    found: list[str] = []
    is_open = False
    for line in lines:
        is_open = line.startswith(f"{word:<10} ") or (is_open and line.startswith(" " * 11))
        if line.startswith(f"{word:<10} "):
            found.append(line[11:])
        elif is_open:
            found[-1] += f" {line.strip()}"
    return found


def start(minutes: int = 0, **span: float) -> str:
    """A start of the world so long before now, because the commands read the clock of the host."""
    return f"{datetime.now(UTC) - timedelta(minutes=minutes, **span):%Y-%m-%d %H:%M}"


def answers(*texts: str) -> dict[str, Any]:
    said = iter(texts)
    return {"ops": lambda _: next(said, texts[-1])}


@pytest.mark.parametrize("words", [Effect, EndedBy, RejectedBecause, Skip, Suppression])
def test_each_word_has_a_plain_text(words: type[Word]) -> None:
    assert [each for each in words if not each.says or words.text_of(each.value) != each.says] == []
    assert words.text_of("of_a_later_version") == "of_a_later_version"


def test_status_begins_with_the_open_problems_and_counts_those_of_each_agent(make_world: MakeWorld, printed: Print) -> None:
    world = make_world(CONFIG, scripts=answers("[disk!] full\n[mail] waits") | {"web": lambda _: "[tls] expires soon"})
    world.run(minutes=1)
    assert printed(world, "status")[2:8] == [
        "critical: agent/ops disk: full (since 03-02 08:00, delivered to phone 03-02",
        "  08:00)   p1",
        "warning: agent/ops mail: waits (since 03-02 08:00, delivered to phone 03-02",
        "  08:00)   p2",
        "warning: agent/web tls: expires soon (since 03-02 08:00, delivered to phone",
        "  03-02 08:00)   p3",
    ]
    assert data(printed(world, "status", "--format", "json"))["problems"] == data(printed(world, "problems", "--format", "json"))
    entries = data(printed(world, "status", "--format", "json"))["entries"]
    assert [(each["name"], each["problems"]) for each in entries] == [
        ("ops", {"open": 2, "reported": 2, "worst": "critical"}),
        ("web", {"open": 1, "reported": 1, "worst": "warning"}),
        ("backup", {"open": 0, "reported": 0, "worst": None}),
    ]
    for answer, expected in (("[tls] expires soon (info)\n[dns] is slow", (2, 2, "warning")), (1, (3, 2, "warning"))):
        world.scripts["web"] = lambda _, answer=answer: answer
        world.run(hours=4)
        (_, web, _) = data(printed(world, "status", "--format", "json"))["entries"]
        assert tuple(web["problems"].values()) == expected


def test_a_run_shows_its_findings_and_what_became_of_each(make_world: MakeWorld, printed: Print) -> None:
    world = make_world(CONFIG, scripts=answers("[disk!] full\n[mail] waits", "[disk!] full\n[mail] resolved\n[tls] resolved"))
    world.run(minutes=31)
    first, second = (run["id"] for run in world.records("ops"))
    assert facts(printed(world, "show", str(first)), "finding") == ["disk (critical): new", "mail: new"]
    assert facts(printed(world, "show", str(second)), "finding") == [
        "disk (critical): already open",
        "mail: over, as the agent reported",
        "tls: reported as over, but no such problem was open, or its evidence is still there",
    ]
    assert [each["effect"] for each in data(printed(world, "show", str(second), "--format", "json"))["findings"]] == [
        "known",
        "resolved",
        "ignored",
    ]


def test_a_run_whose_finding_was_known_shows_which_run_sent_it(make_world: MakeWorld, printed: Print) -> None:
    world = make_world(CONFIG, scripts=answers("[disk!] full"))
    world.run(minutes=31)
    first, second = (run["id"] for run in world.records("ops"))
    assert facts(printed(world, "show", str(first)), "delivery") == ["delivered to phone"]
    assert facts(printed(world, "show", str(second)), "delivery") == [f"delivered to phone (by run {first})"]


@pytest.mark.parametrize(
    ("texts", "sent", "says"),
    [
        (["[disk] full"], True, "delivered to phone; disk: new"),
        (
            ["[disk] full", "[disk] 99 %"],
            False,
            "not sent again; its recipients have already got its content; disk: already open",
        ),
        (["[disk] full", "[disk] full\n[mail] waits"], True, "delivered to phone; disk: already open; mail: new"),
        (["HEARTBEAT_OK"], False, "not sent; nothing needs attention"),
        (["The disk is full."], True, "delivered to phone"),
        (
            ["\n".join(f"[{number}-disk] full" for number in range(7))],
            True,
            "delivered to phone; 0-disk: new; 1-disk: new; 2-disk: new; 3-disk: new; 4-disk: new; and 2 more",
        ),
    ],
)
def test_explain_says_why_the_last_answer_was_or_was_not_sent(
    texts: list[str], sent: bool, says: str, make_world: MakeWorld, printed: Print
) -> None:
    world = make_world(CONFIG, scripts=answers(*texts))
    world.run(minutes=30 * len(texts) - 29)
    found = fact_of(data(printed(world, "explain", "ops", "--format", "json")), "answer")
    assert (found["code"], found["says"]) == ("sent" if sent else "not_sent", says)
    assert facts(printed(world, "explain", "ops"), "answer") == [says]


def test_explain_shows_what_would_close_each_open_problem(make_world: MakeWorld, printed: Print) -> None:
    world = make_world(CONFIG, scripts=answers("[disk!] full\n[mail] waits", "[disk!] full"))
    world.run(minutes=31)
    eight, rule = "Mon 2026-03-02 08:00", "It is over when the agent reports its end, or after"
    assert facts(printed(world, "explain", "ops"), "open") == [
        f"p1 disk (critical) since {eight}, delivered to phone {eight}. {rule} 2 answers in a row without it",
        f"p2 mail (warning) since {eight}, delivered to phone {eight}. {rule} one answer without it",
    ]
    disk = fact_of(data(printed(world, "explain", "ops", "--format", "json")), "open")
    assert (disk["code"], disk["at"]) == ("critical", "2026-03-02T08:00:00Z")
    assert facts(printed(world, "explain", "backup"), "open") == []


def test_explain_names_the_evidence_that_a_problem_waits_for(make_world: MakeWorld, printed: Print) -> None:
    precheck = CONFIG.replace("  ops: {}", "  ops: {heartbeat: {precheck: {command: look}}}")
    world = make_world(precheck, scripts=answers("[disk] full", "[backup] failed"), prechecks={"ops": lambda _: "disk full"})
    world.run(minutes=1)
    (disk,) = facts(printed(world, "explain", "ops"), "open")
    assert disk.endswith("2 answers in a row without it, not counting answers while the precheck still prints what came with it")
    world.run_job("backup")
    world.run(minutes=5)
    backup = next(line for line in facts(printed(world, "explain", "ops"), "open") if line.startswith("p2 backup"))
    assert backup.endswith("2 answers in a row without it, counting only answers to wakes by cron:backup")


def test_explain_shows_problems_with_an_invalid_config(make_world: MakeWorld, printed: Print) -> None:
    world = make_world(CONFIG, scripts=answers("[disk] full"))
    world.run(minutes=1)
    world.write_config("timezone: UTC\nagents: [[[\n")
    (disk,) = facts(printed(world, "explain", "ops"), "open")
    assert disk.endswith("or after several answers without it")


def test_long_and_many_keys_fit_into_eighty_columns(make_world: MakeWorld, printed: Print) -> None:
    world = make_world(CONFIG, scripts=answers("\n".join(f"[{number}-{'x' * 100}] full" for number in range(30))))
    world.run(minutes=1)
    (run,) = world.records("ops")
    assert len(facts(printed(world, "show", str(run["id"])), "finding")) == 30
    lines = printed(world, "explain", "ops")
    *shown, more = facts(lines, "open")
    assert (len(shown), more) == (10, "and 20 more: `heartbeatd problems ops`")


def test_the_report_counts_problems_by_agent(make_world: MakeWorld, printed: Print) -> None:
    script = answers("[disk!] full", "[disk!] full\n[mail] waits", "[mail] resolved\n[disk!] full", "[disk!] full")
    world = make_world(CONFIG, start=start(hours=7), scripts=script)
    world.run(hours=7)
    assert data(printed(world, "report", "--format", "json"))["problems"] == [
        {"kind": "heartbeat", "name": "ops", "opened": 2, "resolved": 1, "reminders": 1, "duplicates": 11}
    ]
    lines = printed(world, "report")
    at = lines.index("PROBLEMS   OPENED  RESOLVED  REMINDERS  DUPLICATES")
    assert lines[at + 1] == "agent/ops       2         1          1          11"


def test_the_report_of_many_agents_sums_up_those_with_few_problems(make_world: MakeWorld, printed: Print) -> None:
    names = [f"agent-{number:02}-with-a-name-of-forty-character" for number in range(20)]
    agents = "agents: {" + ", ".join(f"{name}: {{}}" for name in names) + "}\n"
    world = make_world(
        CONFIG.partition("agents:")[0] + agents, start=start(5), scripts=dict.fromkeys(names, lambda _: "[disk] full")
    )
    world.run(minutes=4)
    lines = printed(world, "report")
    at = next(number for number, line in enumerate(lines) if line.startswith("PROBLEMS"))
    assert lines[at + 13].split() == ["8", "others", "8", "0", "0", "0"]


def test_the_log_line_of_a_run_counts_its_findings(make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    world = make_world(CONFIG, scripts=answers("[disk] full\n[mail] waits", "[disk] full\n[mail] waits\n[tls] old"))
    world.run(minutes=31)
    log = EventLog()
    with caplog.at_level(logging.INFO):
        for event in world.events:
            log.log_event(event)
    lines = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "run"]
    assert [line.get("findings") for line in lines if line["name"] == "ops"] == ["2 opened", "2 known, 1 opened"]
    assert [line.get("findings") for line in lines if line["name"] == "web"] == [None, None]
