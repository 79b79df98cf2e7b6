"""Tests of the changes that a reload reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from loops import loop_over

from scheduler.config.settings.config_diff import compare_configs
from scheduler.config.settings.load import load_config

BASE = """
timezone: UTC
channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}}
prices: {claude-haiku-5-5: {input: 1.0, output: 5.0}}
agents:
  ops: {runner: {kind: command, argv: [x]}, heartbeat: {interval: 30m, deliver: hook}}
  other: {runner: {kind: command, argv: [x]}, heartbeat: {interval: 1h, deliver: hook}}
cron:
  ops: {schedule: "@daily", command: x}
"""


SWITCH = 'deadman: {url: "https://hc.example/x"}'


def change_lines(tmp_path: Path, old: str, new: str) -> list[str]:
    path = tmp_path / "config.yaml"
    loaded = []
    for text in (old, new):
        path.write_text(text)
        loaded.append(load_config(path, {}))
    return compare_configs(*loaded).lines()


@loop_over(
    ("was", "now", "lines"),
    [
        ("", "", []),
        ("# nothing", "# but a comment", []),
        ("retries: 2", "retries: 2", []),
        ("interval: 1h, deliver: hook", "interval: 1h, deliver: log", ["agent/other: heartbeat.deliver hook -> log"]),
        ("command: x", "command: y", ["cron/ops: command x -> y"]),
        ("output: 5.0", "output: 6.0", ["prices.claude-haiku-5-5.output 5.0 -> 6.0"]),
        ("127.0.0.1:1/x", "127.0.0.1:1/y", ["channels.hook.url http://*** -> *** (another value)"]),
        ("channels:", "limits: {concurrency: 3}\nchannels:", ["limits.concurrency 8 -> 3"]),
        ("timezone: UTC", f"timezone: UTC\n{SWITCH}", ["deadman.url none -> https://***"]),
        ("  ops: {schedule", "  new: {schedule", ["added cron/new", "removed cron/ops"]),
    ],
)
def test_a_reload_reports_its_changes_and_nothing_else(tmp_path: Path, was: str, now: str, lines: list[str]) -> None:
    assert change_lines(tmp_path, BASE, BASE.replace(was, now) if was else BASE) == lines


@pytest.mark.parametrize(
    ("now", "lines"),
    [
        ("", ["deadman.url https://*** -> none"]),
        ("deadman: none", ["deadman.url https://*** -> none"]),
        (SWITCH.replace("/x", "/y"), ["deadman.url https://*** -> *** (another value)"]),
    ],
)
def test_a_changed_or_removed_dead_mans_switch_is_reported(tmp_path: Path, now: str, lines: list[str]) -> None:
    assert change_lines(tmp_path, f"{SWITCH}\n{BASE}", f"{now}\n{BASE}") == lines
