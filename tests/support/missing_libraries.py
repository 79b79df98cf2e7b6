"""Runs heartbeatd in an environment in which some libraries are not installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from patience import PATIENCE


def environment_without(folder: Path, *libraries: str) -> dict[str, str]:
    """The environment variables for `python -S`, which then finds all installed packages but those whose names begin like this."""
    kept = folder / "libraries"
    kept.mkdir()
    for path in {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}:
        for each in path.iterdir():
            if not each.name.startswith(libraries) and not (kept / each.name).exists():
                (kept / each.name).symlink_to(each)
    return os.environ | {"PYTHONPATH": str(kept)}


def run_without(folder: Path, libraries: tuple[str, ...], *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of heartbeatd in the folder of this checkout."""
    return subprocess.run(
        [sys.executable, "-S", "-m", "scheduler", *arguments],
        env=environment_without(folder, *libraries) | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
