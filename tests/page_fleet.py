"""A fleet of agents in every state, with a day of history, for tests and pictures of the status page."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from web_daemon import WebDaemon
from world import QUIET, Delayed

YAML = """
timezone: Europe/Berlin
host: lab
prices: {claude-opus-4-5: {input: 5.0, output: 25.0}}
server: {listen: "127.0.0.1:0", tokens: {
  chief: {value: "chief-token-with-enough-bits-in-it-1", may: [read, wake, operate, edit]},
  reader: {value: "reader-token-with-enough-bits-in-it", may: [read], agents: [mail, backups]}}}
channels: {phone: {kind: command, argv: [send]}}
defaults:
  agent: {runner: {kind: command, argv: [claude, -p]}}
  heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: phone, dedup: {window: 1h}, retries: 0}
agents:
  backups: {model: claude-opus-4-5, heartbeat: {budget: {runs_per_day: 60}}}
  calendar: {heartbeat: {active_hours: {start: "08:00", end: "17:00"}}}
  deploys: {model: claude-opus-4-5}
  garden: {heartbeat: {enabled: false}}
  mail: {}
  night: {heartbeat: {interval: 1h}}
  reports: {heartbeat: {checklist: HEARTBEAT.md}}
  websites: {}
cron: {measure: {every: 6h, command: measure}}
"""
ALERT = "The certificate of shop.example expires in 6 days. Renew it with `certbot renew`, then reload nginx."


def open_fleet(folder: Path) -> WebDaemon:
    """A daemon, to be used with `with`, after 30 hours: some agents failed, some sent alerts, one is paused, one runs."""
    daemon = WebDaemon(folder, YAML)
    world = daemon.world
    world.scripts.pop("ops", None)
    world.scripts["websites"] = lambda call: ALERT if call.at.hour % 7 == 0 else QUIET
    world.scripts["backups"] = lambda call: 1 if call.at.hour in (2, 3) else QUIET
    world.scripts["deploys"] = lambda call: 1 if call.at.hour >= 11 and call.at.day == 3 else QUIET
    world.scripts["night"] = lambda call: Delayed(QUIET, timedelta(minutes=50)) if call.at.hour == 13 else QUIET
    daemon.do(lambda: world.run(hours=29.5))
    daemon.do(lambda: world.pause(("heartbeat", "mail")))
    daemon.do(lambda: world.run(minutes=10))
    return daemon
