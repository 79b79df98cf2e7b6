"""What the simulations of a cluster share: its config, its faults, and the comparison of its records with what agents did."""

from __future__ import annotations

import pickle
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from cluster_comparison import Beat, BeatProgram, Comparison, Fault, Message, lease_losses_without_a_fault
from psycopg.rows import dict_row

PATIENCE = 120.0  # seconds
REST = 900.0  # seconds; a message whose delivery was uncertain several times waits for some minutes
CONFIG = """\
state: {state}
host: {host}
server: {{listen: "127.0.0.1:0"}}
history: {{keep: 30d, runs: 1000000}}
limits: {{concurrency: 100, min_interval: 0s}}
network: {{proxy: none}}
{executor}
channels: {{hook: {{kind: webhook, url: "{url}", allow_private: true}}}}
defaults: {{heartbeat: {{stagger: 100%, checklist: "- look\\n", deliver: {deliver}, timeout: 30s, dedup: {{window: 0s}}}}}}
agents:
{agents}
cron:
{jobs}
"""
WORKERS = "executor: {{kind: procrastinate, dsn: '{dsn}', lease: {lease}s}}"
AGENT = "  {name}: {{runner: {runner}, heartbeat: {{interval: {every}s}}}}"
JOB = "  {name}: {{every: {every}s, command: [perl, {program}, {name}], deliver: {deliver}}}"


def call_of(program: Path, name: str) -> str:
    """The runner of an agent that is a `BeatProgram`."""
    return f"{{kind: command, argv: [perl, {program}, {name}]}}"


class FaultyCluster:
    """A cluster in which things are broken at random. `counted` has the numbers of the faults.

    The tests reach the database of the scheduler at `state`: the address of a server, or a file.
    """

    state: str

    def __init__(self, folder: Path, seed: int, work: float, agents: Mapping[str, float], jobs: Mapping[str, float]) -> None:
        """The agents and the jobs with their seconds from one slot to the next. Each beat takes `work` seconds."""
        self.folder = folder
        self.chance = random.Random(seed)
        self.counted: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self.own_losses: list[Fault] = []  # of the lease, which none of the faults has caused
        self._agents, self._jobs = agents, jobs
        self.program = BeatProgram(folder)
        self._path = self.program.write(work)

    def config(self, runner: Callable[[str], str | None] = lambda _: None, deliver: str = "hook", **values: str) -> str:
        """The config of a host. An agent without a `runner` is called as a program."""
        agents = (
            AGENT.format(name=name, every=every, runner=runner(name) or call_of(self._path, name))
            for name, every in self._agents.items()
        )
        jobs = (JOB.format(name=name, every=every, program=self._path, deliver=deliver) for name, every in self._jobs.items())
        return CONFIG.format(agents="\n".join(agents), jobs="\n".join(jobs), deliver=deliver, **values)

    @contextmanager
    def fault(self, kind: str, host: str | None) -> Iterator[Fault]:
        """A fault that lasts as long as the context."""
        fault = Fault(time.time(), float("inf"), kind, host)
        self.faults.append(fault)
        self.counted[kind] += 1
        yield fault
        fault.end = time.time()

    def rows(self, table: str, where: str = "true") -> list[dict[str, Any]]:
        if self.state.startswith("postgresql:"):
            return self.query(f"select * from heartbeatd.{table} where {where} order by id")
        with closing(sqlite3.connect(f"file:{self.state}?mode=ro", uri=True)) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute(f"select * from {table} where {where} order by id")]

    def query(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of a query to the server."""
        with psycopg.connect(self.state, row_factory=dict_row, autocommit=True) as connection:
            return connection.execute(statement.encode(), values).fetchall()

    def wait_until_at_rest(self) -> None:
        open_rows = {"run": ("running", "waiting"), "outbox": ("pending", "sending", "uncertain")}
        is_at_rest = lambda: not any(self.rows(table, f"state in {states}") for table, states in open_rows.items())  # noqa: E731
        self.wait_until(is_at_rest, "it does not come to rest", REST)

    def wait_until(self, is_true: Callable[[], object], problem: str, seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not is_true():
            assert time.monotonic() < deadline, problem
            time.sleep(0.1)

    def compare(
        self,
        rows: Mapping[str, list[dict[str, Any]]],
        messages: list[Message],
        logs: Mapping[str, Path],
        host_of: Callable[[str, str], str],
        beats: Iterable[Beat] = (),
    ) -> Comparison:
        """Compare the rows of these tables with `beats`, and with those that programs have recorded. `logs` are the schedulers'."""
        by_programs, overlaps = self.program.read(host_of)
        for host, log in logs.items():
            self.own_losses += lease_losses_without_a_fault(log.read_text("utf-8"), host, self.faults)
        faults, all_beats = self.faults + self.own_losses, [*beats, *by_programs]
        record = rows, all_beats, messages, faults
        (self.folder / "record").write_bytes(pickle.dumps(record))  # to compare again, if it finds something
        every = {**self._agents, **self._jobs}
        found = Comparison(rows["entry"], rows["run"], rows["outbox"], all_beats, messages, faults, every, rows["boot"])
        found.doubled += [f"at the same time: {each}" for each in overlaps]
        return found

    def all_rows(self) -> dict[str, list[dict[str, Any]]]:
        return {table: self.rows(table) for table in ("entry", "run", "outbox", "boot")}
