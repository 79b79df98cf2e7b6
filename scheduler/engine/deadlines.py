"""Cancels runs that exceed their timeout, and gives up runs that do not end after they were cancelled."""

from __future__ import annotations

import math
from collections.abc import Iterable

from scheduler.model.entry import Claim
from scheduler.model.outcome import AttemptResult, Failure, Outcome
from scheduler.system.process import EndReason
from scheduler.work.executor import Done, Executor

STUCK_SECONDS = 10.0  # from the cancellation of a run until it is given up


class Deadlines:
    """The timeouts of the runs in progress, in seconds of the monotonic clock, because the system clock may change.

    All deadlines are checked only once the earliest of them has come, so a thousand runs in progress do not slow a tick down.
    """

    def __init__(self, runs: Executor[Claim, AttemptResult]) -> None:
        self._runs = runs
        self._timeout_at: dict[int, float] = {}
        self._cancelled: dict[int, tuple[EndReason, float]] = {}
        self._first_deadline = math.inf  # no deadline is earlier

    def start_deadline(self, claim: Claim, monotonic: float) -> None:
        """Register an attempt that starts now."""
        over_at = monotonic + claim.entry.timeout.total_seconds()
        self._timeout_at[claim.run.id] = over_at
        self._first_deadline = min(self._first_deadline, over_at)

    def forget_runs(self, run_ids: Iterable[int]) -> None:
        """Forget runs whose results are recorded. The next attempt of a run has the same id."""
        for run_id in run_ids:
            self._timeout_at.pop(run_id, None)
            self._cancelled.pop(run_id, None)

    def why_ended(self, run_id: int) -> EndReason | None:
        """Why the daemon cancelled this run; None if it did not."""
        return self._cancelled[run_id][0] if run_id in self._cancelled else None

    def end_run(self, run_id: int, why: EndReason, monotonic: float) -> None:
        """Cancel a run in progress. Its result is still awaited. The first reason counts, but `cancelled` replaces others."""
        first, since = self._cancelled.get(run_id, (why, monotonic))
        self._cancelled[run_id] = (why if why == "cancelled" else first, since)
        self._first_deadline = min(self._first_deadline, since + STUCK_SECONDS)
        self._runs.cancel(run_id, why)

    def enforce_deadlines(self, monotonic: float) -> float | None:
        """Cancel overdue runs and give up stuck ones. Returns the next deadline; None without runs in progress."""
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
