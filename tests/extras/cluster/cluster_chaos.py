"""Kills and freezes the scheduler, the workers and PostgreSQL of a cluster at random, and compares what is recorded with what happened."""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import psycopg
from cluster_comparison import BeatProgram, Comparison, Fault, Message, lease_losses_without_a_fault
from cluster_processes import Cluster
from psycopg.rows import dict_row
from servers.postgres import PostgresServer
from servers.scripted import Request, Server, reply
from warm_start import Heartbeatd

PATIENCE = 120.0  # seconds
REST = 900.0  # seconds; a message whose delivery was uncertain several times waits for some minutes
LEASE = 4  # seconds
CONFIG = """\
state: {state}
server: {{listen: "127.0.0.1:0"}}
history: {{keep: 30d, runs: 1000000}}
limits: {{concurrency: 50}}
executor: {{kind: procrastinate, dsn: "${{DSN}}", lease: {lease}s}}
channels: {{hook: {{kind: webhook, url: "{url}", allow_private: true}}}}
defaults: {{heartbeat: {{stagger: 100%, checklist: "- look\\n", deliver: hook, timeout: 30s, dedup: {{window: 0s}}}}}}
agents:
{agents}
cron:
{jobs}
"""
AGENT = "  {name}: {{runner: {{kind: command, argv: [perl, {program}, {name}]}}, heartbeat: {{interval: {every}s}}}}"
JOB = "  {name}: {{every: {every}s, command: [perl, {program}, {name}], deliver: hook}}"

State = Literal["sqlite", "postgresql"]


class _Receiver(Server):
    """Notes when each message arrives."""

    def __init__(self) -> None:
        super().__init__([reply()])
        self.messages: list[Message] = []

    def _next(self, request: Request) -> Any:
        self.messages.append(Message(request.headers["idempotency-key"], request.body, "scheduler", time.time()))
        return super()._next(request)


class ClusterChaos:
    """`ClusterChaos(folder, seed).play(seconds)`; then `comparison` has what was lost and what was repeated without a cause.

    `state` is where the scheduler keeps its state. `counted` has the numbers of the faults.
    """

    comparison: Comparison

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        agents: int = 8,
        jobs: int = 4,
        workers: int = 3,
        every: int = 2,
        state: State = "sqlite",
    ) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.counted: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self._workers = workers
        # Every second agent has time to repeat a run whose worker is lost.
        self._agents = {f"a{number}": every * (1 if number % 2 else 10) for number in range(agents)}
        self._jobs = {f"j{number}": every for number in range(jobs)}
        self._state: State = state
        self._program = BeatProgram(folder)
        self._left = ""

    def play(self, seconds: float) -> Comparison:
        """Break something every second or two for some time. Then let everything come to rest, and compare."""
        program = self._program.write(0.2)
        database = PostgresServer(fsync="on")
        try:
            with _Receiver() as server:
                self._dsn = database.start().database()
                each = {"program": f"'{program}'"}
                yaml = CONFIG.format(
                    url=server.url, lease=LEASE, state="state/h.db" if self._state == "sqlite" else self._dsn,
                    agents="\n".join(AGENT.format(name=name, every=every, **each) for name, every in self._agents.items()),
                    jobs="\n".join(JOB.format(name=name, every=every, **each) for name, every in self._jobs.items()),
                )  # fmt: skip
                with Cluster(self.folder, yaml, self._dsn, shows_logs=False) as cluster:
                    self._break_things(cluster, database, seconds)
                rows = {table: self._rows(table) for table in ("entry", "run", "outbox", "boot")}
        finally:
            database.close()
        beats, overlaps = self._program.read(self._host_of)
        every = {**self._agents, **self._jobs}
        losses = lease_losses_without_a_fault((self.folder / "run.log").read_text("utf-8"), "scheduler", self.faults)
        self.counted["losses of the lease without a fault"] += len(losses)
        self.faults += losses
        self.comparison = Comparison(
            rows["entry"], rows["run"], rows["outbox"], beats, server.messages, self.faults, every, rows["boot"]
        )
        self.comparison.doubled += [f"at the same time: {each}" for each in overlaps]
        if self._left != "00":
            self.comparison.lost.append(f"jobs and results left in the queue: {self._left}")
        return self.comparison

    def _break_things(self, cluster: Cluster, database: PostgresServer, seconds: float) -> None:
        scheduler = cluster.start("run")
        crew = [self._start_worker(cluster, number) for number in range(self._workers)]
        _wait_until(self._program.marks.exists)
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(self.chance.uniform(0.5, 2.5))
            number = self.chance.randrange(self._workers)
            what = self.chance.choice(("scheduler", "worker", "worker", "freeze", "database"))
            host = {"scheduler": "scheduler", "database": None}.get(what, f"worker{number}")
            fault = Fault(time.time(), float("inf"), what, host)
            self.faults.append(fault)
            match what:
                case "scheduler":
                    _kill(scheduler)
                    scheduler = cluster.start("run")
                    self.counted["kills of the scheduler"] += 1
                case "worker":
                    _kill(crew[number])
                    crew[number] = self._start_worker(cluster, number)
                    self.counted["kills of a worker"] += 1
                case "freeze":
                    crew[number].send_signal(signal.SIGSTOP)
                    time.sleep(self.chance.uniform(0.5, 2 * LEASE))
                    crew[number].send_signal(signal.SIGCONT)
                    self.counted["freezes of a worker"] += 1
                case "database":
                    database.kill()
                    time.sleep(self.chance.uniform(0.0, 2.0))
                    database.start()
                    self.counted["kills of PostgreSQL"] += 1
            fault.end = time.time()
        _wait_until(lambda: "paused" in cluster.call("pause", "--all"))
        _wait_until(self._is_at_rest, REST)
        scheduler.send_signal(signal.SIGTERM)
        scheduler.wait(timeout=PATIENCE)
        self._left = cluster.query("select count(*) from procrastinate_jobs") + cluster.query(
            "select count(*) from heartbeatd_attempt"
        )

    def _start_worker(self, cluster: Cluster, number: int) -> Heartbeatd:
        return cluster.start("worker", "--name", f"w{number}", folder=self.folder / f"worker{number}")

    def _host_of(self, _: str, cwd: str) -> str:
        return next(part for part in Path(cwd).parts if part.startswith("worker"))

    def _rows(self, table: str, where: str = "true") -> list[dict[str, Any]]:
        if self._state == "postgresql":
            with psycopg.connect(self._dsn, row_factory=dict_row, autocommit=True) as connection:
                return connection.execute(f"select * from heartbeatd.{table} where {where} order by id".encode()).fetchall()
        with closing(sqlite3.connect(f"file:{self.folder}/state/h.db?mode=ro", uri=True)) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute(f"select * from {table} where {where} order by id")]

    def _is_at_rest(self) -> bool:
        runs = self._rows("run", "state in ('running', 'waiting')")
        return not runs and not self._rows("outbox", "state in ('pending', 'sending', 'uncertain')")


def _kill(process: Heartbeatd) -> None:
    process.kill()
    process.wait(timeout=PATIENCE)


def _wait_until(is_true: object, seconds: float = PATIENCE) -> None:
    assert callable(is_true)
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.1)
