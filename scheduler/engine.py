"""The engine: book what has ended, do what was asked, start what is due, and say when to look again."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from scheduler import boots, closing, delivery, duequeue, history, opening, outbox, planning, recovery, syncing, wakes
from scheduler.delivery import Parcel
from scheduler.duequeue import Standing
from scheduler.entry import Claim
from scheduler.events import Event
from scheduler.executor import Done, Executor
from scheduler.inbox import Inbox
from scheduler.logs import event
from scheduler.outcome import Ending, Failure, Kind, Outcome, Reason
from scheduler.plan import Plan
from scheduler.process import Why
from scheduler.store import Store, Unavailable
from scheduler.transports import Sent
from scheduler.turn import Turn

LATEST = timedelta(days=1)  # how far ahead the next turn is ever planned
RETRY_STORE = timedelta(seconds=1)
UNBELIEVABLE = timedelta(seconds=5)  # wall and monotonic clock may drift apart by less without anything having jumped
STUCK = timedelta(seconds=10)  # how long an ended task may take to give its result before it is given up
KEEP_HOUSE = timedelta(minutes=1)
TRIM_AT_ONCE = 100  # entries
LETTERS_AT_ONCE = 8
CLAIMS_AT_ONCE = 500  # bounds a transaction

ENDED: dict[Why, tuple[Outcome, Failure | Reason, str]] = {
    "timeout": (Outcome.TIMEOUT, Failure.TIMEOUT, "did not end within its timeout"),
    "cancelled": (Outcome.ABANDONED, Reason.CANCELLED, "was cancelled"),
    "shutdown": (Outcome.ABANDONED, Failure.EXIT, "was cut short: the daemon stopped"),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """What the clocks say at one instant: the wall's time (aware, UTC), and seconds that only ever grow."""

    now: datetime
    steady: float


@dataclass(slots=True)
class Health:
    """Whether the engine can do its work; `problem` is in words and None when it can. Read by other threads."""

    problem: str | None = None
    ticked_at: datetime | None = None
    busy: int = 0
    jumps: dict[str, int] = field(default_factory=lambda: {"forward": 0, "backward": 0})


class Engine:
    """One thread drives it by `tick`; it owns the only writing connection and never waits for anything but that.

    `listeners` hear every event after its commit.
    """

    def __init__(
        self,
        store: Store,
        plan: Plan,
        runs: Executor[Claim, Ending],
        letters: Executor[Parcel, Sent],
        inbox: Inbox,
        listeners: list[Callable[[Event], None]],
        instance: str,
        chance: random.Random,
    ) -> None:
        self.store = store
        self.plan = plan
        self.inbox = inbox
        self.health = Health()
        self.stopping = False
        self._runs = runs
        self._letters = letters
        self._listeners = listeners
        self._instance = instance
        self._chance = chance
        self._last: Reading | None = None
        self._awake_since: datetime | None = None
        self._ended: dict[int, tuple[Why, datetime]] = {}
        self._house_kept: datetime | None = None
        self._trimmed = 0

    def begin(self, reading: Reading, boot: boots.Boot, survivors: recovery.Survivors, *, at_once: bool = False) -> None:
        """Start this life: take over what an earlier one left, and make the rows follow the plan. Raises Unavailable."""
        self._last, self._awake_since = reading, reading.now
        with self.store.transaction() as db:
            turn = self._turn(db, reading.now)
            tzdata_changed = boots.begin(turn, boot)
            for standing in duequeue.ahead_of(db, reading.now + UNBELIEVABLE):
                syncing.step_back(turn, standing, standing.settled_until - reading.now)
            recovery.recover(turn, survivors)
            delivery.recover(turn)
            syncing.sync(turn, at_once=at_once)
            recovery.start_at_boot(turn)
            if tzdata_changed:
                _replan_all(turn)
        self._tell(turn)

    def tick(self, reading: Reading) -> datetime:
        """One turn; gives when to take the next one, unless something is reported or asked before."""
        jump = self._jump(reading)
        run_results, letter_results, asked = self._runs.results(), self._letters.results(), self.inbox.look()
        try:
            with self.store.transaction() as db:
                turn = self._turn(db, reading.now)
                if jump < timedelta():
                    _step_back_all(turn, -jump)
                for _, run in run_results:
                    self._book(turn, run)
                for _, letter in letter_results:
                    delivery.settle(turn, letter)
                for each in asked:
                    each.apply(turn)
                self._keep_house(turn)
                claims = self._start_due(turn)
                parcels = delivery.collect(turn, LETTERS_AT_ONCE - len(self._letters.inflight()))
                again_at = self._next(turn)
        except Unavailable as error:
            self._complain(reading.now, str(error))
            return reading.now + RETRY_STORE
        self.plan = turn.plan
        self._recovered()
        self._runs.ack([number for number, _ in run_results])
        self._letters.ack([number for number, _ in letter_results])
        self._tell(turn)
        self.inbox.answer(asked)
        for claim in claims:
            self._runs.submit(claim.run_id, claim)
        for parcel in parcels:
            self._letters.submit(parcel.letter.id, parcel)
        self.health.ticked_at = reading.now
        return min(again_at, self._enforce_deadlines(reading.now))

    def end_run(self, run_id: int, why: Why, now: datetime) -> bool:
        """End a run in progress from outside; False when it is not in progress."""
        if run_id not in self._runs.inflight():
            return False
        self._ended.setdefault(run_id, (why, now))
        self._runs.cancel(run_id, why)
        return True

    def busy(self) -> bool:
        """Whether runs or deliveries are in progress, or have ended and are not booked yet."""
        return any(executor.inflight() or executor.results() for executor in (self._runs, self._letters))

    def cut_runs(self, now: datetime) -> None:
        """End everything that is in progress: the daemon stops."""
        for run_id in self._runs.inflight():
            self.end_run(run_id, "shutdown", now)

    def at_rest(self, now: datetime) -> bool:
        """Whether all that is due is done: no run or attempt is left, no wake wants to start one, no message waits to be tried."""
        db = self.store.connection
        next_at = duequeue.next_due(db)
        due = next_at is not None and next_at <= now
        return not (due or self.busy() or duequeue.open_runs(db) or wakes.impatient(db) or outbox.untried(db))

    def finish(self, reading: Reading) -> None:
        """End this life cleanly. Raises Unavailable."""
        with self.store.transaction() as db:
            boots.end(self._turn(db, reading.now))

    def _turn(self, db: sqlite3.Connection, now: datetime) -> Turn:
        assert self._awake_since is not None
        return Turn(db, now, self._instance, self.plan, self._awake_since, self._chance)

    def _jump(self, reading: Reading) -> timedelta:
        """How far the wall clock has moved beside the steady one since the last turn; zero if believably little."""
        last, self._last = self._last or reading, reading
        jump = (reading.now - last.now) - timedelta(seconds=reading.steady - last.steady)
        if abs(jump) < UNBELIEVABLE:
            return timedelta()
        direction = "forward" if jump > timedelta() else "backward"
        self.health.jumps[direction] += 1
        event(logging.WARNING, "clock_jumped", direction=direction, by=jump)
        if jump > timedelta():
            self._awake_since = reading.now
        return jump

    def _book(self, turn: Turn, done: Done[Claim, Ending]) -> None:
        """Write down how a run ended; one that we ended ourselves ends as we meant it, unless it was done already."""
        claim, ending = done.task, done.result or _surprise(done.surprise)
        why, _ = self._ended.get(claim.run_id, (None, None))
        if why and ending.outcome in (Outcome.FAILED, Outcome.TIMEOUT):
            if why == "shutdown" and claim.entry.again_after_crash:
                recovery.put_back(turn, claim)
                return
            outcome, reason, error = ENDED[why]
            message = f"{claim.entry.name} {error}" if claim.entry.kind is Kind.CRON else None
            ending = replace(ending, outcome=outcome, reason=reason, error=error, message=message, transient=why == "timeout")
        closing.finish(turn, claim, ending)

    def _start_due(self, turn: Turn) -> list[Claim]:
        if self.stopping:
            return []
        room = turn.limits.concurrency - len(self._runs.inflight())
        claims: list[Claim] = []
        while room > len(claims):
            due = duequeue.due(turn.db, turn.now, min(room - len(claims), CLAIMS_AT_ONCE))
            claims += [claim for standing in due if (claim := _start(turn, standing)) is not None]
            if not due or len(claims) >= CLAIMS_AT_ONCE:
                break
        return claims

    def _keep_house(self, turn: Turn) -> None:
        """What is to be done now and then: the sign of life, old wakes, old rows; a few entries at a time."""
        boots.tick(turn)
        if self._house_kept is not None and timedelta() <= turn.now - self._house_kept < KEEP_HOUSE:
            return
        self._house_kept = turn.now
        wakes.expire(turn)
        outbox.forget(turn)
        kept = turn.plan.settings.history
        history.prune(turn, kept.keep)
        some = duequeue.after(turn.db, self._trimmed, TRIM_AT_ONCE)
        for standing in some:
            history.trim(turn, standing, kept.runs)
        self._trimmed = some[-1].id if some else 0

    def _next(self, turn: Turn) -> datetime:
        full = len(self._runs.inflight()) >= turn.limits.concurrency
        wishes = (None if full or self.stopping else duequeue.next_due(turn.db), outbox.next_due(turn.db))
        return min((wish for wish in wishes if wish is not None), default=turn.now + LATEST)

    def _enforce_deadlines(self, now: datetime) -> datetime:
        """End what has run too long, give up what does not end; gives when to look again."""
        again_at = now + LATEST
        for run_id, claim in self._runs.inflight().items():
            if run_id not in self._ended and claim.deadline <= now:
                self.end_run(run_id, "timeout", now)
            _, ended_at = self._ended.get(run_id, (None, None))
            again_at = min(again_at, claim.deadline if ended_at is None else ended_at + STUCK)
            if ended_at is not None and ended_at + STUCK <= now:
                self._runs.give_up(run_id, Done(claim, _stuck()))
                again_at = now
        living = self._runs.inflight().keys() | {run_id for run_id, _ in self._runs.results()}
        self._ended = {run_id: ended for run_id, ended in self._ended.items() if run_id in living}
        return again_at

    def _tell(self, turn: Turn) -> None:
        for happened in turn.events:
            for listener in self._listeners:
                listener(happened)

    def _complain(self, now: datetime, problem: str) -> None:
        """One line when the database becomes unusable, not one a second."""
        self.health.busy += 1
        if self.health.problem is None:
            event(logging.ERROR, "database_unavailable", problem=problem, since=now)
        self.health.problem = problem

    def _recovered(self) -> None:
        if self.health.problem is not None:
            event(logging.WARNING, "database_available")
        self.health.problem = None


def _start(turn: Turn, standing: Standing) -> Claim | None:
    """Start one due entry. One whose planning raises is pushed an hour away: it must not stop the others, nor loop."""
    entry = turn.plan.entries.get((standing.kind, standing.name))
    if entry is None:
        duequeue.change(turn, standing, due_at=None)
        return None
    told = len(turn.events)
    turn.db.execute("savepoint entry")
    try:
        claim = opening.start(turn, entry, standing)
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001 (the entry's own data did this; the other entries are sound)
        turn.db.execute("rollback to entry")
        del turn.events[told:]
        event(logging.ERROR, "entry_broken", kind=standing.kind, name=standing.name, error=error)
        duequeue.change(turn, standing, due_at=turn.now + timedelta(hours=1))
        claim = None
    turn.db.execute("release entry")
    return claim


def _surprise(error: BaseException | None) -> Ending:
    event(logging.ERROR, "runner_broken", error=error)
    return Ending(Outcome.FAILED, Failure.BAD_ANSWER, error=f"{type(error).__name__}: {error}")


def _stuck() -> Ending:
    return Ending(Outcome.TIMEOUT, Failure.TIMEOUT, error="did not end, not even when it was told to")


def _step_back_all(turn: Turn, by: timedelta) -> None:
    for standing in duequeue.everything(turn.db):
        syncing.step_back(turn, standing, by)


def _replan_all(turn: Turn) -> None:
    for standing in duequeue.everything(turn.db):
        planning.replan(turn, standing)
