"""Durable runs per second, beside SqliteHuey and APScheduler over SQLite, which this benchmark installs."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import venv
from datetime import timedelta
from pathlib import Path

from bench.dispatch import BEATS, NOW, engine
from scheduler.engine.clock_adjustment import ClockReading

ROUNDS = 5
PACKAGES = ("huey>=3,<4", "apscheduler>=3,<4", "sqlalchemy>=2,<3")

# Each prints its runs per second. A task does nothing, and each commit is synced, as ours is. Huey queues a task,
# takes it, and stores its result. APScheduler finds the due jobs and stores their next times, without any record of a run.
HUEY = """
import sys, time
from huey import SqliteHuey
tasks, folder = int(sys.argv[1]), sys.argv[2]
huey = SqliteHuey(filename=f"{folder}/huey.db", fsync=True)
@huey.task()
def beat(name):
    return "HEARTBEAT_OK"
began = time.perf_counter(), time.process_time()
for number in range(tasks):
    beat(f"a{number}")
while (task := huey.dequeue()) is not None:
    huey.execute(task)
print(tasks / (time.perf_counter() - began[0]), tasks / (time.process_time() - began[1]))
"""
APSCHEDULER = """
import sys, time
from datetime import datetime, timedelta, timezone
from apscheduler.executors.base import BaseExecutor
from apscheduler.schedulers.base import STATE_RUNNING
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
tasks, folder = int(sys.argv[1]), sys.argv[2]
def beat(name):
    return "HEARTBEAT_OK"
class AtOnce(BaseExecutor):
    def _do_submit_job(self, job, run_times):
        self._run_job_success(job.id, [])
scheduler = BackgroundScheduler(timezone=timezone.utc)
scheduler.add_executor(AtOnce())
scheduler.add_jobstore(SQLAlchemyJobStore(url=f"sqlite:///{folder}/jobs.db"))
scheduler.start(paused=True)
due = datetime.now(timezone.utc)
for number in range(tasks):
    scheduler.add_job(beat, "interval", days=1, args=[f"a{number}"], next_run_time=due, misfire_grace_time=None)
scheduler.state = STATE_RUNNING
began = time.perf_counter(), time.process_time()
scheduler._process_jobs()
print(tasks / (time.perf_counter() - began[0]), tasks / (time.process_time() - began[1]))
"""
PEERS = {"SqliteHuey": HUEY, "APScheduler": APSCHEDULER}


Rates = tuple[float, float]  # runs per second, and per second of CPU time


def peer(python: Path, script: str, runs: int) -> Rates:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([python, "-c", script, str(runs), folder], check=True, capture_output=True, text=True)
        real, cpu = map(float, done.stdout.split())
        return real, cpu


def mine(runs: int) -> Rates:
    with tempfile.TemporaryDirectory() as folder:
        made = engine(Path(folder), runs, BEATS["without a model call"])
        began, cpu, steady = time.perf_counter(), time.process_time(), 0.0
        while made.store.connection.execute("select count(*) from run where outcome = 'ok'").fetchone()[0] < runs:
            for _ in range(10):
                steady += 0.001
                made.tick(ClockReading(NOW + timedelta(seconds=steady), steady))
        rates = runs / (time.perf_counter() - began), runs / (time.process_time() - cpu)
        made.store.close()
        return rates


def main(runs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True, stderr=subprocess.DEVNULL)
        found: dict[str, list[Rates]] = {name: [] for name in ("heartbeatd", *PEERS)}
        for _ in range(ROUNDS):
            found["heartbeatd"].append(mine(runs))
            for name, script in PEERS.items():
                found[name].append(peer(python, script, runs))
    medians = {name: tuple(map(statistics.median, zip(*rates, strict=True))) for name, rates in found.items()}
    ours = medians["heartbeatd"]
    for name, (real, cpu) in medians.items():
        ratios = f"heartbeatd has {ours[0] / real:.2f} and {ours[1] / cpu:.2f} times as many"
        print(f"{name:<12} {real:7,.0f} runs/s, {cpu:7,.0f} per second of CPU time; {ratios}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
