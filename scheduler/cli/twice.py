"""Jobs that run twice: here, and still in the user's crontab."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from cron import crontab_reader
from cron.job import Job
from scheduler.config.keys import time_zones
from scheduler.system.process import Children, Ended

PATIENCE = timedelta(seconds=5)
MOST = 1024 * 1024  # bytes of a crontab that are looked at


def listed(program: str = "crontab") -> str:
    """The user's crontab; empty if there is none, or the host has no cron."""
    ended = asyncio.run(_run([program, "-l"]))
    return ended.output.decode(errors="surrogateescape") if ended.exit_code == 0 else ""


async def _run(argv: list[str]) -> Ended:
    return await Children("doctor").start(argv, stdin=b"", env={}, cwd=Path("/"), keep=MOST, timeout=PATIENCE)


def twice(table: str, jobs: Iterable[Job]) -> list[str]:
    """The names of the enabled jobs whose command a crontab runs too, whenever it does."""
    there = {(line.command, line.stdin) for line in crontab_reader.read(table, time_zones.UTC_ZONE, time_zones.zone).lines}
    return [job.name for job in jobs if job.enabled and (job.command, job.stdin) in there]
