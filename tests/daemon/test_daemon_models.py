"""The shipped config with a model: a real daemon calls it once two lines are changed, and nothing before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from checkout import HOME
from daemon_process import Daemon
from servers.messages import message, text_answer, tool
from servers.scripted import Server, reply
from test_runner_anthropic import HOSTILE, profile

pytestmark = pytest.mark.process

KEY = "sk-ant-of-the-test-0123456789"
LISTENS = "127.0.0.1:0"
FIRST = ("# providers: {anthropic:", "providers: {anthropic:")
SECOND = ("enabled: false", "enabled: true")

# Python imports this at the start. It records every address the daemon connects to, whichever library does it.
LISTENER = """\
import os, sys

def note(event, given):
    if event in ("socket.connect", "socket.getaddrinfo"):
        whom = given[1] if event == "socket.connect" else given[:2]
        file = os.open(os.environ["REACHED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, f"{whom[0]}:{whom[1]}\\n".encode())
        os.close(file)

sys.addaudithook(note)
"""


class Equipped(Daemon):
    """A daemon with its own environment and options."""

    def __init__(self, folder: Path, yaml: str, environ: Mapping[str, str], options: tuple[str, ...] = ()) -> None:
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", **environ}
        self.options = options
        super().__init__(folder, yaml)


class Shipped(Equipped):
    """A daemon with the shipped config and these edits. Its keys that depend on the time are set through the environment."""

    def __init__(self, folder: Path, environ: Mapping[str, str], *edits: tuple[str, str], options: tuple[str, ...] = ()) -> None:
        shutil.copytree(HOME / "agents", folder / "agents")
        (folder / "ear").mkdir()
        (folder / "ear" / "sitecustomize.py").write_text(LISTENER)
        self._reached = folder / "reached.txt"
        at_once = {
            "HEARTBEATD_SET__server__listen": LISTENS,
            "HEARTBEATD_SET__defaults__heartbeat__stagger": "0s",
            "HEARTBEATD_SET__agents__assistant__heartbeat__active_hours": "always",
        }
        ear = {"PYTHONPATH": str(folder / "ear"), "REACHED": str(self._reached)}
        yaml = edited((HOME / "config.yaml").read_text("utf-8"), *edits)
        super().__init__(folder, yaml, at_once | ear | dict(environ), options)

    @property
    def reached(self) -> list[str]:
        """The addresses the daemon connected to and the names it looked up, except its own."""
        return [line for line in self._reached.read_text().splitlines() if line != LISTENS]


def edited(yaml: str, *edits: tuple[str, str]) -> str:
    for old, new in edits:
        assert yaml.count(old) == 1
        yaml = yaml.replace(old, new)
    return yaml


@contextmanager
def running(daemon: Daemon) -> Iterator[Daemon]:
    try:
        yield daemon
    finally:
        if daemon.process.poll() is None:
            daemon.kill()


def ended(it: Daemon, name: str) -> list[dict[str, Any]]:
    """The runs that have ended."""
    return [row for row in it.runs(name) if row["result"]]


def test_with_both_lines_changed_and_a_key_the_assistant_runs_and_records_its_usage(tmp_path: Path) -> None:
    with Server([reply(message(tool("report_findings", {"findings": []})))]) as server:
        environ = {"ANTHROPIC_API_KEY": KEY, "HEARTBEATD_SET__providers__anthropic__base_url": server.url}
        with running(it := Shipped(tmp_path, environ, FIRST, SECOND)):
            row = it.wait_until(lambda: it.runs("assistant", "--result", "ok"))[0]
            it.metrics()  # on which new series are 0
            page = it.metrics()
        assert [KEY in " ".join(request.headers.values()) for request in server.requests] == [True]
        assert [request.json["tool_choice"]["name"] for request in server.requests] == ["report_findings"]
        assert f"127.0.0.1:{server.port}" in it.reached
    assert (row["model_requested"], row["model_used"]) == ("claude-haiku-5-5", "claude-haiku-5-5")
    assert row["tokens"] == {"input": 120, "output": 30, "cache_read": 7, "cache_write": 2}
    assert row["cost_usd"] == pytest.approx((120 * 1.0 + 30 * 5.0 + 7 * 1.0 + 2 * 1.25) / 1e6)
    tokens = 'heartbeatd_tokens_total{kind="heartbeat",name="assistant",model="claude-haiku-5-5",type="output"}'
    assert f"{tokens} 30" in page


def test_the_shipped_config_without_a_key_watches_the_machine_and_calls_no_model(tmp_path: Path) -> None:
    with running(it := Shipped(tmp_path, {})):
        it.wait_until(lambda: ended(it, "host"))
        assert it.stop() == 0
    assert it.reached == []
    assert {row["result"] for row in it.runs("host")} <= {"ok", "alert"}
    assert it.runs("assistant") == []


@pytest.mark.parametrize("edits", [(), (SECOND,)], ids=["as shipped", "switched on"])
@pytest.mark.parametrize("found", ["environment", "profile"])
def test_a_key_in_the_environment_alone_calls_no_model(tmp_path: Path, found: str, edits: tuple[tuple[str, str], ...]) -> None:
    with Server([text_answer("trap")]) as trap:
        if found == "profile":
            profile(tmp_path / ".config" / "anthropic", trap.url)
        keys = HOSTILE | {"ANTHROPIC_BASE_URL": trap.url} if found == "environment" else {}
        with running(it := Shipped(tmp_path, keys, *edits)):
            it.wait_until(lambda: ended(it, "host"))
            refused = it.wait_until(lambda: ended(it, "assistant")) if edits else []
        assert trap.connections == 0
        assert it.reached == []
    assert [(row["result"], row["why"]) for row in refused] == [("failed", "auth")] * len(edits)


def test_with_both_lines_changed_but_no_key_the_config_error_names_the_key(tmp_path: Path) -> None:
    with running(it := Shipped(tmp_path, {})):
        it.config.write_text(edited(it.config.read_text("utf-8"), FIRST, SECOND))
        refused = it.run_command("check")
    assert refused.returncode == 2
    assert "providers.anthropic.api_key: ANTHROPIC_API_KEY is not set" in refused.stderr
