"""The files that `heartbeatd init` writes: a config.yaml that runs as it is, and an example checklist."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

_CONFIG = """\
# The config of heartbeatd. `heartbeatd check` reports errors in it. docs/reference.md describes every key.
timezone: UTC                          # for active hours and schedules, e.g. Europe/Berlin

# channels:                            # where messages are sent. Without a channel, they go to the log
#   phone: "tgram://${{TG_TOKEN}}/${{TG_CHAT}}"
#   hook: {{kind: webhook, url: "${{HOOK_URL}}"}}

# providers: {{anthropic: {{api_key: "${{ANTHROPIC_API_KEY}}"}}}}   # for runners of kind anthropic
# prices: {{claude-haiku-5-5: {{input: 1.0, output: 5.0}}}}         # USD per million tokens

agents:
  {name}:                              # its checklist is agents/{name}/HEARTBEAT.md
    # This program gets the prompt on stdin and prints the answer. Put your agent here, e.g. [claude, -p].
    # To call a model directly, write {{kind: anthropic}} and uncomment the two lines above.
    runner: {{kind: command, argv: [echo, HEARTBEAT_OK]}}
    heartbeat:
      interval: 30m
      active_hours: always             # or "08:00-22:00"
      deliver: log
      # budget: {{usd_per_day: 0.50}}    # the maximum cost of its runs per day

# cron:
#   nightly:
#     schedule: "0 3 * * *"
#     command: ./backup.sh
#     wake_heartbeat: {name}           # wakes the agent, with the job's outcome in the prompt
#     wake_on: failure
"""

_CHECKLIST = """\
# Heartbeat

<!-- One line for each thing to check. If the list is empty, the run is skipped and costs nothing. -->
- Is there anything in the inbox that cannot wait?
"""


def config_text(name: str = "assistant") -> str:
    """A small config.yaml with one agent."""
    return _CONFIG.format(name=name)


def checklist_text() -> str:
    """A HEARTBEAT.md with one line to begin with."""
    return _CHECKLIST


def starter_files(name: str = "assistant") -> Mapping[PurePosixPath, str]:
    """The files of a new folder by their path in it. `name` is a valid agent name."""
    return {PurePosixPath("config.yaml"): config_text(name), PurePosixPath(f"agents/{name}/HEARTBEAT.md"): checklist_text()}
