"""How fast a worker gets and ends a burst of runs, first with current statistics, then after a vacuum of the empty table."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from servers.postgres import PostgresServer

from heartbeatd.secret import Secret
from scheduler.extras.cluster.job_queue import MAX_FETCHED, JobQueue, NewAttempt
from scheduler.model.settings import RemoteQueue

IDLE_FETCHES = 20  # PostgreSQL keeps the plan of a statement after some executions


async def measure(dsn: str, burst: int, *, vacuum: bool) -> float:
    """The runs per second of one burst, over connections that have fetched before."""
    queue = JobQueue(RemoteQueue(Secret(dsn), "burst", timedelta(minutes=1)))
    await queue.open()
    worker = await queue.register("w")
    with psycopg.connect(dsn, autocommit=True) as db:
        if vacuum:
            db.execute("vacuum analyze procrastinate_jobs, heartbeatd_attempt")
        for _ in range(IDLE_FETCHES):
            await queue.fetch(worker, MAX_FETCHED)
        attempts = [NewAttempt(f"o{vacuum}/{number}/1", "o", f"agent/a{number}", "{}", 60.0) for number in range(burst)]
        await queue.submit(attempts)
        if not vacuum:
            db.execute("analyze procrastinate_jobs, heartbeatd_attempt")
    begun = time.perf_counter()
    while jobs := await queue.fetch(worker, MAX_FETCHED):
        await queue.finish([(job, "{}") for job in jobs])
    seconds = time.perf_counter() - begun
    await queue.forget([each.key for each in attempts])
    await queue.close()
    return burst / seconds


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with closing(PostgresServer(fsync="on", autovacuum="off")) as server:
        address = server.start().database()
        for is_after_vacuum, what in ((False, "with current statistics"), (True, "after a vacuum of the empty table")):
            rate = asyncio.run(measure(address, number, vacuum=is_after_vacuum))
            print(f"{number} runs {what}: {rate:.0f}/s", flush=True)
