"""A month of an agent with forty events among quiet beats: the share of beats that had to ask it."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from test_story_month import EVENTS, Month


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        month = Month(Path(folder), seed=4)
        begun = time.perf_counter()
        month.play()
        took = time.perf_counter() - begun
        told = sum(len(month.told_at(number)) == 1 for number in range(EVENTS))
        print(f"{told} of {EVENTS} events reported once; {month.share:.2%} of the runs called the agent; played in {took:.1f} s")
        month.world.store.close()


if __name__ == "__main__":
    main()
