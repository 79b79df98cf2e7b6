"""Gathering: jobs that fire together and wake one agent make one beat, which names them all.

The wake of a job waits while another job that may wake the same agent runs or is due, and no longer than `wake_gap`.
"""

from __future__ import annotations

from datetime import datetime

from scheduler.engine.tick import Tick
from scheduler.model.entry import Entry
from scheduler.model.outcome import Kind
from scheduler.store import entries, runs, wakes


def hold_for_other_jobs(tick: Tick, agent: str) -> datetime | None:
    """Until when a job's wake of this agent waits for those of others; None when there are none to wait for."""
    return tick.now + tick.limits.wake_gap if _other_jobs_under_way(tick, agent) else None


def release_held_wakes(tick: Tick, entry: Entry) -> None:
    """A job has ended: the wakes of an agent for which it was the last to be waited for may start its beat."""
    for agent in entry.agents_to_wake:
        entry_row = entries.find_entry(tick.tx.db, Kind.HEARTBEAT, agent)
        if entry_row is not None and not _other_jobs_under_way(tick, agent):
            wakes.release_held_wakes(tick.tx, entry_row)


def _other_jobs_under_way(tick: Tick, agent: str) -> bool:
    """Whether a job that may wake the agent runs, waits for its next attempt, or is due."""
    return runs.any_open_or_due(tick.tx, Kind.CRON, tick.plan.wakers.get(agent, ()))
