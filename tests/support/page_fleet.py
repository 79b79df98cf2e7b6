"""A fleet of agents in every state, with a day of history, for tests and pictures of the status page."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

from web_daemon import WebDaemon
from world import QUIET, Delayed

from heartbeat.runners import ProcessResult

YAML = """
timezone: Europe/Berlin
host: lab
prices: {claude-opus-4-5: {input: 5.0, output: 25.0}}
server: {listen: "127.0.0.1:0", tokens: {
  chief: {value: "chief-token-with-enough-bits-in-it-1", may: [read, wake, operate, edit]},
  reader: {value: "reader-token-with-enough-bits-in-it", may: [read], agents: [mail, backups]}}}
channels: {phone: {kind: command, argv: [send]}}
defaults:
  runner: {kind: command, argv: [claude, -p]}
  heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: phone, dedup: {window: 1h}, retries: 0}
agents:
  backups: {model: claude-opus-4-5, heartbeat: {ack_max_chars: 300, budget: {usd_per_day: 1, usd_per_try: 0.1}}}
  calendar: {heartbeat: {active_hours: {start: "08:00", end: "17:00"}}}
  deploys: {model: claude-opus-4-5, heartbeat: {ack_max_chars: 300}}
  garden: {heartbeat: {enabled: false, timezone: Asia/Tokyo}}
  mail: {model: claude-haiku-4-5, heartbeat: {ack_max_chars: 300}}
  night: {heartbeat: {interval: 1h}}
  reports: {heartbeat: {checklist: HEARTBEAT.md}}
  websites: {}
cron: {measure: {every: 6h, command: measure}}
"""
CHECKED = [
    "All 14 backups are younger than a day. The newest is 3 h old, 41 GB.",
    "The last deploy (v2.31) is healthy. 0 errors in 30 minutes.",
    "3 new messages, none of them urgent.",
]
ALERT = "The certificate of shop.example expires in 6 days. Renew it with `certbot renew`, then reload nginx."


OTHERS = ("shop", "blog", "queue", "invoices", "mirror", "search")


def report(text: str, usd: float = 0.008) -> str:
    """What a program prints that reports the usage of its call."""
    usage = {"input_tokens": 2100, "output_tokens": 40}
    return json.dumps({"type": "result", "result": text, "total_cost_usd": usd, "usage": usage})


def failure() -> ProcessResult:
    """A program that ends with an error."""
    error = b"error: the cluster does not answer (connection refused)"
    return ProcessResult(1, b"", error)


def open_fleet(folder: Path, more: int = 0) -> WebDaemon:
    """A daemon, to be used with `with`, after 30 hours: some agents failed, some sent alerts, one is paused, one runs.

    `more` is how many agents there are beside these eight, of which one in thirty fails.
    """
    names = [f"{OTHERS[number % len(OTHERS)]}-{number:03}" for number in range(more)]
    others = "".join(f"  {name}: {{heartbeat: {{interval: 10h}}}}\n" for name in names)
    daemon = WebDaemon(folder, YAML.replace("cron:", f"{others}cron:"))
    world = daemon.world
    world.scripts.pop("ops", None)
    world.scripts["websites"] = lambda call: report(ALERT, 0.021) if call.at.hour % 7 == 0 else report(QUIET)
    world.scripts["backups"] = lambda call: 1 if call.at.hour in (2, 3) else report(f"{CHECKED[0]}\n{QUIET}", 0.012)
    world.scripts["deploys"] = lambda call: (
        failure() if call.at.hour >= 11 and call.at.day == 3 else report(f"{CHECKED[1]}\n{QUIET}")
    )
    world.scripts["mail"] = lambda call: report(f"{CHECKED[2]}\n{QUIET}", 0.004)
    world.scripts["night"] = lambda call: Delayed(QUIET, timedelta(minutes=50)) if call.at.hour == 13 else QUIET
    world.scripts |= {name: lambda call: failure() for name in names[11::30]}
    world.scripts |= {name: lambda call: report(QUIET, 0.004) for name in names if name not in world.scripts}
    daemon.do(lambda: world.run(hours=29.5))
    daemon.do(lambda: world.pause(("heartbeat", "mail")))
    daemon.do(lambda: world.run(minutes=10))
    return daemon
