"""The daemon as a whole, in one process with its test: who thinks when."""

from __future__ import annotations

CONFIG = """\
state: state/h.db
cron:
  hello: {schedule: "@reboot", command: "echo hello", deliver: log}
"""
