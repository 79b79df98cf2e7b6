"""`logs` lists what happened and follows what happens next; `status --watch` shows the status again and again. Ctrl-C ends both."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import IO

import pytest
from checkout import HOME
from patience import PATIENCE
from warm_start import Heartbeatd
from world import MakeWorld, World

from heartbeat.findings import Severity
from scheduler.cli.main import main
from scheduler.engine.config_reload import note_rejected_config
from scheduler.engine.problem_rules import after_symptom
from scheduler.model.circuit import Circuit
from scheduler.model.problem import Subject, Symptom
from scheduler.model.settings import Target
from scheduler.store import boots, problems
from scheduler.store.transaction import Transaction

CONFIG = """\
channels: {hook: {kind: webhook, url: "https://example.org/"}}
defaults:
  runner: {kind: command, argv: [ask]}
  heartbeat: {interval: 30m, stagger: 0, checklist: "look\\n", deliver: hook}
agents:
  ops: {}
  idle: {heartbeat: {checklist: "# none\\n"}}
cron:
  tick: {every: 45m, command: look}
"""
Call = Callable[..., list[str]]


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """The last hour: an alert with a condition, an agent without anything to check, and a job that fails."""
    begin = f"{datetime.now(UTC) - timedelta(hours=1, minutes=1):%Y-%m-%d %H:%M}"
    world = make_world(CONFIG, start=begin, scripts={"ops": lambda _: "[disk] 92 %", "tick": lambda _: 1})
    world.run(hours=1)
    return world


@pytest.fixture
def call(world: World, capsys: pytest.CaptureFixture[str]) -> Call:
    def run_command(*words: str) -> list[str]:
        assert main(["-c", str(world.config), *words]) == 0
        return capsys.readouterr().out.splitlines()

    return run_command


def test_logs_lists_runs_messages_problems_and_boots_in_order(call: Call) -> None:
    *lines, zone = call("logs", "-n", "100")
    assert zone.startswith("times in ")
    assert lines == sorted(lines, key=lambda line: line[:19])
    texts = [line[21:] for line in lines]
    assert any(text.startswith("agent/ops  alert (run ") for text in texts)
    assert any(text.startswith("agent/ops  message delivered to hook (message ") for text in texts)
    assert any(text.startswith("agent/ops  problem opened disk: 92 %") for text in texts)
    assert any(text.startswith("agent/idle  skipped checklist_empty (") for text in texts)
    assert any(text.startswith("cron/tick  failed exit") for text in texts)
    assert any(text.startswith("daemon  started") for text in texts)


def test_logs_lists_problems_of_the_daemon_of_channels_and_of_providers(world: World, call: Call) -> None:
    found = Symptom("refused", Severity.CRITICAL, "no credit", "payment", "payment")
    with world.store.transaction() as db:
        tx = Transaction(db, datetime.now(UTC), "me")
        for subject in (Subject.of_circuit(Circuit("openai")), Subject.of_target(Target("hook"))):
            problems.save_problem(tx, after_symptom(None, subject, found, tx.now))
    world.request(partial(note_rejected_config, problem="config.yaml:9:1: agentz: unknown key", by="file watch"))
    world.run(minutes=1)
    texts = [line[21:] for line in call("logs", "-n", "100")]
    assert {"provider/openai  problem opened refused: no credit", "channel/hook  problem opened refused: no credit"} < {*texts}
    assert any(text.startswith("daemon  problem opened config: config.yaml:9:1") for text in texts)
    assert any(text.startswith("config  config rejected by file watch: config.yaml:9:1") for text in texts)
    assert any(line[21:].startswith("config  config rejected by file watch") for line in call("logs", "tick", "-n", "100"))
    assert any(text.startswith("daemon  message delivered to hook (message ") for text in texts)
    kinds = {json.loads(line)["kind"] for line in call("logs", "-n", "100", "--format", "json")}
    assert kinds == {"heartbeat", "cron", "provider", "channel", "daemon", None}


def test_logs_of_a_name_lists_this_entry_and_the_daemon(call: Call) -> None:
    names = {line[21:].split("  ")[0] for line in call("logs", "tick", "-n", "100")[:-1]}
    assert names == {"cron/tick", "daemon"}


def test_logs_are_limited_by_number_and_time(call: Call) -> None:
    assert call("logs", "-n", "2")[:2] == call("logs", "-n", "100")[-3:-1]
    assert 1 < len(call("logs", "--since", "40m", "-n", "100")) < len(call("logs", "-n", "100"))
    assert call("logs", "--since", "1s") == ["nothing has happened since then"]


def test_logs_as_json_has_one_object_a_line(call: Call) -> None:
    found = [json.loads(line) for line in call("logs", "ops", "-n", "100", "--format", "json")]
    alert = next(event for event in found if event["event"] == "run")
    assert (alert["kind"], alert["name"], alert["result"]) == ("heartbeat", "ops", "alert")


def test_an_unknown_name_is_rejected(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-c", str(world.config), "logs", "opps"]) == 2
    assert "no agent or cron job 'opps'; did you mean ops?" in capsys.readouterr().err


def test_no_database_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("agents: {}\n")
    assert main(["-c", str(tmp_path / "config.yaml"), "logs"]) == 0
    assert capsys.readouterr().out == "nothing has happened yet\n"


@contextmanager
def started(*words: object, stdout: int = subprocess.PIPE, **environ: str) -> Iterator[Heartbeatd]:
    environ = {"PYTHONPATH": str(HOME), "TERM": "xterm", "COLUMNS": "200", "LINES": "40", "LC_ALL": "C.UTF-8", **environ}
    with Heartbeatd(*words, stdout=stdout, stderr=subprocess.PIPE, env=environ, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def interrupt(process: Heartbeatd) -> tuple[int, str]:
    """Press Ctrl-C. Returns the exit code and the errors."""
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    return process.wait(PATIENCE), process.stderr.read()


def read_until(stream: IO[str], part: str) -> str:
    """Read lines until one has a text, and return this line."""
    return next(line for line in stream if part in line)


def test_logs_follow_prints_new_events_until_ctrl_c(world: World) -> None:
    with started("-c", world.config, "logs", "ops", "--follow", "-n", "1") as process:
        assert process.stdout and process.stderr
        read_until(process.stderr, "the daemon is not running; waiting for new events")
        world.run(minutes=30)
        assert "agent/ops" in read_until(process.stdout, "alert")
        code, err = interrupt(process)
    assert (code, "Traceback" in err) == (0, False)


def test_logs_follow_prints_each_crash_and_each_time_that_a_problem_opens(world: World) -> None:
    is_over = json.dumps({"findings": [{"key": "disk", "text": "92 %", "severity": "warning", "resolved": True}]})
    answers = iter((is_over, "[disk] 92 %", is_over, "[disk] 92 %"))
    world.scripts["ops"] = lambda _: next(answers, 1)
    world.downtime(minutes=1)
    with started("-c", world.config, "logs", "--follow", "-n", "0") as process:
        assert process.stdout and process.stderr
        read_until(process.stderr, "waiting for new events")
        world.run(hours=1)
        read_until(process.stdout, "agent/ops  problem opened")
        world.run(hours=1)
        crashed_at = boots.all_boots(world.store.connection)[-1].seen_until
        world.downtime(minutes=1)
        world.run(hours=1)
        lines = list(takewhile(lambda line: "agent/ops  failed" not in line, process.stdout))
    assert sum("agent/ops  problem opened" in line for line in lines) == 1
    assert [line for line in lines if "ended unexpectedly" in line and f"{crashed_at.astimezone():%H:%M:%S}" in line]


def test_status_watch_prints_one_status_after_the_other_in_a_pipe(world: World) -> None:
    with started("-c", world.config, "status", "--watch", "0.1") as process:
        assert process.stdout
        for _ in range(3):
            assert read_until(process.stdout, "daemon:").startswith("daemon: ")
        code, err = interrupt(process)
    assert (code, err) == (0, "")


def test_status_watch_redraws_a_terminal_in_place_and_leaves_the_last_status(world: World) -> None:
    mine, theirs = pty.openpty()
    with started("-c", world.config, "status", "--watch", "0.1", stdout=theirs) as process:
        os.close(theirs)
        screen = b""
        while screen.count(b"\x1b[H") < 3:
            screen += os.read(mine, 65536)
        code, err = interrupt(process)
    with suppress(OSError):  # at the end of the output
        while True:
            screen += os.read(mine, 65536)
    os.close(mine)
    assert (code, err) == (0, "")
    assert screen.startswith(b"\x1b[?1049h\x1b[H")
    assert b"daemon" in screen.partition(b"\x1b[?1049l")[2]
