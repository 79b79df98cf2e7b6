"""The engine: what is due becomes a claim, and a result is settled, one tick at a time.

    due -> claim -> attempt -> settle -> outbox -> send

1. An entry is due at a slot (`planning`), or at a wake (`wake_starts`).
2. `claim` opens its run and gives all that the attempt needs.
3. The executor carries the attempt out (`work/claimed_attempt`).
4. `settle` records the result, and queues the messages in the outbox (`store/outbox`).
5. `delivery` claims the messages that are due, and the executor sends them (`channels`).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from scheduler.engine import (
    ask_people,
    clock_adjustment,
    delivery,
    job_failures,
    maintenance,
    observed_problems,
    plan_sync,
    recovery,
    runs_in_progress,
    wake_starts,
)
from scheduler.engine.claim import claim_due
from scheduler.engine.clock_adjustment import ClockNews, ClockReading, ClockWatch
from scheduler.engine.delivery import Delivery
from scheduler.engine.maintenance import GrownHistories, MaintenanceState
from scheduler.engine.observed_problems import FailedWrites
from scheduler.engine.pending_runs import give_up_overdue
from scheduler.engine.runs_in_progress import Deadlines, HeldPlaces, PersonWaits
from scheduler.engine.settle import settle_attempt
from scheduler.engine.startup import SurvivorsByRun
from scheduler.engine.tick_items import Inbox, LostCommits, PendingRequest, Tick, TickParts, run_for_entry, run_for_message
from scheduler.model.config_changes import ConfigEvent
from scheduler.model.daemon_health import EngineHealth, TickPart
from scheduler.model.entry import Claim
from scheduler.model.events import Event
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import WOKEN, AttemptResult, Kind, Outcome
from scheduler.model.settings import Target
from scheduler.store import agent_memory, boots, entries, outbox, runs, wakes
from scheduler.store.database import CommitUnknown, DatabaseFull, DatabaseUnavailable, Store
from scheduler.store.transaction import Transaction, UnitOfWork
from scheduler.system.log import log_event
from scheduler.work.executor import Done, Executor, Interrupted, NotTaken
from scheduler.work.plan import Plan

LONGEST_TICK_WAIT = timedelta(days=1)  # until the next tick, if nothing at all is due
DATABASE_RETRY = timedelta(seconds=1)  # after a tick that could not be committed
CAPACITY_RETRY = timedelta(seconds=1)  # if the system lacks the resources for due runs
MAX_ENTRIES_PER_TICK = 200  # due entries; limits the transaction, and how long other threads wait for the interpreter
NEW_ENTRIES_PER_PART = 2000  # at a start with more new entries than this
MAX_RESULTS_PER_TICK = 200  # of runs, and of deliveries
MAX_REQUESTS_PER_TICK = 200

T = TypeVar("T")
R = TypeVar("R")
Results = list[tuple[int, Done[T, R]]]


@dataclass(frozen=True, slots=True)
class Executors:
    """What carries out runs and sends messages. `capacity` returns how many of the wanted runs the system has resources for.

    `waits` is where the engine records which runs wait for people.
    `runs_survive_stop`: workers carry out the runs, and continue while the daemon is down.
    """

    runs: Executor[Claim, AttemptResult]
    deliveries: Executor[Delivery, DeliveryResult]
    capacity: Callable[[int], int] = lambda wanted: wanted
    runs_survive_stop: bool = False
    waits: PersonWaits = field(default_factory=PersonWaits)


@dataclass(frozen=True, slots=True)
class Work:
    """What a tick records: the results of runs and deliveries since the last one, and requests.

    `running` and `sending` are in progress. `requests_left` are the requests that are to be applied before runs start.
    `is_more_left`: the next tick begins at once.
    """

    runs: Results[Claim, AttemptResult]
    deliveries: Results[Delivery, DeliveryResult]
    requests: list[PendingRequest]
    running: dict[int, Claim]
    sending: list[Delivery]
    requests_left: int
    is_more_left: bool


@dataclass(frozen=True, slots=True)
class Ticked:
    """What the transaction of a tick has done, and what is to be done after its commit."""

    tick: Tick
    work: Work
    clock: ClockNews
    maintenance: MaintenanceState
    claims: list[Claim]
    deliveries: list[Delivery]
    is_full: bool  # another run may not start
    has_written: bool
    again_at: datetime


class Engine:
    """The engine of the daemon. One thread calls `tick`; it owns the only writing connection, and waits for nothing else.

    `listeners` are called with every event after its commit. `chance` spreads retries.
    """

    def __init__(
        self,
        store: Store,
        plan: Plan,
        executors: Executors,
        inbox: Inbox,
        listeners: list[Callable[[Event], None]],
        instance: str,
        chance: random.Random,
    ) -> None:
        self.store = store
        self.plan = plan
        self.inbox = inbox
        self.health = EngineHealth()
        self.stopping = False
        self._runs = executors.runs
        self._deliveries = executors.deliveries
        self._listeners = listeners
        self._instance = instance
        self._chance = chance
        self._capacity = executors.capacity
        self._runs_survive_stop = executors.runs_survive_stop
        self._lacks_capacity = False  # the system lacked the resources for due runs
        self._deadlines = Deadlines(executors.runs, executors.waits)
        self._places = HeldPlaces()
        self._clock = ClockWatch(self.health)
        self._maintenance = MaintenanceState()
        self._grown_histories = GrownHistories()
        self._parts = TickParts(self.health.internal_errors)
        self._refusing = set[Target]()
        self.failed_writes: FailedWrites | None = None  # since the last tick that was committed, maybe by a former leader
        self._lost_commits: LostCommits | None = None
        self.last_write_at: datetime | None = None  # the time of the last tick that has written something
        self._requests_before_starts = 0  # that are left from an earlier tick; no run starts before they are applied
        self._unknown_commit: Ticked | None = None  # it is not known whether this was committed

    def tick(self, reading: ClockReading) -> datetime:
        """Run one tick. Returns when the next one is due, unless a result or request arrives before.

        1. In one transaction: record results and requests, claim due runs and messages, compute the time of the next tick.
        2. After the commit: publish events, answer requests, start the claimed runs, cancel runs, send messages.
        3. Cancel runs that exceed their timeout.

        Results and requests of a tick that fails are seen again by the next one.
        """
        if self._clock.see(reading) and self._places.full_since is not None:
            self._places.full_since = reading.now
        self.health.tried_at = reading.now
        try:
            if self._unknown_commit is not None:
                self._settle_unknown_commit(self._unknown_commit, reading)
            ticked = self._commit_tick(reading)
        except DatabaseUnavailable as error:
            again_at = reading.now + self._retry_wait(reading.now, error)
        else:
            self.failed_writes = None
            self._finish_tick(ticked, reading)
            again_at = ticked.again_at
        again_at = min(again_at, self._deadlines.enforce_deadlines(reading) or again_at)
        self._clock.expect_tick(reading, again_at)
        return again_at

    def _commit_tick(self, reading: ClockReading) -> Ticked:
        """The transaction of a tick. Each entry, request, message and part has a savepoint of its own (`tick_items`)."""
        ticked, work, clock, parts = None, self._take_work(), self._clock.news, self._parts
        try:
            with self.store.transaction() as db:
                tick = self._new_tick(db, reading.now)
                self._record_work(tick, work, clock)
                late_at = parts.run(tick, TickPart.LATE_RESULTS, partial(_end_what_is_late, tick), None)
                maintained = self._maintenance
                if maintained.is_due(tick.now) or self._grown_histories.to_trim:
                    maintained = parts.run(tick, TickPart.MAINTENANCE, partial(self._maintain_database, tick), maintained)
                claims, is_full = list[Claim](), self._places.full_since is not None
                if work.requests_left == 0:
                    nothing = list[Claim](), False
                    claims, is_full = parts.run(tick, TickPart.DUE_RUNS, partial(self._claim_due_runs, tick, work), nothing)
                if outbox.is_any_held(db):
                    parts.run(tick, TickPart.HELD_NOTICES, partial(job_failures.release_unreported_notices, tick), None)
                claim_deliveries = partial(delivery.claim_deliveries, tick, work.sending)
                deliveries = parts.run(tick, TickPart.MESSAGES, claim_deliveries, list[Delivery]())
                if tick.tx.events:
                    parts.run(tick, TickPart.CHANNEL_PROBLEMS, partial(observed_problems.follow_deliveries, tick), None)
                is_minute_over = maintained.done_at == tick.now
                if is_minute_over or tick.broken or self.failed_writes:
                    follow = partial(self._follow_daemon_problems, tick, is_minute_over=is_minute_over)
                    parts.run(tick, TickPart.DAEMON_PROBLEMS, follow, None)
                again_at = tick.now if work.is_more_left else self._next_tick_time(tick, work, len(claims), deliveries, late_at)
                boots.record_last_tick(tick.tx)
                ticked = Ticked(tick, work, clock, maintained, claims, deliveries, is_full, db.has_written, again_at)
        except CommitUnknown:
            self._unknown_commit = ticked
            raise
        return ticked

    def _follow_daemon_problems(self, tick: Tick, *, is_minute_over: bool) -> None:
        if self.failed_writes is not None:
            observed_problems.note_failed_writes(tick, self.failed_writes, self.store.shortage())
        if tick.broken:
            # The texts of these exceptions may have secrets, so only the log has them.
            observed_problems.note_daemon(tick, observed_problems.INTERNAL, f"internal error in {tick.broken[-1]}")
        if is_minute_over:
            observed_problems.review_daemon(tick, self.store.shortage())

    def _take_work(self) -> Work:
        """The results and requests of the next tick.

        A flood of requests is applied over several ticks, and then starts runs as if it were one tick: ten thousand wakes of an
        agent start one run.
        """
        runs, deliveries, requests = self._runs.results(), self._deliveries.results(), self.inbox.pending_requests()
        return Work(
            runs[:MAX_RESULTS_PER_TICK],
            deliveries[:MAX_RESULTS_PER_TICK],
            requests[:MAX_REQUESTS_PER_TICK],
            self._runs.inflight(),
            list(self._deliveries.inflight().values()),
            requests_left=max((self._requests_before_starts or len(requests)) - MAX_REQUESTS_PER_TICK, 0),
            is_more_left=max(len(runs), len(deliveries)) > MAX_RESULTS_PER_TICK or len(requests) > MAX_REQUESTS_PER_TICK,
        )

    def _record_work(self, tick: Tick, work: Work, clock: ClockNews) -> None:
        """Record clock changes, freezes, results of runs and deliveries, and requests since the last tick."""
        if clock.change:
            follow = partial(clock_adjustment.follow_clock_change, tick.tx, clock.change, self._clock.time_since_start)
            self._parts.run(tick, TickPart.CLOCK_CHANGE, partial(follow, slept=clock.slept), None)
        if clock.freeze:
            boots.record_freeze(tick.tx, clock.freeze, boots.STOPPED if clock.was_stopped else None)
        if work.runs:
            entries.read_entries(tick.tx, [run.task.entry.key for _, run in work.runs])
        for _, run in work.runs:
            record = partial(self._record_result, tick, run)
            run_for_entry(tick, *run.task.entry.key, record, ending_run=run.task.run.id)
        for _, done in work.deliveries:
            run_for_message(tick, done.task.message, partial(delivery.settle_delivery, tick.tx, done))
        for request in work.requests:
            request.apply(tick)
        tick.tx.db.write_changes()  # here, or the first part below that reads entries writes them in a savepoint of its own

    def _record_result(self, tick: Tick, done: Done[Claim, AttemptResult]) -> None:
        """Record the result of an attempt. If the daemon cancelled it, the result says why.

        An attempt that was successful before it ended counts, unless a person cancelled it.
        """
        claim, result, why = done.task, runs_in_progress.result_of(done), self._deadlines.why_ended(done.task.run.id)
        if done.worker is not None:
            runs.record_worker(tick.tx, claim, done.worker)
        if runs_in_progress.is_unexpected(done.exception):
            what = f"run {claim.run.id} of {claim.entry.kind.noun} {claim.entry.name}"
            tick.broken.append(f"{what}: {type(done.exception).__name__}")
        if isinstance(done.exception, Interrupted) and why != "cancelled":
            recovery.recover_lost_attempt(tick, claim, done.exception)
            return
        was_ended = why == "cancelled" or (why is not None and result.outcome in (Outcome.FAILED, Outcome.TIMEOUT))
        if why is not None and was_ended and not isinstance(done.exception, NotTaken):
            if why == "shutdown" and _is_due_after_restart(tick.plan, claim):
                recovery.requeue_interrupted_run(tick, claim, result)
                return
            result = runs_in_progress.result_of_ended_run(claim, result, why)
        settle_attempt(tick, claim, result)

    def _maintain_database(self, tick: Tick) -> MaintenanceState:
        state = maintenance.maintain_database(tick, self._maintenance, self._grown_histories)
        if state.done_at == tick.now:
            recovery.recover_unknown_runs(tick, {*self._runs.inflight(), *(run_id for run_id, _ in self._runs.results())})
        return state

    def _claim_due_runs(self, tick: Tick, work: Work) -> tuple[list[Claim], bool]:
        """Claim due runs. Returns the claims, and whether the concurrency limit is reached."""
        if self.stopping:
            return [], False
        wake_starts.start_due_reminders(tick)
        places = tick.limits.concurrency - len(work.running)
        wanted = max(min(places, MAX_ENTRIES_PER_TICK), 0)
        room = self._capacity(wanted)
        claims: list[Claim] = []
        examined = 0
        while room > len(claims) and examined < MAX_ENTRIES_PER_TICK:
            free, most = room - len(claims), MAX_ENTRIES_PER_TICK - examined
            due = entries.due_entries(tick.tx.db, tick.now, free, most)
            if not due:
                break
            open_runs = runs.open_runs_of(tick.tx.db, [each for each, is_open in due if is_open])
            agent_memory.read_checked_items(tick.tx, [each.name for each, _ in due if each.kind is Kind.HEARTBEAT])
            for each, _ in due:
                start = partial(claim_due, tick, each, open_runs.get(each.id))
                if (claim := run_for_entry(tick, each.kind, each.name, start)) is not None:
                    claims.append(claim)
            examined += len(due)
            if len(due) < min(free, most):
                break  # no other entry was due
        self._lacks_capacity = len(claims) >= room and room < wanted
        return claims, places <= len(claims)

    def _next_tick_time(self, tick: Tick, work: Work, claimed: int, taken: list[Delivery], late_at: datetime | None) -> datetime:
        """When the next run, reminder, message or deadline is due. Runs do not count while the concurrency limit is reached."""
        is_full = len(work.running) + claimed >= tick.limits.concurrency
        part_again_at = self._parts.next_end_of_pause(tick.now)
        paused = self._parts.paused
        is_closed = self.stopping or TickPart.DUE_RUNS in paused
        runs = None if is_full or is_closed else entries.next_due_at(tick.tx.db)
        reminder = None if is_closed else wakes.next_reminder_at(tick.tx.db)
        if runs is not None and self._lacks_capacity:
            runs = max(runs, tick.now + CAPACITY_RETRY)
        message = None if TickPart.MESSAGES in paused else delivery.next_delivery_time(tick.tx, [*work.sending, *taken])
        times = (runs, reminder, message, late_at, part_again_at)
        return min(filter(None, times), default=tick.now + LONGEST_TICK_WAIT)

    def _finish_tick(self, ticked: Ticked, reading: ClockReading) -> None:
        """After the commit: publish events, answer requests, start the claimed runs, cancel runs, send messages."""
        tick, work = ticked.tick, ticked.work
        self._maintenance, self.plan = ticked.maintenance, tick.plan
        self.last_write_at = tick.now if ticked.has_written else self.last_write_at
        self._requests_before_starts = work.requests_left
        self._clock.forget(ticked.clock)
        self._grown_histories.follow(tick.tx.events, tick.plan.settings.history.runs)
        holders = (*self._runs.inflight().values(), *ticked.claims) if ticked.is_full else ()
        self._places.note({claim.run.id: claim for claim in holders}, reading, full=ticked.is_full)
        self.report_available()
        for _, run in work.runs:
            if runs_in_progress.is_unexpected(run.exception):
                log_event(logging.ERROR, "runner_broken", error=run.exception)
        ended = [number for number, _ in work.runs]
        self._deadlines.forget_runs(ended)
        self._runs.ack(ended)
        self._deliveries.ack([number for number, _ in work.deliveries])
        self._publish_events(tick.tx.events)
        self.inbox.reply_to(work.requests)
        for claim in ticked.claims:
            self._deadlines.start_deadline(claim, reading.monotonic)
            if claim.run.trigger not in WOKEN:
                self._clock.note_start(claim.entry.key, reading)
            self._runs.submit(claim.run.id, claim)
        self._deadlines.record_waits(tick.waiting, reading.monotonic)
        for run_id in tick.cancelled:
            self._deadlines.end_run(run_id, "cancelled", reading.monotonic)
        for each in ticked.deliveries:
            self._deliveries.submit(each.message.id, each)
        self.health.ticked_at = reading.now
        self.health.broken_parts = self._parts.problem
        if ticked.maintenance.done_at == tick.now:
            self.store.keep_reserve()

    def _settle_unknown_commit(self, unknown: Ticked, reading: ClockReading) -> None:
        """Find out whether the last transaction was committed, and finish its tick if it was.

        The server may have been down for long, so the runs of that tick start now.
        """
        was_committed = self.store.was_committed(partial(boots.is_last_tick, instance=self._instance, at=unknown.tick.now))
        self._unknown_commit = None
        if was_committed:
            self._finish_tick(unknown, reading)

    def _publish_events(self, events: Iterable[Event]) -> None:
        for happened in events:
            for listener in self._listeners:
                listener(happened)

    def _retry_wait(self, now: datetime, error: DatabaseUnavailable) -> timedelta:
        """The wait after a tick that could not be committed: none if the disk reserve makes room."""
        self.failed_writes = FailedWrites(self.failed_writes.since if self.failed_writes else now, str(error))
        if isinstance(error, DatabaseFull) and self.store.make_room():
            return timedelta()
        self.health.failed_commits += 1
        self.report_unavailable(now, str(error))
        return DATABASE_RETRY

    def report_unavailable(self, now: datetime, problem: str) -> None:
        """Log once when the database becomes unavailable, not at each tick."""
        if self.health.problem is None:
            log_event(logging.ERROR, "database_unavailable", problem=problem, since=now)
        self.health.problem = problem

    def report_available(self) -> None:
        """Log once when the database is available again."""
        if self.health.problem is not None:
            log_event(logging.WARNING, "database_available")
        self.health.problem = None

    def _new_tick(self, db: UnitOfWork, now: datetime) -> Tick:
        tx, places = Transaction(db, now, self._instance, self.plan.settings.hash), self._places
        return Tick(
            tx, self.plan, self._clock.awake_since, self._chance, places.full_since, places.describe, self._lost_commits,
            self._parts, self._refusing,
        )  # fmt: skip

    def add_new_entries(self, reading: ClockReading, is_over: Callable[[], bool], *, at_once: bool = False) -> bool:
        """Before `start_boot`: add many new entries in parts, each in a transaction of its own. A few are left to `start_boot`.

        False if it `is_over` before all are added; the next start adds the others. Raises DatabaseUnavailable.
        """
        self._clock.start(reading)
        new = plan_sync.find_new_entries(self.store.connection, self.plan)
        for start in range(0, len(new), NEW_ENTRIES_PER_PART) if len(new) > NEW_ENTRIES_PER_PART else ():
            if is_over():
                return False
            with self.store.transaction() as db:
                part = new[start : start + NEW_ENTRIES_PER_PART]
                plan_sync.add_entries(self._new_tick(db, reading.now), part, at_once=at_once)
        return True

    def start_boot(
        self,
        reading: ClockReading,
        boot: boots.Boot,
        survivors: SurvivorsByRun,
        *,
        at_once: bool = False,
        changed: ConfigEvent | None = None,
        may_lack_commits: bool = False,
    ) -> None:
        """Recover from the last boot, and make the entry rows agree with the plan (`recovery.recover`).

        `changed` is what has changed in the config since the last boot. `may_lack_commits`: the database may have lost its last
        commits, so the runs that come due until now may have been carried out already. Raises DatabaseUnavailable.
        """
        self._clock.start(reading)
        with self.store.transaction() as db:
            self._lost_commits = LostCommits(reading.now, wakes.last_id(db)) if may_lack_commits else None
            tick = self._new_tick(db, reading.now)
            adopted = dict(self._runs.inflight())
            adopted |= {run_id: done.task for run_id, done in self._runs.results()}  # read last: a run moves from there to here
            recovery.recover(tick, boot, survivors, adopted, at_once=at_once, changed=changed)
            cancelled = {run.id for _, _, run in runs.all_open_runs(db) if run.is_cancelled}
        self.last_write_at = reading.now
        for run_id, claim in adopted.items():
            self._deadlines.start_deadline(claim, reading.monotonic)
            if run_id in cancelled:  # the last boot ended before the worker could be notified
                self._deadlines.end_run(run_id, "cancelled", reading.monotonic)
        self._publish_events(tick.tx.events)

    def finish_boot(self, reading: ClockReading) -> None:
        """Record that this boot ended cleanly. Raises DatabaseUnavailable."""
        with self.store.transaction() as db:
            boots.record_clean_end(self._new_tick(db, reading.now).tx)

    def is_busy(self) -> bool:
        """Whether runs or deliveries are in progress, or their results are not recorded yet.

        Runs that survive a stop do not count once the daemon stops.
        """
        waits_for_runs = not (self.stopping and self._runs_survive_stop) and bool(self._runs.inflight())
        is_recording = bool(self._runs.results() or self._deliveries.results())
        return waits_for_runs or is_recording or bool(self._deliveries.inflight())

    def is_idle(self, now: datetime) -> bool:
        """Whether no run is due, open or about to be started by a wake, and no message waits for its first attempt."""
        if self.is_busy():
            return False
        db = self.store.connection
        next_at = entries.next_due_at(db)
        due = next_at is not None and next_at <= now
        woken = wakes.any_starts_by(db, now + self.plan.settings.limits.wake_gap)
        return not (due or runs.all_open_runs(db) or woken or outbox.has_untried_message(db))

    def end_all_runs(self, reading: ClockReading) -> None:
        """Cancel all runs in progress, because the daemon stops. Those that survive a stop continue."""
        if self._runs_survive_stop:
            return
        for run_id in self._runs.inflight():
            self._deadlines.end_run(run_id, "shutdown", reading.monotonic)

    def note_continued(self) -> None:
        """A signal had stopped the process, and another one has continued it: the cause of a freeze that the next tick finds."""
        self._clock.was_stopped = True


def _end_what_is_late(tick: Tick) -> datetime | None:
    """End the questions, and give up the results, whose time is over. Returns when that of the next one is over."""
    return min(filter(None, (ask_people.end_overdue(tick), give_up_overdue(tick))), default=None)


def _is_due_after_restart(plan: Plan, claim: Claim) -> bool:
    """Whether a run that the stop interrupts runs again after the restart: its kind allows it, and it is still declared."""
    entry = plan.entries.get(claim.entry.key)
    return claim.entry.retries_after_crash and entry is not None and entry.enabled
