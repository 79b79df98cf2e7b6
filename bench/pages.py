"""How late runs start while 200 status pages are open and the metrics are scraped every second, against the same daemon alone."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from html.parser import HTMLParser
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import aiohttp

AGENTS = 100
EVERY = 10  # seconds between the runs of an agent: 10 runs per second in all
PHASES = ("alone", "with pages") * 3
PHASE_SECONDS = 20.0
SETTLING_SECONDS = 5.0  # before each phase is measured
SCRAPE_EVERY = 1.0  # seconds

# As in page.js.
DELAY, JITTER, RETRY = 0.3, 0.7, 15.0  # seconds

RUNNER = '{kind: python, call: "beat:answer", in_process: true}'
HEARTBEAT = f'{{interval: {EVERY}s, checklist: "- x\\n", deliver: log}}'


def main(pages: int) -> None:
    with tempfile.TemporaryDirectory() as folder, _running_daemon(Path(folder)) as (url, process):
        late: dict[str, list[int]] = {phase: [] for phase in PHASES}
        seen: Counter[str] = Counter()
        cpu = 0.0
        for phase in PHASES:
            is_open = phase != "alone"
            with _pages(url, (Path(folder) / "state/token").read_text().strip(), pages if is_open else 0) as counts:
                time.sleep(SETTLING_SECONDS)
                before, cpu_before = counts(), _cpu_seconds(process.pid)
                late[phase] += _lateness(Path(folder), PHASE_SECONDS)
                if is_open:
                    seen += counts() - before
                    cpu += _cpu_seconds(process.pid) - cpu_before
                    memory = _memory(process.pid)
                else:
                    memory_alone = _memory(process.pid)
    alone, beside = late["alone"], late["with pages"]
    duration = PHASES.count("with pages") * PHASE_SECONDS
    print(f"alone: {_describe(alone)}, {memory_alone:.0f} MB")
    print(f"with {pages} pages and a scrape every second: {_describe(beside)}, {memory:.0f} MB")
    received = ", ".join(f"{value / duration:.1f} {key}" for key, value in sorted(seen.items()))
    print(f"per second: {received}; {cpu / duration:.2f} s of CPU time of the daemon")
    print(f"ratio of the 99th percentiles: {_percentile(beside) / max(_percentile(alone), 1):.2f}")


def _describe(late: list[int]) -> str:
    return f"median {statistics.median(late):.0f} ms, 99 % {_percentile(late)} ms, at most {max(late)} ms ({len(late)} runs)"


def _percentile(late: list[int]) -> int:
    return sorted(late)[len(late) * 99 // 100]


def _lateness(folder: Path, seconds: float) -> list[int]:
    """How many milliseconds after their slots the runs of a while have started."""
    since = time.time()
    time.sleep(seconds)
    until = time.time()
    time.sleep(2)  # a late run still starts
    with closing(sqlite3.connect(folder / "state" / "h.db")) as db:
        query = "select started_at - slot from run where slot between ? and ? and trigger = 'interval' and started_at is not null"
        return [row[0] for row in db.execute(query, (int(since * 1000), int(until * 1000)))]


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    """The resident memory in MB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


@contextmanager
def _running_daemon(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A daemon whose agents answer at once. Yields its URL and its process."""
    (folder / "beat.py").write_text('def answer(request):\n    return "HEARTBEAT_OK"\n')
    agent = f"{{runner: {RUNNER}, heartbeat: {HEARTBEAT}}}"
    (folder / "config.yaml").write_text(
        'state: state/h.db\nserver: {listen: "127.0.0.1:0"}\nlimits: {concurrency: 100, min_interval: 1s}\n'
        "agents:\n" + "".join(f"  a{number}: {agent}\n" for number in range(AGENTS))
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(Path(__file__).parents[1])))}
    command = [sys.executable, "-m", "scheduler", "run", "-c", "config.yaml"]
    process = subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.DEVNULL)
    address = folder / "state" / "daemon.json"
    try:
        while not address.exists():
            time.sleep(0.2)
        time.sleep(2 * EVERY)
        yield json.loads(address.read_text())["url"], process
    finally:
        process.terminate()
        process.wait(60)


# --- the pages, in a process of their own --------------------------------------------------------------------------------------


@contextmanager
def _pages(url: str, token: str, number: int) -> Iterator[Any]:
    """Open pages and a program that scrapes. Yields a function that returns what they have received."""
    if not number:
        yield Counter
        return
    spawn = multiprocessing.get_context("spawn")
    over = spawn.Event()
    with spawn.Manager() as manager:
        shared = manager.dict()
        process = spawn.Process(target=_open_pages, args=(url, token, number, over, shared))
        process.start()
        try:
            while shared.get("open", 0) < number:
                assert process.is_alive()
                time.sleep(0.2)
            yield lambda: Counter({key: value for key, value in shared.items() if key != "open"})
        finally:
            over.set()
            process.join(60)


def _open_pages(url: str, token: str, number: int, over: Event, shared: Any) -> None:
    asyncio.run(_follow_until(url, token, number, over, shared))


async def _follow_until(url: str, token: str, number: int, over: Event, shared: Any) -> None:
    counts: Counter[str] = Counter()
    jar = aiohttp.CookieJar(unsafe=True)  # for a cookie of 127.0.0.1
    async with aiohttp.ClientSession(
        url, connector=aiohttp.TCPConnector(limit=0), cookie_jar=jar, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        async with session.post("/page/login", data={"token": token}, headers={"Origin": url}) as answer:
            assert answer.status == 200, answer.status
        async with asyncio.TaskGroup() as group:
            pages = [_Page(session, counts) for _ in range(number)]
            tasks = [group.create_task(_scrape(url, token, counts))]
            for page in pages:
                tasks.append(group.create_task(page.follow()))
                await asyncio.sleep(0.02)
            while not over.is_set():
                shared.update(counts)
                await asyncio.sleep(0.2)
            for task in (*tasks, *(load for page in pages for load in page.loading.values())):
                task.cancel()


async def _scrape(url: str, token: str, counts: Counter[str]) -> None:
    headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "gzip", "Accept": "application/openmetrics-text"}
    async with aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(f"{url}/metrics", headers=headers) as answer:
                    await answer.read()
                    counts["scrapes"] += answer.status == 200
            await asyncio.sleep(SCRAPE_EVERY)


class _LiveElements(HTMLParser):
    """Finds the elements that page.js refreshes: by their ID the events, the entry, the URL and the pause."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, tuple[set[str], str | None, str, float]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "data-live" in given:
            events, every = set(given["data-live"].split()), float(given.get("data-live-every") or 0)
            self.found[given["id"]] = (events, given.get("data-live-key"), given.get("data-live-url", "/"), every)


@dataclass
class _Page:
    """An open page: it follows the events, and loads the parts that they concern as page.js does, one after the other."""

    session: aiohttp.ClientSession
    counts: Counter[str]
    loading: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    loaded: dict[str, float] = field(default_factory=dict)

    async def follow(self) -> None:
        self.queue = asyncio.Lock()
        self.opened = time.monotonic()
        elements = _LiveElements()
        elements.feed(await self._get("/"))
        self.elements = elements.found
        self.counts["open"] += 1
        last_id: str | None = None
        while True:
            headers = {"Last-Event-ID": last_id} if last_id else {}
            with suppress(aiohttp.ClientError):
                async with self.session.get("/api/v1/events", headers=headers) as stream:
                    if stream.status != 200:
                        self.counts[f"streams refused ({stream.status})"] += 1
                        await asyncio.sleep(RETRY)
                        continue
                    name = ""
                    async for line in stream.content:
                        key, _, value = line.decode().rstrip("\n").partition(": ")
                        if key == "event":
                            name = value
                        elif key == "id":
                            last_id = value
                        elif key == "data":
                            self._receive(name, json.loads(value))
            await asyncio.sleep(2)

    def _receive(self, name: str, data: dict[str, Any]) -> None:
        self.counts["events"] += 1
        key = f"{data['kind']}/{data['name']}" if "kind" in data else None
        for element, (events, own, _, _) in self.elements.items():
            if name == "gap" or (name in events and (own is None or key is None or own == key)):
                self._refresh(element)

    def _refresh(self, element: str) -> None:
        if element not in self.loading:
            self.loading[element] = asyncio.create_task(self._load(element))

    async def _load(self, element: str) -> None:
        _, _, url, every = self.elements[element]
        rest = max(0.0, self.loaded.get(element, self.opened) + every - time.monotonic())
        await asyncio.sleep(rest + DELAY + random.random() * (JITTER + every / 4))
        self.loaded[element] = time.monotonic()
        try:
            await self._get(url)
        finally:
            del self.loading[element]

    async def _get(self, url: str) -> str:
        with suppress(aiohttp.ClientError):
            async with self.queue, self.session.get(url, headers={"HX-Request": "true"}) as answer:
                text = await answer.text()
                self.counts["pages" if url == "/" else "cards"] += answer.status == 200
                if answer.status != 200:
                    self.counts[f"refused ({answer.status})"] += 1
                return text
        self.counts["connections lost"] += 1
        return ""


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
