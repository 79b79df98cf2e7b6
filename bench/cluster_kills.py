"""Kills the parts of a cluster in random order: what was lost, what came twice, and what had to be repeated."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from cluster_chaos import ClusterChaos

if __name__ == "__main__":
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory() as folder:
        chaos, begun = ClusterChaos(Path(folder), seed), time.monotonic()
        chaos.play(seconds)
        counted = ", ".join(f"{count:,} {what}" for what, count in chaos.counted.items())
        print(f"{time.monotonic() - begun:.0f} s; {counted}; {len(chaos.lost)} lost, {len(chaos.doubled)} doubled", flush=True)
        for each in (*chaos.lost, *chaos.doubled):
            print(f"  {each}")
        sys.exit(1 if chaos.lost or chaos.doubled else 0)
