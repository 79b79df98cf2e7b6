"""Finds orphans (programs that outlived the daemon that started them) in /proc, and ends their process groups.

They are found by a variable of their environment, so that no process ID need be stored.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heartbeatd.state_folder import RUN_ID_VARIABLE
from scheduler.system.log import log_event

WORKER_VARIABLE = "HEARTBEATD_WORKER"
KILL_AFTER = 2.0  # seconds from TERM to KILL
POLL_INTERVAL = 0.02  # seconds between checks for what the kernel does not announce
PROC = Path("/proc")


def find_orphans(marks: Container[str], worker: str | None = None) -> dict[str, list[int]] | None:
    """Running processes with one of these `marks` in their environment, by mark; None if there is no /proc.

    A mark is `<instance>/<run id>`. With `worker`, only what this worker has started. Processes of other users are found only by
    root. Processes that have overwritten their environment are not found.
    """
    if not (PROC / "self" / "environ").exists():
        return None
    found: dict[str, list[int]] = {}
    for pid in _other_pids():
        variables = _variables_of(pid)
        mark = variables.get(RUN_ID_VARIABLE)
        if mark is not None and mark in marks and (worker is None or variables.get(WORKER_VARIABLE) == worker):
            found.setdefault(mark, []).append(pid)
    return found


def end_and_log(found: Mapping[str, Sequence[int]], fields: Mapping[str, Mapping[str, Any]]) -> set[int]:
    """End the processes that were found by mark, as `end_orphans`, and log each with the fields of its mark."""
    programs = {pid: program_name(pid) for pids in found.values() for pid in pids}
    living = end_orphans(programs)
    for mark, pids in found.items():
        for pid in pids:
            word, level = ("orphan_not_ended", logging.ERROR) if pid in living else ("orphan_ended", logging.WARNING)
            log_event(level, word, **fields[mark], pid=pid, program=programs[pid])
    return living


def end_orphans(pids: Iterable[int]) -> set[int]:
    """End the process groups of `pids`, never our own: TERM, then KILL after 2 s. Returns the pids that still run.

    Blocks until all have ended, at most about 3 s.
    """
    groups = {pid: _living_group_of(pid) for pid in pids}
    spared = {pid for pid, group in groups.items() if group == os.getpgrp()}
    targets = set(groups.values()) - {0, os.getpgrp()}
    for group in targets:
        signal_group(group, signal.SIGTERM)
    for group in targets if _wait_for_groups(targets, KILL_AFTER) else ():
        signal_group(group, signal.SIGKILL)
    return spared | _wait_for_groups(targets, KILL_AFTER / 2)


def program_name(pid: int) -> str:
    """The name of a process's program, at most 15 characters, without its arguments, which may contain secrets.

    Empty if it has ended.
    """
    try:
        return (PROC / str(pid) / "comm").read_text("utf-8", "replace").rstrip("\n")
    except OSError:
        return ""


def is_process_running(pid: int) -> bool:
    """Whether there is a process with this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_process_stopped(pid: int) -> bool:
    """Whether the system has stopped a process, for example by SIGSTOP or a debugger. False if that cannot be found out."""
    try:
        return (PROC / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def _other_pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit() and int(entry.name) != os.getpid()]


def _variables_of(pid: int) -> dict[str, str]:
    """The environment of a process when it was started. Empty if it has just ended, or belongs to another user."""
    try:
        environ = os.fsdecode((PROC / str(pid) / "environ").read_bytes())
    except OSError:
        return {}
    pairs = (text.partition("=") for text in reversed(environ.split("\0")))
    return {name: value for name, _, value in pairs}


def _living_group_of(pid: int) -> int:
    """The process group of a running process; 0 if it has ended, even if it is still a zombie."""
    try:
        text = (PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return 0
    state, _, group, *_ = text.rpartition(")")[2].split()  # the name before it may contain anything
    return 0 if state in "ZX" else int(group)


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group (0: only check); False if it has no member."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # it has a member, which has changed its user
        return True
    return True


def _wait_for_groups(groups: set[int], seconds: float) -> set[int]:
    """Wait until all members of `groups` have ended; returns those that still run after `seconds`."""
    deadline = time.monotonic() + seconds
    while (living := {pid for pid in _other_pids() if _living_group_of(pid) in groups}) and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL)
    return living
