"""The health of the daemon for metrics, status and health probes: the state of its main loop, and its last reload."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class TickPart(StrEnum):
    """The parts of a tick. The last three are about one entry, request or message."""

    CLOCK_CHANGE = "clock change"
    LATE_RESULTS = "late results"
    MAINTENANCE = "maintenance"
    DUE_RUNS = "due runs"
    HELD_NOTICES = "held notices"
    MESSAGES = "messages"
    CHANNEL_PROBLEMS = "channel problems"
    DAEMON_PROBLEMS = "daemon problems"
    ENTRY = "entry"
    REQUEST = "request"
    MESSAGE = "message"


@dataclass(frozen=True, slots=True)
class QueueState:
    """What the daemon knows about the queue of its workers.

    `problem` says why the queue cannot be used; then the rest is not known. `workers` are the names of the workers that have
    renewed their lease. `longest_wait` is for how many seconds the first run of this daemon in the queue has waited for a worker.
    """

    problem: str | None = None
    workers: tuple[str, ...] = ()
    longest_wait: float | None = None

    @property
    def why_no_run_starts(self) -> str | None:
        """Why no worker executes a run now; None if at least one could."""
        if self.problem is not None:
            return f"the queue of the workers cannot be used: {self.problem}"
        return None if self.workers else "no worker is running; start `heartbeatd worker` on a machine with this config"


@dataclass(slots=True)
class EngineHealth:
    """Whether the engine can do its work. Other threads read it.

    `problem` says why the database cannot be written, or is None. `broken_parts` names the parts of a tick that are left out
    after an internal error. `tried_at` is the time of the last tick, `ticked_at` that of the last one committed.
    `failed_commits` counts the ticks that could not be committed. `internal_errors` counts the unexpected exceptions in each part
    of a tick. `standby` says which daemon leads instead of this one. `queue` is the state of the queue of the workers, None
    without workers.
    """

    problem: str | None = None
    broken_parts: str | None = None
    standby: str | None = None
    queue: QueueState | None = None
    tried_at: datetime | None = None
    ticked_at: datetime | None = None
    failed_commits: int = 0
    pings: dict[str, int] = field(default_factory=lambda: {"delivered": 0, "failed": 0})  # to the dead man's switch
    clock_changes: dict[str, int] = field(default_factory=lambda: {"forward": 0, "backward": 0})
    internal_errors: Counter[TickPart] = field(default_factory=lambda: Counter(dict.fromkeys(TickPart, 0)))

    @property
    def why_not_working(self) -> str | None:
        """What is wrong; None if all parts of the engine work. Without a worker the daemon still does its own part."""
        queue = self.queue.why_no_run_starts if self.queue is not None and self.queue.problem is not None else None
        return self.problem or self.broken_parts or queue


@dataclass(slots=True)
class ReloadState:
    """The result of the last reload of config.yaml."""

    successful: bool
    succeeded_at: datetime
    problem: str | None = None
