"""Waiting wakes, told in a line: how many there are of an entry, and which run will tell them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scheduler.cli.names import called
from scheduler.cli.times import local
from scheduler.insight.wake_waits import ANOTHER_WAKE, NEXT_SLOT, STARTING, Wait
from scheduler.model.outcome import Reason

PLAIN = (STARTING, NEXT_SLOT, ANOTHER_WAKE, Reason.CANCELLED)  # of which the time of the next run says enough


def waiting(entry: dict[str, Any], wait: Wait | None = None) -> Iterator[str]:
    """No line where none waits; `wait` is what they wait for."""
    if count := entry["wakes_waiting"]:
        name = called(entry["kind"], entry["name"])
        why = f": {wait.words}" if wait is not None and wait.reason not in PLAIN else ""
        yield f"wakes: {count} {'waits' if count == 1 else 'wait'} to be told to {name} by its next run{_when(entry)}{why}"


def _when(entry: dict[str, Any]) -> str:
    last = entry["last_run"]
    if entry["state"] == "paused":
        return ", once it is resumed"
    if entry["next_due"]:
        return f", {local(entry['next_due'])}"
    if last and last["state"] != "closed":
        return ""  # that run's end says when
    return f"; none is planned, and `heartbeatd wake {entry['name']}` starts one"
