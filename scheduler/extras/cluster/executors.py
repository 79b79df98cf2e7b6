"""Has tasks executed by workers on other machines, through a queue in PostgreSQL.

The core calls `make_executor`, `ask_state` and `make_lane`: see `RemoteExecutors` in scheduler/work/run_extras.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from heartbeatd.state_folder import RUN_ID_VARIABLE, config_folder
from scheduler.extras.cluster.job_queue import MAY_HAVE_BEGUN, JobQueue, NewAttempt, QueueUnavailable, ask_queue
from scheduler.extras.cluster.payloads import ClaimCodec, attempt_key, lock_of_lane, missing_secret
from scheduler.model.daemon_health import QueueState
from scheduler.model.entry import Claim, Entry
from scheduler.model.expected_error import InputError
from scheduler.model.outcome import AttemptResult
from scheduler.model.settings import RemoteQueue, Settings
from scheduler.system.lanes import ClusterProblem
from scheduler.system.log import log_event
from scheduler.system.process import EndReason
from scheduler.work.executor import Done, Interrupted, NeverBegun, NotTaken
from scheduler.work.plan import make_plan
from scheduler.work.run_extras import DaemonLinks

T = TypeVar("T")

POLL_SECONDS = 2.0  # between looks at the queue, in case that a notification is lost
LOOK_SECONDS = 5.0  # between looks at the workers
LONG_TASK_SECONDS = 5.0  # from the submission of a task until its worker is reported; for each short one, that costs a write
RETRY_SECONDS = 0.5  # after PostgreSQL could not be reached
MAX_BATCH = 500  # attempts that are submitted in one transaction
CLOSE_SECONDS = 5.0
CANCEL_AGAIN_SECONDS = 1.0
KEEPS_PER_LEASE = 10  # by a command that has locked an agent
NOT_TAKEN = "no worker of its queue took the run within its timeout; start one, or raise limits.concurrency there"


@dataclass(eq=False, slots=True)
class _RemoteTask:
    """A submitted task, until its result is acknowledged. `is_sending`: its submission has begun, so it may be in the queue.

    `server`: as in `NewAttempt`, from before that. `is_sent`: PostgreSQL has confirmed the submission. `worker`: the name that
    `report_workers` got. `done`: its result. `is_received`: the queue has it too.
    """

    task: Claim
    key: str
    is_sending: bool = False
    is_sent: bool = False
    server: str | None = None
    worker: str | None = None
    done: Done[Claim, AttemptResult] | None = None
    is_received: bool = False


class RemoteExecutor:
    """Implements `Executor` over a `JobQueue`. The queue is used in the thread of `loop` only.

    While PostgreSQL cannot be reached, submitted tasks, cancellations and acknowledgements wait in memory.
    """

    def __init__(self, queue: JobQueue, codec: ClaimCodec, links: DaemonLinks) -> None:
        self._queue = queue
        self._codec = codec
        self._links = links
        self._owners = {links.instance}  # in the queue: this process, and those whose attempts it has adopted
        self._lock = threading.RLock()
        self._tasks: dict[int, _RemoteTask] = {}
        self._cancellations: dict[str, EndReason] = {}
        self._to_delete: list[str] = []
        self._problems: dict[str, str | None] = {}  # of sending and of receiving
        self.problem: str | None = None  # why PostgreSQL cannot be used now
        self._to_send, self._to_receive = asyncio.Event(), asyncio.Event()
        self._side_tasks: list[asyncio.Task[None]] = []
        # By the clock of the loop: when it could read the queue again, ended the attempts of lost workers, looked at the workers.
        self._connected_at = self._reaped_at = self._looked_at = float("-inf")

    # The protocol of an executor, for the thread of the engine.

    def submit(self, number: int, task: Claim) -> None:
        with self._lock:
            self._tasks[number] = _RemoteTask(task, attempt_key(task.run.owner, task.run.id, task.run.fence))
        self._wake()

    def results(self) -> list[tuple[int, Done[Claim, AttemptResult]]]:
        with self._lock:
            return [(number, remote.done) for number, remote in self._tasks.items() if remote.done is not None]

    def ack(self, numbers: list[int]) -> None:
        with self._lock:
            for number in numbers:
                remote = self._tasks.pop(number, None)
                if remote is not None and remote.is_received:
                    self._to_delete.append(remote.key)
            is_useful = bool(self._to_delete)
        if is_useful:
            self._wake()

    def inflight(self) -> dict[int, Claim]:
        with self._lock:
            return {number: remote.task for number, remote in self._tasks.items() if remote.done is None}

    def cancel(self, number: int, why: EndReason) -> None:
        with self._lock:
            remote = self._tasks.get(number)
            if remote is None or remote.done is not None:
                return
            if remote.is_sending:
                self._cancellations[remote.key] = why
            else:
                remote.done = _never_fetched(remote.task, why, self.problem)
                self._links.notify()
        self._wake()

    def give_up(self, number: int, done: Done[Claim, AttemptResult]) -> None:
        with self._lock:
            remote = self._tasks.get(number)
            if remote is None or remote.done is not None:
                return
            remote.done = done
            if remote.is_sending:
                self._cancellations[remote.key] = "cancelled"  # its late result is deleted
        self._wake()

    # For the start and the end of the daemon.

    def adopt_runs(
        self, running: Collection[tuple[str, int, int]], past_instances: Collection[str], is_over: Callable[[], bool]
    ) -> bool:
        """See `scheduler.work.run_extras.RemoteExecutor`. `inflight` has the attempts that exist."""
        numbers = {attempt_key(instance, run_id, fence): run_id for instance, run_id, fence in running}
        find = partial(self._find_leftovers, list(numbers), past_instances)
        found = self._links.loop.start(lambda: run_again_after_errors(lambda: self._try_until_done("start", find)))
        while not found.done():
            if is_over():
                found.cancel()
                return False
            with suppress(TimeoutError):
                found.result(0.2)
        with self._lock:
            for key, task in found.result().items():
                number = numbers[key]
                self._tasks[number] = _RemoteTask(task, key, is_sending=True, is_sent=True)
                self._owners.add(key.rsplit("/", 2)[0])
        self._looked_at = float("-inf")  # to learn at once which workers execute them
        self._wake()
        return True

    def is_flushed(self) -> bool:
        """Whether the queue has everything that was submitted, cancelled or acknowledged."""
        with self._lock:
            return not (self._unsent() or self._cancellations or self._to_delete)

    def close(self) -> None:
        """Send what is left, if PostgreSQL can be reached, and close the connections. The loop still runs. Takes some seconds."""
        with suppress(RuntimeError, TimeoutError):
            self._links.loop.start(lambda: run_again_after_errors(self._close)).result(2 * CLOSE_SECONDS)

    async def _close(self) -> None:
        await cancel_until_ended(self._side_tasks)
        with suppress(QueueUnavailable, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._send()
        with suppress(QueueUnavailable):
            await self._queue.close()

    # In the thread of the loop.

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the machine has no thread left for the loop: the next call tries again
            self._links.loop.call_soon(self._wake_in_loop)

    def _wake_in_loop(self) -> None:
        if not self._side_tasks:
            self._connected_at = self._reaped_at = asyncio.get_running_loop().time()
            listen = partial(self._queue.listen_for_results, self._on_announcement)
            endless = (self._keep_sending, self._keep_receiving, listen)
            self._side_tasks = [asyncio.create_task(run_again_after_errors(work)) for work in endless]
        self._to_send.set()
        self._to_receive.set()

    async def _keep_sending(self) -> None:
        """Send whenever there is something to send. It may wait for the server, and results are received in the meantime."""
        while True:
            await wait_for_event(self._to_send, None if self.is_flushed() else RETRY_SECONDS)
            await self._try_until_done("send", self._send)

    async def _keep_receiving(self) -> None:
        """Receive results whenever one has been announced, end the attempts of lost workers, and look at the workers."""
        while True:
            await wait_for_event(self._to_receive, POLL_SECONDS if self.inflight() else LOOK_SECONDS)
            await self._try_until_done("receive", self._receive)

    async def _try_until_done(self, part: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do a part of the work, again and again as long as PostgreSQL cannot be used."""
        while True:
            try:
                await self._queue.open()
                done = await work()
            except QueueUnavailable as error:
                self._report_problem(part, str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._report_problem(part, None)
                return done

    async def _look_at_workers(self) -> None:
        state = await _read_state(self._queue, self._links.entries().values())
        if self._problems.get("send") is None:
            self._links.report_state(state)
        if not self.inflight():
            return
        found = await self._queue.find_in_progress(self._owners, LONG_TASK_SECONDS)
        with self._lock:
            new = [each for each in self._tasks.values() if each.done is None and found.get(each.key, each.worker) != each.worker]
        for remote in new:
            remote.worker = found[remote.key]
        if new:
            self._links.report_workers([(remote.task, found[remote.key]) for remote in new])

    def _on_announcement(self, owner: str) -> None:
        if owner in self._owners:
            self._to_receive.set()

    async def _send(self) -> None:
        """Submit, cancel and forget what waits for it. What fails is sent again; none of it has an effect twice."""
        while self._unsent() and self._links.may_start_runs():
            server = await self._queue.find_server()
            with self._lock:
                batch = self._unsent()[:MAX_BATCH]
                for remote in batch:
                    if not remote.is_sending:
                        remote.is_sending, remote.server = True, server
            attempts = [new for remote in batch if (new := self._new_attempt(remote)) is not None]
            await self._queue.submit(attempts, self._links.may_start_runs)
            for remote in batch:
                remote.is_sent = True
        await self._send_cancellations()
        with self._lock:
            keys = list(self._to_delete)
        if keys:
            await self._queue.forget(keys)
            with self._lock:
                del self._to_delete[: len(keys)]

    def _unsent(self) -> list[_RemoteTask]:
        """The tasks whose submission is not confirmed, without those that were cancelled after it has failed."""
        with self._lock:
            open_tasks = [each for each in self._tasks.values() if each.done is None]
            return [each for each in open_tasks if not each.is_sent and each.key not in self._cancellations]

    def _new_attempt(self, remote: _RemoteTask) -> NewAttempt | None:
        """The attempt of a task; None if it cannot be written, which is then its result."""
        try:
            facts = replace(remote.task.facts, traceparent=self._links.traces.begin_queueing(remote.task))
            return self._codec.new_attempt(remote.key, self._links.instance, replace(remote.task, facts=facts), remote.server)
        except (LookupError, TypeError, ValueError) as error:
            remote.done = remote.done or Done(remote.task, None, error)
            self._links.notify()
            return None

    async def _send_cancellations(self) -> None:
        with self._lock:
            reasons = dict(self._cancellations)
            sent = {each.key for each in self._tasks.values() if each.is_sent and each.done is None}
        for why in set(reasons.values()):
            keys = [key for key, each in reasons.items() if each == why]
            # If a confirmed task is absent, the database was emptied. A worker may be executing it, so it gets no result.
            absent = [key for key in keys if key not in sent]
            unbegun = self._codec.write_done(_never_fetched(None, why, None))
            again = await self._queue.withdraw(keys, why, unbegun, self._lost(MAY_HAVE_BEGUN), absent)
            with self._lock:
                for key in keys:
                    if self._cancellations.get(key) == why and key not in again:
                        del self._cancellations[key]
            self._to_receive.set()

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        await self._receive_results()
        if self._problems.get("receive") is not None:
            self._connected_at = loop.time()
        # After an interruption, workers get the time of a lease to reach PostgreSQL too.
        if loop.time() - self._connected_at > self._queue.lease and loop.time() - self._reaped_at > self._queue.lease / 4:
            self._reaped_at = loop.time()
            await self._reap()
        if loop.time() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = loop.time()
            await self._look_at_workers()

    async def _receive_results(self) -> None:
        with self._lock:
            known = [*(each.key for each in self._tasks.values() if each.is_received), *self._to_delete]
        received = await self._queue.results(self._owners, known)
        with self._lock:
            tasks = {remote.key: remote for remote in self._tasks.values()}
            for end in received:
                if (remote := tasks.get(end.key)) is None or remote.done is not None:
                    self._to_delete.append(end.key)
                else:
                    remote.done = replace(self._codec.read_done(remote.task, end.payload), worker=end.worker)
                    remote.is_received = True
                    self._links.traces.end_queueing(remote.done)
        if received:
            self._links.notify()
            self._to_send.set()  # to forget those of unknown keys
            self._to_receive.set()  # there may be more

    async def _reap(self) -> None:
        for key in await self._queue.reap(self._owners, lambda worker: self._lost(f"{worker} was lost")):
            log_event(logging.WARNING, "worker_lost", attempt=key)
        self._to_receive.set()

    def _lost(self, why: str) -> str:
        """The result of an attempt that may have begun."""
        return self._codec.write_done(Done(None, None, Interrupted(why, was_stopped=False)))

    async def _find_leftovers(self, keys: Sequence[str], past_instances: Collection[str]) -> dict[str, Claim]:
        self._wake_in_loop()
        payloads = await self._queue.find(keys)
        tasks = {key: task for key, payload in payloads.items() if (task := self._codec.read_leftover(payload)) is not None}
        await self._queue.forget_all(set(past_instances) - {self._links.instance}, list(tasks))
        return tasks

    def _report_problem(self, part: str, new: str | None) -> None:
        """Log once when PostgreSQL becomes unavailable for one of the parts, and when it is available again for all."""
        if (new is None) != (self._problems.get(part) is None):  # report the state at once
            self._looked_at = float("-inf")
            self._to_receive.set()
        self._problems[part] = new
        problem = next((each for each in self._problems.values() if each is not None), None)
        log_availability(problem, self.problem)
        if problem is not None and problem != self.problem:
            self._links.report_state(QueueState(problem))
        self.problem = problem


class QueueLane:
    """A lock in the queue of the workers: see `ClusterLane`."""

    def __init__(self, name: str, remote: RemoteQueue, holder: str) -> None:
        if problem := missing_secret(remote):
            raise InputError(f"cannot lock {name!r} on the other machines: {problem}")
        self._lock = lock_of_lane(name)
        self._remote = remote
        self._holder = holder
        self.keep_every = remote.lease.total_seconds() / KEEPS_PER_LEASE

    def is_own_run(self) -> bool:
        mark = os.environ.get(RUN_ID_VARIABLE)
        return mark is not None and self._call(lambda queue: queue.is_in_progress(self._lock, mark))

    def take(self) -> str | None:
        return self._call(lambda queue: queue.take_lane(self._lock, self._holder))

    def release(self) -> None:
        self._call(lambda queue: queue.release_lanes(self._holder))

    def _call(self, ask: Callable[[JobQueue], Awaitable[T]]) -> T:
        try:
            return ask_queue(self._remote, ask)
        except QueueUnavailable as error:
            raise ClusterProblem(str(error)) from error


make_lane = QueueLane


def make_executor(settings: Settings, links: DaemonLinks) -> RemoteExecutor:
    """The executor of a daemon."""
    remote = settings.remote
    assert remote is not None
    codec = ClaimCodec(links.entries, config_folder(settings.path), settings.host)
    return RemoteExecutor(JobQueue(remote), codec, links)


def ask_state(settings: Settings) -> QueueState:
    """The state of the queues now. Nothing is written."""
    remote, entries = settings.remote, make_plan(settings).entries.values()
    assert remote is not None
    try:
        return ask_queue(remote, lambda queue: _read_state(queue, entries), may_create=False)
    except QueueUnavailable as error:
        return QueueState(str(error))


async def _read_state(queue: JobQueue, entries: Iterable[Entry]) -> QueueState:
    """The state of the queues, of which the enabled ones of these agents and jobs are needed. Raises QueueUnavailable."""
    needed = frozenset(entry.queue for entry in entries if entry.enabled)
    return QueueState(None, tuple(await queue.find_workers()), await queue.find_waiting(), needed)


async def run_again_after_errors(work: Callable[[], Coroutine[object, None, T]]) -> T:
    """Do this work, and start it again after an unexpected exception, which is logged. Endless loops end by cancellation only."""
    while True:
        try:
            return await work()
        except Exception as error:  # noqa: BLE001 (without this loop, nothing would be executed any more)
            log_event(logging.ERROR, "queue_broken", error=error)
            await asyncio.sleep(RETRY_SECONDS)


async def cancel_until_ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks, again and again. psycopg answers a first cancellation by waiting for its server, which may be cut off."""
    waiting = set(tasks)
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=CANCEL_AGAIN_SECONDS)


async def wait_for_event(event: asyncio.Event, seconds: float | None) -> None:
    """Wait for an event, at most so many seconds, and clear it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    event.clear()


def log_availability(problem: str | None, before: str | None) -> None:
    """Log once when PostgreSQL becomes unavailable, and when it is available again."""
    if problem is not None and before is None:
        log_event(logging.ERROR, "queue_unavailable", problem=problem)
    elif problem is None and before is not None:
        log_event(logging.WARNING, "queue_available")


def _never_fetched(task: T, why: EndReason, problem: str | None) -> Done[T, AttemptResult]:
    text = NOT_TAKEN if problem is None else f"the run could not be given to a worker within its timeout: {problem}"
    return Done(task, None, NotTaken(text) if why == "timeout" else NeverBegun())
