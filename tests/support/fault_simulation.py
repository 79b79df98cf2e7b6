"""Real daemons under one real Prometheus: each fault is planted, must fire exactly its alert, and is then repaired.

The rules are the shipped ones, with thresholds of seconds instead of minutes. A fault is repaired as soon as its
alert fires, and is over when the alert has resolved. In the end, the alerts that ever fired must be the expected ones.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request as WebRequest
from urllib.request import urlopen

import shipped_dashboard
from servers.gateway import async_answer
from servers.gateway import text_answer as gateway_answer
from servers.messages import Models, error_answer, message, text, text_answer
from servers.scripted import Act, hang_up, reply

PATIENCE = 140.0  # seconds for all faults together
INTERVAL = "4s"
MODEL = "claude-haiku-5-5"

# Thresholds for a Prometheus that scrapes each second. Those that count failures or shares keep their defaults.
# What is replaced in the expression of a rule, so that it fires within seconds, and its `for`.
SHORT: dict[str, dict[str, str]] = {
    "HeartbeatdDown": {"for": "20s"},
    "HeartbeatdCrashLooping": {"[1h]": "[50s]", ">= 4": ">= 3"},
    "HeartbeatdCrashed": {"[30m]": "[20s]"},
    "ConfigReloadFailed": {"for": "2s"},
    "ConfigFileMissing": {"for": "2s"},
    "InternalErrors": {"15m": "12s", "< 900": "< 12"},
    "DatabaseBusy": {"[5m]": "[10s]", "> 60": "> 3", "for": "2s"},
    "NoReserve": {"for": "2s"},
    "ClockJumped": {"15m": "12s", "< 900": "< 12"},
    "DeadmanUnreachable": {"[15m]": "[6s]", "for": "2s"},
    "TokensRefused": {"15m": "12s", "< 900": "< 12"},
    "UnknownPaths": {"15m": "12s", "< 900": "< 12"},
    "DispatchLate": {"> 60": "> 5", "for": "7s"},
    "HeartbeatFailing": {"for": "0s"},
    "HeartbeatBlocked": {"1h": "12s", "< 3600": "< 12", "for": "1s"},
    "PrecheckFailing": {"[6h]": "[16s]", ">= 3": ">= 2"},
    "SlotsLost": {"[6h]": "[24s]", ">= 4": ">= 2", "for": "1s"},
    "HeartbeatSilent": {"[6h]": "[30s]", "for": "6s"},
    "PausedForLong": {"> 259200": "> 4"},
    "AlertStorm": {"[1h]": "[20s]", "> 12": "> 4"},
    "WakesRejected": {"1h": "15s", "< 3600": "< 15"},
    "WakesExpired": {"1h": "10s", "< 3600": "< 10"},
    "WakeFlood": {"1h": "12s", "< 3600": "< 12", "> 30": "> 8"},
    "ConditionCritical": {"for": "3s"},
    "OutboxStuck": {"> 3600": "> 8", "for": "1s"},
    "BreakerOpen": {"for": "2s"},
    "ModelBreakerOpen": {"for": "2s"},
    "ProviderFailing": {"[10m]": "[15s]", "[1h]": "[30s]"},
    "ModelMismatch": {"6h": "12s", "< 21600": "< 12"},
    "UnpricedTokens": {"1h": "12s", "< 3600": "< 12"},
    "BudgetExhausted": {"for": "1s"},
}
GAP = "6s"  # instead of 90 s

# The agent: a program that behaves as the file with its name says.
PROGRAM = """\
cat > /dev/null
mode=$(cat "$1/$2" 2>/dev/null)
case "$mode" in
  fail) exit 3 ;;
  hang) sleep 30 ;;
  slow) sleep 11 ;;
  long) sleep 2.5 ;;
  alert) echo "The disk is full: $(date +%s%N)"; exit ;;
  once) rm "$1/$2"; echo "The disk is full: $(date +%s%N)"; exit ;;
esac
echo HEARTBEAT_OK
"""

# A daemon whose clock a test can set: the file with the seconds to add is read at each look at the clock.
CLOCK = """\
import sys
from datetime import timedelta
from pathlib import Path
from scheduler import app
from scheduler.cli.main import main
read, shift = app.utc_now, Path(sys.argv[1])
app.utc_now = lambda: read() + timedelta(seconds=float(shift.read_text()))
sys.exit(main(sys.argv[2:]))
"""


def short_rules() -> dict[str, Any]:
    """The shipped rules with the thresholds of SHORT."""
    rules: dict[str, Any] = shipped_dashboard.yaml(shipped_dashboard.RULES)
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        rule["expr"] = rule["expr"].replace("[90s]", f"[{GAP}]")
        for old, new in SHORT.get(rule.get("alert"), {}).items():
            if old == "for":
                rule["for"] = new
            else:
                assert old in rule["expr"], (rule["alert"], old)
                rule["expr"] = rule["expr"].replace(old, new)
    return rules


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@dataclass
class Host:
    """One daemon in its own folder. `config` may be changed, then `save()` writes it."""

    name: str
    folder: Path
    config: dict[str, Any]
    stack: ExitStack
    has_clock: bool = False
    settings: dict[str, Any] = field(default_factory=dict)  # for repairs

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.modes = self.folder / "modes"
        self.modes.mkdir()
        self.instance = f"127.0.0.1:{free_port()}"
        self.path = self.folder / "config.yaml"
        self.config = {"state": "state/h.db", "server": {"listen": self.instance}} | self.config
        self.shift = self.folder / "shift"
        self.shift.write_text("0")
        (self.folder / "agent.sh").write_text(PROGRAM)
        (self.folder / "clock.py").write_text(CLOCK)
        self.models: dict[str, Models] = {}

    def save(self) -> None:
        temporary = self.path.with_suffix(".new")
        temporary.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in self.config.items()))
        temporary.replace(self.path)

    def program(self, name: str) -> list[str]:
        return ["sh", str(self.folder / "agent.sh"), str(self.modes), name]

    def behave(self, name: str, mode: str = "") -> None:
        (self.modes / name).write_text(mode)

    def agent(self, name: str, runner: Mapping[str, Any] | None = None, model: str | None = None, **heartbeat: Any) -> None:
        beat = {"interval": INTERVAL, "stagger": "0s", "checklist": "- look\n", "deliver": "log", "retries": 0, "answer": "text"}
        found = {
            "runner": dict(runner) if runner else {"kind": "command", "argv": self.program(name)},
            "heartbeat": beat | {"timeout": "10s", "problems": {"after": "none"}} | heartbeat,
        }
        self.config.setdefault("agents", {})[name] = found | ({"model": model} if model else {})

    def model_agent(self, name: str, model: str = MODEL, **heartbeat: Any) -> Models:
        """An agent with a provider of its own, which answers well."""
        server = self.stack.enter_context(
            Models(lambda request: reply(message(text("HEARTBEAT_OK"), model=request.json["model"])))
        )
        self.models[name] = server
        self.config.setdefault("providers", {})[f"{name}-api"] = {"kind": "anthropic", "api_key": "k", "base_url": server.url}
        self.agent(name, {"kind": "anthropic", "provider": f"{name}-api"}, model, **heartbeat)
        return server

    def server(self, name: str, act: Act) -> Models:
        self.models[name] = self.stack.enter_context(Models(lambda _: act))
        return self.models[name]

    def start(self) -> None:
        start = [str(self.folder / "clock.py"), str(self.shift)] if self.has_clock else ["-m", "scheduler"]
        command = [sys.executable, *start, "-c", str(self.path), "run"]
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stderr=log, stdout=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def restart(self) -> None:
        self.kill()
        self.start()

    def call(self, path: str, **body: Any) -> Any:
        """POST to the HTTP API with the token of the daemon. Returns the status and the answer."""
        return self.request(path, data=json.dumps(body).encode(), method="POST")

    def request(self, path: str, token: str | None = None, **options: Any) -> tuple[int, Any]:
        """The status and the answer of the HTTP API, with the token of the daemon, another one, or none (`""`)."""
        token = (self.folder / "state" / "token").read_text().strip() if token is None else token
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            with urlopen(WebRequest(f"http://{self.instance}{path}", headers=headers, **options), timeout=10) as answer:
                return int(answer.status), answer.read()
        except HTTPError as error:
            return error.code, error.read()

    def is_up(self) -> bool:
        return self.request("/healthz", "")[0] == 200

    def end_messages(self, move: str) -> None:
        """Send again (`retry`) or drop all undelivered messages."""
        for each in json.loads(self.request("/api/v1/outbox")[1])["outbox"]:
            self.call(f"/api/v1/outbox/{each['id']}/{move}")

    def reload_with(self, **changes: Any) -> None:
        """Change the config at dotted paths (`limits__concurrency=1`)."""
        for path, value in changes.items():
            *folders, last = path.split("__")
            place = self.config
            for folder in folders:
                place = place.setdefault(folder.replace("0", "-"), {})
            place[last] = value
        self.save()


@dataclass
class Fault:
    """A fault at a host, the alert that it must fire, with its labels, and the repair. `after` names a fault to wait for.

    `also` are alerts that the fault may fire besides: a killed daemon reports the crash when it is back.
    """

    name: str
    host: str
    alert: str
    plant: Callable[[Host], object]
    repair: Callable[[Host], object]
    labels: Mapping[str, str] = field(default_factory=dict)
    after: str | None = None
    also: tuple[str, ...] = ()
    state: str = "waiting"
    planted_at: float = 0.0
    fired_after: float = 0.0
    resolved_after: float = 0.0
    says: str = ""

    def matches(self, alert: Mapping[str, str], host: Host) -> bool:
        wanted = {"alertname": self.alert, "instance": host.instance} | self.labels
        return all(alert.get(key) == value for key, value in wanted.items())


def entry(name: str, kind: str = "heartbeat") -> dict[str, str]:
    return {"kind": kind, "name": name}


class FaultSimulation:
    """`FaultSimulation(folder, names).run()`, then look at `faults` and `unexpected`. Without names all faults are planted."""

    def __init__(self, folder: Path, names: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.stack = ExitStack()
        self.hosts: dict[str, Host] = {}
        self.faults = [fault for fault in self._all_faults() if not names or fault.name in names]
        wanted = {fault.host for fault in self.faults}
        self.hosts = {name: host for name, host in self.hosts.items() if name in wanted}
        if names:  # fewer agents, so that a part of the faults needs less CPU
            used = {fault.labels["name"] for fault in self.faults if "name" in fault.labels}
            for host in self.hosts.values():
                agents = host.config["agents"]
                host.config["agents"] = {name: agent for name, agent in agents.items() if name in used} or agents
        self.unexpected: list[Mapping[str, str]] = []
        self._workers = ThreadPoolExecutor(8)
        self._threads: list[Future[object]] = []
        self.took = 0.0

    # --- the hosts ----------------------------------------------------------------------------------------------------------

    def _host(self, name: str, config: dict[str, Any] | None = None, **more: Any) -> Host:
        limits = {"min_interval": "0s", "concurrency": 60, "wake_gap": "0s"}
        host = Host(name, self.folder / name, {"limits": limits} | (config or {}), self.stack, **more)
        self.hosts[name] = host
        return host

    def _all_faults(self) -> Iterator[Fault]:
        yield from self._faults_of_entries()
        yield from self._faults_of_models()
        yield from self._faults_of_delivery()
        yield from self._faults_of_daemons()

    def _faults_of_entries(self) -> Iterator[Fault]:
        host = self._host("entries")
        failing = (("a runner exits with 3", "exits", "fail"), ("a runner needs longer than its timeout", "hangs", "hang"))
        for title, name, mode in failing:
            host.agent(name, timeout="2s")
            yield Fault(
                title, "entries", "HeartbeatFailing", lambda host, name=name, mode=mode: host.behave(name, mode),
                lambda host, name=name: host.behave(name), entry(name),
            )  # fmt: skip
        host.config["cron"] = {
            "backup": {"every": INTERVAL, "command": f"sh '{host.folder}/agent.sh' '{host.modes}' backup", "timeout": "5s"}
        }
        yield Fault(
            "a job exits with an error", "entries", "HeartbeatFailing", lambda host: host.behave("backup", "fail"),
            lambda host: host.behave("backup"), entry("backup", "cron"),
        )  # fmt: skip

        def checklist(name: str) -> Path:
            path = host.folder / "agents" / name / "HEARTBEAT.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            return path

        def write(name: str) -> None:
            path = checklist(name)
            if path.is_dir():
                path.rmdir()
            path.write_text("- look\n")

        def unreadable(name: str) -> None:
            checklist(name).unlink()
            checklist(name).mkdir()

        for title, name, alert, plant in (
            ("a checklist is gone", "gone", "HeartbeatSilent", lambda _: checklist("gone").unlink()),
            ("a checklist is empty", "empty", "HeartbeatSilent", lambda _: checklist("empty").write_text("")),
            ("a checklist cannot be read", "unreadable", "HeartbeatBlocked", lambda _: unreadable("unreadable")),
        ):
            host.agent(name, checklist="HEARTBEAT.md")
            write(name)
            yield Fault(title, "entries", alert, plant, lambda _, name=name: write(name), entry(name))
        for title, name, alert, on_error in (
            ("a precheck fails, on_error: skip", "careful", "HeartbeatBlocked", "skip"),
            ("a precheck fails, on_error: run", "careless", "PrecheckFailing", "run"),
        ):
            look = f"! grep -q fail '{host.modes}/{name}' 2>/dev/null && date +%N"
            host.agent(name, precheck={"command": look, "on_error": on_error})
            labels = entry(name) if alert == "HeartbeatBlocked" else {"name": name}
            yield Fault(
                title, "entries", alert, lambda host, name=name: host.behave(name, "fail"),
                lambda host, name=name: host.behave(name), labels,
            )  # fmt: skip
        host.agent("paused")
        yield Fault(
            "an agent has been paused for long", "entries", "PausedForLong", lambda host: host.call("/api/v1/agents/paused/pause"),
            lambda host: host.call("/api/v1/agents/paused/resume"), entry("paused"),
        )  # fmt: skip
        gateway = host.server("later", gateway_answer("HEARTBEAT_OK"))
        host.agent("later", {"kind": "http", "url": gateway.url}, async_timeout="4s", interval="8s")

        def answers(server: Models, act: Act) -> Callable[[Host], None]:
            return lambda _: setattr(server, "answer", lambda _: act)

        yield Fault(
            "an agent answers 202 and never reports", "entries", "HeartbeatSilent", answers(gateway, async_answer()),
            answers(gateway, gateway_answer("HEARTBEAT_OK")), entry("later"),
        )  # fmt: skip
        host.agent("sluggish", timeout="20s")
        yield Fault(
            "a model is slower than its interval", "entries", "SlotsLost", lambda host: host.behave("sluggish", "slow"),
            lambda host: host.behave("sluggish"), entry("sluggish"),
            also=("HeartbeatSilent",),  # until the run ends: only then are its lost slots counted
        )  # fmt: skip
        host.agent("stormy", interval="2s")
        yield Fault(
            "a storm of alerts", "entries", "AlertStorm", lambda host: host.behave("stormy", "alert"),
            lambda host: host.behave("stormy"), entry("stormy"),
        )  # fmt: skip
        host.agent("flooded", interval="1h")

        def flood(host: Host) -> None:
            for number in range(30):
                host.call("/api/v1/agents/flooded/wake", text=f"look {number}")

        yield Fault("more wakes than the rate limit allows", "entries", "WakeFlood", flood, lambda _: None, {"name": "flooded"})
        host.agent("off", enabled=False)
        yield Fault(
            "a wake is refused",
            "entries",
            "WakesRejected",
            lambda host: host.call("/api/v1/agents/off/wake"),
            lambda _: None,
            {"name": "off"},
        )
        host.agent("selfish", {"kind": "command", "argv": [
            "sh", "-c", 'cat > /dev/null; if [ -e "$1" ]; then rm "$1"; "$2" -m scheduler -c "$3" wake selfish; fi; echo HEARTBEAT_OK',
            "sh", str(host.modes / "selfish"), sys.executable, str(host.path),
        ]}, timeout="20s")  # fmt: skip
        yield Fault(
            "an agent wakes itself", "entries", "WakesRejected", lambda host: host.behave("selfish", "wake"), lambda _: None,
            {"name": "selfish"},
        )  # fmt: skip

    def _faults_of_models(self) -> Iterator[Fault]:
        host = self._host(
            "models", {"prices": {MODEL: {"input": 1.0, "output": 5.0}, "claude-other": {"input": 1.0, "output": 5.0}}}
        )

        def refuses(name: str, act: Act) -> Callable[[Host], None]:
            return lambda host: setattr(host.models[name], "answer", lambda _: act)

        def answers(name: str) -> Callable[[Host], None]:
            def repair(host: Host) -> None:
                host.models[name].answer = lambda request: reply(message(text("HEARTBEAT_OK"), model=request.json["model"]))
                if name == "limited":  # the provider has asked for an hour, which a reload respects
                    host.config["agents"][name]["runner"]["provider"] = "spare-api"
                    host.save()
                elif host.settings.get(name) == "breaker":
                    host.call("/-/reload")

            return repair

        overloaded = error_answer(529, "overloaded_error", "Overloaded")
        for title, name, act in (
            ("a provider answers 429 for a second", "hurried", error_answer(429, "rate_limit_error", "slow", retry_after="1")),
            ("a provider answers 529", "overloaded", overloaded),
            ("a provider closes connections", "closed", hang_up()),
        ):
            host.model_agent(name)
            yield Fault(title, "models", "HeartbeatFailing", refuses(name, act), answers(name), entry(name))
        for title, name, act in (
            ("a provider answers 401", "unknown", error_answer(401, "authentication_error", "invalid x-api-key")),
            ("a provider answers 402", "unpaid", error_answer(402, "billing_error", "no credit is left")),
            ("a provider answers 429 for an hour", "limited", error_answer(429, "rate_limit_error", "slow", retry_after="3600")),
        ):
            host.model_agent(name)
            host.settings[name] = "breaker"
            yield Fault(title, "models", "BreakerOpen", refuses(name, act), answers(name), {"provider": f"{name}-api"})
        spare = host.server("spare", text_answer("HEARTBEAT_OK"))
        host.config["providers"]["spare-api"] = {"kind": "anthropic", "api_key": "k", "base_url": spare.url}
        host.model_agent("picky")
        host.settings["picky"] = "breaker"
        yield Fault(
            "a provider does not know the model", "models", "ModelBreakerOpen",
            refuses("picky", error_answer(404, "not_found_error", "no such model")), answers("picky"), {"model": MODEL},
        )  # fmt: skip
        host.model_agent("replaced")
        other = reply(message(text("HEARTBEAT_OK"), model="claude-other"))
        yield Fault(
            "another model answers", "models", "ModelMismatch", refuses("replaced", other), answers("replaced"), entry("replaced")
        )
        host.model_agent("unpriced", "claude-opus-9")
        host.config["prices"]["claude-opus-9"] = {"input": 1.0, "output": 5.0}
        yield Fault(
            "a model has no price", "models", "UnpricedTokens",
            lambda host: (host.config["prices"].pop("claude-opus-9"), host.save()),
            lambda host: host.reload_with(prices=host.config["prices"] | {"claude-opus-9": {"input": 1.0, "output": 5.0}}),
            {"model": "claude-opus-9"},
        )  # fmt: skip
        host.model_agent("thrifty", budget={"usd_per_day": 0.2})
        large = reply(message(text("HEARTBEAT_OK"), usage={"input_tokens": 150_000, "output_tokens": 30}))

        def raise_budget(host: Host) -> None:
            host.config["agents"]["thrifty"]["heartbeat"]["budget"] = {"usd_per_day": 500}
            host.save()

        yield Fault(
            "the budget of the day is used up", "models", "BudgetExhausted", refuses("thrifty", large), raise_budget,
            entry("thrifty") | {"budget": "usd_per_day"},
        )  # fmt: skip

    def _faults_of_delivery(self) -> Iterator[Fault]:
        host = self._host("channels")
        for title, name, alert, status, repair in (
            ("a channel answers 404", "refusing", "OutboxDead", 404, "drop"),
            ("a channel answers 503", "down", "OutboxStuck", 503, "retry"),
        ):
            self._host(name)
            one = self.hosts[name]
            one.server(name, reply(b"no", status))
            one.config["channels"] = {"hook": {"kind": "webhook", "url": one.models[name].url, "allow_private": True}}
            one.agent("loud", deliver="hook")

            def mend(host: Host, name: str = name, repair: str = repair) -> None:
                host.models[name].answer = lambda _: reply(b"{}")
                host.end_messages(repair)

            yield Fault(title, name, alert, lambda host: host.behave("loud", "once"), mend, {"channel": "hook"})
        del self.hosts["channels"], host

        damaged = self._host("damaged")
        damaged.server("hook", reply(b"no", 503))
        damaged.config["channels"] = {"hook": {"kind": "webhook", "url": damaged.models["hook"].url, "allow_private": True}}
        damaged.agent("loud", deliver="hook")

        def store_slot(host: Host, slot: int) -> bool:
            """Change the slot of the message that waits for its next attempt; False if there is none yet."""
            with closing(sqlite3.connect(host.folder / "state" / "h.db", timeout=10)) as db, db:
                changed = db.execute(
                    "update outbox set slot = ?, not_before = 0 where state = 'pending' and attempts > 0", (slot,)
                )
                return changed.rowcount > 0

        def damage(host: Host) -> None:
            """Queue a message, and store a slot that cannot be read, as another program could do it."""
            host.behave("loud", "once")
            wait_for(lambda: store_slot(host, 10**17), host)

        def restore(host: Host) -> None:
            store_slot(host, 0)
            host.end_messages("drop")

        yield Fault("a message in the database is damaged", "damaged", "InternalErrors", damage, restore, {"part": "messages"})

    def _faults_of_daemons(self) -> Iterator[Fault]:
        crowded = self._host("crowded", {"limits": {"min_interval": "0s", "concurrency": 20}})
        for number in range(5):
            crowded.agent(f"guest{number}", timeout="20s")

        def crowd(mode: str, places: int) -> Callable[[Host], None]:
            def change(host: Host) -> None:
                for number in range(5):
                    host.behave(f"guest{number}", mode)
                host.reload_with(limits__concurrency=places)

            return change

        yield Fault("more is due than there are places", "crowded", "DispatchLate", crowd("long", 1), crowd("", 20))

        def kill(host: Host) -> None:
            """Kill the daemon during a run, and start it again."""
            host.behave("worker", "long")
            host.call("/api/v1/agents/worker/wake")
            time.sleep(1)
            host.restart()

        killed = self._host("killed")
        killed.agent("worker", interval="1h", timeout="20s")
        crash = "the daemon is killed during a run"
        again = "the daemon is killed a second time"
        yield Fault(crash, "killed", "HeartbeatdCrashed", kill, lambda _: None)
        yield Fault(again, "killed", "HeartbeatdCrashed", kill, lambda _: None, after=crash)

        looping = self._host("looping")
        looping.agent("worker", interval="1h")

        def loop(host: Host) -> None:
            for _ in range(3):
                host.restart()
                wait_for(host.is_up)
                time.sleep(1.5)  # until the next scrape has seen this process

        yield Fault(
            "the daemon crashes again and again", "looping", "HeartbeatdCrashLooping", loop, lambda _: None,
            also=("HeartbeatdCrashed",),
        )  # fmt: skip

        stopped = self._host("stopped")
        stopped.agent("worker", interval="1h")
        frozen = "the process is frozen"
        yield Fault(
            frozen, "stopped", "HeartbeatdDown", lambda host: host.process.send_signal(signal.SIGSTOP),
            lambda host: host.process.send_signal(signal.SIGCONT),
        )  # fmt: skip
        dead = self._host("dead")
        dead.agent("worker", interval="1h")
        yield Fault(
            "the daemon is killed and stays down", "dead", "HeartbeatdDown", Host.kill, Host.start, also=("HeartbeatdCrashed",)
        )

        files = self._host("files")
        files.agent("worker")
        switch = files.server("switch", reply(b"OK"))
        files.config["deadman"] = {"url": f"{switch.url}/ping", "every": "1s", "allow_private": True}
        refused = "a config is refused"
        yield Fault(refused, "files", "ConfigReloadFailed", lambda host: host.path.write_text("agents: ["), Host.save)
        yield Fault(
            "the config file is gone", "files", "ConfigFileMissing", lambda host: host.path.unlink(), Host.save, after=refused
        )
        yield Fault(
            "the dead man's switch cannot be reached", "files", "DeadmanUnreachable",
            lambda _: setattr(switch, "answer", lambda _: reply(b"no", 500)), lambda _: setattr(switch, "answer", lambda _: reply(b"OK")),
        )  # fmt: skip

        def knock(host: Host) -> None:
            for _ in range(15):
                host.request("/api/v1/status", "wrong")

        yield Fault("tokens are refused", "files", "TokensRefused", knock, lambda _: None)

        def scan(host: Host) -> None:
            for number in range(30):
                host.request(f"/admin/{number}", "")

        yield Fault("unknown paths are requested", "files", "UnknownPaths", scan, lambda _: None)

        locked = self._host("locked")
        locked.agent("worker", interval="1h")
        locked.config["cron"] = {"tick": {"every": "1s", "command": "true"}}

        def lock(host: Host) -> None:
            other = sqlite3.connect(host.folder / "state" / "h.db", isolation_level=None, check_same_thread=False)
            other.execute("begin immediate")
            host.settings["lock"] = other

        yield Fault("the database is locked", "locked", "DatabaseBusy", lock, lambda host: host.settings.pop("lock").close())

        if os.geteuid() == 0:
            full = self._host("full")
            full.agent("worker")

            def fill(host: Host) -> None:
                with (host.folder / "state" / "ballast").open("ab", buffering=0) as ballast, suppress(OSError):
                    while True:
                        ballast.write(bytes(4096))

            yield Fault("the disk is full", "full", "NoReserve", fill, lambda host: (host.folder / "state" / "ballast").unlink())

        clock = self._host("clock", has_clock=True)
        clock.agent("worker", interval="1h")
        yield Fault("the clock jumps", "clock", "ClockJumped", lambda host: host.shift.write_text("90"), lambda _: None)

    # --- the play -----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        began = time.monotonic()
        with self.stack:
            for host in self.hosts.values():
                self._mount(host)
                host.save()
                host.start()
                self.stack.callback(host.kill)
            for host in self.hosts.values():
                wait_for(host.is_up, host)
            self._start_prometheus()
            self._warm_up()
            self._began = time.monotonic()
            deadline = self._began + PATIENCE
            while time.monotonic() < deadline and any(fault.state != "over" for fault in self.faults):
                self._step()
                time.sleep(0.3)
            for thread in self._threads:
                thread.result(30)
            self._look_back()
        self.took = time.monotonic() - began

    def _mount(self, host: Host) -> None:
        """The host `full` has its database on a small disk."""
        if host.name != "full":
            return
        state = host.folder / "state"
        state.mkdir(mode=0o700)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=24m,mode=0700", "heartbeatd-test", str(state)], check=True, timeout=20
        )
        self.stack.callback(lambda: subprocess.run(["umount", "--lazy", str(state)], timeout=20, check=False))

    def _start_prometheus(self) -> None:
        folder = self.folder / "monitoring"
        folder.mkdir()
        (folder / "rules.yml").write_text(json.dumps(short_rules()))
        (folder / "scrape.json").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{
                "job_name": "heartbeatd",
                "static_configs": [{"targets": [host.instance for host in self.hosts.values()]}],
            }],
        }))  # fmt: skip
        address = f"127.0.0.1:{free_port()}"
        self._api = f"http://{address}/api/v1"
        log = self.stack.enter_context((self.folder / "prometheus.log").open("w"))
        command = ["prometheus", "--config.file", str(folder / "scrape.json"), "--web.listen-address", address]
        process = subprocess.Popen([*command, "--storage.tsdb.path", str(self.folder / "tsdb")], stdout=log, stderr=log)

        def stop() -> None:
            process.kill()
            process.wait(20)

        self.stack.callback(stop)

    def _query(self, expr: str) -> list[Mapping[str, str]]:
        with urlopen(f"{self._api}/query?{urlencode({'query': expr})}", timeout=10) as answer:
            return [series["metric"] for series in json.load(answer)["data"]["result"]]

    def _warm_up(self) -> None:
        """Wait until all daemons are scraped and nothing fires."""

        def is_ready() -> bool:
            return len(self._query("up == 1")) == len(self.hosts) and not self._firing()

        wait_for(is_ready)
        time.sleep(8)  # so that `increase()` has two samples, and each agent has run

    def _firing(self) -> list[Mapping[str, str]]:
        return self._query('ALERTS{alertstate="firing",alertname!~"Watchdog|ServiceLevelBurns"}')

    def _step(self) -> None:
        firing = self._firing()
        over = {fault.name for fault in self.faults if fault.state == "over"}
        chosen = {fault.name for fault in self.faults}
        for fault in self.faults:
            host, now = self.hosts[fault.host], time.monotonic()
            fires = any(fault.matches(alert, host) for alert in firing)
            if fault.state == "waiting" and (fault.after is None or fault.after in over or fault.after not in chosen):
                fault.state, fault.planted_at = "planted", time.monotonic()
                self._threads.append(self._workers.submit(fault.plant, host))
            elif fault.state == "planted" and fires:
                fault.fired_after = now - fault.planted_at
                fault.says = self._description(fault, host)
                fault.state, fault.planted_at = "repaired", time.monotonic()
                self._threads.append(self._workers.submit(fault.repair, host))
            elif fault.state == "repaired" and not fires:
                fault.resolved_after = now - fault.planted_at
                fault.state = "over"

    def _description(self, fault: Fault, host: Host) -> str:
        with urlopen(f"{self._api}/alerts", timeout=10) as answer:
            alerts = json.load(answer)["data"]["alerts"]
        found = [alert["annotations"] for alert in alerts if fault.matches(alert["labels"], host)]
        return f"{found[0]['summary']}. {found[0]['description']}" if found else ""

    def _look_back(self) -> None:
        """Every alert that fired for any host must belong to a fault."""
        seconds = int(time.monotonic() - self._began)
        ever = self._query(f'count_over_time(ALERTS{{alertstate="firing",alertname!~"Watchdog|ServiceLevelBurns"}}[{seconds}s])')
        for alert in ever:
            if not any(self._explains(fault, alert) for fault in self.faults):
                self.unexpected.append(alert)

    def _explains(self, fault: Fault, alert: Mapping[str, str]) -> bool:
        host = self.hosts[fault.host]
        return fault.matches(alert, host) or (alert["alertname"] in fault.also and alert.get("instance") == host.instance)

    def report(self) -> str:
        lines = [
            f"{fault.state if fault.state != 'over' else 'ok':8} {fault.name:45} {fault.alert:24}"
            f" fired after {fault.fired_after:4.0f} s, resolved after {fault.resolved_after:4.0f} s"
            for fault in self.faults
        ]
        names = {host.instance: host.name for host in self.hosts.values()}
        lines += [f"unexpected: {names.get(alert.get('instance', ''))} {dict(alert)}" for alert in self.unexpected]
        good = sum(fault.state == "over" for fault in self.faults)
        return "\n".join([*lines, f"{good} of {len(self.faults)} faults, {len(self.unexpected)} other alerts, {self.took:.0f} s"])

    def problems(self) -> list[str]:
        """Why this run is not as it should be; empty if it is."""
        silent = [
            fault.name for fault in self.faults if not re.search(r"[Tt]ype `(heartbeatd|journalctl|timedatectl|curl)", fault.says)
        ]
        names = [fault.name for fault in self.faults if "name" in fault.labels and fault.labels["name"] not in fault.says]
        return [
            *(f"{fault.name}: {fault.alert} did not {'fire' if fault.state == 'planted' else 'resolve'}"
              for fault in self.faults if fault.state != "over"),
            *(f"{name}: the alert does not say what to type" for name in silent),
            *(f"{name}: the alert does not name the entry" for name in names),
            *(f"unexpected: {dict(alert)}" for alert in self.unexpected),
        ]  # fmt: skip


def wait_for(question: Callable[[], Any], host: Host | None = None) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(URLError, ConnectionError, TimeoutError):
            if question():
                return
        time.sleep(0.1)
    raise AssertionError((host.folder / "log").read_text()[-2000:] if host else "Prometheus is not ready")
