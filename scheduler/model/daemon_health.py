"""The health of the daemon for metrics, status and health probes: the state of its main loop, and its last reload."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(slots=True)
class EngineHealth:
    """Whether the engine can do its work. Other threads read it.

    `problem` says why the database cannot be written, or is None. `broken_parts` names the parts of a tick that are left out
    after an internal error. `tried_at` is the time of the last tick, `ticked_at` that of the last one committed.
    `failed_commits` counts the ticks that could not be committed. `standby` says which daemon leads instead of this one.
    """

    problem: str | None = None
    broken_parts: str | None = None
    standby: str | None = None
    tried_at: datetime | None = None
    ticked_at: datetime | None = None
    failed_commits: int = 0
    pings: dict[str, int] = field(default_factory=lambda: {"delivered": 0, "failed": 0})  # to the dead man's switch
    clock_changes: dict[str, int] = field(default_factory=lambda: {"forward": 0, "backward": 0})

    @property
    def why_not_working(self) -> str | None:
        """What is wrong; None if all parts of the engine work."""
        return self.problem or self.broken_parts


@dataclass(slots=True)
class ReloadState:
    """The result of the last reload of config.yaml."""

    successful: bool
    succeeded_at: datetime
    problem: str | None = None
