"""Runs per second, CPU time and latency of the queue in PostgreSQL by the number of workers, and the time of a takeover.

Before each number of workers, the same number of plain workers of Procrastinate executes as many jobs that do nothing.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "extras" / "cluster"))

import asyncio
from contextlib import suppress

import psycopg
from procrastinate import App, PsycopgConnector
from procrastinate.schema import SchemaManager
from remote_bench import TextEntries, TextExecutor, carry_texts, links_of_texts, queue_in
from servers.postgres import PostgresServer

from bench import takeover
from scheduler.extras.cluster.job_queue import JobQueue
from scheduler.extras.cluster.payloads import ClaimCodec
from scheduler.extras.cluster.remote_worker import RemoteWorker
from scheduler.system.boot_clock import BootClock
from scheduler.system.process import Children
from scheduler.work.executor import LocalExecutor, WorkerLoop

PATIENCE = 300.0  # seconds
SINGLE_RUNS = 100  # that are submitted one after the other
PLACES = 20  # of each worker


async def carry(task: str, children: Children) -> str:  # noqa: ARG001
    return str(time.monotonic())  # when it began; all processes of a machine share this clock


def work(dsn: str, queue: str, cpu: Connection) -> None:
    """One worker, as a process. At its end it sends the CPU time that it has used, without its start."""
    worker = RemoteWorker(
        JobQueue(queue_in(dsn, queue)), ClaimCodec(TextEntries, Path(), "bench"), carry_texts(carry), WorkerLoop(BootClock()),
        name="bench", concurrency=PLACES, clock=time.monotonic,
    )  # fmt: skip
    asyncio.run(_work_until_told(worker, cpu))


async def _work_until_told(worker: RemoteWorker, cpu: Connection) -> None:
    begun = time.process_time()
    asyncio.get_running_loop().add_reader(cpu.fileno(), worker.stop)
    await worker.run(0.0)
    asyncio.get_running_loop().remove_reader(cpu.fileno())
    cpu.recv()
    cpu.send(time.process_time() - begun)


def make_plain_app(dsn: str) -> App:
    """An application of Procrastinate with one task, which does nothing."""
    app = App(connector=PsycopgConnector(conninfo=dsn))

    @app.task(name="nothing")
    async def nothing(number: int) -> None:
        """The argument makes the jobs as large as usual ones."""

    return app


def work_plainly(dsn: str, told: Connection) -> None:
    """One plain worker, as a process."""

    async def work_until_told() -> None:
        app = make_plain_app(dsn)
        async with app.open_async():
            settings = {"concurrency": PLACES, "install_signal_handlers": False, "delete_jobs": "successful"}
            worker = asyncio.create_task(app.run_worker_async(**settings))
            asyncio.get_running_loop().add_reader(told.fileno(), worker.cancel)
            with suppress(asyncio.CancelledError):
                await worker

    asyncio.run(work_until_told())


def measure_plainly(dsn: str, runs: int) -> float:
    """Jobs per second of `runs` plain jobs that are deferred at once. Workers are running, or start now."""
    app = make_plain_app(dsn)

    async def defer(number: int) -> float:
        async with app.open_async():
            begun = time.monotonic()
            await app.tasks["nothing"].batch_defer_async(*({"number": each} for each in range(number)))
            with psycopg.connect(dsn, autocommit=True) as db:
                while db.execute("select exists (select from procrastinate_jobs)").fetchone() == (True,):
                    await asyncio.sleep(0.01)
        return time.monotonic() - begun

    asyncio.run(defer(PLACES))  # the workers have started
    return runs / asyncio.run(defer(runs))


def measure(
    executor: TextExecutor | LocalExecutor[str, str], finished: threading.Semaphore, runs: int
) -> tuple[float, list[float]]:
    """Runs per second of `runs` that are submitted at once, and the latencies of single runs in milliseconds."""
    _wait_for(executor, finished, [0])  # connections are open, and all is imported
    latencies = []
    for number in range(1, SINGLE_RUNS + 1):
        begun = time.monotonic()
        results = _wait_for(executor, finished, [number])
        latencies.append(1000 * (float(results[number]) - begun))
    begun = time.monotonic()
    _wait_for(executor, finished, list(range(1000, 1000 + runs)))
    return runs / (time.monotonic() - begun), latencies


def _wait_for(
    executor: TextExecutor | LocalExecutor[str, str], finished: threading.Semaphore, numbers: list[int]
) -> dict[int, str]:
    for number in numbers:
        executor.submit(number, f"run {number}")
    results: dict[int, str] = {}
    while len(results) < len(numbers):
        assert finished.acquire(timeout=PATIENCE)
        ended = executor.results()
        results |= {number: str(done.result) for number, done in ended}
        executor.ack([number for number, _ in ended])
    return results


def report(what: str, rate: float, latencies: list[float], local: float) -> None:
    quantiles = statistics.quantiles(latencies, n=100)
    print(
        f"{what}: {rate:,.0f} runs/s ({rate / local:.2f} of one process), a single run begins after"
        f" {statistics.median(latencies):.1f} ms (median), 99 % within {quantiles[98]:.1f} ms",
        flush=True,
    )


if __name__ == "__main__":
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    numbers = [int(each) for each in sys.argv[2:]] or [1, 2, 4]
    finished = threading.Semaphore(0)
    here: LocalExecutor[str, str] = LocalExecutor(carry, str, finished.release, WorkerLoop(BootClock()))
    local, latencies = measure(here, finished, runs)
    report("one process", local, latencies, local)
    server = PostgresServer(fsync="on").start()
    processes = multiprocessing.get_context("spawn")
    try:
        for workers in numbers:
            plain = server.database()
            with psycopg.connect(plain, autocommit=True) as db:
                db.execute(SchemaManager.get_schema())
            pipes = [processes.Pipe() for _ in range(workers)]
            crew = [processes.Process(target=work_plainly, args=(plain, theirs), daemon=True) for _, theirs in pipes]
            for worker in crew:
                worker.start()
            print(f"{workers} plain: {measure_plainly(plain, runs):,.0f} jobs/s", flush=True)
            for ours, _ in pipes:
                ours.send("stop")
            for worker in crew:
                worker.join(10)
            dsn, queue, finished = server.database(), f"bench{workers}", threading.Semaphore(0)
            pipes = [processes.Pipe() for _ in range(workers)]
            crew = [processes.Process(target=work, args=(dsn, queue, theirs), daemon=True) for _, theirs in pipes]
            for worker in crew:
                worker.start()
            links = links_of_texts(queue, WorkerLoop(BootClock()), finished.release)
            executor = TextExecutor(JobQueue(queue_in(dsn, queue)), TextEntries(), links)
            begun = time.process_time()
            rate, latencies = measure(executor, finished, runs)
            executor.close()
            here_ms = 1000 * (time.process_time() - begun) / (runs + SINGLE_RUNS)
            for ours, _ in pipes:
                ours.send("stop")
            there_ms = 1000 * sum(ours.recv() for ours, _ in pipes) / (runs + SINGLE_RUNS)
            report(f"{workers} worker{'s' * (workers > 1)}", rate, latencies, local)
            print(f"  CPU time per run: {here_ms:.2f} ms in the scheduler, {there_ms:.2f} ms in the workers", flush=True)
            for worker in crew:
                worker.join(10)
    finally:
        server.close()
    takeover.measure(3)
