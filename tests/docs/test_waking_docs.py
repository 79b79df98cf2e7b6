"""The examples of docs/waking.md work: its configs are accepted, and its commands wake an agent of a real daemon."""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
import required_programs
from checkout import HOME
from config_file import read
from daemon_process import Daemon
from patience import PATIENCE
from ruamel.yaml import YAML

PAGE = (HOME / "docs" / "waking.md").read_text("utf-8")
TOKENS = {"SCRIPTS_TOKEN": "token-of-the-scripts-1234", "ALERTMANAGER_TOKEN": "token-of-alertmanager-1234"}
WAKE = "http://127.0.0.1:7857/api/v1/agents/ops/wake"

ALERTMANAGER = required_programs.find("prometheus-alertmanager")


def shown(kind: str, word: str = "") -> list[str]:
    """The code blocks of the page with this language that contain the word."""
    return [block for block in re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) if word in block]


def parsed(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(io.StringIO(text))


@pytest.mark.parametrize("text", shown("yaml", "server:"))
def test_the_configs_of_the_page_are_accepted(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text, TOKENS).settings.server.tokens


def test_every_command_of_the_page_wakes_the_agent_of_its_config() -> None:
    assert len(re.findall(r"/api/v1/agents/ops/wake", PAGE)) == 3
    assert len(re.findall(r"heartbeatd -c /etc/heartbeatd/config\.yaml wake ops --text \"", PAGE)) == 2


def test_the_pipeline_step_is_valid_yaml() -> None:
    (step,) = shown("yaml", "secrets.HEARTBEATD_TOKEN")
    assert parsed(step)[0]["if"] == "failure()"


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A daemon with the page's first config on a free port, and an agent that repeats its prompt."""
    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)
    (first, *_) = shown("yaml", "server:")
    agent = '{runner: {kind: command, argv: [cat]}, heartbeat: {interval: none, checklist: "- look\\n", deliver: log}}'
    text = first.replace("server:\n", 'state: state/h.db\nserver:\n  listen: "127.0.0.1:0"\n')
    it = Daemon(tmp_path, text.replace("{heartbeat: {interval: 30m}}", agent))
    it.wait_until(lambda: (tmp_path / "state" / "daemon.json").exists())
    yield it
    it.stop()


def here(daemon: Daemon, text: str) -> str:
    """The text with the address of this daemon instead of the documented one."""
    assert WAKE in text
    url = json.loads((daemon.folder / "state" / "daemon.json").read_text())["url"]
    return text.replace("http://127.0.0.1:7857", url)


def run_by(daemon: Daemon, trigger: str) -> dict[str, Any]:
    """The first finished run of the agent with this trigger."""

    def found() -> list[dict[str, Any]]:
        return [run for run in daemon.runs("ops") if run["trigger"] == trigger and run["finished_at"]]

    return daemon.wait_until(found)[-1]


@pytest.mark.process
@required_programs.needs("curl")
def test_the_curl_command_wakes_the_agent(daemon: Daemon) -> None:
    (line,) = shown("sh", "curl")
    sent = subprocess.run(["sh", "-c", here(daemon, line)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (sent.returncode, json.loads(sent.stdout)["wake"]) == (0, 1), sent.stderr
    prompt = run_by(daemon, "api")["text"]
    assert "By api scripts:" in prompt
    assert "Look at the mail queue." in prompt


class Alertmanager:
    """A real Alertmanager in its own folder on a free loopback port."""

    def __init__(self, folder: Path, config: Any) -> None:
        assert ALERTMANAGER
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self._url = f"http://{address}/api/v2/alerts"
        self._log = (folder / "alertmanager.log").open("w+")
        (folder / "alertmanager.yml").write_text(json.dumps(config))
        command = [
            ALERTMANAGER, "--config.file", str(folder / "alertmanager.yml"), "--storage.path", str(folder / "alertmanager"),
            "--web.listen-address", address, "--cluster.listen-address=",
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)

    def fire(self, **labels: str) -> bool:
        """Send an alert as Prometheus does. False while Alertmanager does not listen yet."""
        assert self.process.poll() is None, self.log
        alert = {
            "labels": labels,
            "annotations": {"summary": "The disk of db1 is full."},
            "startsAt": datetime.now(UTC).isoformat(),
            "generatorURL": "http://prometheus.example:9090/graph",
        }
        request = Request(self._url, json.dumps([alert]).encode(), {"Content-Type": "application/json"})
        try:
            with urlopen(request, timeout=PATIENCE) as answer:
                return bool(answer.status == 200)
        except URLError:
            return False

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(20)
        self._log.close()


@pytest.mark.process
@required_programs.needs("prometheus-alertmanager")
def test_debians_alertmanager_wakes_the_agent_with_the_alert_in_its_prompt(daemon: Daemon) -> None:
    token = daemon.folder / "heartbeatd.token"
    token.write_text(TOKENS["ALERTMANAGER_TOKEN"] + "\n")
    (text,) = shown("yaml", "webhook_configs")
    config = parsed(here(daemon, text).replace("/etc/prometheus/heartbeatd.token", str(token)))
    config["route"]["group_wait"] = "0s"  # otherwise it waits half a minute for more alerts of the group
    alertmanager = Alertmanager(daemon.folder, config)
    try:
        daemon.wait_until(lambda: alertmanager.fire(alertname="DiskFull", instance="db1"))
        run = run_by(daemon, "webhook")
    except AssertionError as late:
        raise AssertionError(alertmanager.log) from late
    finally:
        alertmanager.stop()
    assert 'By webhook ops {}:{alertname="DiskFull"}:' in run["text"]
    assert "Alertmanager notifies: firing.\n\nDiskFull: firing\n  since: 20" in run["text"]
    assert (
        '\n  summary: "The disk of db1 is full."\n  instance="db1"\n  source: "http://prometheus.example:9090/graph"\n'
        in run["text"]
    )
