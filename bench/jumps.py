"""Jumps of the clock, by seconds to years in both directions, over the real engine: what is lost, and what counts twice."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from clock_change_simulation import ClockChanges


def main(number: int, seed: int) -> None:
    logging.disable(logging.WARNING)  # each jump is a line
    with tempfile.TemporaryDirectory() as folder:
        jumps, begun = ClockChanges(Path(folder), seed, number), time.monotonic()
        jumps.play()
        print(
            f"{number} jumps (seed {seed}: {jumps.forward} ahead, {jumps.back} back, {jumps.down} of them while no daemon ran) in"
            f" {time.monotonic() - begun:.0f} s; {jumps.slots.total():,} slots accounted for, {len(jumps.lost)} lost,"
            f" {len(jumps.doubled)} doubled, {len(jumps.faults)} faults in all; longest gap between beats"
            f" {jumps.longest_gap:.0f} s of {jumps.interval:.0f}",
            flush=True,
        )
        jumps.close()
        for fault in jumps.faults:
            print(f"  {fault}")
        sys.exit(1 if jumps.faults else 0)


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    main(given[0] if given else 100, given[1] if len(given) > 1 else 1)
