"""Tests of the changes that a reload reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from loops import loop_over

from scheduler.config.settings.load import load_config
from scheduler.work.plan import compare_settings

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
    settings = []
    for text in (old, new):
        path.write_text(text)
        settings.append(load_config(path, {}).settings)
    return compare_settings(*settings).lines()


@loop_over(
    ("was", "now", "lines"),
    [
        ("", "", ["nothing changed"]),
        ("# nothing", "# but a comment", ["nothing changed"]),
        ("retries: 2", "retries: 2", ["nothing changed"]),
        ("interval: 1h, deliver: hook", "interval: 1h, deliver: log", ["changed agent/other: deliver"]),
        ("command: x", "command: y", ["changed cron/ops: command"]),
        ("output: 5.0", "output: 6.0", ["changed prices: claude-haiku-5-5"]),
        ("127.0.0.1:1/x", "127.0.0.1:1/y", ["changed channels: hook"]),
        ("channels:", "limits: {concurrency: 3}\nchannels:", ["changed limits: concurrency"]),
        ("timezone: UTC", f"timezone: UTC\n{SWITCH}", ["changed deadman"]),
        ("  ops: {schedule", "  new: {schedule", ["added cron/new", "removed cron/ops"]),
    ],
)
def test_a_reload_reports_its_changes_and_nothing_else(tmp_path: Path, was: str, now: str, lines: list[str]) -> None:
    assert change_lines(tmp_path, BASE, BASE.replace(was, now) if was else BASE) == lines


@pytest.mark.parametrize(
    ("now", "lines"),
    [
        ("", ["changed deadman"]),
        ("deadman: none", ["changed deadman"]),
        (SWITCH.replace("/x", "/y"), ["changed deadman: url"]),
    ],
)
def test_a_changed_or_removed_dead_mans_switch_is_reported(tmp_path: Path, now: str, lines: list[str]) -> None:
    assert change_lines(tmp_path, f"{SWITCH}\n{BASE}", f"{now}\n{BASE}") == lines


def test_unchanged_entries_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(BASE)
    settings = load_config(path, {}).settings
    assert compare_settings(settings, settings).unchanged == 3
