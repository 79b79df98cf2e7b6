"""The world of end-to-end tests: the real engine and a real database, with simulated clocks, agents and channels."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

from run_async import with_http
from servers.postgres import delete_all_rows

from heartbeat.runners import HttpClient as HttpSender
from heartbeat.runners import ProcessResult, Resources
from heartbeatd.verbs import Pause, Resume, RunJob, Wake
from scheduler.config.settings.load import load_config
from scheduler.config.settings.time_checks import TimeCheck
from scheduler.engine import delivery
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.plan_sync import adopt_plan
from scheduler.engine.tick import Engine, Executors
from scheduler.engine.tick_items import Inbox, Request
from scheduler.foresight.playback import VirtualClock as Clock
from scheduler.foresight.playback import VirtualDaemon, VirtualExecutor
from scheduler.model.entry import Claim
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import Event
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import AttemptResult, Kind, Trigger
from scheduler.model.problem import Problem
from scheduler.store import boots, entries, problems, run_history
from scheduler.store.boots import Boot
from scheduler.store.database import Store
from scheduler.store.locations import open_for_writing, open_read_only
from scheduler.store.run_history import RunFilter
from scheduler.store.transaction import Transaction
from scheduler.system import lanes
from scheduler.system.process import Children
from scheduler.work import plan
from scheduler.work.claimed_attempt import attempt
from scheduler.work.executor import Done
from scheduler.work.run_extras import ModelTools
from scheduler.work.sources import SourceReader

QUIET = "HEARTBEAT_OK"
LOOP = asyncio.new_event_loop()
ON_SERVER = os.environ.get("HEARTBEATD_TEST_STORE") == "postgresql"  # the database of each test is on a server
THROUGH_PAYLOADS = os.environ.get("HEARTBEATD_TEST_PAYLOADS") == "1"  # for all stories, with the tests `-k story`
E = TypeVar("E")


def utc(text: str) -> datetime:
    """The time in UTC given as `2026-03-02 08:00[:00]`."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def add_entry_row(tx: Transaction, kind: Kind, name: str) -> EntryRow:
    """Add an active entry that is first seen now, and for which nothing is planned."""
    entries.add_entries(tx, [EntryRow(0, kind, name, "active", "{}", tx.now, tx.now, tx.now, None, None)])
    return entries.get_entry(tx, kind, name)


@dataclass
class AgentCall:
    """One start of an agent, a command or a precheck: when (by both clocks), the entry, and its input."""

    at: datetime
    name: str
    stdin: str
    env: Mapping[str, object]
    monotonic: float = 0.0
    argv: Sequence[str] = ()


@dataclass
class Delayed:
    """An answer of a script that takes some time."""

    answer: Any
    delay: timedelta


Script = Callable[[AgentCall], Any]


class TestExecutor(VirtualExecutor[Any, Any]):
    """A virtual executor whose tasks and results may pass through JSON, and may be said to be executed by a worker."""

    __test__ = False

    def __init__(self, clock: Clock, execute: Callable[[Any], tuple[Any, timedelta]]) -> None:
        super().__init__(clock, execute, _cancelled_result)
        self.can_cancel = True
        self.carry_over: Any = None  # the codec through which tasks and results pass, as between machines
        self.worker: str | None = None  # that is said to have executed the tasks

    def submit(self, number: int, task: Any) -> None:
        super().submit(number, task if self.carry_over is None else self.carry_over.read_task(self.carry_over.write_task(task)))

    def done_with(self, task: Any, result: Any) -> Done[Any, Any]:
        done = super().done_with(task, result)
        return done if self.carry_over is None else self.carry_over.read_done(task, self.carry_over.write_done(done))

    def results(self) -> list[tuple[int, Done[Any, Any]]]:
        return [(number, replace(done, worker=self.worker)) for number, done in super().results()]

    def cancel(self, number: int, why: str) -> None:
        if self.can_cancel:
            super().cancel(number, why)


def _cancelled_result(result: Any, why: str) -> Any:
    """The result that a runner gives for a cancelled process."""
    from scheduler.model.outcome import Failure, Outcome

    return AttemptResult(Outcome.TIMEOUT if why == "timeout" else Outcome.FAILED, Failure.TIMEOUT, error=why, transient=True)


@dataclass
class World:
    """`World(tmp_path, yaml)`, then `run(minutes=6)` and compare `history()`, `calls` and `delivered`.

    Without a script an agent answers HEARTBEAT_OK, and a command succeeds without output. A script returns a text, an exit code
    (an int other than 0), a `ProcessResult`, a `Delayed`, or an exception to raise.
    """

    folder: Path
    yaml: str
    start: str = "2026-03-02 08:00"
    scripts: dict[str, Script] = field(default_factory=dict)
    prechecks: dict[str, Script] = field(default_factory=dict)
    postchecks: dict[str, Script] = field(default_factory=dict)
    send: Callable[[Delivery], DeliveryResult | Delayed] = lambda _: DeliveryResult("delivered")
    environ: dict[str, str] = field(default_factory=dict)
    reserve: int = 4096  # bytes; hardly any test needs the full reserve
    capacity: Callable[[int], int] = lambda wanted: wanted  # from wanted runs to the number that the system has resources for
    durations: dict[str, timedelta] = field(default_factory=dict)  # of each attempt, by entry name
    listeners: tuple[Callable[[Event], None], ...] = ()  # get every event of the engine
    server: str | None = None  # the address of an empty PostgreSQL database, which is then used instead of a file
    http: HttpSender | None = None  # gets the requests to models and agents, in place of a real client
    through_payloads: bool = THROUGH_PAYLOADS  # each run and its result pass through JSON, as between machines

    def __post_init__(self) -> None:
        self.clock = Clock(utc(self.start))
        self.calls: list[AgentCall] = []
        self.precheck_calls: list[AgentCall] = []
        self.delivered: list[tuple[datetime, str, str]] = []
        self.events: list[Event] = []
        self.config = self.folder / "config.yaml"
        self.write_config(self.yaml)
        self.state = self.folder / "state" / "heartbeatd.db"
        self.state.parent.mkdir(mode=0o700, exist_ok=True)
        self.boot_count = 0
        self.boot()

    def boot(
        self,
        *,
        at_once: bool = False,
        runs: TestExecutor | None = None,
        survivors: Mapping[str, bool] | None = None,
        tzdata: str = "0",
        may_lack_commits: bool = False,
    ) -> None:
        """Start the daemon on the same database. `runs`: workers have gone on with the runs of the last boot."""
        self.boot_count += 1
        self.store = self.open_store()
        self.inbox = Inbox(lambda: None)
        self.runs = runs or TestExecutor(self.clock, self._execute)
        if self.through_payloads:
            from scheduler.extras.cluster.payloads import ClaimCodec  # most worlds need no extra

            self.runs.carry_over = ClaimCodec(lambda: self.engine.plan.entries, self.folder, "worker")
        self.deliveries = TestExecutor(self.clock, self._send)
        self.engine = Engine(
            self.store, self.plan(strict=False), Executors(self.runs, self.deliveries, self.capacity), self.inbox,
            [self.events.append, *self.listeners], f"boot{self.boot_count}", random.Random(7),
        )  # fmt: skip
        boot = Boot(f"boot{self.boot_count}", 4000 + self.boot_count, "0", tzdata)
        self.engine.start_boot(
            self.clock.read(), boot, {} if survivors is None else survivors, at_once=at_once, may_lack_commits=may_lack_commits
        )

    @property
    def database(self) -> Path | str:
        """The file of the database, or its address on a server."""
        return self.server or self.state

    def open_store(self) -> Store:
        """Open the database as the daemon does, also beside it."""
        if self.server:
            return open_for_writing(self.server)
        store = open_store(self.state)
        store.reserve.size = self.reserve
        return store

    def kill(self) -> None:
        """End the daemon as by kill -9: nothing more is recorded."""
        self.store.close()

    def fail_over(self, copy: Path) -> None:
        """Go on with an earlier copy of the database, as after a failover to a standby that was behind."""
        self.kill()
        for file in (self.state, *self.state.parent.glob(f"{self.state.name}-*")):
            file.unlink(missing_ok=True)
        copy.rename(self.state)
        assert self.engine.last_write_at is not None
        last_write = (f"boot{self.boot_count}", self.engine.last_write_at)
        with closing(self.open_store()) as store:
            may_lack = boots.may_lack_commits(store.connection, None, last_write)
        self.boot(may_lack_commits=may_lack)

    def end_runs(self) -> None:
        """Begin to stop the daemon: no run starts any more, and those in progress are interrupted."""
        self.engine.stopping = True
        self.engine.end_all_runs(self.clock.read())
        self.engine.tick(self.clock.read())

    def stop(self) -> None:
        """Stop the daemon in an orderly way."""
        self.engine.finish_boot(self.clock.read())
        self.store.close()

    def sleep(self, **time: float) -> None:
        """Suspend the machine for some time."""
        self.clock.now += timedelta(**time)
        self.clock.slept += timedelta(**time).total_seconds()

    def downtime(self, **time: float) -> None:
        """Kill the daemon, let time pass, and start it again."""
        self.kill()
        self.clock.advance(timedelta(**time))
        self.boot()

    def run(self, **time: float) -> None:
        """Let time pass, with a tick whenever one is due or a task ends."""
        self._daemon.run_until(self.clock.now + timedelta(**time))

    def settle(self) -> None:
        """Tick until nothing more happens at the current time."""
        self._daemon.settle()

    @property
    def _daemon(self) -> VirtualDaemon:
        return VirtualDaemon(self.engine, self.clock, self.runs, self.deliveries)

    def run_until(self, text: str) -> None:
        """Let time pass until a time in UTC."""
        self.run(seconds=(utc(text) - self.clock.now).total_seconds())

    def request(self, request: Request) -> Any:
        """Submit a request, tick, and return its result."""
        future = self.inbox.submit(request)
        self.engine.tick(self.clock.read())
        return future.result(timeout=0)

    def wake(
        self, name: str, text: str = "", *, source: Trigger = Trigger.API, sender: str = "bot", token: str = "",
        cause: str | None = None,
    ) -> int:  # fmt: skip
        return self.request(
            VerbRequest(Wake(text=text), (Kind.HEARTBEAT, name), Sender(sender, source=source, token=token, run=cause))
        ).wake

    def pause(self, key: tuple[str, str] | None, until: datetime | None = None) -> list[str]:
        return self.request(VerbRequest(Pause.of(until=until), key and (Kind(key[0]), key[1]))).paused

    def resume(self, key: tuple[str, str] | None) -> list[str]:
        return self.request(VerbRequest(Resume(), key and (Kind(key[0]), key[1]))).resumed

    def run_job(self, name: str) -> int:
        return self.request(VerbRequest(RunJob(), (Kind.CRON, name))).wake

    def reload(self, yaml: str) -> Any:
        self.write_config(yaml)
        return self.request(partial(adopt_plan, plan=self.plan()))

    def plan(self, *, strict: bool = True) -> plan.Plan:
        """The plan of the current config file. Raises ConfigError if it is invalid, with `strict` also for times that have passed."""
        today = TimeCheck(self.clock.now, lambda _, *job: entries.has_seen_one_time_job(self.database, *job), strict)
        settings = load_config(self.config, self.environ, time_check=today).settings
        return plan.make_plan(replace(settings, postgresql=self.server) if self.server else settings)

    def write_config(self, yaml: str) -> None:
        """Write the config file. If the database is on a server, the last line has its address."""
        self.config.write_text(f"{yaml.rstrip()}\nstate: {self.server}\n" if self.server else yaml, "utf-8")

    @contextmanager
    def locked_database(self) -> Iterator[None]:
        """Lock the database as another process would."""
        self.store.connection.execute("set lock_timeout = 1" if self.server else "pragma busy_timeout = 1")
        with closing(self.open_store()) as other, suppress(_Unlock), other.transaction() as db:
            if self.server:
                db.execute("select 1 from _leader for update")
            yield
            raise _Unlock

    def delete_database(self) -> None:
        """Delete the database of a daemon that does not run. On a server, delete all rows."""
        if self.server:
            delete_all_rows(self.server)
        for file in self.state.parent.glob(f"{self.state.name}*"):
            file.unlink()

    def all_rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """The rows of all tables."""
        with closing(open_read_only(self.database)) as db:
            return all_rows(db)

    @contextmanager
    def traced_statements(self) -> Iterator[list[str]]:
        """The SQL statements that are executed within the block."""
        statements: list[str] = []
        self.store.connection.set_trace_callback(statements.append)
        try:
            yield statements
        finally:
            self.store.connection.set_trace_callback(None)

    def return_unordered_rows_differently(self) -> None:
        """Let statements without `order by` return their rows in another order: reversed, or on a server as they are stored."""
        db = self.store.connection
        if self.server:
            db.execute("set enable_indexscan = off")
            db.execute("set enable_bitmapscan = off")
        else:
            db.execute("pragma reverse_unordered_selects = on")

    def records(self, name: str | None = None, **filters: Any) -> list[dict[str, Any]]:
        """The run records, oldest first."""
        return [
            each.as_data()
            for each in run_history.list_runs(self.store.connection, RunFilter(name=name, **filters), limit=100_000)
        ][::-1]

    def problem(self, key: str, name: str = "ops") -> Problem:
        """What this agent or job has reported or shown under this key: the problem that is open, or else the one that is over."""
        found = [each for each in problems.all_problems(self.store.connection) if (each.subject.name, each.label) == (name, key)]
        return min(found, key=lambda each: each.over_at is not None)

    def events_of(self, kind: type[E]) -> list[E]:
        """The events of one type, oldest first."""
        return [event for event in self.events if isinstance(event, kind)]

    def history(self, name: str | None = None) -> list[str]:
        """The run records as short lines: `03-02 08:30 interval ok heartbeat_ok`, with `x4` for a record of four slots."""
        return [_history_line(row) for row in self.records(name)]

    def write(self, name: str, text: str) -> Path:
        """Write a file below `agents/` and return its path."""
        path = self.folder / "agents" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    def _execute(self, claim: Claim) -> tuple[Any, timedelta]:
        duration = self.durations.get(claim.entry.name, timedelta())
        elapsed = timedelta()

        async def start(
            argv: Sequence[str], *, stdin: bytes, env: Mapping[str, object], cwd: Path, keep: int = 0, keep_tail: bool = False,
            timeout: timedelta | None = None,
        ) -> ProcessResult:  # fmt: skip
            nonlocal duration, elapsed
            call = AgentCall(self.clock.now, claim.entry.name, stdin.decode(), env, self.clock.monotonic, argv)
            check, proof = claim.entry.precheck, claim.entry.spec.postcheck
            if proof is not None and argv[-1] == proof.command:
                return _process_result(self.postchecks[call.name](call))
            if check is not None and argv[-1] == check.command:
                self.precheck_calls.append(call)
                printed = self.prechecks[call.name](call)
                if isinstance(printed, Delayed):
                    elapsed, printed = printed.delay, printed.answer
                return _process_result(printed)
            self.calls.append(call)
            script = self.scripts.get(claim.entry.name)
            answer = script(call) if script else (QUIET if claim.entry.kind == "heartbeat" else "")
            if isinstance(answer, Delayed) and timeout is not None and answer.delay >= timeout:
                elapsed, duration = elapsed + timeout, duration + timeout
                return ProcessResult(None, ended_by="timeout")
            if isinstance(answer, Delayed):
                duration, answer = duration + answer.delay, answer.answer
            return _process_result(answer)

        try:
            with lanes.lanes_beside(self.state).lock_for_claim(claim) as (claim_in_lane, _):

                def carry_out(http: HttpSender) -> Coroutine[Any, Any, Any]:
                    children = Children("world")
                    look = SourceReader(children.start, cast("Any", http), lambda: None)
                    tools = ModelTools(children.converse, http)
                    resources = Resources(start, http, open_tools=tools, look=look, may_block=True)
                    return attempt(claim_in_lane, resources, lambda: elapsed)

                return LOOP.run_until_complete(carry_out(self.http) if self.http else with_http(carry_out)), duration
        except Exception as exception:  # noqa: BLE001 (as an executor does)
            return exception, duration

    def _send(self, outgoing: Delivery) -> tuple[DeliveryResult, timedelta]:
        answer = send_by_transport(outgoing) if outgoing.channel.kind == "log" else self.send(outgoing)
        if isinstance(answer, BaseException):  # as an executor reports it
            return answer, timedelta()
        sent, duration = (answer.answer, answer.delay) if isinstance(answer, Delayed) else (answer, timedelta())
        if sent.state == "delivered":
            self.delivered.append((self.clock.now, outgoing.message.name, outgoing.message.text))
        return sent, duration


MakeWorld = Callable[..., World]  # the fixture `make_world`: make_world(yaml, **fields of World)
DatabaseOf = Callable[[Path], str | None]  # the fixture `database_of`: the field `server` of a World in this folder


def count_steps(db: sqlite3.Connection, query: Callable[[], object]) -> int:
    """How many steps of its virtual machine SQLite takes for a query."""
    steps = count()
    db.set_progress_handler(lambda: next(steps) and 0, 1)
    query()
    db.set_progress_handler(None, 0)
    return next(steps)


def open_store(path: Path) -> Store:
    """Open a database. If there is none, it is a copy of one that this process has created once, which takes 15 times as long."""
    if not path.exists():
        path.touch(mode=0o600)
        path.write_bytes(_new_database())
    store = Store.open(path)
    store.connection.execute("pragma synchronous = off")  # slow, and only needed against power cuts
    return store


@cache
def _new_database() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "new.db"
        Store.open(path).close()
        return path.read_bytes()


class CachingWorld(World):
    """A world that makes the plan of a config text only once, because that takes longer than most steps of a simulation."""

    def __post_init__(self) -> None:
        self.plans: dict[str, plan.Plan] = {}
        super().__post_init__()

    def plan(self, *, strict: bool = True) -> plan.Plan:
        text = self.config.read_text("utf-8")
        if text not in self.plans:
            self.plans[text] = super().plan(strict=strict)
        return self.plans[text]


class _Unlock(Exception):
    """Ends the transaction that locks a database."""


def all_rows(db: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of all tables, in any order."""
    is_file = isinstance(db, sqlite3.Connection)
    names = (
        "select name from sqlite_master where type = 'table' and sql like '%strict%'"
        if is_file
        else "select tablename from pg_tables where schemaname = 'heartbeatd' and left(tablename, 1) <> '_'"
    )
    tables = sorted(row[0] for row in db.execute(names).fetchall())
    return {table: sorted((tuple(row) for row in db.execute(f"select * from {table}").fetchall()), key=str) for table in tables}


def send_by_transport(outgoing: Delivery, now: datetime = datetime(2026, 3, 2, 8, tzinfo=UTC)) -> DeliveryResult:
    """Send a message by the real transport of its channel."""
    return LOOP.run_until_complete(with_http(lambda http: delivery.send_delivery(outgoing, Children("test").start, http, now)))


def _process_result(answer: Any) -> ProcessResult:
    if isinstance(answer, BaseException):
        raise answer
    if isinstance(answer, ProcessResult):
        return answer
    code, text = (answer, "") if isinstance(answer, int) else (0, answer)
    return ProcessResult(code, text.encode())


def _history_line(row: dict[str, Any]) -> str:
    words = [
        row["planned_at"][5:16].replace("T", " "),
        row["trigger"],
        row["result"] or row["state"],
        row["why"],
    ]
    if row["planned_runs"] > 1:
        words.append(f"x{row['planned_runs']}")
    return " ".join(word for word in words if word)


def run_until_crash(begin: Callable[[], World], simulate: Callable[[World], object], statement: int) -> int:
    """Simulate in a child process that exits after this many SQL statements. Returns its exit code: 9, or 0 without a crash."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            world = begin()
            numbers = count(1)

            def trace(_: str) -> None:
                if next(numbers) == statement:
                    os._exit(9)

            world.store.connection.set_trace_callback(trace)
            simulate(world)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
