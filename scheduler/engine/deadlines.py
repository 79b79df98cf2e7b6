"""Deadlines: runs in progress are ended from outside when their time is over, and given up when they do not end."""

from __future__ import annotations

import math
from collections.abc import Iterable

from scheduler.model.entry import Claim
from scheduler.model.outcome import AttemptResult, Failure, Outcome
from scheduler.system.process import Why
from scheduler.work.executor import Done, Executor

STUCK_SECONDS = 10.0  # seconds that an ended run may take to give its result before it is given up


class Deadlines:
    """Times are seconds of the steady clock, for the wall's may jump.

    They are looked through when the first of them has come, so that a thousand runs in progress cost a turn nothing.
    """

    def __init__(self, runs: Executor[Claim, AttemptResult]) -> None:
        self._runs = runs
        self._timeout_at: dict[int, float] = {}
        self._cancelled: dict[int, tuple[Why, float]] = {}
        self._first_deadline = math.inf  # nobody's time is over before

    def start_deadline(self, claim: Claim, monotonic: float) -> None:
        """An attempt begins now."""
        over_at = monotonic + claim.entry.timeout.total_seconds()
        self._timeout_at[claim.run_id] = over_at
        self._first_deadline = min(self._first_deadline, over_at)

    def forget_runs(self, run_ids: Iterable[int]) -> None:
        """The results of these are written down; the next attempt of a run has its number again."""
        for run_id in run_ids:
            self._timeout_at.pop(run_id, None)
            self._cancelled.pop(run_id, None)

    def why_ended(self, run_id: int) -> Why | None:
        """Why we ended this run ourselves; None when we did not."""
        return self._cancelled[run_id][0] if run_id in self._cancelled else None

    def end_run(self, run_id: int, why: Why, monotonic: float) -> None:
        """End a run in progress; it still gives its result. The first reason stays, but for somebody's who cancels it."""
        first, since = self._cancelled.get(run_id, (why, monotonic))
        self._cancelled[run_id] = (why if why == "cancelled" else first, since)
        self._first_deadline = min(self._first_deadline, since + STUCK_SECONDS)
        self._runs.cancel(run_id, why)

    def enforce_deadlines(self, monotonic: float) -> float | None:
        """End what has run too long, give up what does not end; gives when to look again, None when that is not known."""
        if self._first_deadline <= monotonic:
            self._end_overdue(monotonic)
        return None if self._first_deadline == math.inf else self._first_deadline

    def _end_overdue(self, monotonic: float) -> None:
        inflight = self._runs.inflight()
        for run_id in inflight:
            if run_id not in self._cancelled and self._timeout_at[run_id] <= monotonic:
                self.end_run(run_id, "timeout", monotonic)
        for run_id, claim in inflight.items():
            if self._next_deadline(run_id) <= monotonic:
                self._runs.give_up(run_id, Done(claim, _result_of_stuck_run()))
        self._first_deadline = min((self._next_deadline(run_id) for run_id in inflight), default=math.inf)

    def _next_deadline(self, run_id: int) -> float:
        return self._cancelled[run_id][1] + STUCK_SECONDS if run_id in self._cancelled else self._timeout_at[run_id]


def _result_of_stuck_run() -> AttemptResult:
    return AttemptResult(Outcome.TIMEOUT, Failure.TIMEOUT, error="did not end, even after it was cancelled")
