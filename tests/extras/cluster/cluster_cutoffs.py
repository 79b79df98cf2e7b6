"""Cuts the leader of two schedulers off from PostgreSQL again and again, and compares every slot, run, beat and message."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import psycopg
from checkout import HOME
from cluster_comparison import Beat, BeatProgram, Comparison, Fault, Message, lease_losses_without_a_fault
from psycopg.rows import dict_row
from servers.network import HUB, Cut, Network
from servers.postgres import PostgresServer

PATIENCE = 90.0  # seconds
REST = 900.0  # seconds; a message whose delivery was uncertain several times waits for some minutes
EVERY = 2  # seconds between the beats of an agent
SLOW = 30  # of some more agents, which have time to repeat a beat that a fault has interrupted
WORKER_LEASE = 6  # seconds
WORK = 0.2  # seconds that a beat takes
SCHEDULERS = ("a", "b")
WORKERS = ("w1", "w2", "w3")
WAYS: tuple[Cut, ...] = ("black hole", "reset", "loss to the server", "loss from the server")
CONFIG = """\
state: postgresql://heartbeatd@{server}/{database}
host: {host}
server: {{listen: "127.0.0.1:0"}}
history: {{keep: 30d, runs: 1000000}}
limits: {{concurrency: 100, min_interval: 0s}}
network: {{proxy: none}}
{executor}
channels: {{hook: {{kind: webhook, url: "http://{hub}:{port}/hook", allow_private: true}}}}
defaults: {{heartbeat: {{interval: {every}s, stagger: 100%, checklist: "- look\\n", deliver: hook, timeout: 30s, dedup: {{window: 0s}}}}}}
agents:
{agents}
cron:
{jobs}
"""
REMOTE = "executor: {{kind: procrastinate, dsn: 'postgresql://heartbeatd@{server}/{database}', lease: {lease}s}}"
HTTP_AGENT = '  {name}: {{runner: {{kind: http, url: "http://{hub}:{port}/beat"}}, heartbeat: {{}}}}'
COMMAND_AGENT = "  {name}: {{runner: {{kind: command, argv: [perl, {program}, {name}]}}, heartbeat: {{interval: {seconds}s}}}}"
JOB = "  {name}: {{every: {every}s, command: [perl, {program}, {name}], deliver: hook}}"


class Receiver:
    """The HTTP server of the agents and of the webhook, on the router. It records each beat and each message."""

    def __init__(self, network: Network) -> None:
        self.beats: list[Beat] = []
        self.messages: list[Message] = []
        self.overlaps: list[str] = []
        self._network = network
        self._open: dict[str, Beat] = {}
        self._serial = 0
        self._started: threading.Event = threading.Event()
        self.port = 0
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        assert self._started.wait(PATIENCE)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer_connection, "0.0.0.0", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        async with server:
            await server.serve_forever()

    async def _answer_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            host = self._network.host_of(writer.get_extra_info("peername")[0])
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                if "/hook" in head[0]:
                    self.messages.append(Message(headers["idempotency-key"], body, host, time.time()))
                    answer = b""
                else:
                    answer = await self._beat(json.loads(body), host, reader)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
                await writer.drain()
        writer.close()

    async def _beat(self, request: dict[str, Any], host: str, reader: asyncio.StreamReader) -> bytes:
        """One beat. If the connection ends during it, the beat has ended too."""
        agent, run = request["agent"], int(request["run"])
        self._serial += 1
        beat = Beat(agent, run, f"s{self._serial}", host, time.time())
        self.beats.append(beat)
        if (other := self._open.get(agent)) is not None and other.ended is None and other.stopped is None:
            self.overlaps.append(f"{agent}: run {other.run} on {other.host} and run {run} on {host}")
        self._open[agent] = beat
        try:
            async with asyncio.timeout(WORK):
                if not await reader.read(1):
                    beat.stopped = time.time()
                    raise ConnectionResetError
        except TimeoutError:
            beat.ended = time.time()
        except OSError:
            beat.stopped = beat.stopped or time.time()
            raise
        return f"ALERT {agent} run {run} beat {beat.serial}".encode()


class ClusterCutoffs:
    """`ClusterCutoffs(folder, seed).play(cuts)`; then `comparison` has what was lost and what was doubled.

    The first half of the cuts is with runs on the leader, the second half with runs on workers.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        agents: int = 60,
        slow: int = 20,
        jobs: int = 4,
        ways: Sequence[str] = (*WAYS, "freeze"),
        report: Callable[[str], None] = print,
    ) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.counted: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self.takeovers: list[tuple[str, float, float, str]] = []  # kind of fault, its begin, the takeover, the new leader
        self.false_takeovers: list[str] = []
        self.own_losses: list[Fault] = []  # of the lease, which none of the faults has caused
        self._stops: list[float] = []  # the times at which all agents were paused, or all daemons stopped
        self._ways = ways
        commands = agents // 3
        self._http_agents = [f"h{number}" for number in range(agents - commands)]
        self._seconds = {f"c{number}": EVERY for number in range(commands)} | {f"s{number}": SLOW for number in range(slow)}
        self._jobs = [f"j{number}" for number in range(jobs)]
        self._report = report
        self._program = BeatProgram(folder)

    def play(self, cuts: int, *, executors: tuple[str, ...] = ("local", "remote")) -> Comparison:
        """Cut the leader off so many times. Then let everything come to rest, and compare."""
        with Network(["db", *SCHEDULERS, *WORKERS]) as self.network:
            self.receiver = Receiver(self.network)
            self.server = PostgresServer(prefix=self.network.prefix("db"), max_connections="100")
            try:
                self.server.accept_from("10.77.0.0/16")
                self.dsn = self.server.start().database()
                self.processes: dict[str, subprocess.Popen[bytes]] = {}
                for each in executors:
                    self._start(each)
                    self._play_cuts(each, cuts // len(executors))
                    self._stop(is_last=each == executors[-1])
                rows = {
                    table: self._rows(f"select * from heartbeatd.{table} order by id")
                    for table in ("entry", "run", "outbox", "boot")
                }
            finally:
                for process in self.processes.values():
                    with suppress(OSError):
                        process.send_signal(signal.SIGCONT)
                    process.kill()
                self.server.close()
        by_programs, overlaps = self._program.read(lambda namespace, _: self.network.host_of(namespace))
        beats = self.receiver.beats + by_programs
        for host in SCHEDULERS:
            self.own_losses += lease_losses_without_a_fault((self.folder / host / "log").read_text("utf-8"), host, self.faults)
        self.faults += self.own_losses
        record = {
            **rows,
            "beats": beats,
            "messages": self.receiver.messages,
            "faults": self.faults,
            "takeovers": self.takeovers,
        }
        (self.folder / "record").write_bytes(pickle.dumps(record))
        every = {row["name"]: self._seconds.get(row["name"], EVERY) for row in rows["entry"]}
        found = Comparison(
            rows["entry"], rows["run"], rows["outbox"], beats, self.receiver.messages, self.faults, every, rows["boot"]
        )
        found.doubled += [f"at the same time: {each}" for each in (*self.receiver.overlaps, *overlaps)]
        found.check_takeovers(self.takeovers, self._stops)
        return found

    # The processes.

    def _start(self, executor: str) -> None:
        names = {"server": self.network.address("db"), "database": self.dsn.partition("@/")[2].partition("?")[0]}
        remote = REMOTE.format(**names, lease=WORKER_LEASE) if executor == "remote" else ""
        program = self._program.write(WORK)
        each = {"hub": HUB, "port": self.receiver.port, "every": EVERY, "program": program}
        for host in (*SCHEDULERS, *(WORKERS if remote else ())):
            (self.folder / host).mkdir(exist_ok=True)
            (self.folder / host / "config.yaml").write_text(
                CONFIG.format(
                    **names, **each, host=host, executor=remote,
                    agents="\n".join(
                        [HTTP_AGENT.format(name=name, **each) for name in self._http_agents]
                        + [COMMAND_AGENT.format(name=name, seconds=seconds, **each) for name, seconds in self._seconds.items()]
                    ),
                    jobs="\n".join(JOB.format(name=name, **each) for name in self._jobs),
                ),
                "utf-8",
            )  # fmt: skip
            self._start_process(host)
        self._wait_until(lambda: self._leader() != "", "no leader")
        for host in SCHEDULERS:
            self._wait_until(lambda host=host: self._is_up(host), f"{host} is not up")
        time.sleep(2 * EVERY)

    def _start_process(self, host: str) -> None:
        arguments = ["run"] if host in SCHEDULERS else ["worker", "--name", host]
        with (self.folder / host / "log").open("ab") as log:
            self.processes[host] = subprocess.Popen(
                [*self.network.prefix(host), sys.executable, "-m", "scheduler", *arguments], cwd=self.folder / host,
                env={**os.environ, "PYTHONPATH": str(HOME)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def _stop(self, *, is_last: bool) -> None:
        leader = self._leader()
        if is_last:
            self._call(leader, "pause", "--all")
        self._stops.append(time.time())
        if not is_last:
            for each in SCHEDULERS:
                if each != leader:
                    self._end(each)
            self._end(leader)
            return
        self._wait_until(self._is_at_rest, "does not come to rest", REST)
        for each in self.processes:
            self._end(each)

    def _end(self, host: str) -> None:
        self.processes[host].send_signal(signal.SIGTERM)
        try:
            code = self.processes[host].wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._report(f"{host} does not end")
            self.counted[f"{host} did not end"] += 1
            self.processes[host].kill()
            code = self.processes[host].wait(PATIENCE)
        if code:
            self.counted[f"exit codes {code}"] += 1

    def _call(self, host: str, *arguments: str) -> None:
        subprocess.run(
            [*self.network.prefix(host), sys.executable, "-m", "scheduler", *arguments], cwd=self.folder / host,
            env={**os.environ, "PYTHONPATH": str(HOME)}, timeout=PATIENCE, check=True,
        )  # fmt: skip

    def _is_up(self, host: str) -> bool:
        log = (self.folder / host / "log").read_bytes()
        return b"standby" in log or b"leading" in log

    # The faults.

    def _play_cuts(self, executor: str, cuts: int) -> None:
        for number in range(cuts):
            time.sleep(self.chance.uniform(0.5, 3.5))
            self._cut_leader_off()
            what = self.chance.choice(("server", "leader", "worker", "worker", "", "", "", "", "", ""))
            if executor == "local" and what == "worker":
                what = ""
            if what == "server":
                self._restart_server()
            elif what == "leader":
                self._replace_leader()
            elif what == "worker":
                self._break_worker()
            for host, process in list(self.processes.items()):
                if process.poll() is not None:
                    self.counted[f"{host} ended by itself"] += 1
                    self._start_process(host)
            if number % 10 == 9:
                self._report(f"{executor}: {number + 1} cuts, {len(self.takeovers)} takeovers, {dict(self.counted)}")

    def _cut_leader_off(self) -> None:
        leader = self._leader()
        epoch = self._epoch()
        is_short = self.chance.random() < 0.25
        how = self.chance.choice(self._ways)
        seconds = self.chance.uniform(1.0, 3.0) if is_short else PATIENCE
        before = self._count_standbys(leader)
        begun = time.time()
        fault = Fault(begun, float("inf"), ("short " if is_short else "") + how, leader)
        self.faults.append(fault)
        self.counted["cuts"] += 1
        self.counted[fault.kind] += 1
        if how == "freeze":
            self.processes[leader].send_signal(signal.SIGSTOP)
        else:
            self.network.cut(leader, cast("Cut", how))
        taken_at = self._wait_for_takeover(epoch, seconds)
        if taken_at is None and not is_short:
            self.counted["no takeover"] += 1
            self._report(f"nobody took over after {how}")
        if taken_at is not None:
            self.takeovers.append((fault.kind, begun, taken_at, self._leader()))
            if is_short:
                self.false_takeovers.append(f"{how} of {taken_at - begun:.1f} s")
            time.sleep(self.chance.uniform(0.0, 3.0))
        if how == "freeze":
            self.processes[leader].send_signal(signal.SIGCONT)
        else:
            self.network.heal(leader)
        fault.end = time.time()
        if taken_at is None:
            late = self._wait_for_takeover(epoch, 2.0)
            if late is not None and is_short:
                self.false_takeovers.append(f"{how} of {fault.end - begun:.1f} s")
                self.takeovers.append((fault.kind, begun, late, self._leader()))
        else:
            self._wait_until(lambda: self._count_standbys(leader) > before, f"{leader} does not stand by")
        fault.end = time.time()

    def _restart_server(self) -> None:
        fault = Fault(time.time(), float("inf"), "restart of PostgreSQL", None)
        self.faults.append(fault)
        self.counted[fault.kind] += 1
        if self.chance.random() < 0.5:
            self.server.kill()
        else:
            self.server.stop()
        time.sleep(self.chance.uniform(0.0, 1.5))
        self.server.start()
        self._settle()
        fault.end = time.time()

    def _replace_leader(self) -> None:
        leader, epoch = self._leader(), self._epoch()
        fault = Fault(time.time(), float("inf"), self.chance.choice(("kill of the leader", "stop of the leader")), leader)
        self.faults.append(fault)
        self.counted[fault.kind] += 1
        if fault.kind.startswith("kill"):
            self.processes[leader].kill()
        else:
            self.processes[leader].send_signal(signal.SIGTERM)
            self.processes[leader].wait(PATIENCE)  # its runs may end first
            fault.begin = time.time()
        taken_at = self._wait_for_takeover(epoch, PATIENCE)
        if taken_at is not None:
            self.takeovers.append((fault.kind, fault.begin, taken_at, self._leader()))
        self.processes[leader].wait(PATIENCE)
        before = self._count_standbys(leader)
        self._start_process(leader)
        self._wait_until(lambda: self._count_standbys(leader) > before, f"{leader} does not stand by")
        fault.end = time.time()

    def _break_worker(self) -> None:
        worker = self.chance.choice(WORKERS)
        how = self.chance.choice(("kill of a worker", "freeze of a worker", "cut of a worker"))
        fault = Fault(time.time(), float("inf"), how, worker)
        self.faults.append(fault)
        self.counted[how] += 1
        seconds = self.chance.uniform(0.5, 2 * WORKER_LEASE)
        if how.startswith("kill"):
            self.processes[worker].kill()
            self.processes[worker].wait(PATIENCE)
            self._start_process(worker)
        elif how.startswith("freeze"):
            self.processes[worker].send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            self.processes[worker].send_signal(signal.SIGCONT)
        else:
            self.network.cut(worker, self.chance.choice(WAYS))
            time.sleep(seconds)
            self.network.heal(worker)
        time.sleep(1.0)
        fault.end = time.time() + WORKER_LEASE

    def _settle(self) -> None:
        """Wait until a leader has renewed its lease since now."""
        self._wait_until(lambda: self._leader() != "", "no leader after a restart of the server")
        now = self._rows("select clock_timestamp() + interval '5 seconds' as at")[0]["at"]
        self._wait_until(lambda: bool(self._rows("select 1 from heartbeatd._leader where until_at > %s", now)), "no renewal")

    def _wait_for_takeover(self, epoch: int, seconds: float) -> float | None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._epoch() > epoch:
                return time.time()
            time.sleep(0.05)
        return None

    # What the server says. The tests reach it over its socket, which no cut concerns.

    def _rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        with psycopg.connect(self.dsn, row_factory=dict_row, autocommit=True) as connection:
            return connection.execute(statement, values).fetchall()

    def _epoch(self) -> int:
        with suppress(psycopg.Error, IndexError):
            return int(self._rows("select epoch from heartbeatd._leader where until_at <> '-infinity'")[0]["epoch"])
        return 0

    def _leader(self) -> str:
        """The host that holds the lease, or "" if nobody does."""
        with suppress(psycopg.Error, IndexError):
            statement = "select host from heartbeatd._leader where until_at > clock_timestamp()"
            return str(self._rows(statement)[0]["host"])
        return ""

    def _count_standbys(self, host: str) -> int:
        return (self.folder / host / "log").read_bytes().count(b"standby")

    def _is_at_rest(self) -> bool:
        runs = "select count(*) as open from heartbeatd.run where state in ('running', 'waiting')"
        messages = "select count(*) as open from heartbeatd.outbox where state in ('pending', 'sending', 'uncertain')"
        return not any(self._rows(each)[0]["open"] for each in (runs, messages))

    def _wait_until(self, is_true: Callable[[], bool], problem: str, seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not is_true():
            if time.monotonic() > deadline:
                self._report(problem)
                raise AssertionError(problem)
            time.sleep(0.1)
