"""Cuts the leader of two schedulers off from PostgreSQL again and again, and compares every slot, run, beat and message."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import psycopg
from checkout import HOME
from cluster_comparison import Beat, Comparison, Message
from cluster_faults import PATIENCE, WORKERS, FaultyCluster
from servers.network import HUB, Cut, Network
from servers.postgres import PostgresServer

EVERY = 2  # seconds between the beats of an agent
SLOW = 30  # of some more agents, which have time to repeat a beat that a fault has interrupted
WORKER_LEASE = 6  # seconds
WORK = 0.2  # seconds that a beat takes
SCHEDULERS = ("a", "b")
CREW = ("w1", "w2", "w3")
WAYS: tuple[Cut, ...] = ("black hole", "reset", "loss to the server", "loss from the server")
HTTP_RUNNER = '{{kind: http, url: "http://{hub}:{port}/beat"}}'


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


class ClusterCutoffs(FaultyCluster):
    """`ClusterCutoffs(folder, seed).play(cuts)` returns what was lost and what was doubled.

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
        """A third of the agents, and the slow ones, are programs. Each other agent is called over HTTP."""
        names = [f"{'c' if number < agents // 3 else 'h'}{number}" for number in range(agents)]
        slots = dict.fromkeys(names, EVERY) | {f"s{number}": SLOW for number in range(slow)}
        super().__init__(folder, seed, WORK, slots, {f"j{number}": EVERY for number in range(jobs)})
        self.takeovers: list[tuple[str, float, float, str]] = []  # kind of fault, its begin, the takeover, the new leader
        self.false_takeovers: list[str] = []
        self._stops: list[float] = []  # the times at which all agents were paused, or all daemons stopped
        self._ways = ways
        self._report = report

    def play(self, cuts: int, *, executors: tuple[str, ...] = ("local", "remote")) -> Comparison:
        """Cut the leader off so many times. Then let everything come to rest, and compare."""
        with Network(["db", *SCHEDULERS, *CREW]) as self.network:
            self.receiver = Receiver(self.network)
            self.server = PostgresServer(prefix=self.network.prefix("db"), max_connections="100")
            self.processes: dict[str, subprocess.Popen[bytes]] = {}
            try:
                self.server.accept_from("10.77.0.0/16")
                self.state = self.server.start().database()  # over its socket, which no cut concerns
                for each in executors:
                    self._start(each)
                    self._play_cuts(each, cuts // len(executors))
                    self._stop(is_last=each == executors[-1])
                rows = self.all_rows()
            finally:
                for process in self.processes.values():
                    with suppress(OSError):
                        process.send_signal(signal.SIGCONT)
                    process.kill()
                self.server.close()
        logs, host_of = {host: self.folder / host / "log" for host in SCHEDULERS}, self.network.host_of
        found = self.compare(rows, self.receiver.messages, logs, lambda namespace, _: host_of(namespace), self.receiver.beats)
        found.doubled += [f"at the same time: {each}" for each in self.receiver.overlaps]
        found.check_takeovers(self.takeovers, self._stops)
        return found

    # The processes.

    def _start(self, executor: str) -> None:
        database = self.state.partition("@/")[2].partition("?")[0]
        address = f"postgresql://heartbeatd@{self.network.address('db')}/{database}"
        values = {
            "state": address,
            "executor": WORKERS.format(dsn=address, lease=WORKER_LEASE) if executor == "remote" else "",
            "url": f"http://{HUB}:{self.receiver.port}/hook",
        }
        http = HTTP_RUNNER.format(hub=HUB, port=self.receiver.port)
        for host in (*SCHEDULERS, *(CREW if executor == "remote" else ())):
            (self.folder / host).mkdir(exist_ok=True)
            yaml = self.config(lambda name: http if name.startswith("h") else None, host=host, **values)
            (self.folder / host / "config.yaml").write_text(yaml, "utf-8")
            self._start_process(host)
        self.wait_until(lambda: self._leader() != "", "no leader")
        for host in SCHEDULERS:
            self.wait_until(lambda host=host: self._is_up(host), f"{host} is not up")
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
        self.wait_until_at_rest()
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
        self.wait_until(lambda: self._leader() != "", "no leader")  # on a busy machine, it may have just lost the lease
        leader, epoch = self._leader(), self._epoch()
        is_short = self.chance.random() < 0.25
        how = self.chance.choice(self._ways)
        seconds = self.chance.uniform(1.0, 3.0) if is_short else PATIENCE
        before = self._count_standbys(leader)
        self.counted["cuts"] += 1
        with self.fault(("short " if is_short else "") + how, leader) as fault:
            if how == "freeze":
                self.processes[leader].send_signal(signal.SIGSTOP)
            else:
                self.network.cut(leader, cast("Cut", how))
            taken_at = self._wait_for_takeover(epoch, seconds)
            if taken_at is None and not is_short:
                self.counted["no takeover"] += 1
                self._report(f"nobody took over after {how}")
            if taken_at is not None:
                time.sleep(self.chance.uniform(0.0, 3.0))
            if how == "freeze":
                self.processes[leader].send_signal(signal.SIGCONT)
            else:
                self.network.heal(leader)
            lasted = time.time() - fault.begin
            if taken_at is None and is_short:
                taken_at = self._wait_for_takeover(epoch, 2.0)
            if taken_at is not None:
                self.takeovers.append((fault.kind, fault.begin, taken_at, self._leader()))
                if is_short:
                    self.false_takeovers.append(f"{how} of {lasted:.1f} s")
                self.wait_until(lambda: self._count_standbys(leader) > before, f"{leader} does not stand by")

    def _restart_server(self) -> None:
        with self.fault("restart of PostgreSQL", None):
            if self.chance.random() < 0.5:
                self.server.kill()
            else:
                self.server.stop()
            time.sleep(self.chance.uniform(0.0, 1.5))
            self.server.start()
            self._settle()

    def _replace_leader(self) -> None:
        leader, epoch = self._leader(), self._epoch()
        with self.fault(self.chance.choice(("kill of the leader", "stop of the leader")), leader) as fault:
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
            self.wait_until(lambda: self._count_standbys(leader) > before, f"{leader} does not stand by")

    def _break_worker(self) -> None:
        worker = self.chance.choice(CREW)
        how = self.chance.choice(("kill of a worker", "freeze of a worker", "cut of a worker"))
        seconds = self.chance.uniform(0.5, 2 * WORKER_LEASE)
        with self.fault(how, worker) as fault:
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
        fault.end += WORKER_LEASE

    def _settle(self) -> None:
        """Wait until a leader has renewed its lease since now."""
        self.wait_until(lambda: self._leader() != "", "no leader after a restart of the server")
        now = self.query("select clock_timestamp() + interval '5 seconds' as at")[0]["at"]
        self.wait_until(lambda: bool(self.query("select 1 from heartbeatd._leader where until_at > %s", now)), "no renewal")

    def _wait_for_takeover(self, epoch: int, seconds: float) -> float | None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._epoch() > epoch:
                return time.time()
            time.sleep(0.05)
        return None

    # What the server says.

    def _epoch(self) -> int:
        with suppress(psycopg.Error, IndexError):
            return int(self.query("select epoch from heartbeatd._leader where until_at <> '-infinity'")[0]["epoch"])
        return 0

    def _leader(self) -> str:
        """The host that holds the lease, or "" if nobody does."""
        with suppress(psycopg.Error, IndexError):
            return str(self.query("select host from heartbeatd._leader where until_at > clock_timestamp()")[0]["host"])
        return ""

    def _count_standbys(self, host: str) -> int:
        return (self.folder / host / "log").read_bytes().count(b"standby")
