"""The first files of a new folder: a config that runs as it is, and a checklist that teaches its form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

_CONFIG = """\
# What heartbeatd runs here. `heartbeatd check` says what is wrong; docs/reference.md has every key.
timezone: UTC                          # the zone of windows and schedules, e.g. Europe/Berlin

# channels:                            # without one, messages go to the log
#   phone: "tgram://${{TG_TOKEN}}/${{TG_CHAT}}"
#   hook: {{kind: webhook, url: "${{HOOK_URL}}"}}

# providers: {{anthropic: {{api_key: "${{ANTHROPIC_API_KEY}}"}}}}   # whom runners of the kind anthropic ask
# prices: {{claude-haiku-5-5: {{input: 1.0, output: 5.0}}}}         # USD per million tokens

agents:
  {name}:                              # reads agents/{name}/HEARTBEAT.md
    # The prompt goes to this program on stdin; its answer is what it prints. Put your agent here, e.g. [claude, -p],
    # or ask a model directly: {{kind: anthropic}}, with the two lines above.
    runner: {{kind: command, argv: [echo, HEARTBEAT_OK]}}
    heartbeat:
      interval: 30m
      active_hours: "08:00-22:00"
      deliver: log
      # budget: {{usd_per_day: 0.50}}    # what its model may cost in a day

# cron:
#   nightly:
#     schedule: "0 3 * * *"
#     command: ./backup.sh
#     wake_heartbeat: {name}           # tells the agent how it went
#     wake_on: failure
"""

_CHECKLIST = """\
# Heartbeat

<!-- One line for each thing to look at. An empty list costs nothing: the beat is skipped. -->
- Is there anything in the inbox that cannot wait?
"""


def config(name: str = "assistant") -> str:
    """A small config.yaml with one agent."""
    return _CONFIG.format(name=name)


def checklist() -> str:
    """A HEARTBEAT.md with one line to begin with."""
    return _CHECKLIST


def files(name: str = "assistant") -> Mapping[PurePosixPath, str]:
    """The files of a new folder by their path in it; `name` is that of the agent, a valid one."""
    return {
        PurePosixPath("config.yaml"): config(name),
        PurePosixPath(f"agents/{name}/HEARTBEAT.md"): checklist(),
    }
