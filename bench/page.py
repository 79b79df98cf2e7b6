"""What the first page of the status page costs for many agents: CPU time of the whole request in a real HTTP server."""

from __future__ import annotations

import http.client
import statistics
import sys
import tempfile
import time
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlencode

from bench.dispatch import BEATS, NOW, engine
from scheduler.engine.clock_adjustment import ClockReading
from scheduler.telemetry.event_feed import EventFeed
from scheduler.telemetry.metrics import Metrics
from scheduler.web.app_state import AppState
from scheduler.web.server import HttpServer

SLOTS = 48  # earlier records of each agent, so that every strip is full
REQUESTS = 10
REASONS = ("heartbeat_ok",) * 40 + ("",) * 8


def main(agents: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        it = engine(Path(folder), agents, BEATS["with a model call within a budget"])
        steady = 0.0
        while it.store.connection.execute("select count(*) from run where outcome = 'ok'").fetchone()[0] < agents:
            steady += 0.001
            it.tick(ClockReading(NOW + timedelta(seconds=steady), steady))
        _add_history(it.store.connection)
        _measure(it, agents)
        it.store.close()


def _add_history(db) -> None:
    """Copy the run of each agent 48 times, half an hour apart, some as alerts with a long answer."""
    columns = [row[1] for row in db.execute("pragma table_info(run)") if row[1] != "id"]
    changed = {
        "slot": "slot - earlier * 1800000",
        "outcome": "case when earlier % 6 = 0 then 'alert' else outcome end",
        "suppression": "case when earlier % 6 = 0 then null else suppression end",
        "text": "case when earlier % 6 = 0 then printf('%.2000c', 'x') else text end",
    }
    values = ", ".join(changed.get(name, name) for name in columns)
    db.execute(
        f"with recursive count(earlier) as (select 1 union all select earlier + 1 from count where earlier < {SLOTS})"
        f" insert into run ({', '.join(columns)}) select {values} from run, count order by earlier desc"
    )
    if db.in_transaction:
        db.execute("commit")


def _measure(it, agents: int) -> None:
    settings = it.plan.settings
    object.__setattr__(settings.server, "port", 0)
    now = NOW + timedelta(minutes=1)
    app_state = AppState(
        settings=lambda: settings,
        submit_request=lambda _: Future(),
        reloader=None,  # no request needs it
        metrics=Metrics(settings, version="0", tzdata="0"),
        health=it.health,
        count_running=dict,
        clock=lambda: now,
        database_path=settings.state,
        feed=EventFeed("bench"),
    )
    server = HttpServer(app_state)
    server.start()
    try:
        address = server.url.removeprefix("http://")
        token = settings.state.with_name("token").read_text().strip()
        connection = http.client.HTTPConnection(address, timeout=60)
        form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": server.url}
        connection.request("POST", "/page/login", urlencode({"token": token}), form)
        answer = connection.getresponse()
        answer.read()
        cookie = {"Cookie": answer.getheader("set-cookie").partition(";")[0]}
        for path in ("/", "/?q=a99", "/?show=problems", "/page/cards/a1"):
            times = []
            for _ in range(REQUESTS):
                began = time.process_time()
                connection.request("GET", path, headers=cookie)
                answer = connection.getresponse()
                page = answer.read()
                times.append(time.process_time() - began)
                assert answer.status == 200, answer.status
            first, median = times[0], statistics.median(times[1:])
            print(
                f"{agents} agents: {path}: {len(page) / 1000:.0f} kB, CPU time {first:.3f} s the first time, then {median:.3f} s"
            )
    finally:
        server.stop()


if __name__ == "__main__":
    for agents in [int(word) for word in sys.argv[1:]] or [1000]:
        main(agents)
