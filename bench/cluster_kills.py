"""Kills the parts of a cluster in random order: what was lost, what came twice, and what had to be repeated."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "extras" / "cluster"))

from cluster_chaos import ClusterChaos

if __name__ == "__main__":
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    folder = Path(tempfile.mkdtemp(prefix="heartbeatd-kills-"))
    chaos, begun = ClusterChaos(folder, seed, state="sqlite" if sys.argv[3:] == ["sqlite"] else "postgresql"), time.monotonic()
    found = chaos.play(seconds)
    counted = chaos.counted | {"losses of the lease without a fault": len(chaos.own_losses)}
    faults = ", ".join(f"{count:,} {what}" for what, count in counted.items())
    print(f"{time.monotonic() - begun:.0f} s; {faults}; {found.summary()}", flush=True)
    for each in (*found.lost, *found.doubled):
        print(f"  {each}")
    if found.lost or found.doubled:
        sys.exit(f"logs: {folder}")
    shutil.rmtree(folder)
