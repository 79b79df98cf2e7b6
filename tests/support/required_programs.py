"""Programs that some tests need: marks that skip these tests without them, and the summary of what was skipped."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

# Where to get each program. The Prometheus project's archive names Alertmanager differently.
PACKAGES = {
    "promtool": "apt-get install prometheus",
    "prometheus": "apt-get install prometheus",
    "prometheus-alertmanager": "apt-get install prometheus-alertmanager",
    "amtool": "apt-get install prometheus-alertmanager",
    "systemd-analyze": "apt-get install systemd",
    "curl": "apt-get install curl",
    "pipx": "apt-get install pipx",
    "uv": "pipx install uv",
    "strace": "apt-get install strace",
    "mount": "apt-get install mount",
    "dovecot": "apt-get install dovecot-imapd",
    "initdb": "apt-get install postgresql",
    "chromium-headless-shell": "apt-get install chromium-headless-shell",
}
OTHER_NAMES = {"prometheus-alertmanager": "alertmanager"}
POSTGRES = Path("/usr/lib/postgresql")  # of Debian; its programs are not in PATH


def find(tool: str) -> str | None:
    """The path of a program. None if it is not installed."""
    if tool == "initdb":
        folders = sorted(map(str, POSTGRES.glob("*/bin")), reverse=True)
        return shutil.which(tool, path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))
    if tool == "dovecot":  # in the PATH of root alone
        return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return shutil.which(tool) or shutil.which(OTHER_NAMES.get(tool, tool))


def needs(*tools: str) -> pytest.MarkDecorator:
    """The pytest mark of tests that need these programs."""
    missing = [tool for tool in tools if not find(tool)]
    return pytest.mark.skipif(bool(missing), reason=_lacks(missing))


def need(tool: str) -> str:
    """The path of a program. Skips the calling test if it is missing."""
    return find(tool) or pytest.skip(_lacks([tool]))


def _lacks(tools: list[str]) -> str:
    return "; ".join(f"needs {tool} (Debian: {PACKAGES[tool]})" for tool in tools)


def summarize_skipped(skipped: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The summary of skipped tests from their names and reasons: a line per reason, most tests first."""
    names: dict[str, set[str]] = defaultdict(set)
    for name, reason in skipped:
        names[reason.removeprefix("Skipped: ")].add(name)
    if not names:
        yield "Every program that tests need is here: none was skipped."
        return
    yield "NOT TESTED:"
    for reason, tests in sorted(names.items(), key=lambda item: (-len(item[1]), item[0])):
        files = sorted({Path(name.partition("::")[0]).name for name in tests})
        yield f"  {reason}: {len(tests)} test{'s' * (len(tests) != 1)} of {', '.join(files)}"


def is_worker() -> bool:
    """Whether this process is an xdist worker, whose controller prints the summary."""
    return "PYTEST_XDIST_WORKER" in os.environ
