"""Every panel of the dashboards changes when its fault is planted: each fault has a simulated daemon of its own in a real Prometheus."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import required_programs
import shipped_dashboard
from metrics_page import Page
from patience import PATIENCE
from prometheus_server import Prometheus
from servers.messages import Models, error_answer, message, text
from servers.scripted import Act, reply
from world import Delayed, World, utc

from heartbeat.runners import ProcessResult
from heartbeatd.verbs import Ask
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.model.daemon_health import QueueState, WaitingRuns, WorkerState
from scheduler.model.events import ButtonPressed
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind

pytestmark = [pytest.mark.process, required_programs.needs("prometheus", "promtool")]

SCRAPE, BEFORE, AFTER = timedelta(seconds=30), 6, 14  # scrapes before and after the fault
START = utc("2026-03-02 08:00").timestamp()
END = START + SCRAPE.total_seconds() * (BEFORE + AFTER - 1)
HEALTHY, AGAIN = "healthy", "healthy again"
GREEN = "#56A64B"

CONFIG = """
server: {metrics_entries: ENTRIES}
limits: {concurrency: PLACES, wake_gap: 5s, wake_keep: 2m, min_interval: 1m}
deadman: {url: "MODEL/ping"}
providers: {anthropic: {api_key: k, base_url: "MODEL"}}
prices: {claude-haiku-5-5: {input: 1.0, output: 5.0}, claude-haiku-4-5: {input: 1.0, output: 5.0}}
channels:
  hook: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}
  chat: {url: "tgram://123456:AAaa/42", buttons: true}
agents:
  ops:
    runner: {kind: command, argv: [ARGV]}
    heartbeat: {interval: 1m, stagger: 0s, retries: 1, checklist: HEARTBEAT.md, deliver: hook, precheck: look}
  model:
    runner: {kind: anthropic}
    model: claude-haiku-5-5
    fallbacks: FALLBACKS
    heartbeat: {interval: 1m, stagger: 0s, checklist: "- look\\n", deliver: hook, budget: {usd_per_day: DOLLARS}}
cron:
  tick: {every: 1m, command: tick, deliver: hook, ask: {to: hook}}
"""
NEEDED = frozenset({"default"})
NORMAL = {"PLACES": "4", "ENTRIES": "10", "DOLLARS": "5", "FALLBACKS": "[]", "ARGV": "agent"}


@dataclass
class Daemon:
    """A simulated daemon, its metrics page, and its model."""

    world: World
    page: Page
    model: Models
    answers: bool = True
    ticks: bool = True
    queue: QueueState = field(default_factory=lambda: QueueState(None, (WorkerState("one", ("default",)),), needed=NEEDED))

    def scrape(self) -> str:
        if self.ticks:
            self.world.run(seconds=SCRAPE.total_seconds())
        else:
            self.world.clock.advance(SCRAPE)
        self.page.running = Counter(claim.entry.kind.value for claim in self.world.runs.inflight().values())
        self.world.engine.health.queue = self.queue
        return self.page.scrape() if self.answers else ""


@dataclass(frozen=True)
class Fault:
    """What goes wrong after some minutes, and the panels that must show it (the others may). `config` changes CONFIG."""

    plant: Callable[[Daemon], object]
    fleet: tuple[str, ...] = ()
    agent: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    config: dict[str, str] = field(default_factory=dict)

    @property
    def panels(self) -> Iterator[tuple[str, str]]:
        for board in shipped_dashboard.BOARDS:
            yield from ((board, title) for title in getattr(self, board))


def answer(words: str = "HEARTBEAT_OK", model: str = "claude-haiku-5-5", tokens: int = 30) -> Act:
    usage = {"input_tokens": 120, "output_tokens": tokens, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    return reply(message(text(words), model=model, usage=usage))


def script(name: str, answered: Any) -> Callable[[Daemon], None]:
    """From now on, the agent or job answers this."""

    def plant(daemon: Daemon) -> None:
        daemon.world.scripts[name] = lambda _: answered

    return plant


def model_answers(act: Callable[[], Act]) -> Callable[[Daemon], None]:
    def plant(daemon: Daemon) -> None:
        daemon.model.answer = lambda _: act()

    return plant


def overload_model(daemon: Daemon) -> None:
    overloaded = error_answer(529, "overloaded_error", "Overloaded")
    daemon.model.answer = lambda request: overloaded if request.json["model"] == "claude-haiku-5-5" else answer()


def limit_account(daemon: Daemon) -> None:
    says = "You've hit your session limit · resets 7pm (UTC)"
    report = f'{{"type": "result", "subtype": "success", "is_error": true, "result": "{says}", "total_cost_usd": 0}}'
    daemon.world.scripts["ops"] = lambda _: ProcessResult(1, report.encode(), b"", False, False, None, None)


def ask_person(daemon: Daemon) -> None:
    daemon.world.scripts["tick"] = lambda _: Delayed("done", timedelta(hours=1))
    daemon.world.run(minutes=1)
    run = next(each["id"] for each in daemon.world.records("tick") if each["state"] == "running")
    daemon.world.request(VerbRequest(Ask(text="Go on?"), run, Sender()))


def raise_alerts(daemon: Daemon, result: str = "delivered") -> None:
    """Each run of ops reports another problem, and its channel answers this."""
    daemon.world.scripts["ops"] = lambda _: f"[disk:{daemon.world.clock.now:%H%M}] critical: The disk is full."
    daemon.world.send = lambda _: DeliveryResult(result, "" if result == "delivered" else "no such chat")


def repeat_alert(daemon: Daemon) -> None:
    daemon.world.scripts["ops"] = lambda _: "The disk is full."


def precheck(printed: Any) -> Callable[[Daemon], None]:
    def plant(daemon: Daemon) -> None:
        daemon.world.prechecks["ops"] = lambda _: printed

    return plant


def remove_checklist(daemon: Daemon) -> None:
    (daemon.world.folder / "agents" / "ops" / "HEARTBEAT.md").unlink()


def pause(daemon: Daemon) -> None:
    daemon.world.pause((Kind.HEARTBEAT, "ops"))


def pause_and_wake(daemon: Daemon) -> None:
    daemon.world.pause((Kind.HEARTBEAT, "ops"))
    daemon.world.wake("ops", "look")


def go_down(daemon: Daemon) -> None:
    daemon.answers = False


def crash(daemon: Daemon) -> None:
    daemon.world.durations["ops"] = timedelta(minutes=2)
    daemon.world.run(seconds=90)
    daemon.world.downtime(seconds=20)
    daemon.page = Page(daemon.world)


def hang(daemon: Daemon) -> None:
    daemon.ticks = False


def overload(daemon: Daemon) -> None:
    """Two jobs and agents take all places for minutes."""
    for name in ("ops", "tick"):
        daemon.world.durations[name] = timedelta(minutes=3)


def lock_database(daemon: Daemon) -> None:
    with daemon.world.locked_database():
        daemon.world.engine.tick(daemon.world.clock.read())


def reject_config(daemon: Daemon) -> None:
    daemon.page.reload_state.successful = False


def lose_pings(daemon: Daemon) -> None:
    daemon.world.engine.health.pings["failed"] += 4


def fill_disk(daemon: Daemon) -> None:
    """The reserve is gone and cannot be created again: a link in its place is not followed."""
    reserve = daemon.world.state.with_name(daemon.world.state.name + ".reserve")
    reserve.unlink()
    reserve.symlink_to("nowhere")


def flood(daemon: Daemon) -> None:
    for number in range(40):
        daemon.world.wake("ops", f"look {number}", sender=f"bot{number}")


def damage_message(daemon: Daemon) -> None:
    """Each run queues a message whose slot cannot be read."""
    raise_alerts(daemon)
    with daemon.world.store.transaction() as db:
        db.execute(f"create trigger damage after insert on outbox begin update outbox set slot = {10**17} where id = new.id; end")


def lose_queue(daemon: Daemon) -> None:
    daemon.queue = QueueState("the server is down")


def lose_workers(daemon: Daemon) -> None:
    daemon.queue = QueueState(None, (), {"default": WaitingRuns(2, 90.0)}, NEEDED)


def refuse_token(daemon: Daemon) -> None:
    daemon.page.metrics.count_request("/api/v1/agents/{name}/wake", 401)
    daemon.page.metrics.count_refused_token()


def forge_press(daemon: Daemon) -> None:
    daemon.page.metrics.count_event(ButtonPressed("chat", "mute", "forged", "7", None))


def add_entries(daemon: Daemon) -> None:
    """The config has more entries than `server.metrics_entries` from the start."""


FAULTS = {
    "the daemon is down": Fault(
        go_down,
        fleet=("Is every daemon up?", "Which agents and jobs had trouble, and when?"),
        agent=("What became of its planned runs?",),
        operations=("Which daemons are up?", "How much CPU time does the process use?", "How much memory does the process use?",
                    "How many files does the process keep open?", "Which version is running?"),
    ),
    "the main loop hangs": Fault(hang, operations=("How long ago was the last tick?",)),
    "the daemon crashes": Fault(crash, operations=("Which work was retried, recovered or discarded?",)),
    "the runner exits 3": Fault(
        script("ops", 3),
        fleet=("Do planned runs end well?", "How many agents and jobs are failing?", "How did planned runs end?", "Which agents and jobs have the most bad runs?",
               "Which agents and jobs fail in a row?", "How do runs end?"),
        agent=("How often did it fail in a row?", "When did it last succeed?", "What did it answer?",
               "Which of its calls had problems?"),
    ),
    "an agent raises alerts": Fault(
        raise_alerts,
        fleet=("How many agents have an alert?", "Which agents raised the most alerts?", "Which problems are oldest?",
               "How many problems are open?"),
        agent=("Does it have something to say?", "Which problems does it have?"),
        operations=("How did deliveries end?",),
    ),
    "an agent repeats itself": Fault(
        repeat_alert,
        fleet=("Which answers were not sent, and why?",), agent=("Which of its answers were not sent?",),
    ),
    "the channel refuses": Fault(
        lambda daemon: raise_alerts(daemon, "dead"),
        fleet=("Are messages stuck?", "Do messages arrive on time?"),
        operations=("How many messages are pending or dead?", "Do messages arrive on time?"),
    ),
    "the channel does not answer": Fault(
        lambda daemon: raise_alerts(daemon, "retry"), operations=("How old is the oldest undelivered message?",)
    ),
    "an agent is paused": Fault(
        pause, fleet=("How many agents and jobs are paused?", "Which runs are next?"), agent=("Is it active?", "When is it due next?")
    ),
    "the checklist is gone": Fault(
        remove_checklist,
        fleet=("How many agents and jobs are silent?", "Which planned runs were lost?", "Which agents and jobs are silent, and for how long?"),
        agent=("Is it overdue?", "Which of its planned runs were lost?"),
    ),
    "the precheck finds nothing": Fault(
        precheck("NO_WORK\n"),
        fleet=("Which runs were skipped as planned?",), agent=("Which of its runs were skipped as planned?",),
    ),
    "more is due than may run": Fault(
        overload,
        fleet=("Do planned runs start on time?", "How long do runs take?"),
        agent=("How much time do its runs take?",),
        operations=("Is there room for more runs?", "How late do planned runs start?", "How long has the oldest due run waited?",
                    "Do planned runs start on time?"),
        config={"PLACES": "1"},
    ),
    "the provider wants to be paid": Fault(
        model_answers(lambda: error_answer(402, "billing_error", "no credit is left")),
        operations=("How do calls to providers end?", "Which circuit breakers are open?", "How long do calls to models take?"),
    ),
    "the model is overloaded, and a fallback answers": Fault(
        overload_model, operations=("Which agents and jobs does a fallback answer for?",), config={"FALLBACKS": "[claude-haiku-4-5]"}
    ),
    "an account has reached its limit": Fault(
        limit_account, operations=("Which accounts have reached their usage limit?",), config={"ARGV": "claude"}
    ),
    "a job asks a person": Fault(ask_person, fleet=("Which questions wait for a person?",)),
    "another model answers": Fault(
        model_answers(lambda: answer(model="claude-opus-9")),
        operations=("Which models have no price, or differ from the requested one?",),
    ),
    "answers become long": Fault(
        model_answers(lambda: answer(tokens=40000)),
        fleet=("What do the models cost?", "Which agents and jobs cost the most?"),
        agent=("How many tokens does it use?", "What does it cost?"),
        operations=("How many tokens are used?",),
    ),
    "the budget is used up": Fault(
        model_answers(lambda: answer(tokens=40000)),
        fleet=("Will the budgets last?", "Which budgets are used the most?"),
        agent=("How much of its budget is used?",),
        operations=("Which budgets are exhausted?",),
        config={"DOLLARS": "0.5"},
    ),
    "wakes arrive in a flood": Fault(
        flood, fleet=("How did wakes end?",), agent=("Who wakes it?",)
    ),
    "a wake waits too long": Fault(pause_and_wake, operations=("Which wakes were refused?",)),
    "the config is rejected": Fault(reject_config, operations=("Is the saved config active?",)),
    "the database is locked": Fault(lock_database, operations=("Are there problems with the database or the clock?",)),
    "the disk is full": Fault(fill_disk, operations=("Is the disk reserve in place?",)),
    "a message cannot be read": Fault(damage_message, operations=("Which parts of the daemon had internal errors?",)),
    "the queue of the workers is down": Fault(lose_queue, operations=("Can the queue of the workers be used?",)),
    "all workers are gone": Fault(
        lose_workers,
        operations=(
            "How many workers are running?", "How many runs wait for a worker?", "How long has the oldest run waited for a worker?",
        ),
    ),
    "pings are lost": Fault(lose_pings, operations=("Does the dead man's switch get its pings?",)),
    "a token is refused": Fault(
        refuse_token, operations=("Which requests does the HTTP API get?", "Are tokens refused?")
    ),
    "a press is forged": Fault(forge_press, operations=("Who presses buttons?",)),
    "there are too many agents and jobs": Fault(add_entries, operations=("How many agents and jobs have no series?",), config={"ENTRIES": "1"}),
}  # fmt: skip

# The start of the process is not simulated, the size of the database has no fault that is quick enough for a test, and the database is
# no server, which alone has a leader.
WITHOUT_FAULT = {
    ("operations", "How large is the database?"),
    ("operations", "How long has it been running?"),
    ("operations", "Which daemon leads?"),
    ("operations", "How often has the leader changed?"),
    ("operations", "How long ago did the leader renew its lease?"),
}

# These show the process of the tests itself.
OF_THE_PROCESS = {
    ("operations", "How long has it been running?"),
    ("operations", "How much CPU time does the process use?"),
    ("operations", "How much memory does the process use?"),
    ("operations", "How many files does the process keep open?"),
    ("operations", "How long do calls to models take?"),
    ("operations", "How large is the database?"),
}

DAEMONS: dict[str, Fault | None] = {HEALTHY: None, AGAIN: None, **FAULTS}


def simulate(folder: Path, fault: Fault | None) -> Iterator[str]:
    """The pages of a daemon with this fault, one for each scrape. An empty page is a scrape without an answer."""
    folder.mkdir()
    with Models(lambda _: answer()) as model:
        (folder / "agents" / "ops").mkdir(parents=True)
        (folder / "agents" / "ops" / "HEARTBEAT.md").write_text("- look\n")
        config = CONFIG.replace("MODEL", model.url)
        for word, value in (NORMAL | (fault.config if fault else {})).items():
            config = config.replace(word, value)
        world = World(folder, config, prechecks={"ops": lambda _: "disk 50 %\n"})
        daemon = Daemon(world, Page(world), model)
        for number in range(BEFORE + AFTER):
            if fault and number >= BEFORE and (number == BEFORE or fault.plant in EVENTS):
                fault.plant(daemon)
            yield daemon.scrape()
        world.store.close()


EVENTS = {lose_pings, refuse_token, forge_press, lock_database}  # happen again and again


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped all simulated daemons. The label `instance` is the name of the fault."""
    folder = tmp_path_factory.mktemp("faults")
    with (folder / "scrapes.txt").open("w") as out:
        for name, fault in DAEMONS.items():
            place = folder / re.sub(r"\W", "_", name)
            for number, page in enumerate(simulate(place, fault)):
                out.writelines(stamped(page, name, START + SCRAPE.total_seconds() * number))
            shutil.rmtree(place)
        out.write("# EOF\n")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "scrapes.txt"), str(folder / "tsdb")]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    (folder / "prometheus.yml").write_text("{}")
    it = Prometheus(folder, folder / "prometheus.yml")
    it.wait_until(lambda: it.query_api("status/buildinfo"))
    yield it
    it.stop()


def stamped(page: str, name: str, at: float) -> Iterator[str]:
    """The samples of a page with the labels and the time that a scrape adds."""
    labels = f'instance="{name}",job="heartbeatd"'
    yield f"up{{{labels}}} {int(bool(page))} {at:.0f}\n"
    for line in page.splitlines():
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            metric, brace, own = series.partition("{")
            yield f"{metric}{{{labels}{f',{own}' if brace else '}'} {value} {at:.0f}\n"


def expressions(panel: dict[str, Any], instance: str, entry: str) -> Iterator[str]:
    """The queries of a panel for one daemon, and on the Agent dashboard for one agent."""
    for target in panel["targets"]:
        query = target["expr"].replace("$instance", instance).replace("$kind", "heartbeat" if entry != ".*" else ".*")
        yield shipped_dashboard.grafana_query(query.replace("$name", entry), window="2m", span="1h")


def shown(it: Prometheus, panel: dict[str, Any], instance: str, entry: str) -> list[Any]:
    """What a panel shows of a daemon: the series of each query without the label `instance`, from the fault to the end."""
    when = {"start": START + BEFORE * SCRAPE.total_seconds(), "end": END, "step": SCRAPE.total_seconds()}
    found = []
    for expr in expressions(panel, instance, entry):
        for series in it.query_api("query_range", query=expr, **when)["result"]:
            labels = {key: value for key, value in series["metric"].items() if key != "instance"}
            found.append((sorted(labels.items()), [(at, f"{float(value):.6g}") for at, value in series["values"]]))
    return sorted(found)


def differs(it: Prometheus, board: str, title: str, instance: str) -> bool:
    """Whether a panel shows something else for this daemon than for the healthy one."""
    (panel,) = (panel for panel in shipped_dashboard.panels(board) if panel["title"] == title)
    entries = ("ops", "model") if board == "agent" else (".*",)
    return any(shown(it, panel, instance, entry) != shown(it, panel, HEALTHY, entry) for entry in entries)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_changes_its_panels(prometheus: Prometheus, fault: str) -> None:
    unchanged = [(board, title) for board, title in FAULTS[fault].panels if not differs(prometheus, board, title, fault)]
    assert unchanged == []


def test_without_a_fault_the_panels_of_two_daemons_are_the_same(prometheus: Prometheus) -> None:
    everything = [(board, panel["title"]) for board in shipped_dashboard.BOARDS for panel in shipped_dashboard.panels(board)]
    different = {(board, title) for board, title in everything if differs(prometheus, board, title, AGAIN)}
    assert different <= OF_THE_PROCESS


def test_every_panel_has_a_fault() -> None:
    planted = {panel for fault in FAULTS.values() for panel in fault.panels}
    there = {(board, panel["title"]) for board in shipped_dashboard.BOARDS for panel in shipped_dashboard.panels(board)}
    assert planted | WITHOUT_FAULT == there
    assert not planted & WITHOUT_FAULT


@pytest.mark.parametrize("board", shipped_dashboard.BOARDS)
def test_a_daemon_that_is_down_shows_no_green_number(prometheus: Prometheus, board: str) -> None:
    for panel in shipped_dashboard.panels(board):
        if panel["type"] == "stat":
            for target, expr in zip(panel["targets"], expressions(panel, "the daemon is down", ".*"), strict=True):
                for value in prometheus.values(expr, time=END):
                    assert color_of(panel, target["legendFormat"], value) != GREEN, panel["title"]


def test_a_healthy_daemon_shows_green_numbers(prometheus: Prometheus) -> None:
    """The test above can fail."""
    green = [
        panel["title"]
        for panel in shipped_dashboard.panels("fleet")
        for target, expr in zip(panel["targets"], expressions(panel, HEALTHY, ".*"), strict=True)
        for value in prometheus.values(expr, time=END)
        if panel["type"] == "stat" and color_of(panel, target["legendFormat"], value) == GREEN
    ]
    assert {"Do planned runs end well?", "Is every daemon up?", "How many agents and jobs are failing?"} <= set(green)


def color_of(panel: dict[str, Any], legend: str, value: float) -> str:
    """The colour of a number: that of its text, or that of the highest threshold below it."""
    defaults = panel["fieldConfig"]["defaults"]
    for mapping in defaults["mappings"]:
        if f"{value:g}" in mapping["options"]:
            return str(mapping["options"][f"{value:g}"]["color"])
    steps = defaults["thresholds"]["steps"]
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"]["options"] == legend:
            steps = next(change["value"]["steps"] for change in override["properties"] if change["id"] == "thresholds")
    return str([step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1])
