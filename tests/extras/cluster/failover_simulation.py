"""Fails over to a standby of PostgreSQL that lacks the last seconds, and compares what agents did with what the records say."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psycopg
from cluster_comparison import BeatProgram
from cluster_faults import WORKERS, FaultyCluster, call_of
from cluster_processes import Cluster
from patience import PATIENCE
from servers.postgres import PostgresServer
from servers.postgres_proxy import PostgresProxy

EVERY, SLOW_EVERY, WORK, SLOW_WORK = 3, 20, 0.1, 4.0  # seconds
ALLOWED_SILENCE = 60.0  # seconds, in addition to an agent's interval
LEASE = 6  # seconds
RUNS = "select id, owner, name, trigger, slot, attempt, outcome from heartbeatd.run where trigger in ('interval', 'every')"

Run = tuple[str, str, int]  # the name, the trigger and the slot


@dataclass
class FailoverResult:
    """`silent`: agents that did nothing for too long. `undeclared`: runs that began twice, and whose record does not say so."""

    beats: int = 0
    silent: list[str] = field(default_factory=list)
    undeclared: list[str] = field(default_factory=list)
    repeated_commands: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # beats whose run is in no record
    waits: list[float] = field(default_factory=list)  # the longest silence of an agent after each failover, less its interval
    counted: Counter[str] = field(default_factory=Counter)

    @property
    def is_good(self) -> bool:
        """Whether no agent stayed silent, and each repeated run says so."""
        return not (self.silent or self.undeclared or self.repeated_commands or self.unknown)


class FailoverSimulation(FaultyCluster):
    """`FailoverSimulation(folder, remote=True).play(10)` fails over ten times with runs on workers; else they run on the leader."""

    def __init__(
        self, folder: Path, *, remote: bool, agents: int = 12, slow: int = 12, jobs: int = 4, behind: float = 5.0
    ) -> None:
        quick = {f"quick{number}": EVERY for number in range(agents)}
        super().__init__(
            folder, 0, WORK, quick | {f"slow{number}": SLOW_EVERY for number in range(slow)},
            {f"job{number}": EVERY for number in range(jobs)},
        )  # fmt: skip
        self._remote, self._behind = remote, behind
        (folder / "slow").mkdir()
        self._slow_program = BeatProgram(folder / "slow")
        self._slow_path = self._slow_program.write(SLOW_WORK)
        self._snapshots: list[tuple[float, dict[int, tuple[str, Run]]]] = []  # at each failover, the runs by ID, with their owner

    def play(self, failovers: int, rest: float = 15.0, report: Callable[[str], None] = print) -> FailoverResult:
        """Fail over so often, and compare. Between two failovers are `rest` seconds with all agents running."""
        with ExitStack() as stack:
            primary = stack.enter_context(closing(PostgresServer(wal_keep_size="64MB"))).start()
            proxy = stack.enter_context(PostgresProxy(primary.database()))
            yaml = self.config(
                lambda name: call_of(self._slow_path, name) if name.startswith("slow") else None, deliver="log", state=proxy.dsn,
                host="scheduler", executor=WORKERS.format(dsn=proxy.dsn, lease=LEASE) if self._remote else "", url="http://127.0.0.1:9/",
            )  # fmt: skip
            cluster = stack.enter_context(Cluster(self.folder, yaml, proxy.dsn, shows_logs=False))
            cluster.start("run")
            for number in range(2 if self._remote else 0):
                cluster.start("worker", "--name", f"w{number}", folder=self.folder / f"worker{number}")
            self._wait_for_all(time.time())
            for number in range(failovers):
                time.sleep(rest)
                standby = stack.enter_context(closing(primary.standby()))
                time.sleep(self._behind)
                proxy.cut_off()
                self._keep_snapshot(primary.dsn_of(proxy.database))
                primary.kill()
                standby.promote()
                proxy.lead_to(standby)
                proxy.listen()
                cut_at = time.time()
                self._wait_for_all(cut_at)
                report(f"failover {number + 1}: all agents ran again after {time.time() - cut_at:.1f} s")
                primary = standby
            time.sleep(rest)
            proxy.cut_off()
            self._keep_snapshot(primary.dsn_of(proxy.database))
            return self._compare(primary.dsn_of(proxy.database))

    def _beats(self) -> dict[str, list[tuple[float, str]]]:
        """When each agent and job began a run, with the mark of the run."""
        found: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for program in (self.program, self._slow_program):
            for line in program.marks.read_text("utf-8").splitlines() if program.marks.exists() else ():
                word, name, mark, _, at, *_ = line.split(" ", 6)
                if word == "begin":
                    found[name].append((float(at), mark))
        return {name: sorted(beats) for name, beats in found.items()}

    def _wait_for_all(self, since: float) -> None:
        """Wait until each agent has begun a run after this time. One that stays silent is found by the comparison."""
        deadline = time.monotonic() + PATIENCE
        while any(not beats or beats[-1][0] <= since for beats in ({name: [] for name in self._agents} | self._beats()).values()):
            if time.monotonic() > deadline:
                return
            time.sleep(0.2)

    def _keep_snapshot(self, dsn: str) -> None:
        with psycopg.connect(dsn) as db:
            rows = db.execute(RUNS).fetchall()
        self._snapshots.append((time.time(), {row[0]: (row[1], (row[2], row[3], row[4])) for row in rows}))

    def _compare(self, dsn: str) -> FailoverResult:
        found = FailoverResult()
        with psycopg.connect(dsn) as db:
            said = {(row[2], row[3], row[4]): row[5] > 1 or row[6] == "abandoned" for row in db.execute(RUNS)}
            found.counted["commands recorded as abandoned"] = db.execute(
                "select count(*) from heartbeatd.run where kind = 'cron' and outcome = 'abandoned'"
            ).fetchone()[0]  # type: ignore[index]
        begun: dict[Run, int] = Counter()
        end = self._snapshots[-1][0]
        for name, beats in self._beats().items():
            found.beats += len(beats)
            for at, mark in beats:
                run = self._run_of(name, at, mark)
                if run is None:
                    found.unknown.append(f"{name} at {at:.1f}: {mark}")
                else:
                    begun[run] += 1
            if name in self._jobs:
                continue
            for (before, _), (after, _) in pairwise([*beats, (end, "")]):
                if after - before > self._agents[name] + ALLOWED_SILENCE:
                    found.silent.append(f"{name} for {after - before:.0f} s")
            for cut_at, _ in self._snapshots[:-1]:
                following = [at for at, _ in beats if at > cut_at]
                found.waits.append((following[0] if following else end) - cut_at - self._agents[name])
        for run, times in begun.items():
            if times > 1 and run[1] == "every":
                found.repeated_commands.append(f"{run}: {times} times")
            elif times > 1:
                found.counted["repeated runs that say so"] += 1
                if not said.get(run):
                    found.undeclared.append(f"{run}: {times} times")
        return found

    def _run_of(self, name: str, at: float, mark: str) -> Run | None:
        """The run of a beat. After a failover, its ID may be that of another run."""
        owner, _, number = mark.rpartition("/")
        candidates = [runs.get(int(number)) for _, runs in self._snapshots]
        exact = [each[1] for each in candidates if each is not None and each[0] == owner and each[1][0] == name]
        ended = [cut_at for cut_at, _ in self._snapshots]
        first = next((place for place, cut_at in enumerate(ended) if at <= cut_at), len(ended) - 1)
        later = [each[1] for each in candidates[first:] if each is not None and each[1][0] == name]  # taken over since
        return next(iter([*exact, *later]), None)
