"""Kills between `accepted` and `noted`, as many as wanted: what was lost, what came twice, and whether it was counted."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from kills import Kills


def main(number: int) -> None:
    for policy in ("resend", "hold"):
        with tempfile.TemporaryDirectory() as folder:
            kills, begun = Kills(Path(folder), policy, number), time.monotonic()
            kills.loop()
            took, other = time.monotonic() - begun, sum(len(each) > 1 for each in kills.bodies.values())
            print(
                f"{policy}: {number} kills in {took:.0f} s; {len(kills.bodies)} messages, {len(kills.lost)} lost,"
                f" {kills.repeats.total()} repeated under their key, {other} of them with another body,"
                f" {kills.uncertain} counted as uncertain, {kills.held} held",
                flush=True,
            )
            kills.check()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
