"""What a scrape of the metrics costs, against the same series in prometheus_client, and whether it makes runs late."""

from __future__ import annotations

import gzip
import json
import os
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.request import Request, urlopen

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bench.dispatch import BEATS, NOW, engine
from scheduler.engine.clock_adjustment import ClockReading
from scheduler.model.daemon_health import ReloadState
from scheduler.store.database import open_read_only
from scheduler.telemetry.metrics import Metrics, ScrapeState
from scheduler.web.probes import GZIP_LEVEL

SCRAPES = 5
RATE = 20  # runs per second of the real daemon
SCRAPE_EVERY = 5.0  # seconds; Prometheus usually scrapes every 15 to 60 seconds
MEASURED = 40.0  # seconds

RUNNER = '{kind: python, call: "beat:answer", in_process: true}'
HEARTBEAT = '{interval: %ds, checklist: "- x\\n", deliver: log}'


def main(agents: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _measure_page(Path(folder), agents)
    with tempfile.TemporaryDirectory() as folder, _running_daemon(Path(folder), agents) as url:
        alone = _lateness(Path(folder), url, scraped=False)
        scraped = _lateness(Path(folder), url, scraped=True)
    print(f"late without scrapes: {alone}; with a scrape every {SCRAPE_EVERY:.0f} s: {scraped}")


def _measure_page(folder: Path, agents: int) -> None:
    """Print size and CPU time of the page after a run of each agent."""
    it = engine(folder, agents, BEATS["with a model call within a budget"])
    settings = it.plan.settings
    object.__setattr__(settings.server, "metrics_entries", agents)
    metrics = Metrics(settings, version="0", tzdata="0")
    it._listeners.append(metrics.count_event)
    steady = 0.0
    while it.store.connection.execute("select count(*) from run where outcome = 'ok'").fetchone()[0] < agents:
        steady += 0.001
        it.tick(ClockReading(NOW + timedelta(seconds=steady), steady))
    now = ScrapeState(it.health, ReloadState(successful=True, succeeded_at=NOW), {}, NOW + timedelta(minutes=1))

    def render(accept: str = "application/openmetrics-text") -> bytes:
        with closing(open_read_only(settings.state)) as db:
            return metrics.render_page(db, now, accept).body

    page = render()
    began = time.process_time()
    for _ in range(SCRAPES):
        page = render()
    rendered = (time.process_time() - began) / SCRAPES
    began = time.process_time()
    packed = gzip.compress(page, GZIP_LEVEL, mtime=0)
    zipped = time.process_time() - began
    series = sum(not line.startswith(b"#") for line in page.splitlines())
    library = _library_time(render("text/plain").decode())
    per_agent = len(re.findall(rb'name="a1"', page))
    print(
        f"{agents} agents: {series} series, {per_agent} each; {len(page) / 1e6:.2f} MB, {len(packed) / 1e6:.2f} MB with gzip;"
        f" CPU time {rendered:.3f} s, gzip {zipped:.3f} s; prometheus_client {library:.3f} s, ratio {rendered / library:.2f}"
    )
    it.store.close()


def _library_time(page: str) -> float:
    """The CPU time in which prometheus_client writes the same series."""
    registry = CollectorRegistry()
    for family in text_string_to_metric_families(page):
        names = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        if family.type == "histogram" or not names:
            continue
        gauge = Gauge(f"{family.name}_", family.documentation, names, registry=registry)
        for sample in family.samples:
            gauge.labels(*(sample.labels.get(name, "") for name in names)).set(sample.value)
    began = time.process_time()
    generate_latest(registry)
    return time.process_time() - began


@contextmanager
def _running_daemon(folder: Path, agents: int) -> Iterator[str]:
    """A daemon whose agents answer at once, RATE of them per second. Yields its URL."""
    (folder / "beat.py").write_text('def answer(request):\n    return "HEARTBEAT_OK"\n')
    agent = f"{{runner: {RUNNER}, heartbeat: {HEARTBEAT % max(1, agents // RATE)}}}"
    (folder / "config.yaml").write_text(
        f'state: state/h.db\nserver: {{listen: "127.0.0.1:0", metrics_entries: {agents}}}\n'
        "limits: {concurrency: 100, min_interval: 1s}\n"
        "agents:\n" + "".join(f"  a{number}: {agent}\n" for number in range(agents))
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(Path(__file__).parents[1])))}
    command = [sys.executable, "-m", "scheduler", "run", "-c", "config.yaml"]
    process = subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.DEVNULL)
    address = folder / "state" / "daemon.json"
    try:
        while not address.exists() or not _has_run(folder):
            time.sleep(0.2)
        yield json.loads(address.read_text())["url"]
    finally:
        process.terminate()
        process.wait(60)


def _has_run(folder: Path) -> bool:
    with closing(sqlite3.connect(folder / "state" / "h.db")) as db:
        try:
            return db.execute("select count(*) from run where outcome = 'ok'").fetchone()[0] > RATE
        except sqlite3.Error:
            return False


def _lateness(folder: Path, url: str, *, scraped: bool) -> str:
    """Median, 99th percentile and maximum of how late runs start in a while."""
    time.sleep(2)
    since = time.time()
    while time.time() < since + MEASURED:
        if scraped:
            headers = {"Accept-Encoding": "gzip", "Accept": "application/openmetrics-text"}
            with urlopen(Request(f"{url}/metrics", headers=headers)) as page:
                page.read()
        time.sleep(SCRAPE_EVERY)
    with closing(sqlite3.connect(folder / "state" / "h.db")) as db:
        query = "select started_at - slot from run where slot >= ? and trigger = 'interval' and started_at is not null"
        late = sorted(row[0] for row in db.execute(query, (int(since * 1000),)))
    most = late[len(late) * 99 // 100]
    return f"median {statistics.median(late):.0f} ms, 99 % {most} ms, at most {late[-1]} ms ({len(late)} runs)"


if __name__ == "__main__":
    for count in [int(given) for given in sys.argv[1:]] or (100, 1_000, 10_000):
        main(count)
