"""Plays a config on the engine in virtual time. Somebody else answers in place of agents, programs and channels.

Nothing waits: the clock jumps from one due time of the engine to the next, so a month takes seconds. Nothing of the real daemon
is touched: the database is in memory, the files that agents read are copied to a temporary folder, and no program, model or
channel is called.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Generic, Protocol, TypeVar
from uuid import uuid4

from heartbeat.attempt import finish_at_once
from heartbeat.checks import load_checklist
from heartbeat.precheck import NO_WORK
from heartbeat.runners import AgentRequest, Answer, HttpReply, ProcessResult, Resources, Sight
from heartbeat.runners.call_errors import CallError
from heartbeat.spec import Agent, Heartbeat, Source
from scheduler.engine import planning
from scheduler.engine.clock_adjustment import CLOCK_CHANGE_THRESHOLD, ClockReading
from scheduler.engine.delivery import Delivery
from scheduler.engine.tick import Engine, Executors
from scheduler.engine.tick_items import Inbox, Request, Tick
from scheduler.model.entry import Claim
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import Event
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import AttemptResult, Failure, Key, Outcome, Skip
from scheduler.model.settings import Settings
from scheduler.store.boots import Boot
from scheduler.store.database import MemoryStore
from scheduler.store.entries import add_entries, all_entries, change_entry, get_entry
from scheduler.store.transaction import Transaction
from scheduler.work.claimed_attempt import attempt
from scheduler.work.executor import Done
from scheduler.work.plan import make_plan

T = TypeVar("T")
R = TypeVar("R")

MAX_TICKS_AT_ONCE = 50  # without any progress of the clock; more of them mean that the engine never comes to rest


@dataclass
class VirtualClock:
    """The system clock, the monotonic clock, and how long the machine was suspended, all three at the same instant."""

    now: datetime
    monotonic: float = 1000.0
    slept: float = 0.0

    def advance(self, by: timedelta) -> None:
        """Let time pass on both clocks."""
        self.now += by
        self.monotonic += by.total_seconds()

    def read(self) -> ClockReading:
        """What the engine gets at each tick."""
        return ClockReading(self.now, self.monotonic, self.slept)


class VirtualExecutor(Generic[T, R]):
    """An `Executor` in virtual time. `execute` returns the result of a task, or its exception, and how long the task takes.

    The task is executed when it is submitted, and its result is handed out once that time has passed. `cancelled` makes the
    result of a task that the engine cancels from its own result and the reason.
    """

    def __init__(
        self,
        clock: VirtualClock,
        execute: Callable[[T], tuple[R | BaseException, timedelta]],
        cancelled: Callable[[R | BaseException, str], R | BaseException] = lambda result, _: result,
    ) -> None:
        self.cancelled_result = cancelled
        self._clock = clock
        self._execute = execute
        self._tasks: dict[int, tuple[Done[T, R], datetime]] = {}

    def submit(self, number: int, task: T) -> None:
        result, duration = self._execute(task)
        self._tasks[number] = (self.done_with(task, result), self._clock.now + duration)

    def results(self) -> list[tuple[int, Done[T, R]]]:
        return [(number, done) for number, (done, ends) in self._tasks.items() if ends <= self._clock.now]

    def ack(self, numbers: list[int]) -> None:
        for number in numbers:
            self._tasks.pop(number, None)

    def inflight(self) -> dict[int, T]:
        return {number: done.task for number, (done, ends) in self._tasks.items() if ends > self._clock.now}

    def cancel(self, number: int, why: str) -> None:
        if number in self._tasks:
            done, _ = self._tasks[number]
            outcome = done.exception or done.result
            assert outcome is not None
            result = self.cancelled_result(outcome, why)
            self._tasks[number] = (self.done_with(done.task, result), self._clock.now)

    def give_up(self, number: int, done: Done[T, R]) -> None:
        self._tasks[number] = (done, self._clock.now)

    def next_end(self) -> datetime | None:
        """When the next task ends; None if there is none."""
        return min([ends for _, ends in self._tasks.values()], default=None)

    def done_with(self, task: T, result: R | BaseException) -> Done[T, R]:
        """A task that has ended with this result, or with this exception."""
        return Done(task, None, result) if isinstance(result, BaseException) else Done(task, result)


@dataclass
class VirtualDaemon:
    """An engine with its clock and its executors: the main loop of the daemon in virtual time."""

    engine: Engine
    clock: VirtualClock
    runs: VirtualExecutor[Claim, AttemptResult]
    deliveries: VirtualExecutor[Delivery, DeliveryResult]

    def run_until(self, end: datetime) -> None:
        """Let time pass, with a tick whenever one is due or a task ends, and settle at the end."""
        clock = self.clock
        while True:
            again_at = self.engine.tick(clock.read())
            ran, sent = self.runs.next_end(), self.deliveries.next_end()
            following = max(min(again_at, ran or again_at, sent or again_at), clock.now)
            if following >= end:
                break
            if following == clock.now and ran is None and sent is None:
                following += timedelta(milliseconds=1)
            clock.advance(following - clock.now)
        clock.advance(end - clock.now)
        self.settle()

    def settle(self) -> None:
        """Tick until nothing more happens at the current time. Raises RuntimeError if that never ends."""
        for _ in range(MAX_TICKS_AT_ONCE):
            again_at = self.engine.tick(self.clock.read())
            if again_at > self.clock.now and not self.runs.results() and not self.deliveries.results():
                return
        raise RuntimeError("the engine does not settle")


NO_TIME = timedelta()
LANE_TAKEN = "another run of this agent"
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
MAX_COPIED = 1024 * 1024  # bytes of a file that an agent reads; a larger one does not fit into any prompt
Attempt = Callable[[Claim], AttemptResult]
Spec = TypeVar("Spec", bound=Agent)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """An empty folder, which is removed at the end, and before SIGTERM or SIGHUP ends the process. For the main thread only."""
    is_removing = False

    def leave(number: int, _: object) -> None:
        if not is_removing:
            raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in ENDING_SIGNALS if signal.getsignal(number) != signal.SIG_IGN}
    folder = Path(gettempdir(), f"heartbeatd-{uuid4().hex}")
    try:  # a TemporaryDirectory stays if a signal comes while it is created or removed
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        is_removing = True  # from now on, `leave` ignores signals
        shutil.rmtree(folder, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


class Outside(Protocol):
    """What is not the daemon: agents, programs and channels."""

    def attempt(self, claim: Claim, carry_out: Attempt) -> tuple[AttemptResult, timedelta]:
        """The result of an attempt and how long it takes. `carry_out` carries a claim out, and calls the methods below."""

    def call_agent(self, claim: Claim, request: AgentRequest) -> Answer:
        """The answer of the agent, or of the model that decides."""

    def run_program(self, claim: Claim, *, is_precheck: bool) -> ProcessResult:
        """How the precheck, or the command of a job, ends."""

    def send(self, delivery: Delivery) -> DeliveryResult:
        """Whether a message arrives."""


def record_passed_slots(tick: Tick) -> None:
    """Record the slots of all entries that have passed by now. Otherwise those of closed hours wait for their end."""
    for row in all_entries(tick.tx.db):
        change_entry(tick.tx, row, planning.record_passed_slots(tick, row, Skip.MISSED))


def start_when_first_seen(tick: Tick, key: Key) -> None:
    """Start the run of a new agent at once, as `run --once` does."""
    row = get_entry(tick.tx, *key)
    change_entry(tick.tx, row, row._replace(slot=row.first_seen_at, due_at=tick.now, last_slot=None))


class _NoHttp:
    """No request leaves: every call is answered by `Outside`."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> HttpReply:
        raise CallError(Failure.CONNECT, "no request is sent here")


NO_HTTP = _NoHttp()


class _ProgramsOfClaim:
    """The programs of one attempt."""

    def __init__(self, claim: Claim, outside: Outside) -> None:
        self._claim = claim
        self._outside = outside

    async def start(self, argv: Sequence[str], *, timeout: timedelta | None = None, **_: object) -> ProcessResult:
        return self._outside.run_program(self._claim, is_precheck=timeout is not None)  # a job's command has no limit of its own

    async def look(self, source: Source, *_: object, **__: object) -> Sight:
        """The news that the precheck finds. No source is opened."""
        process = self._outside.run_program(self._claim, is_precheck=True)
        if process.exit_code:
            raise CallError(Failure.SERVER, process.error_text)
        state = json.dumps({"source": source.identity})
        return Sight(process.output_text, state, has_news=process.output_text != NO_WORK)


class Playback:
    """A daemon in virtual time over a temporary database, from `start` on.

    `known` are entry rows of an earlier database: an entry keeps the schedule from there, so that its slots are the same.
    `listen` gets each event with its time. `folder` is a temporary folder.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        start: datetime,
        outside: Outside,
        listen: Callable[[datetime, Event], None],
        *,
        seed: int = 0,
        known: Iterable[EntryRow] = (),
    ) -> None:
        self.clock = VirtualClock(start)
        self.settings = copy_into(settings, folder)
        self._plan = make_plan(self.settings)
        self.entries = self._plan.entries
        self._store = MemoryStore()
        self._outside = outside
        self._listen = listen
        self._chance = random.Random(seed)  # noqa: S311 (spreads retries)
        self._boots = 0
        self._adopt(known)
        self._boot()

    def _adopt(self, known: Iterable[EntryRow]) -> None:
        with self._store.transaction() as db:
            tx = Transaction(db, self.clock.now, "before", self.settings.hash)
            # The start enables them, as a reload does: they keep their anchor, or a changed interval counts from the last run.
            # The clock was not set back because an entry is first seen later.
            latest = tx.now + CLOCK_CHANGE_THRESHOLD
            rows = [
                EntryRow(
                    0, row.kind, row.name, "disabled", row.schedule_text,
                    row.first_seen_at if row.first_seen_at < latest else tx.now, row.anchor, tx.now,
                    slot=None, due_at=None, last_slot=row.last_slot,
                )
                for row in known
                if (row.kind, row.name) in self._plan.entries
            ]  # fmt: skip
            add_entries(tx, rows)

    def _boot(self) -> None:
        self._boots += 1
        name = f"boot{self._boots}"
        self._inbox = Inbox(lambda: None)
        self._runs = VirtualExecutor(self.clock, self._execute, _cancelled)
        deliveries: VirtualExecutor[Delivery, DeliveryResult] = VirtualExecutor(
            self.clock, lambda delivery: (self._outside.send(delivery), NO_TIME)
        )
        self.engine = Engine(
            self._store, self._plan, Executors(self._runs, deliveries), self._inbox,
            [lambda event: self._listen(self.clock.now, event)], name, self._chance,
        )  # fmt: skip
        self._daemon = VirtualDaemon(self.engine, self.clock, self._runs, deliveries)
        self.engine.start_boot(self.clock.read(), Boot(name, self._boots, "0", "0"), {})

    def run_until(self, end: datetime) -> None:
        """Let time pass. Raises RuntimeError after an internal error of the engine: the figures would be wrong."""
        self._daemon.run_until(end)
        if broken := [part for part, count in self.engine.health.internal_errors.items() if count]:
            raise RuntimeError(f"internal error of the engine in {', '.join(broken)}; see the messages above")

    def be_down_until(self, end: datetime) -> None:
        """Stop the daemon as by kill -9, and start it again at `end`."""
        self.clock.advance(end - self.clock.now)
        self._boot()

    def request(self, request: Request) -> None:
        """Submit a request. A refusal is its answer, and has no effect."""
        self._inbox.submit(request)
        self._daemon.settle()

    @property
    def connection(self) -> sqlite3.Connection:
        """The temporary database."""
        return self._store.connection

    def close(self) -> None:
        """Forget the database."""
        self._store.close()

    def _execute(self, claim: Claim) -> tuple[AttemptResult, timedelta]:
        lane = claim.entry.lane
        if lane is not None and lane in [other.entry.lane for other in self._runs.inflight().values()]:
            claim = claim.blocked_by(Skip.BUSY, LANE_TAKEN)
        programs, agent = _ProgramsOfClaim(claim, self._outside), partial(self._outside.call_agent, claim)
        resources = Resources(programs.start, NO_HTTP, look=programs.look, own_agent=agent, may_block=True)
        return self._outside.attempt(claim, lambda claim: finish_at_once(attempt(claim, resources, lambda: NO_TIME)))


def _cancelled(_: AttemptResult | BaseException, why: str) -> AttemptResult:
    """The result of an attempt that the engine ends, for example after its timeout."""
    return AttemptResult(Outcome.TIMEOUT if why == "timeout" else Outcome.FAILED, Failure.TIMEOUT, error=why, transient=True)


def copy_into(settings: Settings, folder: Path) -> Settings:
    """The settings with workspaces in a temporary folder, which get copies of the files that agents read.

    A checklist that can be read becomes a part of its agent's settings: nobody changes it, so no run needs to read it again.
    Messages have no buttons, runs are executed here, and no postcheck looks at the files of the machine.
    """
    heartbeats = {
        name: replace(_moved(beat, folder / "agents" / name), postcheck=None) for name, beat in settings.heartbeats.items()
    }
    job_agents = {name: _moved(agent, folder / "jobs" / name) for name, agent in settings.job_agents.items()}
    jobs = {name: replace(job, postcheck=None) for name, job in settings.jobs.items()}
    channels = {name: replace(channel, buttons=False) for name, channel in settings.channels.items()}
    return replace(
        settings,
        heartbeats=heartbeats,
        jobs=jobs,
        job_agents=job_agents,
        channels=channels,
        remote=None,
        postgresql=None,
        deadman=None,
    )


def _moved(spec: Spec, workspace: Path) -> Spec:
    names = list(spec.context)
    workspace.mkdir(parents=True)
    if isinstance(spec, Heartbeat):
        names += spec.memory
        checklist = load_checklist(spec)
        if not isinstance(checklist, Skip):
            spec = replace(spec, checklist=f"{checklist}\n")
        else:
            names.append(spec.checklist)
    for name in names:
        source, target = spec.workspace / name, workspace / name
        with suppress(OSError):  # what cannot be read here cannot be read by the daemon either
            if source.is_file() and source.stat().st_size <= MAX_COPIED:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
    return replace(spec, workspace=workspace)
