"""Gates: what would stand in the way of an entry that came due now."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass, replace
from datetime import datetime

from scheduler import paces
from scheduler.engine import claims
from scheduler.outcome import Kind, Skip
from scheduler.plan import Plan
from scheduler.tables import duequeue, holds
from scheduler.tables.duequeue import Standing
from scheduler.turn import Turn
from scheduler.work.lanes import Lanes

Answer = tuple[Skip, bool | None]


@dataclass(frozen=True, slots=True)
class Gates:
    """Each reason not to run, in the order in which they are asked: whether it stands in the way, None if only a run can say.

    `complete` False: without the config, only what the database knows was asked.
    """

    answers: tuple[Answer, ...]
    complete: bool

    @property
    def first(self) -> Skip | None:
        """The reason with which it would be skipped now."""
        return next((reason for reason, stands in self.answers if stands), None)


def ask(db: sqlite3.Connection, plan: Plan | None, standing: Standing, lanes: Lanes, now: datetime) -> Gates:
    """Every gate's answer; nothing is written, started or taken."""
    entry = plan.entries.get((standing.kind, standing.name)) if plan else None
    if plan is None or entry is None:
        return Gates(_by_rows(db, standing, lanes, now), complete=False)
    turn = Turn(db, now, "", plan, now, random.Random())  # noqa: S311 (nothing is drawn)
    claim = claims.imagined(turn, entry, standing)
    lane_taken = claim.busy or (entry.lane is not None and lanes.is_taken(entry.lane))
    answers = dict(entry.gates(replace(claim, busy=lane_taken)))
    return Gates(_in_order(answers | {Skip.ALREADY_RUNNING: _has_run(db, standing)}), complete=True)


def _by_rows(db: sqlite3.Connection, standing: Standing, lanes: Lanes, now: datetime) -> tuple[Answer, ...]:
    held = holds.by_agent(db, now)
    is_agent = standing.kind is Kind.HEARTBEAT
    return _in_order(
        {
            Skip.DISABLED: standing.state == "disabled",
            Skip.PAUSED: standing.paused,
            Skip.REMOVED: standing.state == "removed",
            Skip.ACTIVE_HOURS: not paces.hours(standing.pace_text).open_at(now),
            Skip.ALREADY_RUNNING: _has_run(db, standing),
            Skip.BUSY: is_agent and (standing.name in held or lanes.is_taken(standing.name)),
        }
    )


def _in_order(answers: dict[Skip, bool | None]) -> tuple[Answer, ...]:
    return tuple((reason, answers[reason]) for reason in Skip if reason in answers)


def _has_run(db: sqlite3.Connection, standing: Standing) -> bool:
    return duequeue.open_run(db, standing.kind, standing.name) is not None
