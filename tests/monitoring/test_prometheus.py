"""A real Prometheus scrapes a real daemon, loads the alert rules, and answers the queries of the dashboard."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import required_programs
import shipped_dashboard
from daemon_process import Daemon
from metrics_page import Page
from patience import PATIENCE
from prometheus_client.parser import text_string_to_metric_families
from prometheus_server import LABELS, Begin, Prometheus
from servers.messages import error_answer, text_answer
from servers.scripted import Server
from world import Delayed, MakeWorld, World

from heartbeatd.verbs import Mute
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import VerbRequest
from scheduler.model.daemon_health import QueueState, WaitingRuns, WorkerState
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind

pytestmark = [
    pytest.mark.process,
    required_programs.needs("prometheus", "promtool"),
]


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Begin]:
    begun: list[Prometheus] = []

    def begin(config: Path) -> Prometheus:
        begun.append(Prometheus(tmp_path, config))
        return begun[-1]

    yield begin
    for each in begun:
        each.stop()


WELL = """
state: state/h.db
server: {listen: "127.0.0.1:0"}
limits: {min_interval: 10s}
deadman: {url: "MODEL/ping", every: 1s, allow_private: true}
providers: {anthropic: {api_key: k, base_url: "MODEL"}}
prices: {claude-haiku-5-5: {input: 1.0, output: 5.0}}
defaults: {runner: {kind: command, argv: [sh, -c, "cat > /dev/null; echo HEARTBEAT_OK"]}}
agents:
  quiet: {heartbeat: {interval: 10s, stagger: 0s, checklist: "- look\\n", deliver: log, precheck: "date"}}
  night: {heartbeat: {interval: 10s, stagger: 0s, checklist: "- look\\n", deliver: log, enabled: false}}
  loud:
    runner: {kind: command, argv: [sh, -c, "cat > /dev/null; date"]}
    heartbeat: {interval: 10s, stagger: 0s, checklist: "- look\\n", deliver: log}
  thinker:
    runner: {kind: anthropic}
    heartbeat: {interval: 10s, stagger: 0s, checklist: "- look\\n", deliver: log, budget: {usd_per_day: 5}}
cron:
  tick: {every: 10s, command: "true", wake_heartbeat: quiet}
"""

# Panels without data as the database is no server.
OF_A_SERVER = {"Which daemon leads?", "How often has the leader changed?", "How long ago did the leader renew its lease?"}

# Panels without data in both tests. test_dashboard_faults brings about what they show.
RARE = {
    "Which accounts have reached their usage limit?",
    "Which agents and jobs does a fallback answer for?",
}

# Panels without data in normal operation or without workers on other machines, by design.
ABSENT = (
    OF_A_SERVER
    | RARE
    | {
        "Can the queue of the workers be used?",
        "How many workers are running?",
        "How many runs wait for a worker?",
        "How long has the oldest run waited for a worker?",
        "How long has the oldest due run waited?",
        "How old is the oldest undelivered message?",
        "Which problems are oldest?",
    }
)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Server([text_answer("HEARTBEAT_OK")]) as model:
        it = Daemon(tmp_path, WELL.replace("MODEL", model.url))
        yield it
        it.stop()


def scraping(daemon: Daemon) -> Path:
    """The shipped scrape config for this daemon, with short intervals."""
    config = shipped_dashboard.yaml(shipped_dashboard.GRAFANA / "prometheus" / "prometheus.yml")
    config["global"] = dict.fromkeys(config["global"], "1s")
    where = daemon.folder / "state" / "daemon.json"
    daemon.wait_until(lambda: where.exists() and where.read_text())
    url = json.loads(where.read_text())["url"]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [url.removeprefix("http://")]}]
    shutil.copy(shipped_dashboard.RULES, daemon.folder)
    path = daemon.folder / "prometheus.yml"
    path.write_text(json.dumps(config))
    return path


def dashboard_queries(window: str, span: str) -> dict[str, str]:
    """The queries of the dashboards with the titles of their panels."""
    there = [(title, expr) for title, expr in shipped_dashboard.queries() if shipped_dashboard.is_complete(expr)]
    return {shipped_dashboard.grafana_query(expr, window=window, span=span): title for title, expr in there}


def test_a_healthy_daemon_fills_the_dashboard_and_no_rule_fires(daemon: Daemon, prometheus: Begin) -> None:
    it = prometheus(scraping(daemon))
    missing = {
        expr: title
        for expr, title in dashboard_queries("10s", "1m").items()
        if title not in ABSENT and not shipped_dashboard.shows_only_events(expr)
    }

    def filled() -> bool:
        for expr in [expr for expr in missing if it.values(expr)]:
            del missing[expr]
        return not missing

    def judged() -> bool:
        groups = it.query_api("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"] if rule["name"] != "Watchdog" and rule["type"] == "alerting"]
        assert len(rules) == len(shipped_dashboard.rules()) - 1
        return all((rule["health"], rule["state"]) == ("ok", "inactive") for rule in rules)

    try:
        it.wait_until(filled)
    except AssertionError as late:
        raise AssertionError(f"no series for {missing}") from late
    it.wait_until(judged)
    assert it.values('count_over_time(ALERTS{alertstate="firing",alertname!="Watchdog"}[5m])') == []
    assert it.values('up{job="heartbeatd"}') == [1]


TROUBLED = """
limits: {concurrency: 2, wake_gap: 5s, min_interval: 1m}
deadman: {url: "MODEL/ping"}
providers:
  anthropic: {api_key: k, base_url: "MODEL"}
  stingy: {kind: anthropic, api_key: k, base_url: "STINGY"}
  picky: {kind: anthropic, api_key: k, base_url: "PICKY"}
prices: {claude-sonnet-5: {input: 3.0, output: 15.0}, claude-haiku-5-5: {input: 1.0, output: 5.0}}
channels:
  hook: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}
  gone: {kind: webhook, url: "http://127.0.0.1:9/y", allow_private: true}
defaults: {runner: {kind: command, argv: [agent]}, heartbeat: {stagger: 0s, checklist: "- look\\n", deliver: log}}
agents:
  quiet: {heartbeat: {interval: 1m}}
  loud: {heartbeat: {interval: 1m, deliver: [hook, gone]}}
  failing: {heartbeat: {interval: 1m, retries: 1}}
  day: {heartbeat: {interval: 1m, active_hours: "08:00-08:05"}}
  idle: {heartbeat: {interval: 1m, enabled: false}}
  held: {heartbeat: {interval: 1m}}
  cut: {heartbeat: {interval: 1m}}
  blind: {heartbeat: {interval: 1m, precheck: look}}
  calm: {heartbeat: {interval: 1m, precheck: look}}
  renamed: {runner: {kind: anthropic}, model: claude-sonnet-5, heartbeat: {interval: 1m, budget: {usd_per_day: 1}}}
  unpriced: {runner: {kind: anthropic}, model: claude-opus-9, heartbeat: {interval: 1m}}
  refused: {runner: {kind: anthropic, provider: stingy}, heartbeat: {interval: 1m}}
  unknown: {runner: {kind: anthropic, provider: picky}, heartbeat: {interval: 1m}}
cron:
  tick: {every: 2m, command: tick, wake_heartbeat: quiet}
  long: {every: 5m, command: long}
  longer: {every: 5m, command: longer}
"""

# Panels without events in that quarter of an hour, so their series stay at 0.
AT_REST = {
    "process_start_time_seconds",  # the process started after the simulated time
    "heartbeatd_budget_exhausted",
    "heartbeatd_http_requests_total",
    "heartbeatd_http_tokens_refused_total",
    "heartbeatd_wakes_refused_total",
    "heartbeatd_button_presses_total",
    "heartbeatd_deadman_pings_total",
    "heartbeatd_db_busy_total",
    "heartbeatd_internal_errors_total",
    "heartbeatd_entries_without_series",
    "heartbeatd_questions_open",
    "heartbeatd_stale_results_total",
    "heartbeatd_skips_taken_back_total",
}


def quarter_of_an_hour(world: World) -> Iterator[tuple[datetime, str]]:
    """The scrapes, every 15 seconds, of a quarter of an hour with many faults. The daemon is killed halfway."""
    world.pause((Kind.HEARTBEAT, "held"))
    world.wake("held", "look")
    world.request(VerbRequest(Mute(until=world.clock.now + timedelta(minutes=5)), (Kind.HEARTBEAT, "loud")))
    page = Page(world)
    yield from scrapes(page, world)
    page = Page(world)  # the counters of the next boot, which starts with the open runs of this one
    world.downtime(seconds=20)
    world.clock.now += timedelta(seconds=10)  # the monotonic clock stands still
    yield from scrapes(page, world)


WORKER = WorkerState("one", ("default",))


def scrapes(page: Page, world: World) -> Iterator[tuple[datetime, str]]:
    for _ in range(30):
        world.run(seconds=15)
        page.running = Counter(claim.entry.kind.value for claim in world.runs.inflight().values())
        world.engine.health.queue = QueueState(None, (WORKER,), {"default": WaitingRuns(2, 3.0)}, frozenset({"default"}))
        yield world.clock.now, page.scrape()


def sent(delivery: Delivery) -> DeliveryResult:
    """One channel does not answer, the other refuses permanently."""
    return DeliveryResult("retry", "no route") if delivery.channel.name == "hook" else DeliveryResult("dead", "no such chat")


def stored(folder: Path, seen: Iterator[tuple[datetime, str]]) -> datetime:
    """Write the scrapes into a Prometheus database at their times. Returns the last time."""
    lines = [line for when, text in seen for line in samples(when, text)]
    path = folder / "scrapes.txt"
    path.write_text("\n".join([*lines, "# EOF\n"]))
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(path), str(folder / "tsdb")],
        check=True, capture_output=True, timeout=PATIENCE,
    )  # fmt: skip
    return max(datetime.fromtimestamp(float(line.rsplit(" ", 1)[1])).astimezone() for line in lines)


def samples(when: datetime, text: str) -> Iterator[str]:
    yield f"up{{{LABELS}}} 1 {when.timestamp()}"
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = "".join(f',{name}="{value}"' for name, value in sample.labels.items())
            yield f"{sample.name}{{{LABELS}{labels}}} {sample.value} {when.timestamp()}"


def troubled(make_world: MakeWorld, model: Server, stingy: Server, picky: Server) -> World:
    count = iter(range(1000))
    return make_world(
        TROUBLED.replace("MODEL", model.url).replace("STINGY", stingy.url).replace("PICKY", picky.url),
        scripts={
            "loud": lambda call: f"[disk:{next(count)}] The disk is full.",
            "failing": lambda call: 3,
            "cut": lambda call: '{"text": "The disk is", "truncated": true}',
            "long": lambda call: Delayed("", timedelta(minutes=3)),
            "longer": lambda call: Delayed("", timedelta(minutes=4)),
        },
        prechecks={"blind": lambda call: 1, "calm": lambda call: "NO_WORK\n"},
        send=sent,
    )


def test_every_panel_has_data_after_a_quarter_of_an_hour_with_faults(
    tmp_path: Path, make_world: MakeWorld, prometheus: Begin
) -> None:
    well, broke = text_answer("HEARTBEAT_OK"), error_answer(402, "billing_error", "no credit is left")
    unknown = error_answer(404, "not_found_error", "no such model")
    with Server([well]) as model, Server([well, broke]) as stingy, Server([unknown]) as picky:
        end = stored(tmp_path, quarter_of_an_hour(troubled(make_world, model, stingy, picky)))
    (tmp_path / "prometheus.yml").write_text("{}")
    it = prometheus(tmp_path / "prometheus.yml")
    it.wait_until(lambda: it.query_api("status/buildinfo"))
    start = (end - timedelta(minutes=15)).timestamp()
    found = {
        f"{title}: {expr}": it.values(expr, start=start, end=end.timestamp(), step=15)
        for expr, title in dashboard_queries("5m", "15m").items()
        if not (shipped_dashboard.metrics(expr) & AT_REST and shipped_dashboard.shows_only_events(expr))
        and title not in OF_A_SERVER | RARE
    }
    assert [query for query, values in found.items() if not values] == []
    at_rest = [query for query in found if shipped_dashboard.metrics(query) & AT_REST]
    assert [query for query, values in found.items() if not any(value > 0 for value in values) and query not in at_rest] == []
