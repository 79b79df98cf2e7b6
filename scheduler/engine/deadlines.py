"""Deadlines: runs in progress are ended from outside when their time is over, and given up when they do not end."""

from __future__ import annotations

from scheduler.outcome import Ending, Failure, Outcome
from scheduler.work.entry import Claim
from scheduler.work.executor import Done, Executor
from scheduler.work.process import Why

STUCK = 10.0  # seconds that an ended run may take to give its result before it is given up


class Deadlines:
    """Times are seconds of the steady clock, for the wall's may jump."""

    def __init__(self, runs: Executor[Claim, Ending]) -> None:
        self._runs = runs
        self._over_at: dict[int, float] = {}
        self._ended: dict[int, tuple[Why, float]] = {}

    def start(self, claim: Claim, steady: float) -> None:
        """An attempt begins now."""
        self._over_at[claim.run_id] = steady + claim.entry.timeout.total_seconds()

    def ended_by(self, run_id: int) -> Why | None:
        """Why we ended this run ourselves; None when we did not."""
        return self._ended[run_id][0] if run_id in self._ended else None

    def end(self, run_id: int, why: Why, steady: float) -> None:
        """End a run in progress; it still gives its result. The first reason stays, but for somebody's who cancels it."""
        first, since = self._ended.get(run_id, (why, steady))
        self._ended[run_id] = (why if why == "cancelled" else first, since)
        self._runs.cancel(run_id, why)

    def enforce(self, steady: float) -> float | None:
        """End what has run too long, give up what does not end; gives when to look again, None when nothing runs."""
        inflight = self._runs.inflight()
        self._forget(inflight)
        for run_id in inflight:
            if run_id not in self._ended and self._over_at[run_id] <= steady:
                self.end(run_id, "timeout", steady)
        for run_id, claim in inflight.items():
            if self._next(run_id) <= steady:
                self._runs.give_up(run_id, Done(claim, _stuck()))
        return min((self._next(run_id) for run_id in inflight), default=None)

    def _next(self, run_id: int) -> float:
        return self._ended[run_id][1] + STUCK if run_id in self._ended else self._over_at[run_id]

    def _forget(self, inflight: dict[int, Claim]) -> None:
        """Runs whose result has been written down are no business of ours any more."""
        known = inflight.keys() | {run_id for run_id, _ in self._runs.results()}
        self._over_at = {run_id: at for run_id, at in self._over_at.items() if run_id in inflight}
        self._ended = {run_id: ended for run_id, ended in self._ended.items() if run_id in known}


def _stuck() -> Ending:
    return Ending(Outcome.TIMEOUT, Failure.TIMEOUT, error="did not end, not even when it was told to")
