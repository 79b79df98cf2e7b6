"""Daemons with something to play in advance, or again, for tests and pictures of the page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from page_agents import TOKENS
from web_daemon import WebDaemon

CONFIG = f"""\
timezone: UTC
server: {{listen: "127.0.0.1:0", tokens: {{
  reader: {{value: "{TOKENS["reader"]}", may: [read]}},
  self: {{value: "{TOKENS["self"]}", may: [read, edit], agents: [ops]}},
  all: {{value: "{TOKENS["all"]}", may: [read, wake, operate, edit]}}}}}}
channels: {{chat: {{kind: command, argv: [send]}}, phone: {{kind: command, argv: [send]}}}}
defaults: {{heartbeat: {{checklist: "- look\\n", stagger: 0s}}}}
agents:
  ops:
    runner: {{kind: command, argv: [agent]}}
    heartbeat:
      interval: 6h
      deliver: chat
      budget: {{runs_per_day: 3}}
  web:
    runner: {{kind: command, argv: [agent]}}
    heartbeat: {{interval: 4h, deliver: phone}}
cron:
  measure: {{every: 12h, command: measure}}
"""
MONTH = f"""\
timezone: UTC
server: {{listen: "127.0.0.1:0", tokens: {{all: {{value: "{TOKENS["all"]}", may: [read]}}}}}}
providers: {{anthropic: {{api_key: sk-ant-0123456789}}}}
prices: {{claude-haiku-5-5: {{input: 1.0, output: 5.0}}}}
channels: {{chat: {{kind: command, argv: [send]}}, phone: {{kind: command, argv: [send]}}}}
defaults: {{runner: {{kind: anthropic}}, heartbeat: {{checklist: "- look\\n", deliver: chat}}}}
agents:
  mail: {{heartbeat: {{interval: 1h, active_hours: "07:00-22:00", budget: {{usd_per_day: 1}}}}}}
  disks: {{heartbeat: {{interval: 2h, deliver: phone, budget: {{usd_per_day: 1, runs_per_day: 11}}}}}}
  calendar: {{heartbeat: {{schedule: "0 7 * * mon-fri", budget: {{usd_per_day: 1}}}}}}
cron:
  backup: {{schedule: "0 3 * * *", command: backup, deliver: phone}}
"""


@contextmanager
def open_recorded(folder: Path) -> Iterator[WebDaemon]:
    """A daemon with three recorded days, in which `ops` has an alert each day at 12:00."""
    with WebDaemon(folder, CONFIG, start="2026-03-02 00:00") as running:
        running.reloader.reload(by="test")  # the active config is in the database
        running.world.scripts = {"ops": lambda call: f"disk {call.at:%d} is full" if call.at.hour == 12 else "HEARTBEAT_OK"}
        running.do(lambda: running.world.run(hours=72))
        yield running


@contextmanager
def open_month(folder: Path) -> Iterator[WebDaemon]:
    """A daemon with models and budgets, which has called nothing yet."""
    with WebDaemon(folder, MONTH, start="2026-03-02 00:30") as running:
        running.reloader.reload(by="test")
        yield running
