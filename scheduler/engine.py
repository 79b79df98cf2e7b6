"""The engine: book what has ended, do what was asked, start what is due, and say when to look again."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

from scheduler import boots, closing, delivery, duequeue, history, opening, outbox, planning, recovery, setback, syncing, wakes
from scheduler.delivery import Parcel
from scheduler.duequeue import Standing
from scheduler.entry import Claim
from scheduler.events import Event
from scheduler.executor import Done, Executor
from scheduler.inbox import Asked, Inbox
from scheduler.logs import event
from scheduler.outcome import Ending, Failure, Kind, Outcome, Reason, storable
from scheduler.plan import Plan
from scheduler.process import Why
from scheduler.store import Store, Unavailable
from scheduler.transports import Sent
from scheduler.turn import Turn

LATEST = timedelta(days=1)  # how far ahead the next turn is ever planned
RETRY_STORE = timedelta(seconds=1)
UNBELIEVABLE = timedelta(seconds=5)  # wall and monotonic clock may drift apart by less without anything having jumped
STUCK = 10.0  # seconds that an ended task may take to give its result before it is given up
KEEP_HOUSE = timedelta(minutes=1)
REMOVE_AT_ONCE = 500  # rows; with what follows it bounds a transaction
TRIM_AT_ONCE = 100  # entries
LETTERS_AT_ONCE = 8
LOOKS_AT_ONCE = 500  # entries

ENDED: dict[Why, tuple[Outcome, Failure | Reason, str]] = {
    "timeout": (Outcome.TIMEOUT, Failure.TIMEOUT, "did not end within its timeout"),
    "shutdown": (Outcome.ABANDONED, Failure.EXIT, "was cut short: the daemon stopped"),
}


T = TypeVar("T")
R = TypeVar("R")
Results = list[tuple[int, Done[T, R]]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What the clocks say at one instant: the wall's time (aware, UTC), and seconds that only ever grow."""

    now: datetime
    steady: float


@dataclass(frozen=True, slots=True)
class House:
    """How far the regular work has come: when it was last done, and after which entry it goes on."""

    kept_at: datetime | None = None
    trimmed: int = 0


@dataclass(slots=True)
class Health:
    """Whether the engine can do its work; `problem` is in words and None when it can. Read by other threads.

    `tried_at` is its last turn, `ticked_at` the last one that could be written down.
    """

    problem: str | None = None
    tried_at: datetime | None = None
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
        self._deadlines: dict[int, float] = {}  # by the steady clock, for the wall's may jump
        self._ended: dict[int, tuple[Why, float]] = {}
        self._jumped = timedelta()  # how far the wall clock jumped that no turn has followed yet
        self._house = House()

    def begin(self, reading: Reading, boot: boots.Boot, survivors: recovery.Survivors, *, at_once: bool = False) -> None:
        """Start this life: take over what an earlier one left, and make the rows follow the plan. Raises Unavailable."""
        self._last, self._awake_since = reading, reading.now
        with self.store.transaction() as db:
            turn = self._turn(db, reading.now)
            tzdata_changed = boots.begin(turn, boot)
            setback.catch_up(turn, UNBELIEVABLE)
            recovery.recover(turn, survivors)
            delivery.recover(turn)
            syncing.sync(turn, {}, at_once=at_once)
            recovery.start_at_boot(turn)
            if tzdata_changed:
                _replan_all(turn)
        self._tell(turn)

    def tick(self, reading: Reading) -> datetime:
        """One turn; gives when to take the next one, unless something is reported or asked before."""
        self._notice_jump(reading)
        self.health.tried_at = reading.now
        results = self._runs.results(), self._letters.results(), self.inbox.look()
        try:
            with self.store.transaction() as db:
                turn = self._turn(db, reading.now)
                house = self._take(turn, *results)
                claims = self._start_due(turn)
                parcels = delivery.collect(turn, LETTERS_AT_ONCE - len(self._letters.inflight()))
                again_at = self._next(turn)
        except Unavailable as error:
            self._complain(reading.now, str(error))
            return min(reading.now + RETRY_STORE, self._enforce_deadlines(reading))
        self._house, self._jumped, self.plan = house, timedelta(), turn.plan
        self._committed(turn, *results)
        for claim in claims:
            self._deadlines[claim.run_id] = reading.steady + claim.entry.timeout.total_seconds()
            self._runs.submit(claim.run_id, claim)
        for parcel in parcels:
            self._letters.submit(parcel.letter.id, parcel)
        self.health.ticked_at = reading.now
        return min(again_at, self._enforce_deadlines(reading))

    def _take(self, turn: Turn, runs: Results[Claim, Ending], letters: Results[Parcel, Sent], asked: list[Asked]) -> House:
        """Write down all that has come in since the last turn."""
        if self._jumped < timedelta():
            setback.set_back(turn, -self._jumped)
        for _, run in runs:
            self._book(turn, run)
        for _, letter in letters:
            delivery.settle(turn, letter)
        for each in asked:
            each.apply(turn)
        return self._keep_house(turn)

    def _committed(self, turn: Turn, runs: Results[Claim, Ending], letters: Results[Parcel, Sent], asked: list[Asked]) -> None:
        """Let go of what is written down, and tell of it."""
        self._recovered()
        self._runs.ack([number for number, _ in runs])
        self._letters.ack([number for number, _ in letters])
        self._tell(turn)
        self.inbox.answer(asked)

    def end_run(self, run_id: int, why: Why, steady: float) -> bool:
        """End a run in progress from outside; False when it is not in progress."""
        if run_id not in self._runs.inflight():
            return False
        self._ended.setdefault(run_id, (why, steady))
        self._runs.cancel(run_id, why)
        return True

    def busy(self) -> bool:
        """Whether runs or deliveries are in progress, or have ended and are not booked yet."""
        return any(executor.inflight() or executor.results() for executor in (self._runs, self._letters))

    def cut_runs(self, reading: Reading) -> None:
        """End everything that is in progress: the daemon stops."""
        for run_id in self._runs.inflight():
            self.end_run(run_id, "shutdown", reading.steady)

    def at_rest(self, now: datetime) -> bool:
        """Whether all that is due is done: no attempt is left, no wake wants to start one, no message waits to be tried."""
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

    def _notice_jump(self, reading: Reading) -> None:
        """Find how far the wall clock has moved beside the steady one since the last turn; what is believable is no jump."""
        last, self._last = self._last or reading, reading
        jump = (reading.now - last.now) - timedelta(seconds=reading.steady - last.steady)
        if abs(jump) < UNBELIEVABLE:
            return
        direction = "forward" if jump > timedelta() else "backward"
        self.health.jumps[direction] += 1
        event(logging.WARNING, "clock_jumped", direction=direction, by=jump)
        self._jumped += jump
        if jump > timedelta():
            self._awake_since = reading.now

    def _book(self, turn: Turn, done: Done[Claim, Ending]) -> None:
        """Write down how a run ended; one that we ended ourselves ends as we meant it, unless it was done already."""
        claim = done.task
        ending = storable(done.result or _surprise(done.surprise))
        why, _ = self._ended.get(claim.run_id, (None, None))
        if why and ending.outcome in (Outcome.FAILED, Outcome.TIMEOUT):
            if why == "shutdown" and _may_come_back(turn, claim):
                recovery.put_back(turn, claim)
                return
            ending = _ended_by_us(claim, ending, why)
        try:
            with savepoint(turn):
                closing.finish(turn, claim, ending)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 (the entry's own data did this; the other entries are sound)
            _put_aside(turn, claim.entry.kind, claim.entry.name, error)

    def _start_due(self, turn: Turn) -> list[Claim]:
        if self.stopping:
            return []
        room = turn.limits.concurrency - len(self._runs.inflight())
        claims: list[Claim] = []
        looked = 0
        while room > len(claims) and looked < LOOKS_AT_ONCE:
            due = duequeue.due(turn.db, turn.now, min(room - len(claims), LOOKS_AT_ONCE - looked))
            claims += [claim for standing in due if (claim := _start(turn, standing)) is not None]
            looked += len(due)
            if not due:
                break
        return claims

    def _keep_house(self, turn: Turn) -> House:
        """What is to be done now and then: the sign of life, old wakes, old rows; a little at a time."""
        boots.tick(turn)
        if self._house.kept_at is not None and timedelta() <= turn.now - self._house.kept_at < KEEP_HOUSE:
            return self._house
        wakes.expire(turn)
        outbox.forget(turn)
        kept = turn.plan.settings.history
        room = REMOVE_AT_ONCE - history.prune(turn, kept.keep, REMOVE_AT_ONCE)
        trimmed = self._house.trimmed
        some = duequeue.after(turn.db, trimmed, TRIM_AT_ONCE)
        for standing in some:
            if room <= 0:
                return House(None, trimmed)  # there is more: go on in the next turn
            room -= history.trim(turn, standing, kept.runs, room)
            trimmed = standing.id
        return House(turn.now, trimmed if some else 0)

    def _next(self, turn: Turn) -> datetime:
        full = len(self._runs.inflight()) >= turn.limits.concurrency
        wishes = (None if full or self.stopping else duequeue.next_due(turn.db), outbox.next_due(turn.db))
        return min((wish for wish in wishes if wish is not None), default=turn.now + LATEST)

    def _enforce_deadlines(self, reading: Reading) -> datetime:
        """End what has run too long, give up what does not end; gives when to look again."""
        inflight = self._runs.inflight()
        waiting = inflight.keys() | {number for number, _ in self._runs.results()}
        self._deadlines = {run_id: at for run_id, at in self._deadlines.items() if run_id in inflight}
        self._ended = {run_id: ended for run_id, ended in self._ended.items() if run_id in waiting}
        soonest = LATEST.total_seconds()
        for run_id, claim in inflight.items():
            if run_id not in self._ended and self._deadlines[run_id] <= reading.steady:
                self.end_run(run_id, "timeout", reading.steady)
            until = self._ended[run_id][1] + STUCK if run_id in self._ended else self._deadlines[run_id]
            soonest = min(soonest, until - reading.steady)
            if until <= reading.steady:
                self._runs.give_up(run_id, Done(claim, _stuck()))
        return reading.now + timedelta(seconds=max(soonest, 0.0))

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
    """Start one due entry."""
    entry = turn.plan.entries.get((standing.kind, standing.name))
    if entry is None:
        duequeue.save(turn, standing, replace(standing, due_at=None))
        return None
    try:
        with savepoint(turn):
            return opening.start(turn, entry, standing)
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001 (the entry's own data did this; the other entries are sound)
        _put_aside(turn, standing.kind, standing.name, error)
        return None


@contextmanager
def savepoint(turn: Turn) -> Iterator[None]:
    """What is done inside is undone alone if it raises, and nothing of it is told."""
    told = len(turn.events)
    turn.db.execute("savepoint part")
    try:
        yield
    except BaseException:
        if turn.db.in_transaction:
            turn.db.execute("rollback to part")
        del turn.events[told:]
        raise
    turn.db.execute("release part")


def _put_aside(turn: Turn, kind: Kind, name: str, error: Exception) -> None:
    """An entry whose own data break our rules is looked at again in an hour: it must neither stop the others nor loop."""
    event(logging.ERROR, "entry_broken", kind=kind, name=name, error=error)
    standing = duequeue.find(turn.db, kind, name)
    run = duequeue.open_run(turn.db, kind, name)
    if run is not None and run.state == "running":
        history.end_undeclared(turn, kind, name, run, f"could not be booked: {error}")
    if standing is not None:
        duequeue.save(turn, standing, replace(standing, due_at=turn.now + timedelta(hours=1)))


def _may_come_back(turn: Turn, claim: Claim) -> bool:
    """Whether a run that our stop cut short is due again: its kind allows it, and it is still declared."""
    entry = turn.plan.entries.get((claim.entry.kind, claim.entry.name))
    return claim.entry.again_after_crash and entry is not None and entry.enabled


def _ended_by_us(claim: Claim, ending: Ending, why: Why) -> Ending:
    outcome, reason, error = ENDED[why]
    message = f"{claim.entry.name} {error}" if claim.entry.kind is Kind.CRON else None
    transient = why == "timeout" and ending.transient
    return replace(ending, outcome=outcome, reason=reason, error=error, message=message, transient=transient)


def _surprise(error: BaseException | None) -> Ending:
    event(logging.ERROR, "runner_broken", error=error)
    return Ending(Outcome.FAILED, Failure.BAD_ANSWER, error=f"{type(error).__name__}: {error}")


def _stuck() -> Ending:
    return Ending(Outcome.TIMEOUT, Failure.TIMEOUT, error="did not end, not even when it was told to")


def _replan_all(turn: Turn) -> None:
    for standing in duequeue.everything(turn.db):
        planning.replan(turn, standing, standing)
