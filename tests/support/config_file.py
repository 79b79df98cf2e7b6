"""Config files for tests: a valid one, and the errors and warnings of others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from scheduler.config.file.diagnostics import ConfigError
from scheduler.config.settings.load import LoadedConfig, load_config

TOKEN = "0123456789abcdef-canary"
ENVIRON = {"TOKEN": TOKEN}

RIGHT = """\
timezone: Europe/Berlin
server: {listen: "127.0.0.1:7857", tokens: {bot: {value: "${TOKEN}", may: [read, wake], agents: [ops]}}}
limits: {concurrency: 8, wake_flood: 5 per 10m}
channels:
  hook: {kind: webhook, url: "https://example.org/x"}
defaults:
  # for every agent
  runner: {kind: command, argv: [cat]}
agents:
  ops:
    workspace: agents/ops
    context: [SOUL.md]
    heartbeat:
      interval: 30m
      active_hours: {start: "08:00", end: "22:00"}
      retries: 2
cron:
  nightly:
    schedule: "0 3 * * *"
    command: ./backup.sh
    wake_heartbeat: ops
"""

SMALL = "agents: {ops: {runner: {kind: command, argv: [cat]}, heartbeat: {interval: 30m, deliver: log}}}\n"


def write(folder: Path, text: str | bytes) -> Path:
    """Write a `config.yaml` with this text that only its owner can write."""
    file = folder / "config.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    file.chmod(0o644)
    return file


def read(folder: Path, text: str | bytes, environ: Mapping[str, str] = ENVIRON) -> LoadedConfig:
    """Load a file with this text as `config.yaml` from its own folder."""
    return load_config(write(folder, text), environ)


def warnings(folder: Path, text: str | bytes, environ: Mapping[str, str] = ENVIRON) -> list[str]:
    """The warnings of a valid file with this text, without the folder."""
    return [str(warning).replace(f"{folder}{os.sep}", "") for warning in read(folder, text, environ).warnings]


def complaints(folder: Path, text: str | bytes, environ: Mapping[str, str] = ENVIRON) -> list[str]:
    """The error lines of a file with this text, without the folder. Empty if it is accepted."""
    try:
        read(folder, text, environ)
    except ConfigError as error:
        return str(error).replace(f"{folder}{os.sep}", "").splitlines()
    return []
