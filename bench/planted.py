"""Plants former bugs into copies of the code, one at a time, and plays seeds of the simulator until one of them fails.

Each file of tests/data/planted is a patch, with what users suffered, and the first seed to play, in front of it.
"""

from __future__ import annotations

import argparse
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).parent.parent
PATCHES = sorted((HOME / "tests" / "data" / "planted").glob("*.patch"))
COPIED = ("scheduler", "heartbeat", "heartbeatd", "cron", "bench", "tests/support")
STEPS = 150  # of a seed


def plant(patch: Path, place: Path) -> None:
    """Copy the code to an empty folder, and apply the patch there."""
    for package in COPIED:
        shutil.copytree(HOME / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "apply", patch], cwd=place, check=True)


def find(patch: Path, seeds: int) -> str:
    """Play the seed of a patch, and then all seeds from 1. Returns what was broken."""
    first = int(re.findall(r"^Seed: (\d+)$", patch.read_text("utf-8"), re.MULTILINE)[0])
    with tempfile.TemporaryDirectory() as folder:
        plant(patch, Path(folder))
        code = f"from bench.planted import play; play([{first}, *range(1, {seeds + 1})])"
        found = subprocess.run([sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
        return found.stdout.strip()


def play(seeds: list[int]) -> None:
    """Play seeds with the code of this folder, and print the first failure."""
    sys.path.insert(0, str(HOME / "tests" / "support"))
    from simulator import _attempt, random_steps

    logging.disable()
    for number, seed in enumerate(seeds, 1):
        _, error = _attempt(HOME, seed, random_steps(seed, STEPS), None)
        if error is not None:
            print(f"seed {seed}, the {number}. that was played: {error}")
            return
    print(f"not found in {len(seeds)} seeds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patches", nargs="*", help="such as two_wakes; all without any")
    parser.add_argument("--seeds", type=int, default=0, help="how many seeds to play if that of the patch does not find the bug")
    given = parser.parse_args()
    for patch in PATCHES:
        if not given.patches or patch.stem in given.patches:
            print(f"{patch.stem}: {find(patch, given.seeds)[:300]}", flush=True)


if __name__ == "__main__":
    main()
