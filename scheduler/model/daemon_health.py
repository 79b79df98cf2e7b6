"""The health of the daemon for metrics, status and health probes: the state of its main loop, and its last reload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

DEFAULT_QUEUE = "default"  # of the workers that were given no queue, and of the agents and jobs that name none


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
class WorkerState:
    """A worker that has renewed its lease: the queues that it serves, its version, and the number of its runs in progress.

    If it `is_draining`, it takes no more runs.
    """

    name: str
    queues: tuple[str, ...]
    version: str = ""
    running: int = 0
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class WaitingRuns:
    """The runs of a queue that wait for a worker: how many, and for how many seconds the first one has waited."""

    count: int
    longest: float


@dataclass(frozen=True, slots=True)
class QueueState:
    """What the daemon knows about the queues of its workers.

    `problem` says why the queues cannot be used; then the rest is not known. `needed` are the queues that enabled agents and jobs
    name. `waiting` has the queues in which runs wait.
    """

    problem: str | None = None
    workers: tuple[WorkerState, ...] = ()
    waiting: Mapping[str, WaitingRuns] = field(default_factory=dict)
    needed: frozenset[str] = frozenset()

    def workers_of(self, queue: str) -> list[WorkerState]:
        """The workers that take runs of a queue."""
        return [each for each in self.workers if queue in each.queues and not each.is_draining]

    @property
    def longest_wait(self) -> float | None:
        """For how many seconds the first run has waited for a worker; None if none waits."""
        return max((each.longest for each in self.waiting.values()), default=None)

    @property
    def unserved(self) -> list[str]:
        """The queues that are needed, and from which no worker takes runs."""
        return sorted(queue for queue in self.needed if not self.workers_of(queue))

    @property
    def why_runs_wait(self) -> str | None:
        """Why no worker executes the runs of at least one queue now; None if each queue has a worker."""
        if self.problem is not None:
            return f"the queue of the workers cannot be used: {self.problem}"
        unserved = self.unserved
        worker = "heartbeatd worker" if {*unserved} <= {DEFAULT_QUEUE} else f"heartbeatd worker --queue {','.join(unserved)}"
        if all(each.is_draining for each in self.workers):
            return f"no worker takes runs; start `{worker}` on a machine with this config"
        return f"no worker serves the queue {unserved[0]}; start `{worker}`" if unserved else None


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
    ping_problem: str | None = None  # why the last of them failed
    clock_changes: dict[str, int] = field(default_factory=lambda: {"forward": 0, "backward": 0})
    internal_errors: Counter[TickPart] = field(default_factory=lambda: Counter(dict.fromkeys(TickPart, 0)))

    @property
    def why_not_working(self) -> str | None:
        """What is wrong; None if all parts of the engine work. Without a worker the daemon still does its own part."""
        queue = self.queue.why_runs_wait if self.queue is not None and self.queue.problem is not None else None
        return self.problem or self.broken_parts or queue


@dataclass(slots=True)
class ReloadState:
    """The result of the last reload of config.yaml."""

    successful: bool
    succeeded_at: datetime
    problem: str | None = None
