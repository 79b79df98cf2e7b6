"""Deadlines: runs in progress are ended from outside when their time is over, and given up when they do not end."""

from __future__ import annotations

import math
from collections.abc import Iterable

from scheduler.model.entry import Claim
from scheduler.model.outcome import AttemptResult, Failure, Outcome
from scheduler.system.process import Why
from scheduler.work.executor import Done, Executor

STUCK = 10.0  # seconds that an ended run may take to give its result before it is given up


class Deadlines:
    """Times are seconds of the steady clock, for the wall's may jump.

    They are looked through when the first of them has come, so that a thousand runs in progress cost a turn nothing.
    """

    def __init__(self, runs: Executor[Claim, AttemptResult]) -> None:
        self._runs = runs
        self._over_at: dict[int, float] = {}
        self._ended: dict[int, tuple[Why, float]] = {}
        self._first = math.inf  # nobody's time is over before

    def start_deadline(self, claim: Claim, steady: float) -> None:
        """An attempt begins now."""
        over_at = steady + claim.entry.timeout.total_seconds()
        self._over_at[claim.run_id] = over_at
        self._first = min(self._first, over_at)

    def forget_runs(self, run_ids: Iterable[int]) -> None:
        """The results of these are written down; the next attempt of a run has its number again."""
        for run_id in run_ids:
            self._over_at.pop(run_id, None)
            self._ended.pop(run_id, None)

    def why_ended(self, run_id: int) -> Why | None:
        """Why we ended this run ourselves; None when we did not."""
        return self._ended[run_id][0] if run_id in self._ended else None

    def end_run(self, run_id: int, why: Why, steady: float) -> None:
        """End a run in progress; it still gives its result. The first reason stays, but for somebody's who cancels it."""
        first, since = self._ended.get(run_id, (why, steady))
        self._ended[run_id] = (why if why == "cancelled" else first, since)
        self._first = min(self._first, since + STUCK)
        self._runs.cancel(run_id, why)

    def enforce(self, steady: float) -> float | None:
        """End what has run too long, give up what does not end; gives when to look again, None when that is not known."""
        if self._first <= steady:
            self._end_overdue(steady)
        return None if self._first == math.inf else self._first

    def _end_overdue(self, steady: float) -> None:
        inflight = self._runs.inflight()
        for run_id in inflight:
            if run_id not in self._ended and self._over_at[run_id] <= steady:
                self.end_run(run_id, "timeout", steady)
        for run_id, claim in inflight.items():
            if self._next_deadline(run_id) <= steady:
                self._runs.give_up(run_id, Done(claim, _result_of_stuck_run()))
        self._first = min((self._next_deadline(run_id) for run_id in inflight), default=math.inf)

    def _next_deadline(self, run_id: int) -> float:
        return self._ended[run_id][1] + STUCK if run_id in self._ended else self._over_at[run_id]


def _result_of_stuck_run() -> AttemptResult:
    return AttemptResult(Outcome.TIMEOUT, Failure.TIMEOUT, error="did not end, not even when it was told to")
