"""How long a config takes to load, beside the parsing of its YAML events alone."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from ruamel.yaml import YAML

from scheduler.config.settings.load import load_config
from scheduler.work import plan

AGENT = """\
  agent{number}:
    runner: {{kind: command, argv: [ask]}}
    model: claude-haiku-5-5
    heartbeat:
      interval: 30m
      active_hours: {{start: "08:00", end: "22:00", timezone: Asia/Ho_Chi_Minh, days: mon-fri}}
      light_context: true
      retries: 2
      deliver: log
"""


def main(agents: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        text = "agents:\n" + "".join(AGENT.format(number=number) for number in range(agents))
        path.write_text(text)
        begun = time.perf_counter()
        plan.make_plan(load_config(path, {}).settings)
        ours = time.perf_counter() - begun
    begun = time.perf_counter()
    for _ in YAML(typ="safe").parse(text):
        pass
    events = time.perf_counter() - begun
    print(f"{agents} agents: {ours:.2f} s to load, {events:.2f} s for the events alone, ratio {events / ours:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
