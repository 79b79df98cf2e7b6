"""The CPU time of a daemon with an unchanged config until its first tick, beside that of the YAML events of the file."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from ruamel.yaml import YAML

from scheduler import app
from scheduler.store.boots import Boot

STARTS = 5
AGENT = "  a{number}: {{runner: {{kind: command, argv: [ask]}}, heartbeat: {{interval: 30m, deliver: log}}}}\n"


def start(config: Path) -> float:
    begun = time.process_time()
    daemon = app.Daemon(config, dict(os.environ), listen=False)
    daemon.engine.add_new_entries(app.read_clocks(), lambda: False)
    daemon.engine.start_boot(app.read_clocks(), Boot(daemon.instance, os.getpid(), "0", "0"), {})
    daemon.engine.tick(app.read_clocks())
    took = time.process_time() - begun
    daemon._close_everything()
    return took


def parse(config: Path) -> float:
    text, begun = config.read_text(), time.process_time()
    for _ in YAML(typ="safe").parse(text):
        pass
    return time.process_time() - begun


def main(agents: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text("agents:\n" + "".join(AGENT.format(number=number) for number in range(agents)))
        first = start(config)
        starts, events = zip(*((start(config), parse(config)) for _ in range(STARTS)), strict=True)
    ours, base = sorted(starts)[STARTS // 2], sorted(events)[STARTS // 2]
    print(
        f"{agents} agents: first start {first:.2f} s, unchanged {ours:.2f} s, YAML events {base:.2f} s, ratio {ours / base:.1f}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
