"""Kills and freezes the scheduler, the workers and PostgreSQL of a cluster at random, and compares what is recorded with what happened."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from cluster_processes import Cluster
from servers.postgres import PostgresServer
from servers.scripted import Server, reply

PATIENCE = 120.0  # seconds
LEASE = 4  # seconds
CONFIG = """\
state: state/h.db
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
# Each program writes a line when it begins and when it ends, and says its run.
PROGRAM = (
    "echo begin $HEARTBEATD_RUN $(date +%s%3N) >>{marks}; sleep 0.2; echo end $HEARTBEATD_RUN $(date +%s%3N) >>{marks}; echo"
)
AGENT = '  a{number}: {{runner: {{kind: command, argv: [sh, -c, "{program} ALERT $HEARTBEATD_RUN"]}}, heartbeat: {{interval: {every}s}}}}'
JOB = '  j{number}: {{every: {every}s, command: "{program} $HEARTBEATD_RUN", deliver: hook}}'


class ClusterChaos:
    """`ClusterChaos(folder, seed).play(seconds)`, then `lost` and `doubled` list what was lost and repeated.

    `counted` has the number of kills and of everything that was compared.
    """

    def __init__(self, folder: Path, seed: int, *, agents: int = 8, jobs: int = 4, workers: int = 3, every: int = 2) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.lost: list[str] = []
        self.doubled: list[str] = []
        self.counted: Counter[str] = Counter()
        self._size = (agents, jobs, workers, every)
        self._marks = folder / "marks"

    def play(self, seconds: float) -> None:
        """Break something every second or two for some time. Then let everything come to rest, and compare."""
        agents, jobs, workers, every = self._size
        program = PROGRAM.format(marks=f"'{self._marks}'")
        database = PostgresServer(fsync="on")
        try:
            with Server([reply()]) as server:
                yaml = CONFIG.format(
                    url=server.url, lease=LEASE, every=every,
                    agents="\n".join(AGENT.format(number=number, program=program, every=self._seconds_between(f"a{number}")) for number in range(agents)),
                    jobs="\n".join(JOB.format(number=number, program=program, every=every) for number in range(jobs)),
                )  # fmt: skip
                with Cluster(self.folder, yaml, database.start().database(), shows_logs=False) as cluster:
                    self._break_things(cluster, database, workers, seconds)
                messages = [(request.headers["idempotency-key"], request.body) for request in server.requests]
        finally:
            database.close()
        with closing(sqlite3.connect(self.folder / "state" / "h.db")) as db:
            db.row_factory = sqlite3.Row
            self._compare_slots(db)
            self._compare_runs(db)
            self._compare_messages(db, messages)

    def _break_things(self, cluster: Cluster, database: PostgresServer, workers: int, seconds: float) -> None:
        scheduler = cluster.start("run")
        crew = [self._start_worker(cluster, number) for number in range(workers)]
        _wait_until(lambda: self._marks.exists())
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(self.chance.uniform(0.5, 2.5))
            number = self.chance.randrange(workers)
            match self.chance.choice(("scheduler", "worker", "worker", "freeze", "database")):
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
        cluster.call("pause", "--all")
        _wait_until(lambda: _is_at_rest(self.folder))
        scheduler.send_signal(signal.SIGTERM)
        scheduler.wait(timeout=PATIENCE)
        left = cluster.query("select count(*) from procrastinate_jobs") + cluster.query("select count(*) from heartbeatd_attempt")
        if left != "00":
            self.lost.append(f"jobs and results left in the queue: {left}")

    def _seconds_between(self, name: str) -> int:
        """The interval of an entry. Every second agent has time to repeat a run whose worker is lost."""
        return self._size[3] * (1 if name.startswith("j") or int(name[1:]) % 2 else 10)

    def _start_worker(self, cluster: Cluster, number: int) -> subprocess.Popen[bytes]:
        return cluster.start("worker", "--name", f"w{number}", folder=self.folder / f"worker{number}")

    def _compare_slots(self, db: sqlite3.Connection) -> None:
        """Each slot of each entry up to its next one is in exactly one record."""
        for entry in db.execute("select * from entry").fetchall():
            every = 1000 * self._seconds_between(entry["name"])
            first = 0 if entry["kind"] == "heartbeat" else every
            due = (entry["settled_until"] - entry["anchor"] - first) // every + 1
            query = "select coalesce(sum(slots), 0) from run where kind = ? and name = ? and trigger in ('interval', 'every')"
            found = db.execute(query, (entry["kind"], entry["name"])).fetchone()[0]
            self.counted["slots"] += found
            if found < due:
                self.lost.append(f"{entry['name']}: {due - found} of {due} slots")
            if found > due:
                self.doubled.append(f"{entry['name']}: {found - due} more than {due} slots")

    def _compare_runs(self, db: sqlite3.Connection) -> None:
        """No run has more begun programs than attempts, none with an answer has none, and those of one entry never overlap."""
        begun: Counter[int] = Counter()
        open_since: dict[str, tuple[int, int]] = {}
        names = {row["id"]: f"{row['kind']}/{row['name']}" for row in db.execute("select id, kind, name from run")}
        for line in sorted(self._marks.read_text().splitlines(), key=lambda line: int(line.split()[2])):
            word, mark, at = line.split()
            run = int(mark.rpartition("/")[2])
            begun[run] += word == "begin"
            if word == "end":
                open_since.pop(names[run], None)
                continue
            if names[run] in open_since:
                other, since = open_since[names[run]]
                self.doubled.append(f"{names[run]}: runs {other} and {run} at the same time ({int(at) - since} ms apart)")
            open_since[names[run]] = (run, int(at))
        for row in db.execute("select * from run where outcome <> 'skipped'"):
            run, number = row["id"], begun[row["id"]]
            self.counted["runs"] += 1
            self.counted[" ".join(("runs", row["outcome"], row["reason"] or "")).strip()] += 1
            self.counted["programs"] += number
            if row["reason"] == "bad_answer":  # of an unexpected exception
                self.lost.append(f"run {run} of {names[run]}: {row['error']}")
            self.counted["repeated programs"] += max(number - 1, 0)
            allowed = row["attempt"] if row["kind"] == "heartbeat" else 1
            if number > allowed:
                self.doubled.append(f"run {run} of {names[run]}: {number} programs in {allowed} attempts")
            if row["outcome"] in ("ok", "alert") and (number == 0 or f"/{run}" not in (row["text"] or "")):
                self.lost.append(f"run {run} of {names[run]} is {row['outcome']} without its own answer")
        self.lost += [f"run {run} began and has no record" for run in begun if run not in names]

    def _compare_messages(self, db: sqlite3.Connection, messages: list[tuple[str, bytes]]) -> None:
        """Each answer is sent, and a message that is sent again has the same key and the same body."""
        bodies: dict[str, set[bytes]] = {}
        for key, body in messages:
            bodies.setdefault(key, set()).add(body)
        self.counted["messages"] = len(bodies)
        self.counted["messages repeated with their key"] = len(messages) - len(bodies)
        self.doubled += [f"message {key} with {len(each)} bodies" for key, each in bodies.items() if len(each) > 1]
        self.lost += [f"message {row['key']}" for row in db.execute("select key from outbox") if row["key"] not in bodies]
        without = db.execute(
            "select count(*) from run where outcome in ('ok', 'alert') and not exists (select 1 from outbox where run_id = run.id)"
        ).fetchone()[0]
        if without:
            self.lost.append(f"{without} answers without a message")


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(timeout=PATIENCE)


def _is_at_rest(folder: Path) -> bool:
    with closing(sqlite3.connect(f"file:{folder}/state/h.db?mode=ro", uri=True)) as db:
        runs = db.execute("select count(*) from run where state in ('running', 'waiting')").fetchone()[0]
        messages = db.execute("select count(*) from outbox where state in ('pending', 'sending', 'uncertain')").fetchone()[0]
    return not runs and not messages


def _wait_until(is_true: object) -> None:
    assert callable(is_true)
    deadline = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.1)
