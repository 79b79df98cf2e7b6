"""Watches the runs in progress: their timeouts, the places that they hold, and how their attempts have ended."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from heartbeat.words import abbreviate_duration, list_names
from scheduler.engine.clock_adjustment import ClockReading
from scheduler.model.entry import Claim
from scheduler.model.outcome import UNSENT_CALL, AttemptResult, Failure, Kind, Outcome, Reason, storable_result
from scheduler.model.timestamps import MILLISECOND
from scheduler.system.file_limits import is_scarcity
from scheduler.system.process import EndReason
from scheduler.work.executor import Done, Executor, Interrupted, NeverBegun, NotTaken

STUCK_SECONDS = 10.0  # from the cancellation of a run until it is given up
MAX_NOTED_RUNS = 1000  # that have held places while the concurrency limit is reached
MAX_LISTED_RUNS = 10  # in the log line of a stop
MAX_NAMED_RUNS = 2  # of those that have reached the concurrency limit

RESULT_BY_CAUSE: dict[EndReason, tuple[Outcome, Failure | Reason, str]] = {
    "timeout": (Outcome.TIMEOUT, Failure.TIMEOUT, "did not end within its timeout"),
    "shutdown": (Outcome.ABANDONED, Failure.EXIT, "was interrupted: the daemon stopped"),
    "cancelled": (Outcome.ABANDONED, Reason.CANCELLED, "was cancelled"),
}


STUCK = AttemptResult(Outcome.TIMEOUT, Failure.TIMEOUT, error="did not end, even after it was cancelled")


class PersonWaits:
    """How long each run in progress has waited for people, in seconds. Any thread may read it."""

    def __init__(self) -> None:
        self._waited: dict[int, tuple[float, float | None]] = {}  # the seconds before the present wait, and when that began

    def record(self, run_id: int, monotonic: float, *, waits: bool) -> None:
        """Record that a run waits from now on, or no longer."""
        before, since = self._waited.get(run_id, (0.0, None))
        if waits != (since is not None):
            self._waited[run_id] = (before, monotonic) if since is None else (before + monotonic - since, None)

    def is_waiting(self, run_id: int) -> bool:
        return self._waited.get(run_id, (0.0, None))[1] is not None

    def seconds(self, run_id: int, monotonic: float) -> float:
        before, since = self._waited.get(run_id, (0.0, None))
        return before if since is None else before + monotonic - since

    def forget(self, run_id: int) -> None:
        self._waited.pop(run_id, None)


class Deadlines:
    """The timeouts of the runs in progress, in seconds of the monotonic clock, because the system clock may change.

    All deadlines are checked only once the earliest of them has come, so a thousand runs in progress do not slow a tick down.
    """

    def __init__(self, runs: Executor[Claim, AttemptResult], waits: PersonWaits) -> None:
        self._runs = runs
        self._waits = waits
        self._timeout_at: dict[int, float] = {}
        self._cancelled: dict[int, tuple[EndReason, float]] = {}
        self._first_deadline = math.inf  # no deadline is earlier

    def start_deadline(self, claim: Claim, monotonic: float) -> None:
        """Register an attempt that starts now."""
        over_at = monotonic + claim.entry.spec.timeout.total_seconds()
        self._timeout_at[claim.run.id] = over_at
        self._first_deadline = min(self._first_deadline, over_at)

    def forget_runs(self, run_ids: Iterable[int]) -> None:
        """Forget runs whose results are recorded. The next attempt of a run has the same id."""
        for run_id in run_ids:
            self._timeout_at.pop(run_id, None)
            self._waits.forget(run_id)
            self._cancelled.pop(run_id, None)

    def record_waits(self, waiting: Mapping[int, bool], monotonic: float) -> None:
        """Stop the time of runs that wait for a person from now on, and go on with that of others."""
        for run_id, waits in waiting.items():
            if run_id in self._timeout_at:
                self._waits.record(run_id, monotonic, waits=waits)
                self._first_deadline = -math.inf  # it is computed anew

    def why_ended(self, run_id: int) -> EndReason | None:
        """Why the daemon cancelled this run; None if it did not."""
        return self._cancelled[run_id][0] if run_id in self._cancelled else None

    def end_run(self, run_id: int, why: EndReason, monotonic: float) -> None:
        """Cancel a run in progress. Its result is still awaited. The first reason counts, but `cancelled` replaces others."""
        first, since = self._cancelled.get(run_id, (why, monotonic))
        self._cancelled[run_id] = (why if why == "cancelled" else first, since)
        self._first_deadline = min(self._first_deadline, since + STUCK_SECONDS)
        self._runs.cancel(run_id, why)

    def enforce_deadlines(self, reading: ClockReading) -> datetime | None:
        """Cancel overdue runs and give up stuck ones. Returns the next deadline; None without runs in progress."""
        if self._first_deadline <= reading.monotonic:
            self._end_overdue(reading.monotonic)
        if self._first_deadline == math.inf:
            return None
        wait = timedelta(seconds=self._first_deadline - reading.monotonic)
        # A deadline in less than a microsecond would be rounded to now, and the loop would spin until it has come.
        return reading.now + max(wait, MILLISECOND if self._first_deadline > reading.monotonic else timedelta())

    def _end_overdue(self, monotonic: float) -> None:
        inflight = self._runs.inflight()
        for run_id in inflight:
            if run_id not in self._cancelled and self._next_deadline(run_id) <= monotonic:
                self.end_run(run_id, "timeout", monotonic)
        for run_id, claim in inflight.items():
            if self._next_deadline(run_id) <= monotonic:
                self._runs.give_up(run_id, Done(claim, STUCK))
        self._first_deadline = min((self._next_deadline(run_id) for run_id in inflight), default=math.inf)

    def _next_deadline(self, run_id: int) -> float:
        if run_id in self._cancelled:
            return self._cancelled[run_id][1] + STUCK_SECONDS
        # Without a present wait, the time does not matter.
        return math.inf if self._waits.is_waiting(run_id) else self._timeout_at[run_id] + self._waits.seconds(run_id, 0.0)


class HeldPlaces:
    """Which runs have held places since `limits.concurrency` was reached, and for how long.

    `full_since` is the time since which it has been reached, None if another run may start.
    """

    def __init__(self) -> None:
        self.full_since: datetime | None = None
        self._held: dict[int, tuple[Claim, float, float]] = {}  # each run with its first and last time, by the monotonic clock
        self._limit = 0

    def note(self, running: Mapping[int, Claim], reading: ClockReading, *, full: bool) -> None:
        """Note the runs in progress. `full` False: another run may start, so that all is forgotten."""
        if not full:
            self._held, self.full_since = {}, None
            return
        self.full_since = self.full_since or reading.now
        self._limit = len(running)
        for run_id, claim in running.items():
            first = self._held[run_id][1] if run_id in self._held else reading.monotonic
            self._held[run_id] = (claim, first, reading.monotonic)
        if len(self._held) > MAX_NOTED_RUNS:
            kept = sorted(self._held, key=self._time_held, reverse=True)[: MAX_NOTED_RUNS // 2]
            self._held = {run_id: each for run_id, each in self._held.items() if run_id in kept or run_id in running}

    def describe(self) -> str | None:
        """The limit, and the runs that have held a place for the longest time; None if another run may start."""
        if not self._held:
            return None
        longest = sorted(self._held, key=self._time_held, reverse=True)[: min(MAX_NAMED_RUNS, self._limit)]
        entries_by_run = {run_id: self._held[run_id][0].entry for run_id in longest}
        names = [f"{each.label} (run {run_id})" for run_id, each in entries_by_run.items()]
        more = f" and {self._limit - len(names)} more" if self._limit > len(names) else ""
        return f"limits.concurrency ({self._limit}) was reached by {', '.join(names)}{more}"

    def _time_held(self, run_id: int) -> tuple[float, int]:
        _, first, last = self._held[run_id]
        return last - first, -run_id


def result_of(done: Done[Claim, AttemptResult]) -> AttemptResult:
    """The result of an attempt, as it can be stored, also if it ended with an exception."""
    return storable_result(done.result or _result_of_exception(done.exception))


def result_of_ended_run(claim: Claim, result: AttemptResult, why: EndReason) -> AttemptResult:
    """The result of an attempt that the daemon has cancelled, with the reason why."""
    outcome, reason, error = RESULT_BY_CAUSE[why]
    message = f"{claim.entry.name} {error}" if claim.entry.kind is Kind.CRON else None
    transient = why == "timeout" and result.transient
    return replace(result, outcome=outcome, reason=reason, suppression=None, error=error, message=message, transient=transient)


def _result_of_exception(error: BaseException | None) -> AttemptResult:
    if isinstance(error, NotTaken):
        return AttemptResult(Outcome.TIMEOUT, Failure.TIMEOUT, error=str(error), calls=(UNSENT_CALL,))
    if isinstance(error, Interrupted):
        return AttemptResult(Outcome.FAILED, Failure.EXIT, error=str(error))
    if isinstance(error, NeverBegun):
        return AttemptResult(Outcome.FAILED, Failure.EXIT, error="was cancelled before it started", calls=(UNSENT_CALL,))
    if is_scarcity(error):
        return AttemptResult(Outcome.FAILED, Failure.EXIT, error=f"could not start: {error}", transient=True)
    return AttemptResult(Outcome.FAILED, Failure.BAD_ANSWER, error=f"{type(error).__name__}: {error}")


def is_unexpected(error: BaseException | None) -> bool:
    """Whether an exception that ended an attempt is a fault of the program."""
    return error is not None and not isinstance(error, (Interrupted, NeverBegun)) and not is_scarcity(error)


def describe_runs(running: Iterable[Claim], now: datetime) -> str:
    """The runs in progress, the longest first, with the time for which each has been running."""
    claims = sorted(running, key=lambda claim: claim.run.started_at)
    named = [f"{each.entry.label} (run {each.run.id}, {abbreviate_duration(now - each.run.started_at)})" for each in claims]
    return list_names(named, MAX_LISTED_RUNS)
