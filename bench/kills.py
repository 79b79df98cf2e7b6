"""Kills, as many as wanted, between `accepted` and `noted` and at any moment: what was lost, what came twice, what counted.

With `money`, the agents have fallbacks, retries, reminders and tools that ask a person, and the costs are compared with budgets.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from kill_simulation import KilledDaemon, KilledDeliveries
from money_simulation import KilledSpending


def between(number: int) -> None:
    """Kills between the moment a channel has accepted a message and the moment that could be noted."""
    for policy in ("resend", "hold"):
        with tempfile.TemporaryDirectory() as folder:
            kills, begun = KilledDeliveries(Path(folder), policy, number), time.monotonic()
            kills.loop()
            took, other = time.monotonic() - begun, sum(len(each) > 1 for each in kills.bodies.values())
            print(
                f"{policy}: {number} kills in {took:.0f} s; {len(kills.bodies)} messages, {len(kills.lost)} lost,"
                f" {kills.repeats.total()} repeated under their key, {other} of them with another body,"
                f" {kills.uncertain} counted as uncertain, {kills.held} held",
                flush=True,
            )
            kills.check()


def at_any_moment(number: int) -> None:
    """Kills at any moment of a daemon that beats, works, is woken and delivers every second."""
    with tempfile.TemporaryDirectory() as folder:
        storm, begun = KilledDaemon(Path(folder), number, random.Random(number)), time.monotonic()
        storm.play()
        counted = ", ".join(f"{count:,} {what}" for what, count in storm.counted.items())
        print(
            f"at any moment: {number} kills in {time.monotonic() - begun:.0f} s; {counted}; {len(storm.lost)} lost,"
            f" {len(storm.doubled)} doubled, {storm.repeats} messages repeated under their key",
            flush=True,
        )
        for each in (*storm.lost, *storm.doubled):
            print(f"  {each}")
        sys.exit(1 if storm.lost or storm.doubled else 0)


def money(number: int) -> None:
    """Kills at any moment of a daemon whose agents spend their whole budgets."""
    with tempfile.TemporaryDirectory() as folder:
        spending, begun = KilledSpending(Path(folder), number, random.Random(number)), time.monotonic()
        spending.play()
        print(f"money: {number} kills in {time.monotonic() - begun:.0f} s; {spending.describe()}", flush=True)
        for each in spending.faults:
            print(f"  {each}")
        sys.exit(1 if spending.faults else 0)


if __name__ == "__main__":
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    if sys.argv[2:] == ["money"]:
        money(kills)
    if sys.argv[2:] != ["storm"]:
        between(kills)
    at_any_moment(kills)
