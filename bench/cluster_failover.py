"""Fails over to a standby of PostgreSQL that is 5 s behind, and reports silent agents and repetitions that are not recorded."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "extras" / "cluster"))

from failover_simulation import FailoverSimulation

if __name__ == "__main__":
    failovers = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    bad = False
    for where in sys.argv[2].split("+") if len(sys.argv) > 2 else ("workers", "leader"):
        folder = Path(tempfile.mkdtemp(prefix="heartbeatd-failover-"))
        begun = time.monotonic()
        simulation = FailoverSimulation(folder, remote=where == "workers")
        found = simulation.play(failovers, report=lambda line: print(line, flush=True))
        counted = ", ".join(f"{count} {what}" for what, count in found.counted.items())
        seconds = time.monotonic() - begun
        print(
            f"{failovers} failovers with runs on the {where}, {seconds:.0f} s: {found.beats} runs began, {counted};"
            f" {len(found.silent)} silent for longer than the interval and a minute (at most {max(found.waits):.1f} s after the"
            f" interval), {len(found.undeclared)} repeated without saying so, {len(found.repeated_commands)} commands repeated"
        )
        for line in (*found.silent, *found.undeclared, *found.repeated_commands, *found.unknown):
            print(f"  {line}")
        if found.is_good:
            shutil.rmtree(folder)
        else:
            bad = True
            print(f"logs and records: {folder}")
    sys.exit(bad)
