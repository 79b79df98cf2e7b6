"""Tests the command channel: the text on standard input, and the exit code as the result."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from run_async import NOW, with_http
from world import MakeWorld, send_by_transport

from scheduler.channels import command_channel
from scheduler.channels.channel_kind import SendContext
from scheduler.cli.main import main
from scheduler.model.message import DeliveryResult, Message
from scheduler.model.settings import Channel
from scheduler.system.process import Children

TEXT = 'The disk is "full"; $(touch broken) `touch broken` \U0001f525\n-rf /'


def message(text: str = TEXT) -> Message:
    return Message("k1", "cron", "ops", "interval", datetime(2026, 3, 2, 8, tzinfo=UTC), 1, 1, text, "ops")


def send_to(argv: tuple[str, ...], folder: Path, text: str = TEXT, seconds: float = 30.0) -> DeliveryResult:
    channel = Channel("tell", "command", None, allow_private=False, uncertain=None, argv=argv, folder=folder)
    start = Children("here").start
    return asyncio.run(
        with_http(lambda http: command_channel.send(channel, message(text), SendContext(http, start, NOW, seconds)))
    )


def send(folder: Path, script: str, text: str = TEXT, *arguments: str, seconds: float = 30.0) -> DeliveryResult:
    return send_to(("sh", "-c", script, *arguments), folder, text, seconds)


def test_the_text_is_on_standard_input_and_never_among_the_arguments(tmp_path: Path) -> None:
    assert send(tmp_path, "cat > got; echo $# > count") == DeliveryResult("delivered")
    assert (tmp_path / "got").read_text("utf-8") == TEXT
    assert (tmp_path / "count").read_text() == "0\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["count", "got"]


def test_the_program_gets_path_home_lang_and_five_variables_of_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "canary")
    send(tmp_path, "env > got")
    seen = dict(line.split("=", 1) for line in (tmp_path / "got").read_text().splitlines())
    names = {
        "HEARTBEATD_HOST",
        "HEARTBEATD_KEY",
        "HEARTBEATD_KIND",
        "HEARTBEATD_NAME",
        "HEARTBEATD_RUN",
        *({"PATH", "HOME", "LANG"} & set(os.environ)),
    }
    assert set(seen) - {"PWD", "SHLVL", "_", "OLDPWD"} == names
    assert [seen[f"HEARTBEATD_{name}"] for name in ("KEY", "KIND", "NAME")] == ["k1", "cron", "ops"]


@pytest.mark.parametrize(
    ("script", "state", "error"),
    [
        ("exit 0", "delivered", ""),
        ("cat > /dev/null", "delivered", ""),
        ("echo no such user >&2; exit 75", "retry", "sh ended with exit code 75: no such user"),
        ("kill -9 $$", "retry", "sh ended with exit code -9"),
        ("echo '\x1b[31m' >&2; exit 1", "retry", "sh ended with exit code 1: [31m"),
        ("trap '' TERM; head -c 70000000 /dev/zero; exit 0", "retry", "sh wrote more than 64 MiB and was ended"),
    ],
)
def test_the_exit_code_decides_the_result_of_the_delivery(tmp_path: Path, script: str, state: str, error: str) -> None:
    assert send(tmp_path, script) == DeliveryResult(state, error)  # type: ignore[arg-type]


def test_a_program_that_hangs_is_ended_and_the_delivery_is_uncertain(tmp_path: Path) -> None:
    sent = send(tmp_path, "cat > got; sleep 600", seconds=0.3)
    assert (sent.state, sent.error) == ("uncertain", "sh did not end within 0 s")


def test_a_missing_program_is_retried(tmp_path: Path) -> None:
    sent = send_to(("./tell.sh",), tmp_path)
    assert sent == DeliveryResult("retry", f"no such program: './tell.sh'; looked in {tmp_path}")


def test_a_text_of_100_kb_arrives_whole_or_can_be_left_unread(tmp_path: Path) -> None:
    text = "ä" * 50_000
    assert send(tmp_path, "cat > got", text).state == "delivered"
    assert (tmp_path / "got").read_text("utf-8") == text
    assert send(tmp_path, "exit 0", text).state == "delivered"


CONFIG = """\
host: web1
channels: {{tell: {{kind: command, argv: [{python}, tell.py]}}}}
agents: {{ops: {{runner: {{kind: command, argv: [agent]}}, heartbeat: {{interval: 1d, stagger: 0, checklist: "- look\\n"}}}}}}
"""
TELL = """\
import pathlib, sys
tries = pathlib.Path("tries")
tries.write_text((tries.read_text() if tries.exists() else "") + "x")
if len(tries.read_text()) < 3:
    sys.exit("busy")
pathlib.Path("received").write_text(sys.stdin.read())
"""


def test_a_program_accepts_a_message_at_the_third_attempt(make_world: MakeWorld, tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(TELL)
    world = make_world(CONFIG.format(python=sys.executable), send=send_by_transport)
    world.scripts["ops"] = lambda call: "ALERT: the disk is full"
    world.run(minutes=2)
    target = world.records()[0]["delivery"]["targets"][0]
    error = f"{Path(sys.executable).name} ended with exit code 1: busy"
    assert (target["channel"], target["state"], target["error"]) == ("tell", "pending", error)
    world.run(minutes=10)
    assert (tmp_path / "received").read_text() == "[ops@web1] ALERT: the disk is full"
    assert (len(world.calls), world.records()[0]["delivery"]["state"]) == (1, "delivered")


def test_ping_tests_a_command_channel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG.format(python="sh, -c, 'cat > received', sh").replace(", tell.py", ""))
    (tmp_path / "config.yaml").chmod(0o644)
    assert main(["-c", str(tmp_path / "config.yaml"), "ping", "tell"]) == 0
    assert capsys.readouterr().out == "tell: delivered\n"
    assert "test message from heartbeatd" in (tmp_path / "received").read_text()
