"""A small agent without a model: reads its checklist from the prompt, checks this machine, and prints what is wrong."""

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

LIMIT = re.compile(r"^- (disk|memory|load): at most (\d+(?:\.\d+)?)", re.MULTILINE)


def disk() -> float:
    """Percent of the root file system in use."""
    usage = shutil.disk_usage("/")
    return 100 * usage.used / usage.total


def memory() -> float:
    """Percent of memory in use, computed from the available memory that the kernel reports."""
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    found = {name: int(rest.split()[0]) for name, rest in (line.split(":", 1) for line in lines)}
    return 100 * (1 - found["MemAvailable"] / found["MemTotal"])


def load() -> float:
    """Processes that want to run, per core, over the last five minutes."""
    return os.getloadavg()[1] / (os.cpu_count() or 1)


LOOKS: dict[str, tuple[str, Callable[[], float]]] = {
    "disk": ("disk:/", disk),
    "memory": ("memory", memory),
    "load": ("load", load),
}


def main() -> None:
    """Answer one heartbeat: one line for each problem. The key in brackets stays the same, so each problem is reported once."""
    limits = [(*LOOKS[name], float(most)) for name, most in LIMIT.findall(sys.stdin.read())]
    values = [(key, measure(), most) for key, measure, most in limits]
    wrong = [f"[{key}] is at {value:.0f}, the checklist allows {most:.0f}" for key, value, most in values if value > most]
    print("\n".join(wrong) or "HEARTBEAT_OK")


if __name__ == "__main__":
    main()
