"""The engine: each tick records results, answers requests, starts due runs and messages, and returns the next due time."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from scheduler.channels.message import DeliveryResult
from scheduler.engine import (
    budget_reservations,
    channel_problems,
    clock_adjustment,
    deadlines,
    delivery,
    job_failures,
    maintenance,
    plan_sync,
    planning,
    run_ends,
    run_starts,
    startup,
    wake_starts,
)
from scheduler.engine.clock_adjustment import ClockNews, ClockReading, ClockWatch
from scheduler.engine.deadlines import Deadlines
from scheduler.engine.delivery import Delivery
from scheduler.engine.inbox import Inbox, PendingRequest
from scheduler.engine.maintenance import GrownHistories, MaintenanceState
from scheduler.engine.pending_runs import give_up_overdue, next_result_deadline
from scheduler.engine.savepoints import TickParts, apply_request, run_for_entry, run_for_message
from scheduler.engine.tick import LostCommits, Tick
from scheduler.model.config_changes import ConfigEvent
from scheduler.model.daemon_health import EngineHealth, TickPart
from scheduler.model.entry import Claim, OpenRun
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import Event
from scheduler.model.outcome import WOKEN, AttemptResult, Outcome
from scheduler.model.timestamps import MILLISECOND
from scheduler.store import boots, breakers, config_history, entries, outbox, runs, wakes
from scheduler.store.database import CommitUnknown, DatabaseFull, DatabaseUnavailable, Store
from scheduler.store.runs import record_worker
from scheduler.store.transaction import Transaction
from scheduler.store.unit_of_work import UnitOfWork
from scheduler.system.log import log_event
from scheduler.work.executor import Done, Executor, Interrupted, NotTaken
from scheduler.work.plan import Plan

LONGEST_TICK_WAIT = timedelta(days=1)  # the next tick is never planned further ahead
DATABASE_RETRY = timedelta(seconds=1)  # after a tick that could not be committed
CAPACITY_RETRY = timedelta(seconds=1)  # if the system lacks the resources for due runs
LONGEST_RESTART = timedelta(minutes=10)  # no slot is expected to run during a planned restart that takes no longer
MAX_NOTED_RUNS = 1000  # that have held places while the concurrency limit is reached
MAX_NAMED_RUNS = 2  # of those that have reached the concurrency limit
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

    `runs_survive_stop`: workers carry out the runs, and continue while the daemon is down.
    """

    runs: Executor[Claim, AttemptResult]
    deliveries: Executor[Delivery, DeliveryResult]
    capacity: Callable[[int], int] = lambda wanted: wanted
    runs_survive_stop: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """What a tick records: the results of runs and deliveries since the last one, and requests.

    `requests_left` are the requests that are to be applied before runs start. `is_more_left`: the next tick begins at once.
    """

    runs: Results[Claim, AttemptResult]
    deliveries: Results[Delivery, DeliveryResult]
    requests: list[PendingRequest]
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
        names = [f"{each.kind.label_of(each.name)} (run {run_id})" for run_id, each in entries_by_run.items()]
        more = f" and {self._limit - len(names)} more" if self._limit > len(names) else ""
        return f"limits.concurrency ({self._limit}) was reached by {', '.join(names)}{more}"

    def _time_held(self, run_id: int) -> tuple[float, int]:
        _, first, last = self._held[run_id]
        return last - first, -run_id


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
        self._deadlines = Deadlines(executors.runs)
        self._places = HeldPlaces()
        self._clock = ClockWatch(self.health)
        self._maintenance = MaintenanceState()
        self._grown_histories = GrownHistories()
        self._parts = TickParts()
        self._lost_commits: LostCommits | None = None
        self.last_write_at: datetime | None = None  # the time of the last tick that has written something
        self._requests_before_starts = 0  # that are left from an earlier tick; no run starts before they are applied
        self._unknown_commit: Ticked | None = None  # it is not known whether this was committed

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
        survivors: startup.SurvivorsByRun,
        *,
        at_once: bool = False,
        changed: ConfigEvent | None = None,
        may_lack_commits: bool = False,
    ) -> None:
        """Recover from the last boot, and make the entry rows agree with the plan. Raises DatabaseUnavailable.

        `changed` is what has changed in the config since the last boot. `may_lack_commits`: the database may have lost its last
        commits, so the runs that come due until now may have been carried out already.

        1. The boot is recorded. A clock change while the daemon was down is followed.
        2. Interrupted runs and deliveries are retried or closed.
        3. Entry rows are added, changed and removed by the plan.
        4. Waiting wakes are reconsidered, and `@reboot` jobs are started.
        """
        self._clock.start(reading)
        with self.store.transaction() as db:
            self._lost_commits = LostCommits(reading.now, wakes.last_id(db)) if may_lack_commits else None
            tick = self._new_tick(db, reading.now)
            last = boots.latest_boot(db)
            seen = last.last_tick_at if last else None
            slots_may_differ = boots.record_boot(tick.tx, boot)
            if self.plan.stored_config:
                config_history.record_config_in_force(tick.tx, self.plan.stored_config)
            if changed:
                config_history.record_config_event(tick.tx, changed)
            if last is not None and last.config_hash != self.plan.settings.hash:
                budget_reservations.adopt_budgets(tick.tx, self.plan.settings)
            budget_reservations.record_budgets(tick.tx, self.plan.settings)
            clock_adjustment.follow_clock_while_down(tick.tx, seen)
            if last is not None and last.clean and seen and tick.now - seen <= LONGEST_RESTART:
                planning.excuse_slots(tick.tx, seen, tick.now)
            adopted = dict(self._runs.inflight())
            adopted |= {run_id: done.task for run_id, done in self._runs.results()}  # read last: a run moves from there to here
            startup.recover_runs(tick, survivors, seen, adopted)
            delivery.recover_deliveries(tick)
            self._parts.run(tick, TickPart.DEAD_LETTERS, partial(channel_problems.follow_deliveries, tick), None)
            breakers.allow_probes_now(tick.tx)  # a new key may be the reason for the restart
            plan_sync.sync_entries(tick, {}, at_once=at_once)
            wake_starts.retry_blocked_runs_and_wakes(tick, other_config=True)
            startup.wake_boot_jobs(tick)
            if slots_may_differ:
                _replan_all_entries(tick.tx)
            cancelled = {run.id for _, _, run in runs.all_open_runs(db) if run.is_cancelled}
        self.last_write_at = reading.now
        for run_id, claim in adopted.items():
            self._deadlines.start_deadline(claim, reading.monotonic)
            if run_id in cancelled:  # the last boot ended before the worker could be notified
                self._deadlines.end_run(run_id, "cancelled", reading.monotonic)
        self._publish_events(tick.tx.events)

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
            self._settle_unknown_commit(reading)
            ticked = self._commit_tick(reading)
        except DatabaseUnavailable as error:
            again_at = reading.now + self._retry_wait(reading.now, error)
        else:
            self._finish_tick(ticked, reading)
            again_at = ticked.again_at
        again_at = min(again_at, self._enforce_deadlines(reading))
        self._clock.expect_tick(reading, again_at)
        return again_at

    def _commit_tick(self, reading: ClockReading) -> Ticked:
        """The transaction of a tick."""
        ticked, work, clock = None, self._take_work(), self._clock.news
        try:
            with self.store.transaction() as db:
                tick = self._new_tick(db, reading.now)
                maintained = self._record_results(tick, work, clock)
                claims, is_full = list[Claim](), self._places.full_since is not None
                if work.requests_left == 0:
                    nothing = list[Claim](), False
                    claims, is_full = self._parts.run(tick, TickPart.DUE_RUNS, partial(self._start_due, tick), nothing)
                self._parts.run(tick, TickPart.HELD_NOTICES, partial(job_failures.release_unreported_notices, tick), None)
                claim_deliveries = partial(delivery.claim_deliveries, tick, self._deliveries.inflight().values())
                deliveries = self._parts.run(tick, TickPart.MESSAGES, claim_deliveries, list[Delivery]())
                self._parts.run(tick, TickPart.DEAD_LETTERS, partial(channel_problems.follow_deliveries, tick), None)
                again_at = tick.now if work.is_more_left else self._next_tick_time(tick, len(claims), deliveries)
                has_written = db.has_written
                if has_written:
                    boots.record_last_tick(tick.tx)
                ticked = Ticked(tick, work, clock, maintained, claims, deliveries, is_full, has_written, again_at)
        except CommitUnknown:
            self._unknown_commit = ticked
            raise
        return ticked

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
            requests_left=max((self._requests_before_starts or len(requests)) - MAX_REQUESTS_PER_TICK, 0),
            is_more_left=max(len(runs), len(deliveries)) > MAX_RESULTS_PER_TICK or len(requests) > MAX_REQUESTS_PER_TICK,
        )

    def _settle_unknown_commit(self, reading: ClockReading) -> None:
        """If it was not known whether the last transaction was committed, find out, and finish its tick if it was.

        The server may have been down for long, so the runs of that tick start now.
        """
        unknown = self._unknown_commit
        if unknown is None:
            return
        was_committed = self.store.was_committed(partial(boots.is_last_tick, instance=self._instance, at=unknown.tick.now))
        self._unknown_commit = None
        if was_committed:
            self._finish_tick(unknown, reading)

    def _finish_tick(self, ticked: Ticked, reading: ClockReading) -> None:
        """After the commit: publish events, answer requests, start the claimed runs, cancel runs, send messages."""
        tick, work = ticked.tick, ticked.work
        self._maintenance, self.plan = ticked.maintenance, tick.plan
        self.last_write_at = tick.now if ticked.has_written else self.last_write_at
        self._requests_before_starts = work.requests_left
        self._clock.forget(ticked.clock)
        self._grown_histories.forget_trimmed()
        self._grown_histories.count_rows(tick.tx.events, tick.plan.settings.history.runs)
        in_progress = {claim.run.id: claim for claim in (*self._runs.inflight().values(), *ticked.claims)}
        self._places.note(in_progress, reading, full=ticked.is_full)
        self.report_available()
        for _, run in work.runs:
            if deadlines.is_unexpected(run.exception):
                log_event(logging.ERROR, "runner_broken", error=run.exception)
        self._deadlines.forget_runs(number for number, _ in work.runs)
        self._runs.ack([number for number, _ in work.runs])
        self._deliveries.ack([number for number, _ in work.deliveries])
        self._publish_events(tick.tx.events)
        self.inbox.reply_to(work.requests)
        for claim in ticked.claims:
            self._deadlines.start_deadline(claim, reading.monotonic)
            if claim.run.trigger not in WOKEN:
                self._clock.note_start(claim.entry.key, reading)
            self._runs.submit(claim.run.id, claim)
        for run_id in tick.cancelled:
            self._deadlines.end_run(run_id, "cancelled", reading.monotonic)
        for each in ticked.deliveries:
            self._deliveries.submit(each.message.id, each)
        self.health.ticked_at = reading.now
        self.health.broken_parts = self._parts.problem
        if ticked.maintenance.done_at == tick.now:
            self.store.keep_reserve()

    def _record_results(self, tick: Tick, work: Work, clock: ClockNews) -> MaintenanceState:
        """Record clock changes, stalls, results of runs and deliveries, and requests since the last tick; then maintenance."""
        parts, runs = self._parts, work.runs
        if clock.change:
            follow = partial(clock_adjustment.follow_clock_change, tick.tx, clock.change, self._clock.time_since_start)
            parts.run(tick, TickPart.CLOCK_CHANGE, partial(follow, slept=clock.slept), None)
        if clock.stall:
            boots.record_stall(tick.tx, clock.stall, boots.STOPPED if clock.was_stopped else None)
        for _, run in runs:
            if run.worker is not None:
                record_worker(tick.tx, run.task, run.worker)
        if runs:
            entries.read_entries(tick.tx, [run.task.entry.key for _, run in runs])
        for _, run in runs:
            claim = run.task
            run_for_entry(tick, *claim.entry.key, self._recording_of(tick, run), ending_run=claim.run.id)
        for _, done in work.deliveries:
            run_for_message(tick, done.task.message, partial(delivery.settle_delivery, tick.tx, done))
        for each in work.requests:
            apply_request(tick, each)
        parts.run(tick, TickPart.LATE_RESULTS, partial(give_up_overdue, tick), None)
        boots.refresh_last_tick(tick.tx)
        return parts.run(tick, TickPart.MAINTENANCE, partial(self._maintain_database, tick), self._maintenance)

    def _maintain_database(self, tick: Tick) -> MaintenanceState:
        maintenance.trim_grown_histories(tick.tx, self._grown_histories, tick.plan.settings.history.runs)
        state = maintenance.maintain_database(tick, self._maintenance)
        if state.done_at == tick.now:
            startup.recover_unknown_runs(tick, {*self._runs.inflight(), *(run_id for run_id, _ in self._runs.results())})
        return state

    def is_busy(self) -> bool:
        """Whether runs or deliveries are in progress, or their results are not recorded yet.

        Runs that survive a stop do not count once the daemon stops.
        """
        waits_for_runs = not (self.stopping and self._runs_survive_stop) and bool(self._runs.inflight())
        is_recording = bool(self._runs.results() or self._deliveries.results())
        return waits_for_runs or is_recording or bool(self._deliveries.inflight())

    def end_all_runs(self, reading: ClockReading) -> None:
        """Cancel all runs in progress, because the daemon stops. Those that survive a stop continue."""
        if self._runs_survive_stop:
            return
        for run_id in self._runs.inflight():
            self._deadlines.end_run(run_id, "shutdown", reading.monotonic)

    def is_idle(self, now: datetime) -> bool:
        """Whether no run is due, open or about to be started by a wake, and no message waits for its first attempt."""
        if self.is_busy():
            return False
        db = self.store.connection
        next_at = entries.next_due_at(db)
        due = next_at is not None and next_at <= now
        woken = wakes.any_starts_by(db, now + self.plan.settings.limits.wake_gap)
        return not (due or runs.all_open_runs(db) or woken or outbox.has_untried_message(db))

    def finish_boot(self, reading: ClockReading) -> None:
        """Record that this boot ended cleanly. Raises DatabaseUnavailable."""
        with self.store.transaction() as db:
            boots.record_clean_end(self._new_tick(db, reading.now).tx)

    def _new_tick(self, db: UnitOfWork, now: datetime) -> Tick:
        tx, places = Transaction(db, now, self._instance, self.plan.settings.hash), self._places
        return Tick(
            tx, self.plan, self._clock.awake_since, self._chance, places.full_since, places.describe(),
            self._lost_commits, internal_errors=self.health.internal_errors,
        )  # fmt: skip

    def note_continued(self) -> None:
        """A signal had stopped the process, and another one has continued it: the cause of a stall that the next tick finds."""
        self._clock.was_stopped = True

    def _recording_of(self, tick: Tick, done: Done[Claim, AttemptResult]) -> Callable[[], None]:
        """The function that records the result of an attempt. If the daemon cancelled it, the result says why.

        An attempt that was successful before it ended counts, unless a person cancelled it.
        """
        claim = done.task
        result = deadlines.result_of(done)
        why = self._deadlines.why_ended(claim.run.id)
        if isinstance(done.exception, Interrupted) and why != "cancelled":
            return partial(startup.recover_lost_attempt, tick, claim, done.exception)
        if isinstance(done.exception, NotTaken):
            return partial(run_ends.finish_attempt, tick, claim, result)
        if why and (why == "cancelled" or result.outcome in (Outcome.FAILED, Outcome.TIMEOUT)):
            if why == "shutdown" and _is_due_after_restart(tick.plan, claim):
                return partial(startup.requeue_interrupted_run, tick, claim, result)
            result = deadlines.result_of_ended_run(claim, result, why)
        return partial(run_ends.finish_attempt, tick, claim, result)

    def _start_due(self, tick: Tick) -> tuple[list[Claim], bool]:
        """Claim due runs. Returns the claims, and whether the concurrency limit is reached."""
        if self.stopping:
            return [], False
        places = tick.limits.concurrency - len(self._runs.inflight())
        wanted = max(min(places, MAX_ENTRIES_PER_TICK), 0)
        room = self._capacity(wanted)
        claims: list[Claim] = []
        examined = 0
        while room > len(claims) and examined < MAX_ENTRIES_PER_TICK:
            due = entries.due_entries(tick.tx.db, tick.now, room - len(claims), MAX_ENTRIES_PER_TICK - examined)
            if not due:
                break
            open_runs = runs.open_runs_of(tick.tx.db, due)
            for each in due:
                start = partial(_start_entry, tick, each, open_runs.get(each.id))
                if (claim := run_for_entry(tick, each.kind, each.name, start)) is not None:
                    claims.append(claim)
            examined += len(due)
        self._lacks_capacity = len(claims) >= room and room < wanted
        return claims, places <= len(claims)

    def _next_tick_time(self, tick: Tick, claimed: int, taken: list[Delivery]) -> datetime:
        """When the next run, message or result deadline is due. Runs do not count while the concurrency limit is reached."""
        is_paused = partial(self._parts.is_paused, now=tick.now)
        full = len(self._runs.inflight()) + claimed >= tick.limits.concurrency
        next_delivery = delivery.next_delivery_time(tick.tx, [*self._deliveries.inflight().values(), *taken])
        runs = None if full or self.stopping or is_paused(TickPart.DUE_RUNS) else entries.next_due_at(tick.tx.db)
        if runs is not None and self._lacks_capacity:
            runs = max(runs, tick.now + CAPACITY_RETRY)
        late = None if is_paused(TickPart.LATE_RESULTS) else next_result_deadline(tick.tx, tick.awake_since)
        times = (runs, None if is_paused(TickPart.MESSAGES) else next_delivery, late, self._parts.next_end_of_pause(tick.now))
        return min((time for time in times if time is not None), default=tick.now + LONGEST_TICK_WAIT)

    def _enforce_deadlines(self, reading: ClockReading) -> datetime:
        """Cancel runs that exceed their timeout. Returns the next deadline."""
        again_at = self._deadlines.enforce_deadlines(reading.monotonic)
        if again_at is None:
            return reading.now + LONGEST_TICK_WAIT
        wait = timedelta(seconds=again_at - reading.monotonic)
        return reading.now + max(
            wait, MILLISECOND if again_at > reading.monotonic else timedelta()
        )  # rounded to none, it would spin

    def _publish_events(self, events: Iterable[Event]) -> None:
        for happened in events:
            for listener in self._listeners:
                listener(happened)

    def _retry_wait(self, now: datetime, error: DatabaseUnavailable) -> timedelta:
        """The wait after a tick that could not be committed: none if the disk reserve makes room."""
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


def _start_entry(tick: Tick, entry_row: EntryRow, run: OpenRun | None) -> Claim | None:
    entry = tick.plan.entries.get((entry_row.kind, entry_row.name))
    if entry is None:
        entries.change_entry(tick.tx, entry_row, entry_row._replace(due_at=None))
        return None
    return run_starts.start_due_with_run(tick, entry, entry_row, run)


def _is_due_after_restart(plan: Plan, claim: Claim) -> bool:
    """Whether a run that the stop interrupts runs again after the restart: its kind allows it, and it is still declared."""
    entry = plan.entries.get((claim.entry.kind, claim.entry.name))
    return claim.entry.retries_after_crash and entry is not None and entry.enabled


def _replan_all_entries(tx: Transaction) -> None:
    for entry_row in entries.all_entries(tx.db):
        planning.save_with_next_due(tx, entry_row, entry_row)
