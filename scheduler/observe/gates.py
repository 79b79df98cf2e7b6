"""Gates: what would stand in the way of an entry that came due now."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass, replace
from datetime import datetime

from scheduler import paces
from scheduler.engine import claims, planning
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

    `complete` False: without the config, only what the database knows was asked. `over_budget` says which budget stands in the
    way, and until when.
    """

    answers: tuple[Answer, ...]
    complete: bool
    over_budget: str | None = None

    @property
    def first(self) -> Skip | None:
        """The reason with which it would be skipped now."""
        return next((reason for reason, stands in self.answers if stands), None)


def ask(db: sqlite3.Connection, plan: Plan | None, standing: Standing, lanes: Lanes, now: datetime) -> Gates:
    """Every gate's answer; nothing is written, started or taken."""
    entry = plan.entries.get((standing.kind, standing.name)) if plan else None
    if plan is None or entry is None:
        return Gates(_by_rows(db, standing, lanes, now, gone=plan is not None), complete=False)
    turn = Turn(db, now, "", plan, now, random.Random())  # noqa: S311 (nothing is drawn)
    claim = claims.imagined(turn, entry, standing)
    lane_taken = claim.busy or (entry.lane is not None and lanes.is_taken(entry.lane))
    answers = dict(entry.gates(replace(claim, busy=lane_taken)))
    return Gates(_in_order(answers | _open_run(db, standing)), complete=True, over_budget=claim.over_budget)


def _by_rows(db: sqlite3.Connection, standing: Standing, lanes: Lanes, now: datetime, *, gone: bool) -> tuple[Answer, ...]:
    """What the database says; `gone`: the config that is there does not declare it any more."""
    is_agent, days = standing.kind is Kind.HEARTBEAT, paces.good_days(standing.pace_text)
    held = is_agent and (standing.name in holds.by_agent(db, now) or lanes.is_taken(standing.name))
    answers: dict[Skip, bool | None] = {
        Skip.DISABLED: standing.state == "disabled",
        Skip.PAUSED: standing.paused,
        Skip.REMOVED: gone or standing.state == "removed",
        Skip.CALENDAR: not (days is None or days.open_at(now)),
        Skip.ACTIVE_HOURS: not paces.hours(standing.pace_text).open_at(now),
        Skip.BUSY: held,
    }
    return _in_order(answers | _open_run(db, standing))


def _in_order(answers: dict[Skip, bool | None]) -> tuple[Answer, ...]:
    return tuple((reason, answers[reason]) for reason in Skip if reason in answers)


def _open_run(db: sqlite3.Connection, standing: Standing) -> dict[Skip, bool | None]:
    """Whether a run of it is going on; one that waits for its lane has not begun, and says that the lane is taken."""
    run = duequeue.open_run(db, standing.kind, standing.name)
    in_the_way = planning.in_the_way(run) if run else None
    answers: dict[Skip, bool | None] = {Skip.ALREADY_RUNNING: in_the_way is Skip.ALREADY_RUNNING}
    return answers | {Skip.BUSY: True} if in_the_way is Skip.BUSY else answers
