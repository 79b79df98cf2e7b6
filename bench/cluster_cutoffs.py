"""Cuts the leader of two schedulers off from PostgreSQL: what was lost, what came twice, and how soon the other one took over."""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "extras" / "cluster"))

from cluster_comparison import TAKEOVER
from cluster_cutoffs import WAYS, ClusterCutoffs

if __name__ == "__main__":
    cuts = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    executors = tuple(sys.argv[3].split("+")) if len(sys.argv) > 3 else ("local", "remote")
    ways = tuple(sys.argv[4].split("+")) if len(sys.argv) > 4 else (*WAYS, "freeze")
    folder = Path(tempfile.mkdtemp(prefix="heartbeatd-cutoffs-"))
    begun = time.monotonic()
    chaos = ClusterCutoffs(folder, seed, ways=ways, report=lambda line: print(line, flush=True))
    found = chaos.play(cuts, executors=executors)
    faults = ", ".join(f"{count} {what}" for what, count in chaos.counted.items())
    for kind, times in sorted(found.takeover_times.items()):
        median, longest = statistics.median(times), max(times)
        print(f"  takeover after {kind}: {median:.1f} s (median), {longest:.1f} s (longest) of {len(times)}")
    print(
        f"{time.monotonic() - begun:.0f} s; {faults}; {found.summary()}; {len(chaos.false_takeovers)} takeovers after short cuts,"
        f" {len(chaos.own_losses)} losses of the lease without a fault"
    )
    for line in (*found.lost, *found.doubled, *found.late, *chaos.false_takeovers):
        print(f"  {line}")
    for loss in chaos.own_losses:
        print(f"  {loss.host} at {loss.end - TAKEOVER:.0f}: {loss.kind}")
    if found.lost or found.doubled or found.late or chaos.own_losses:
        sys.exit(f"logs and records: {folder}")
    shutil.rmtree(folder)
