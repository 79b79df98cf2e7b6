"""The engine: each tick records results, answers requests, starts due runs and messages, and returns the next due time."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from scheduler.channels.message import DeliveryResult
from scheduler.engine import (
    budget_reservations,
    channel_problems,
    clock_adjustment,
    delivery,
    held_notices,
    maintenance,
    plan_sync,
    planning,
    run_ends,
    run_starts,
    startup,
    wake_starts,
)
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
from scheduler.model.outcome import UNSENT_CALL, WOKEN, AttemptResult, Failure, Kind, Outcome, Reason, storable_result
from scheduler.model.timestamps import MILLISECOND
from scheduler.store import boots, breakers, config_history, entries, outbox, runs, wakes
from scheduler.store.database import CommitUnknown, DatabaseFull, DatabaseUnavailable, Store
from scheduler.store.runs import record_worker
from scheduler.store.transaction import Transaction
from scheduler.store.unit_of_work import UnitOfWork
from scheduler.system.file_limits import is_scarcity
from scheduler.system.log import log_event
from scheduler.system.process import EndReason
from scheduler.work.executor import Done, Executor, Interrupted, NeverBegun, NotTaken
from scheduler.work.plan import Plan

LONGEST_TICK_WAIT = timedelta(days=1)  # the next tick is never planned further ahead
DATABASE_RETRY = timedelta(seconds=1)  # after a tick that could not be committed
CAPACITY_RETRY = timedelta(seconds=1)  # if the system lacks the resources for due runs
CLOCK_CHANGE_THRESHOLD = timedelta(seconds=5)  # system and monotonic clock may drift apart by less without a clock change
# A tick that starts later is logged: the process was stopped, or the machine is overloaded.
STALL_THRESHOLD = timedelta(seconds=20)
LONGEST_RESTART = timedelta(minutes=10)  # no slot is expected to run during a planned restart that takes no longer
MAX_NOTED_RUNS = 1000  # that have held places while the concurrency limit is reached
MAX_NAMED_RUNS = 2  # of those that have reached the concurrency limit
MAX_ENTRIES_PER_TICK = 200  # due entries; limits the transaction, and how long other threads wait for the interpreter
NEW_ENTRIES_PER_PART = 2000  # at a start with more new entries than this
MAX_RESULTS_PER_TICK = 200  # of runs, and of deliveries
MAX_REQUESTS_PER_TICK = 200

RESULT_BY_CAUSE: dict[EndReason, tuple[Outcome, Failure | Reason, str]] = {
    "timeout": (Outcome.TIMEOUT, Failure.TIMEOUT, "did not end within its timeout"),
    "shutdown": (Outcome.ABANDONED, Failure.EXIT, "was interrupted: the daemon stopped"),
    "cancelled": (Outcome.ABANDONED, Reason.CANCELLED, "was cancelled"),
}


T = TypeVar("T")
R = TypeVar("R")
Results = list[tuple[int, Done[T, R]]]
Work = tuple[Results[Claim, AttemptResult], Results[Delivery, DeliveryResult], list[PendingRequest]]


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Both clocks at one instant: the system time (aware, UTC), and the seconds of the monotonic clock.

    `slept` is for how many seconds the machine was suspended since it was started: the monotonic clock does not count them.
    """

    now: datetime
    monotonic: float
    slept: float = 0.0


@dataclass(frozen=True, slots=True)
class Executors:
    """What carries out runs and sends messages. `capacity` returns how many of the wanted runs the system has resources for.

    `runs_survive_stop`: workers carry out the runs, and continue while the daemon is down.
    """

    runs: Executor[Claim, AttemptResult]
    deliveries: Executor[Delivery, DeliveryResult]
    capacity: Callable[[int], int] = lambda wanted: wanted
    runs_survive_stop: bool = False


class HeldPlaces:
    """Which runs have held places since `limits.concurrency` was reached, and for how long."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Claim, float, float]] = {}  # each run with its first and last time, by the monotonic clock
        self._limit = 0

    def note(self, running: Mapping[int, Claim], reading: ClockReading, *, full: bool) -> None:
        """Note the runs in progress. `full` False: another run may start, so that all is forgotten."""
        if not full:
            self._held = {}
            return
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
        self._last_reading: ClockReading | None = None
        self._awake_since: datetime | None = None
        self._full_since: datetime | None = None  # since when the concurrency limit has been reached
        self._deadlines = Deadlines(executors.runs)
        self._places = HeldPlaces()
        self._clock_change = timedelta()  # of the system clock, not committed yet
        self._slept = timedelta()  # how long the machine was suspended, as part of that change
        self._last_starts: dict[tuple[Kind, str], float] = {}  # when each entry's last slot was started, by the monotonic clock
        self._next_tick_at: float | None = None  # by the monotonic clock
        self._stall = timedelta()  # how late ticks started, not committed yet
        self._was_stopped = False  # a signal has stopped the process since the last tick
        self._maintenance = MaintenanceState()
        self._grown_histories = GrownHistories()
        self._parts = TickParts()
        self._lost_commits: LostCommits | None = None
        self.last_write_at: datetime | None = None  # the time of the last tick that has written something
        self._requests_before_starts = 0  # that are left from an earlier tick; no run starts before they are applied
        # Finishes a tick that may have been committed, and the time of that tick.
        self._unknown_commit: tuple[Callable[[ClockReading], None], datetime] | None = None

    def add_new_entries(self, reading: ClockReading, is_over: Callable[[], bool], *, at_once: bool = False) -> bool:
        """Before `start_boot`: add many new entries in parts, each in a transaction of its own. A few are left to `start_boot`.

        False if it `is_over` before all are added; the next start adds the others. Raises DatabaseUnavailable.
        """
        self._awake_since = reading.now
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
        self._last_reading, self._awake_since = reading, reading.now
        with self.store.transaction() as db:
            self._lost_commits = LostCommits(reading.now, wakes.last_id(db)) if may_lack_commits else None
            tick = self._new_tick(db, reading.now)
            last, seen = boots.latest_boot(db), boots.last_tick_at(db)
            slots_may_differ = boots.record_boot(tick.tx, boot)
            if self.plan.stored_config:
                config_history.record_config_in_force(tick.tx, self.plan.stored_config)
            if changed:
                config_history.record_config_event(tick.tx, changed)
            if last is not None and last["config_hash"] != self.plan.settings.hash:
                budget_reservations.adopt_budgets(tick.tx, self.plan.settings)
            budget_reservations.record_budgets(tick.tx, self.plan.settings)
            clock_adjustment.follow_clock_while_down(tick.tx, seen, CLOCK_CHANGE_THRESHOLD)
            if last is not None and last["ended_at"] is not None and seen and tick.now - seen <= LONGEST_RESTART:
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
        """Run one tick. Returns when the next one is due, unless a result or request arrives before."""
        self._detect_clock_change(reading)
        self._detect_stall(reading)
        again_at = self._run_tick(reading)
        # Runs that wait for the concurrency limit are due in the past, but no tick could have started then.
        self._next_tick_at = reading.monotonic + max((again_at - reading.now).total_seconds(), 0.0)
        return again_at

    def _run_tick(self, reading: ClockReading) -> datetime:
        """One iteration of the main loop. Results and requests of a tick that fails are seen again by the next one.

        1. In one transaction: record results and requests, claim due runs and messages, compute the time of the next tick.
        2. After the commit: publish events, answer requests, start the claimed runs, cancel runs, send messages.
        3. Cancel runs that exceed their timeout.
        """
        self.health.tried_at = reading.now
        try:
            self._settle_unknown_commit(reading)
            finish, again_at = self._commit_tick(reading)
        except DatabaseUnavailable as error:
            return min(reading.now + self._retry_wait(reading.now, error), self._enforce_deadlines(reading))
        finish(reading)
        return min(again_at, self._enforce_deadlines(reading))

    def _commit_tick(self, reading: ClockReading) -> tuple[Callable[[ClockReading], None], datetime]:
        """The transaction of a tick. Returns what is to be called after the commit, and the time of the next tick."""
        finish: Callable[[ClockReading], None] | None = None
        results, requests_left, is_work_left = self._take_work()
        clock = self._clock_change, self._slept, self._stall
        try:
            with self.store.transaction() as db:
                tick = self._new_tick(db, reading.now)
                maintenance_state = self._record_results(tick, *results)
                claims, full = list[Claim](), self._full_since is not None
                if requests_left == 0:
                    claims, full = self._parts.run(
                        tick, TickPart.DUE_RUNS, partial(self._start_due, tick), (list[Claim](), False)
                    )
                self._parts.run(tick, TickPart.HELD_NOTICES, partial(held_notices.release_unreported_notices, tick), None)
                claim_deliveries = partial(delivery.claim_deliveries, tick, self._deliveries.inflight().values())
                deliveries = self._parts.run(tick, TickPart.MESSAGES, claim_deliveries, list[Delivery]())
                self._parts.run(tick, TickPart.DEAD_LETTERS, partial(channel_problems.follow_deliveries, tick), None)
                again_at = tick.now if is_work_left else self._next_tick_time(tick, len(claims), deliveries)
                has_written = db.has_written
                if has_written:
                    boots.record_last_tick(tick.tx)
                finish = partial(
                    self._finish_tick, tick, claims, deliveries, results, maintenance_state, clock,
                    requests_left=requests_left, is_full=full, has_written=has_written,
                )  # fmt: skip
        except CommitUnknown:
            self._unknown_commit = (finish, reading.now) if finish else None
            raise
        return finish, again_at

    def _take_work(self) -> tuple[Work, int, bool]:
        """The results and requests of the next tick, the number of requests to apply before runs start, and whether more is left.

        A flood of requests is applied over several ticks, and then starts runs as if it were one tick: ten thousand wakes of an
        agent start one run.
        """
        runs, deliveries, requests = self._runs.results(), self._deliveries.results(), self.inbox.pending_requests()
        requests_left = max((self._requests_before_starts or len(requests)) - MAX_REQUESTS_PER_TICK, 0)
        is_work_left = max(len(runs), len(deliveries)) > MAX_RESULTS_PER_TICK or len(requests) > MAX_REQUESTS_PER_TICK
        taken = runs[:MAX_RESULTS_PER_TICK], deliveries[:MAX_RESULTS_PER_TICK], requests[:MAX_REQUESTS_PER_TICK]
        return taken, requests_left, is_work_left

    def _settle_unknown_commit(self, reading: ClockReading) -> None:
        """If it was not known whether the last transaction was committed, find out, and finish its tick if it was.

        The server may have been down for long, so the runs of that tick start now.
        """
        if self._unknown_commit is None:
            return
        finish, ticked_at = self._unknown_commit
        was_committed = self.store.was_committed(partial(boots.is_last_tick, instance=self._instance, at=ticked_at))
        self._unknown_commit = None
        if was_committed:
            finish(reading)

    def _finish_tick(
        self,
        tick: Tick,
        claims: list[Claim],
        deliveries: list[Delivery],
        results: Work,
        maintenance_state: MaintenanceState,
        clock: tuple[timedelta, timedelta, timedelta],
        reading: ClockReading,
        *,
        requests_left: int,
        is_full: bool,
        has_written: bool,
    ) -> None:
        """After the commit: publish events, answer requests, start the claimed runs, cancel runs, send messages.

        `clock` is what the tick has recorded of clock changes, suspends and stalls. `reading` is the current time.
        """
        self._maintenance, self.plan = maintenance_state, tick.plan
        self.last_write_at = tick.now if has_written else self.last_write_at
        self._requests_before_starts = requests_left
        change, slept, stall = clock
        self._clock_change, self._slept, self._stall = self._clock_change - change, self._slept - slept, self._stall - stall
        self._was_stopped = self._was_stopped and bool(self._stall)
        self._grown_histories.forget_trimmed()
        self._grown_histories.count_rows(tick.tx.events, tick.plan.settings.history.runs)
        self._full_since = (self._full_since or reading.now) if is_full else None
        self._places.note({claim.run.id: claim for claim in (*self._runs.inflight().values(), *claims)}, reading, full=is_full)
        self._after_commit(tick.tx.events, *results)
        for claim in claims:
            self._deadlines.start_deadline(claim, reading.monotonic)
            if claim.run.trigger not in WOKEN:
                self._last_starts[claim.entry.kind, claim.entry.name] = reading.monotonic
            self._runs.submit(claim.run.id, claim)
        for run_id in tick.cancelled:
            self._deadlines.end_run(run_id, "cancelled", reading.monotonic)
        for each in deliveries:
            self._deliveries.submit(each.message.id, each)
        self.health.ticked_at = reading.now
        self.health.broken_parts = self._parts.problem
        if maintenance_state.done_at == tick.now:
            self.store.keep_reserve()

    def _record_results(
        self,
        tick: Tick,
        runs: Results[Claim, AttemptResult],
        deliveries: Results[Delivery, DeliveryResult],
        requests: list[PendingRequest],
    ) -> MaintenanceState:
        """Record clock changes, stalls, results of runs and deliveries, and requests since the last tick; then maintenance."""
        parts = self._parts
        if self._clock_change:
            follow = partial(clock_adjustment.follow_clock_change, tick.tx, self._clock_change, self._time_since_start)
            parts.run(tick, TickPart.CLOCK_CHANGE, partial(follow, slept=self._slept), None)
        if self._stall:
            boots.record_stall(tick.tx, self._stall, boots.STOPPED if self._was_stopped else None)
        for _, run in runs:
            if run.worker is not None:
                record_worker(tick.tx, run.task, run.worker)
        if runs:
            entries.read_entries(tick.tx, [run.task.entry.key for _, run in runs])
        for _, run in runs:
            claim = run.task
            run_for_entry(tick, *claim.entry.key, self._recording_of(tick, run), ending_run=claim.run.id)
        for _, done in deliveries:
            run_for_message(tick, done.task.message, partial(delivery.settle_delivery, tick.tx, done))
        for each in requests:
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

    def _after_commit(
        self,
        events: Iterable[Event],
        runs: Results[Claim, AttemptResult],
        deliveries: Results[Delivery, DeliveryResult],
        requests: list[PendingRequest],
    ) -> None:
        """Forget the recorded results, publish the events and answer the requests."""
        self.report_available()
        for _, run in runs:
            if _is_unexpected(run.exception):
                log_event(logging.ERROR, "runner_broken", error=run.exception)
        self._deadlines.forget_runs(number for number, _ in runs)
        self._runs.ack([number for number, _ in runs])
        self._deliveries.ack([number for number, _ in deliveries])
        self._publish_events(events)
        self.inbox.reply_to(requests)

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
        assert self._awake_since is not None
        tx = Transaction(db, now, self._instance, self.plan.settings.hash)
        why_full = self._places.describe()
        return Tick(
            tx, self.plan, self._awake_since, self._chance, self._full_since, why_full,
            self._lost_commits, internal_errors=self.health.internal_errors,
        )  # fmt: skip

    def _detect_clock_change(self, reading: ClockReading) -> None:
        """Detect a change of the system clock: it differs from the monotonic clock since the last tick."""
        last, self._last_reading = self._last_reading or reading, reading
        change = (reading.now - last.now) - timedelta(seconds=reading.monotonic - last.monotonic)
        if abs(change) < CLOCK_CHANGE_THRESHOLD:
            return
        direction = "forward" if change > timedelta() else "backward"
        slept = timedelta(seconds=max(0.0, reading.slept - last.slept))
        self.health.clock_changes[direction] += 1
        log_event(logging.WARNING, "clock_jumped", direction=direction, by=change, slept=slept or None)
        self._clock_change += change
        self._slept += slept
        if self._full_since is not None:
            self._full_since = reading.now
        if change > timedelta():
            self._awake_since = reading.now

    def _time_since_start(self, kind: Kind, name: str) -> timedelta | None:
        started = self._last_starts.get((kind, name))
        return (
            None if started is None or self._last_reading is None else timedelta(seconds=self._last_reading.monotonic - started)
        )

    def _detect_stall(self, reading: ClockReading) -> None:
        """Detect a tick that starts much too late, by the monotonic clock, which stands still while the machine is suspended."""
        late = timedelta() if self._next_tick_at is None else timedelta(seconds=reading.monotonic - self._next_tick_at)
        if late >= STALL_THRESHOLD:
            log_event(logging.WARNING, "stalled", late=late, cause=boots.STOPPED if self._was_stopped else None)
            self._stall += late

    def note_continued(self) -> None:
        """A signal had stopped the process, and another one has continued it: the cause of a stall that the next tick finds."""
        self._was_stopped = True

    def _recording_of(self, tick: Tick, done: Done[Claim, AttemptResult]) -> Callable[[], None]:
        """The function that records the result of an attempt. If the daemon cancelled it, the result says why.

        An attempt that was successful before it ended counts, unless a person cancelled it.
        """
        claim = done.task
        result = storable_result(done.result or _result_of_exception(done.exception))
        why = self._deadlines.why_ended(claim.run.id)
        if isinstance(done.exception, Interrupted) and why != "cancelled":
            return partial(startup.recover_lost_attempt, tick, claim, done.exception)
        if isinstance(done.exception, NotTaken):
            return partial(run_ends.finish_attempt, tick, claim, result)
        if why and (why == "cancelled" or result.outcome in (Outcome.FAILED, Outcome.TIMEOUT)):
            if why == "shutdown" and _is_due_after_restart(tick.plan, claim):
                return partial(startup.requeue_interrupted_run, tick, claim, result)
            result = _result_of_ended_run(claim, result, why)
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


def _result_of_ended_run(claim: Claim, result: AttemptResult, why: EndReason) -> AttemptResult:
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


def _is_unexpected(error: BaseException | None) -> bool:
    """Whether an exception that ended an attempt is a fault of the program."""
    return error is not None and not isinstance(error, (Interrupted, NeverBegun)) and not is_scarcity(error)


def _replan_all_entries(tx: Transaction) -> None:
    for entry_row in entries.all_entries(tx.db):
        planning.save_with_next_due(tx, entry_row, entry_row)
