"""Gathering: jobs that fire together and wake one agent make one beat, which names them all.

The wake of a job waits while another job that may wake the same agent runs or is due, and no longer than `wake_gap`.
"""

from __future__ import annotations

from datetime import datetime

from scheduler.engine.turn import Turn
from scheduler.model.entry import Entry
from scheduler.model.outcome import Kind
from scheduler.store import entries, wakes


def held_until(turn: Turn, agent: str) -> datetime | None:
    """Until when a job's wake of this agent waits for those of others; None when there are none to wait for."""
    return turn.now + turn.limits.wake_gap if _others(turn, agent) else None


def release(turn: Turn, entry: Entry) -> None:
    """A job has ended: the wakes of an agent for which it was the last to be waited for may start its beat."""
    for agent in entry.may_wake:
        standing = entries.find(turn.db, Kind.HEARTBEAT, agent)
        if standing is not None and not _others(turn, agent):
            wakes.let_go(turn, standing)


def _others(turn: Turn, agent: str) -> bool:
    """Whether a job that may wake the agent runs, waits for its next attempt, or is due."""
    return entries.any_under_way(turn, Kind.CRON, turn.plan.wakers.get(agent, ()))
