"""Kills and freezes the scheduler, the workers and PostgreSQL of a cluster at random, and compares what is recorded with what happened."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from cluster_comparison import Comparison, Message
from cluster_faults import PATIENCE, WORKERS, FaultyCluster
from cluster_processes import Cluster
from servers.postgres import PostgresServer
from servers.scripted import Request, Server, reply
from warm_start import Heartbeatd

LEASE = 4  # seconds
SCHEDULER = "scheduler"


class _Receiver(Server):
    """Notes when each message arrives."""

    def __init__(self) -> None:
        super().__init__([reply()])
        self.messages: list[Message] = []

    def _next(self, request: Request) -> Any:
        self.messages.append(Message(request.headers["idempotency-key"], request.body, SCHEDULER, time.time()))
        return super()._next(request)


class ClusterChaos(FaultyCluster):
    """`ClusterChaos(folder, seed).play(seconds)` returns what was lost and what was repeated without a cause.

    `state` is where the scheduler keeps its state.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        agents: int = 8,
        jobs: int = 4,
        workers: int = 3,
        every: int = 2,
        state: Literal["sqlite", "postgresql"] = "sqlite",
    ) -> None:
        # Every second agent has time to repeat a run whose worker is lost.
        slots = {f"a{number}": every * (1 if number % 2 else 10) for number in range(agents)}
        super().__init__(folder, seed, 0.2, slots, {f"j{number}": every for number in range(jobs)})
        self._workers = [f"worker{number}" for number in range(workers)]
        self._kind = state
        self._processes: dict[str, Heartbeatd] = {}

    def play(self, seconds: float) -> Comparison:
        """Break something every second or two for some time. Then let everything come to rest, and compare."""
        with closing(PostgresServer(fsync="on").start()) as database, _Receiver() as receiver:
            dsn = database.database()
            self.state = str(self.folder / "state/h.db") if self._kind == "sqlite" else dsn
            executor = WORKERS.format(dsn=dsn, lease=LEASE)
            yaml = self.config(state=self.state, host=SCHEDULER, executor=executor, url=receiver.url)
            with Cluster(self.folder, yaml, dsn, shows_logs=False) as cluster:
                self._break_things(cluster, database, seconds)
                left = cluster.query(
                    "select (select count(*) from procrastinate_jobs), (select count(*) from heartbeatd_attempt)"
                )
            rows = self.all_rows()
        found = self.compare(rows, receiver.messages, {SCHEDULER: self.folder / "run.log"}, self._host_of)
        if left != "0|0":
            found.lost.append(f"jobs and results left in the queue: {left}")
        return found

    def _break_things(self, cluster: Cluster, database: PostgresServer, seconds: float) -> None:
        for host in (SCHEDULER, *self._workers):
            self._start(cluster, host)
        self.wait_until(self.program.marks.exists, "nothing runs")
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(self.chance.uniform(0.5, 2.5))
            worker = self.chance.choice(self._workers)
            what = self.chance.choice(
                ("kill of the scheduler", *["kill of a worker"] * 2, "freeze of a worker", "kill of PostgreSQL")
            )
            match what:
                case "kill of the scheduler" | "kill of a worker":
                    host = SCHEDULER if what.endswith(SCHEDULER) else worker
                    with self.fault(what, host):
                        self._processes[host].kill()
                        self._processes[host].wait(timeout=PATIENCE)
                        self._start(cluster, host)
                case "freeze of a worker":
                    with self.fault(what, worker):
                        self._processes[worker].send_signal(signal.SIGSTOP)
                        time.sleep(self.chance.uniform(0.5, 2 * LEASE))
                        self._processes[worker].send_signal(signal.SIGCONT)
                case _:
                    with self.fault(what, None):
                        database.kill()
                        time.sleep(self.chance.uniform(0.0, 2.0))
                        database.start()
        self.wait_until(lambda: "paused" in cluster.call("pause", "--all"), "the scheduler does not answer")
        self.wait_until_at_rest()
        self._processes[SCHEDULER].send_signal(signal.SIGTERM)
        self._processes[SCHEDULER].wait(timeout=PATIENCE)

    def _start(self, cluster: Cluster, host: str) -> None:
        is_worker = host != SCHEDULER
        folder = self.folder / host if is_worker else None
        self._processes[host] = cluster.start(*(["worker", "--name", host] if is_worker else ["run"]), folder=folder)

    def _host_of(self, _: str, cwd: str) -> str:
        return next(part for part in Path(cwd).parts if part.startswith("worker"))
