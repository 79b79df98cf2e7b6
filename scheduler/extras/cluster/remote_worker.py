"""Executes tasks of schedulers on other machines, which come through a queue in PostgreSQL.

A worker holds a lease, which it renews every few seconds. After a time without PostgreSQL, or after its process was frozen, the
lease is over: the worker then ends the tasks in progress, because a scheduler may have given them to another worker. All times
are measured by a monotonic clock from what the database says, so the clocks of the machines may differ.

The class `Worker` of Procrastinate is not used. It marks a job as finished only after its task has ended, so the result cannot be
written in the same transaction. It stops after the first failed renewal of its lease, and it loses the result of a task that ends
while PostgreSQL is down.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from heartbeat.runners.call_errors import CallError
from scheduler.extras.cluster.executors import (
    POLL_SECONDS,
    RETRY_SECONDS,
    cancel_until_ended,
    log_availability,
    run_again_after_errors,
    wait_for_event,
)
from scheduler.extras.cluster.job_queue import MAY_HAVE_BEGUN, FetchedJob, JobQueue, QueueUnavailable
from scheduler.extras.cluster.payloads import AttemptRefused, ClaimCodec
from scheduler.model.entry import Claim
from scheduler.model.outcome import SUCCESSES, UNSENT_CALL, AttemptResult, Failure, Outcome, Skip
from scheduler.system.log import log_event
from scheduler.system.process import Children, EndReason, StartPermit
from scheduler.work.executor import Done, Interrupted, LocalExecutor, NeverBegun, NotTaken, WorkerLoop

RENEWALS_PER_LEASE = 10
LEASE_MARGIN = 0.75  # of the lease; the rest is for ending tasks, and for the difference between two clocks' speeds
GUARD_MARGIN = 0.85  # of the lease, after which the guard acts: later than the worker itself, and before others repeat the runs
STUCK_SECONDS = 15.0  # from the end of a task's time until its result is given up
CONFIG_PATIENCE = 15.0  # seconds that a refused task waits for another config, which may be on its way
CONFIG_LOOK_SECONDS = 0.5
RESULTS = ("ok", "error", "refused", "interrupted")  # how a task ended on the worker; "ok" includes failed runs
LOST_CONTACT = "had no contact with PostgreSQL for longer than its lease"
STOPPED = "was stopped"
TOO_LATE = "the time of the run was over before a worker could take it; start more workers, or raise limits.concurrency there"
TIME_OVER = "the time of the run was over before the worker could call the agent"


class Permit(StartPermit):
    """Permits a task to do more as long as its time, and the lease of its worker, lasts."""

    def __init__(self, worker: RemoteWorker, ends_at: float) -> None:
        self._worker = worker
        self._ends_at = ends_at

    def allows_start(self) -> bool:
        return self._worker.clock() < self._ends_at and self._worker.has_lease

    async def wait_until_allowed(self) -> None:
        if not self.allows_start():
            raise CallError(Failure.TIMEOUT, TIME_OVER, transient=True, not_sent=True)


@dataclass(eq=False, slots=True)
class _Attempt:
    """A task that this worker has fetched, until its result is written. `number` is its own in this process.

    `ends_at` is by the worker's clock. `task` is set when its payload has been read. `interrupted`: the worker has ended it, and
    this replaces its result. `end_reason`: its scheduler has ended it. `result`: the payload, once it has ended.
    `may_be_written`: a commit with it was tried, and how that ended is unknown.
    """

    number: int
    job: FetchedJob
    ends_at: float
    task: Claim = field(init=False)
    interrupted: Interrupted | None = None
    end_reason: str | None = None
    timer: asyncio.TimerHandle | None = None
    beginning: asyncio.Task[None] | None = None  # kept here, because the loop itself does not keep it
    result: str | None = None
    may_be_written: bool = False

    @property
    def is_ending(self) -> bool:
        """Whether its result will be that it was ended."""
        return self.interrupted is not None or self.end_reason is not None


class RemoteWorker:
    """Fetches tasks, executes them with `carry` in the thread of `loop`, and writes their results to the queue.

    `clock` is a monotonic clock that also counts the time of a suspend, in seconds. `reload` reads the config again if it has
    changed. At most `concurrency` tasks are in progress. `locked_lanes` returns the locks of tasks that have ended and left a
    program behind which still holds the lock: such an agent stays locked for all machines. `note_lease` is called for each lease
    with the time, by `clock`, at which the guard is to end the programs of the worker. `process_id` is unique to this process,
    and is in the environment of these programs.
    """

    def __init__(
        self,
        queue: JobQueue,
        codec: ClaimCodec,
        carry: Callable[[Claim, Children], Coroutine[object, None, AttemptResult]],
        loop: WorkerLoop,
        *,
        name: str,
        concurrency: int,
        clock: Callable[[], float],
        reload: Callable[[], None] = lambda: None,
        locked_lanes: Callable[[], Collection[str]] = tuple,
        note_lease: Callable[[float], None] = lambda _: None,
        process_id: str | None = None,
    ) -> None:
        self._queue = queue
        self._codec = codec
        self._carry = carry
        self._name = name
        self._concurrency = concurrency
        self.clock = clock
        self._reload = reload
        self._locked_lanes = locked_lanes
        self._note_lease = note_lease
        self._lanes_on_record: Collection[str] = ()
        self._holder = f"a program that a run has left behind on {name}"
        self.counts: Counter[str] = Counter()  # of each of RESULTS, of "stale" results, "lost_leases", and "carried" tasks
        self._carried_seconds = 0.0
        self.problem: str | None = None  # of the queue
        self._attempts: dict[int, _Attempt] = {}
        self._numbers = itertools.count(1)  # of attempts
        self._worker_id: int | None = None
        self._compared_at = float("-inf")  # the jobs that it has fetched with those that it knows
        self._lease_ends = float("-inf")
        self._is_draining = False
        self._main: asyncio.AbstractEventLoop | None = None
        self._jobs_announced = asyncio.Event()
        self._results_ready = asyncio.Event()
        self._cancellation_announced = asyncio.Event()
        self._stop_wanted = asyncio.Event()
        self._end_wanted = asyncio.Event()
        self._local: LocalExecutor[_Attempt, AttemptResult] = LocalExecutor(
            self._carry_out, attrgetter("task.run.mark"), partial(self._set_event, self._results_ready), loop, process_id
        )

    @property
    def in_progress(self) -> int:
        """How many tasks are in progress, or have results that are not written yet."""
        return len(self._attempts)

    @property
    def has_lease(self) -> bool:
        """Whether its tasks are still its own: no other worker may get them."""
        return self.clock() < self._lease_ends

    def find_problem(self) -> str | None:
        """Why it takes no runs now; None if it does. From any thread."""
        if self._stop_wanted.is_set():
            return "it is stopping"
        if self._is_draining:
            return "it takes no more runs"
        return None if self.has_lease else self.problem or "it has no lease"

    def metrics(self) -> dict[str, float]:
        """The values of its metrics, by their names with labels. From any thread."""
        return {
            **{f'heartbeatd_worker_runs_total{{result="{word}"}}': self.counts[word] for word in RESULTS},
            "heartbeatd_worker_run_duration_seconds_sum": self._carried_seconds,
            "heartbeatd_worker_run_duration_seconds_count": self.counts["carried"],
            "heartbeatd_worker_running": self.in_progress,
            "heartbeatd_worker_ready": float(self.find_problem() is None),
            "heartbeatd_worker_stale_results_total": self.counts["stale"],
            "heartbeatd_worker_lost_leases_total": self.counts["lost_leases"],
        }

    def stop(self) -> None:
        """Fetch no more tasks. If it is called again, wait no longer for those in progress. From any thread."""
        self._set_event(self._end_wanted if self._stop_wanted.is_set() else self._stop_wanted)

    def _set_event(self, event: asyncio.Event) -> None:
        if self._main is not None:
            with suppress(RuntimeError):  # its loop is closed, so it has stopped
                self._main.call_soon_threadsafe(event.set)

    async def run(self, grace: float) -> None:
        """Work until `stop`. Then wait for the tasks in progress, at most `grace` seconds, and end the rest.

        A fetch is never cancelled, because its commit may be under way. It ends within its timeout.
        """
        self._main = asyncio.get_running_loop()
        listen = partial(self._queue.listen_for_jobs, self._on_announcement)
        endless = (self._keep_lease, self._watch_lease, self._watch_cancellations, self._report_results, listen)
        fetching = asyncio.create_task(run_again_after_errors(self._fetch))
        tasks = [asyncio.create_task(run_again_after_errors(each)) for each in endless]
        await self._stop_wanted.wait()
        self._jobs_announced.set()
        await fetching
        await self._wait_until_idle(grace, self._end_wanted.is_set)
        self._interrupt_all(STOPPED)
        await self._wait_until_idle(2 * STUCK_SECONDS)
        await cancel_until_ended(tasks)
        if self._worker_id is not None:
            with suppress(QueueUnavailable):
                await self._queue.unregister(self._worker_id)
        with suppress(QueueUnavailable):
            await self._queue.close()

    def _interrupted(self, why: str, *, was_stopped: bool = True) -> Interrupted:
        """`was_stopped` is False if the task had begun, so that it may be why this process failed."""
        return Interrupted(f"{self._name} {why}", was_stopped=was_stopped)

    async def _wait_until_idle(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> None:
        ends_at = self.clock() + seconds
        while self._attempts and self.clock() < ends_at and not is_over():
            await asyncio.sleep(0.05)

    # The lease.

    async def _watch_lease(self) -> None:
        """End all tasks as soon as the lease is over. The next renewal registers as another worker.

        A result that exists already is still sent, because no other worker may have replaced it.
        """
        while True:
            await asyncio.sleep(min(RETRY_SECONDS, self._queue.lease / RENEWALS_PER_LEASE))
            if self._worker_id is not None and not self.has_lease:
                self.counts["lost_leases"] += 1
                self._worker_id = None
                log_event(logging.WARNING, "lease_lost", worker=self._name, ends=len(self._attempts))
                self._interrupt_all(LOST_CONTACT, was_stopped=False)

    async def _keep_lease(self) -> None:
        while True:
            asked_at = self.clock()
            try:
                await self._renew(asked_at)
            except QueueUnavailable as error:
                self._report_problem(str(error))
            is_good = self.problem is None and self.clock() - asked_at < self._queue.lease / RENEWALS_PER_LEASE
            await asyncio.sleep(self._queue.lease / RENEWALS_PER_LEASE if is_good else RETRY_SECONDS)

    async def _renew(self, asked_at: float) -> None:
        await self._queue.open()
        if self._worker_id is not None and asked_at >= self._lease_ends:
            return
        if self._worker_id is None:
            await self._queue.remove_dead_workers()
            self._worker_id = await self._queue.register(self._name, is_draining=self._is_draining)
        elif (drains := await self._queue.renew(self._worker_id)) is None:
            self._lease_ends = float("-inf")
            return
        elif drains and not self._is_draining:
            self._is_draining = True
            log_event(logging.INFO, "draining", worker=self._name, running=len(self._attempts))
        self._lease_ends = asked_at + LEASE_MARGIN * self._queue.lease
        self._note_lease(asked_at + GUARD_MARGIN * self._queue.lease)
        await self._record_locked_lanes()
        self._report_problem(None)
        self._jobs_announced.set()

    async def _record_locked_lanes(self) -> None:
        """Keep the locks for all machines that programs of earlier tasks still hold, and release the others."""
        lanes = self._locked_lanes()
        if lanes:
            await self._queue.hold_lanes(lanes, self._holder)
        if set(self._lanes_on_record) - set(lanes):
            await self._queue.release_lanes(self._holder, lanes)
        self._lanes_on_record = lanes

    # Tasks.

    async def _fetch(self) -> None:
        """Fetch tasks whenever there is room for one."""
        while not self._stop_wanted.is_set():
            self._jobs_announced.clear()
            if self._is_draining and not self._attempts:
                self._stop_wanted.set()  # here, because no fetch is in progress that could bring another task
            fetched: list[FetchedJob] = []
            room, worker_id = self._concurrency - len(self._attempts), self._worker_id
            if room > 0 and worker_id is not None and self.has_lease and not self._is_draining:
                asked_at = self.clock()
                try:
                    # After a failover, jobs may count as fetched again whose results the server has lost.
                    if asked_at - self._compared_at >= self._queue.lease / RENEWALS_PER_LEASE:
                        self._compared_at = asked_at
                        known = [each.job.job_id for each in self._attempts.values() if each.job.worker_id == worker_id]
                        fetched = await self._queue.fetched_jobs(worker_id, known)
                    fetched += await self._queue.fetch(worker_id, room)
                except QueueUnavailable as error:
                    self._compared_at = float("-inf")  # the fetch may have been committed
                    self._report_problem(str(error))
                for each in fetched:
                    self._accept(each, asked_at)
            if not fetched:
                await wait_for_event(self._jobs_announced, POLL_SECONDS)

    def _accept(self, fetched: FetchedJob, asked_at: float) -> None:
        """Begin a fetched task. The deadline is measured from before the request, so it is rather too early than too late."""
        in_progress = (each for each in self._attempts.values() if each.job.key == fetched.key and not each.is_ending)
        if fetched.key is not None and (known := next(in_progress, None)) is not None:
            known.job = fetched  # a failover of the server has lost the commit of its first fetch
            return
        attempt = _Attempt(next(self._numbers), fetched, asked_at + fetched.seconds_left)
        self._attempts[attempt.number] = attempt
        if (obstacle := self._why_not_to_begin(fetched)) is not None:
            self._set_result(attempt, None, obstacle)
            return
        attempt.timer = asyncio.get_running_loop().call_later(fetched.seconds_left, self._end, attempt, "timeout")
        attempt.beginning = asyncio.create_task(self._begin_when_permitted(attempt))

    def _why_not_to_begin(self, fetched: FetchedJob) -> Exception | None:
        if fetched.key is None:
            return Interrupted("its attempt was withdrawn", was_stopped=True)
        if fetched.may_have_begun:
            return Interrupted(MAY_HAVE_BEGUN, was_stopped=False)
        if self._stop_wanted.is_set():
            return self._interrupted(STOPPED)
        if fetched.worker_id != self._worker_id:  # the lease was lost during the fetch, so another worker may get the task
            return self._interrupted(LOST_CONTACT)
        if fetched.seconds_left <= 0:
            log_event(logging.WARNING, "attempt_too_late", attempt=fetched.key, late=-fetched.seconds_left)
            return NotTaken(TOO_LATE)
        return None

    async def _begin_when_permitted(self, attempt: _Attempt) -> None:
        """Begin a task as soon as the config of this machine permits it. Refuse it if that does not happen soon."""
        last_look = min(attempt.ends_at, self.clock() + CONFIG_PATIENCE)
        was_refused = False
        while not attempt.is_ending:
            try:
                if was_refused:
                    self._reload()
                attempt.task = self._codec.read_task(attempt.job.payload)
                if attempt.job.held_by is not None:
                    attempt.task = attempt.task.blocked_by(Skip.BUSY, f"{attempt.job.held_by} has locked it")
                self._local.submit(attempt.number, attempt)
                return
            except Exception as problem:  # noqa: BLE001 (the job would stay in progress)
                may_change = isinstance(problem, AttemptRefused) and problem.may_change
                if not may_change or self.clock() >= last_look or self._stop_wanted.is_set():
                    self._refuse(attempt, problem)
                    return
            was_refused = True
            await asyncio.sleep(CONFIG_LOOK_SECONDS)
        self._set_result(attempt, None, attempt.interrupted or NeverBegun())

    def _refuse(self, attempt: _Attempt, problem: Exception) -> None:
        text = str(problem) if isinstance(problem, AttemptRefused) else f"{self._name} cannot run it: {problem}"
        log_event(logging.WARNING, "attempt_refused", attempt=attempt.job.key, problem=text)
        result = AttemptResult(Outcome.FAILED, Failure.EXIT, error=text, transient=True, calls=(UNSENT_CALL,))
        self._set_result(attempt, result, None, "refused")

    async def _carry_out(self, attempt: _Attempt, children: Children) -> AttemptResult:
        if not self.has_lease:  # the process was frozen after it had fetched the job
            raise self._interrupted(LOST_CONTACT)
        if self.clock() >= attempt.ends_at:
            raise NotTaken(TOO_LATE)
        began_at = self.clock()
        try:
            children.permit = Permit(self, attempt.ends_at)
            return await self._carry(attempt.task, children)
        finally:
            self.counts["carried"] += 1
            self._carried_seconds += self.clock() - began_at

    def _interrupt_all(self, why: str, *, was_stopped: bool = True) -> None:
        for attempt in list(self._attempts.values()):
            if attempt.result is None and attempt.interrupted is None:
                attempt.interrupted = self._interrupted(why, was_stopped=was_stopped)
                self._end(attempt, "shutdown")

    def _end(self, attempt: _Attempt, why: EndReason) -> None:
        self._local.cancel(attempt.number, why)
        asyncio.get_running_loop().call_later(STUCK_SECONDS, self._give_up, attempt)

    def _give_up(self, attempt: _Attempt) -> None:
        """Forget a task that does not end, even after it was cancelled."""
        if attempt.result is None:
            error = TimeoutError("did not end, even after it was cancelled")
            self._local.give_up(attempt.number, Done(attempt, None, error))
            self._results_ready.set()

    # Cancellations.

    async def _watch_cancellations(self) -> None:
        """End the tasks in progress whose schedulers no longer want them."""
        while True:
            await wait_for_event(self._cancellation_announced, POLL_SECONDS)
            wanted = [each for each in self._attempts.values() if each.result is None]
            if not wanted:
                continue
            try:
                reasons = await self._queue.end_reasons([attempt.job for attempt in wanted])
            except QueueUnavailable as error:
                self._report_problem(str(error))
                continue
            for attempt in wanted:
                why = reasons.get(attempt.job.key or "")
                if why is not None and attempt.number in self._attempts and attempt.end_reason != why:
                    attempt.end_reason = why
                    self._end(attempt, why)

    def _on_announcement(self, payload: str) -> None:
        if "abort" in payload:
            self._cancellation_announced.set()
        else:
            self._jobs_announced.set()

    # Results.

    def _set_result(
        self, attempt: _Attempt, result: AttemptResult | None, error: BaseException | None, counted_as: str | None = None
    ) -> None:
        """Keep the result of a task until it is written. A complete one counts even if the task was interrupted before."""
        if attempt.timer is not None:
            attempt.timer.cancel()
        if attempt.interrupted is not None and (result is None or result.outcome not in SUCCESSES):
            result, error = None, attempt.interrupted
        word = "interrupted" if isinstance(error, Interrupted) else "ok" if error is None else "error"
        self.counts[counted_as or word] += 1
        try:
            attempt.result = self._codec.write_done(Done(None, result, error))
        except (LookupError, TypeError, ValueError) as unwritable:  # it has something that JSON has not
            attempt.result = self._codec.write_done(Done(None, None, unwritable))
        self._results_ready.set()

    async def _report_results(self) -> None:
        """Write the results of tasks that have ended, each together with the end of its job, as soon as PostgreSQL permits."""
        while True:
            await self._results_ready.wait()
            self._results_ready.clear()
            ended = self._local.results()
            for _, done in ended:
                if not self.has_lease and done.task.interrupted is None:  # the guard may have ended its program
                    done.task.interrupted = self._interrupted(LOST_CONTACT, was_stopped=False)
                self._set_result(done.task, done.result, done.exception)
            self._local.ack([number for number, _ in ended])
            batch = [(each, each.result) for each in self._attempts.values() if each.result is not None]
            if not batch:
                continue
            try:
                await self._record_locked_lanes()  # before the end of the jobs, which have the locks until then
                written = await self._queue.finish([(attempt.job, result) for attempt, result in batch])
            except QueueUnavailable as error:
                self._report_problem(str(error))
                for attempt, _ in batch:
                    attempt.may_be_written = True
                await asyncio.sleep(RETRY_SECONDS)
                self._results_ready.set()
                continue
            for attempt, _ in batch:
                del self._attempts[attempt.number]
                if attempt.job.key not in written and not attempt.may_be_written:
                    self.counts["stale"] += 1
                    log_event(logging.WARNING, "result_too_late", attempt=attempt.job.key)
            self._jobs_announced.set()

    def _report_problem(self, problem: str | None) -> None:
        log_availability(problem, self.problem)
        self.problem = problem
