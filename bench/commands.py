"""Many commands started at once by the daemon, beside the same commands started by bare asyncio: time and threads."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

TAKES = 2  # seconds that a command sleeps
LIMIT = 30  # threads


def config(folder: Path, commands: int) -> Path:
    path = folder / "config.yaml"
    job = f'{{schedule: "@reboot", command: "sleep {TAKES}"}}'
    path.write_text(f"limits: {{concurrency: {commands}}}\ncron:\n" + "".join(f"  c{n}: {job}\n" for n in range(commands)))
    return path


def ours(commands: int, report: Callable[[], None]) -> None:
    """The daemon: queue, lanes, processes and booking."""
    from scheduler import app
    from scheduler.store import boots

    with tempfile.TemporaryDirectory() as folder:
        daemon = app.Daemon(config(Path(folder), commands), dict(os.environ), listen=False)
        report()
        daemon.engine.start_boot(app.read_clocks(), boots.Boot(daemon.instance, os.getpid(), "0", "0"), {})
        daemon._run_tick()
        daemon._run_ticks(lambda: not daemon.engine.is_busy(), None)
        report()
        rows = daemon.store.connection.execute("select outcome, count(*) from run group by outcome").fetchall()
        assert dict(map(tuple, rows)) == {"ok": commands}, dict(map(tuple, rows))


def bare(commands: int, report: Callable[[], None]) -> None:
    """A script that starts them and waits for what they write, and nothing else."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8 * commands + 100)), hard))
    pipe = asyncio.subprocess.PIPE

    async def one() -> None:
        child = await asyncio.create_subprocess_exec("/bin/sh", "-c", f"sleep {TAKES}", stdin=pipe, stdout=pipe, stderr=pipe)
        await child.communicate(b"")
        assert child.returncode == 0

    async def all_of_them() -> None:
        await asyncio.gather(*(one() for _ in range(commands)))

    report()
    asyncio.run(all_of_them())
    report()


WAYS = {"heartbeatd": ours, "asyncio.create_subprocess_exec": bare}


def measure(way: str, commands: int, reports: multiprocessing.Queue[tuple[float, float, int]]) -> None:
    """One way in a process of its own: wall and CPU seconds (this process's alone), and the most threads that it had."""
    seen: list[tuple[float, float]] = []
    most, over = [0], threading.Event()

    def count() -> None:
        while not over.wait(0.02):
            most[0] = max(most[0], len(os.listdir("/proc/self/task")) - 1)  # noqa: PTH208 (cheaper); this thread is none of theirs

    def report() -> None:
        seen.append((time.monotonic(), time.process_time()))

    counter = threading.Thread(target=count)
    counter.start()
    WAYS[way](commands, report)
    over.set()
    counter.join()
    reports.put((seen[1][0] - seen[0][0], seen[1][1] - seen[0][1], most[0]))


def main(commands: int, rounds: int) -> None:
    spawn = multiprocessing.get_context("spawn")
    walls: dict[str, list[float]] = {way: [] for way in WAYS}
    threads = 0
    for _ in range(rounds):
        for way in WAYS:
            reports: multiprocessing.Queue[tuple[float, float, int]] = spawn.Queue()
            child = spawn.Process(target=measure, args=(way, commands, reports))
            child.start()
            wall, cpu, most = reports.get()
            child.join()
            walls[way].append(wall)
            threads = max(threads, most) if way == "heartbeatd" else threads
            print(f"{way:32} {commands} commands of {TAKES} s: {wall:.2f} s, {cpu:.2f} s CPU, at most {most} threads")
    first, second = (min(walls[way]) for way in WAYS)
    print(f"the best of {rounds}: {first / second:.2f} times the bare one's time, at most {threads} threads (limit {LIMIT})")
    assert threads <= LIMIT


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*(given + [300, 3][len(given) :]))
