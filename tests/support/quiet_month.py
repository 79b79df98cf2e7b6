"""A quiet month of the real engine with a virtual clock, and what the alert rules make of its metrics.

The month has nights, weekends, holidays, pauses, a clock change, restarts, upgrades of two minutes, a suspended machine, attempts
that fail once, and a budget that is as large as the plan. The metrics page is read every two minutes. promtool evaluates the
shipped rules over these series. No alert of severity warning or critical may fire.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import shipped_dashboard
from metrics_page import Page
from servers.messages import Models, message, text
from servers.scripted import reply
from world import AgentCall, Delayed, World

from scheduler.engine.delivery import Delivery
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind

STEP = timedelta(minutes=2)
GAP = "5m"  # instead of 90 s, because the page is read every two minutes

CONFIG = """
timezone: Europe/Berlin
channels: {hook: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}
calendars: {holidays: {dates: [2026-10-14, 2026-10-26]}, weekend: {days: sat-sun}}
providers: {anthropic: {api_key: k, base_url: "MODEL"}}
prices: {claude-haiku-5-5: {input: 1.0, output: 5.0}}
defaults:
  runner: {kind: command, argv: [agent]}
  heartbeat: {checklist: "- look\\n", deliver: hook, problems: {after: none}}
agents:
  ops: {heartbeat: {interval: 15m, active_hours: "08:00-22:00"}}
  night: {heartbeat: {interval: 30m, active_hours: "22:00-06:00"}}
  office: {heartbeat: {interval: 1h, active_hours: "09:00-17:00", skip_on: [weekend, holidays]}}
  careful: {heartbeat: {interval: 30m, precheck: look}}
  weekly: {heartbeat: {schedule: "0 9 * * mon"}}
  thinker: {runner: {kind: anthropic}, heartbeat: {interval: 1h, answer: text, budget: {usd_per_day: 1.17}}}
  woken: {heartbeat: {interval: none}}
cron:
  backup: {schedule: "0 3 * * *", command: backup, retries: 3, wake_heartbeat: woken}
  sync: {every: 10m, command: sync, retries: 3}
  invoice: {schedule: "0 6 1 * *", command: invoice}
"""
USAGE = {
    "input_tokens": 45_000,
    "output_tokens": 30,
}  # 25 runs cost 1.13 USD: the plan of the day with 25 hours. A run needs room for 0.07


@dataclass
class QuietMonth:
    """`QuietMonth(folder, "2026-10-10", 30).play()`, then `alerts()` has what fired, by alert and severity."""

    folder: Path
    start: str
    days: int
    seed: int = 1
    first_event: int = 0  # which day of the plan of maintenance the first day is
    series: dict[str, list[str | None]] = field(default_factory=dict)
    samples: int = 0

    def play(self) -> None:
        self._chance = random.Random(self.seed)
        self._failed: set[str] = set()  # whose last attempt failed
        with ExitStack() as stack:
            server = stack.enter_context(Models(lambda _: reply(message(text("HEARTBEAT_OK"), usage=USAGE))))
            names = ("ops", "night", "office", "careful", "weekly", "woken", "backup", "sync")
            self._world = World(
                self.folder, CONFIG.replace("MODEL", server.url), start=f"{self.start} 00:00",
                scripts=dict.fromkeys(names, self._work),
                prechecks={"careful": lambda _: "NO_WORK" if self._chance.random() < 0.8 else f"mail {self._chance.random()}"},
                send=self._send,
            )  # fmt: skip
            self._began = self._world.clock.now
            self._new_page()
            for day in range(self.days):
                self._play_day(day)
            self._world.store.close()

    def _work(self, call: AgentCall) -> Any:
        """One attempt in fifty fails; the next one succeeds. One answer in a hundred is an alert. All take some time."""
        chance = self._chance.random()
        if chance < 0.02 and call.name not in self._failed:
            self._failed.add(call.name)
            return 1
        self._failed.discard(call.name)
        is_agent = call.name not in {"backup", "sync"}
        answer = f"The disk is {chance:.4f} full." if is_agent and chance > 0.99 else "HEARTBEAT_OK" if is_agent else ""
        return Delayed(answer, timedelta(seconds=5 + 60 * self._chance.random()))

    def _send(self, outgoing: Delivery) -> DeliveryResult:
        return DeliveryResult("retry", "no route") if self._chance.random() < 0.05 else DeliveryResult("delivered")

    def _play_day(self, day: int) -> None:
        """A day, with one event of maintenance at most."""
        world, date = self._world, self._began + timedelta(days=day)
        events: dict[int, Callable[[], object]] = {
            1: lambda: self._restart(timedelta(seconds=10)),
            3: lambda: self._restart(timedelta(minutes=2), tzdata="2026b"),
            4: lambda: world.pause((Kind.HEARTBEAT, "office")),
            6: lambda: world.resume((Kind.HEARTBEAT, "office")),
            8: self._suspend,
            9: lambda: world.pause((Kind.CRON, "sync"), date + timedelta(hours=20)),
        }
        self._run_until(date + timedelta(hours=10, minutes=3))
        events.get((day + self.first_event) % 10, lambda: None)()
        for _ in range(3):
            self._run_until(world.clock.now + timedelta(hours=2))
            world.wake("ops", "a deployment ended")
        self._run_until(date + timedelta(days=1))

    def _run_until(self, end: datetime) -> None:
        while self._world.clock.now < end:
            following = self._began + ((self._world.clock.now - self._began) // STEP + 1) * STEP
            self._world.run(seconds=(min(following, end) - self._world.clock.now).total_seconds())
            if self._world.clock.now == following:
                self._read_page()

    def _new_page(self) -> None:
        self._page, self._process = Page(self._world), self._world.clock.now

    def _restart(self, downtime: timedelta, **boot: str) -> None:
        """Stop the daemon in an orderly way and start it again, as an upgrade does."""
        self._finish_runs()
        self._world.stop()
        self._world.clock.advance(downtime)
        self._world.boot(**boot)
        self._new_page()

    def _finish_runs(self) -> None:
        """The daemon waits for its runs when it stops (`limits.shutdown_grace`)."""
        while (ends := self._world.runs.next_end()) is not None:
            self._world.run(seconds=max(1.0, (ends - self._world.clock.now).total_seconds()))

    def _suspend(self) -> None:
        """The machine sleeps for three hours, and Prometheus on it too: the monotonic clock stands still, and nothing is scraped."""
        self._finish_runs()
        self._world.clock.now += timedelta(hours=3)
        self.series["up{"].extend(["1"] * (timedelta(hours=3) // STEP))  # promtool does not sleep

    def _read_page(self) -> None:
        self._page.running = Counter(claim.entry.kind.value for claim in self._world.runs.inflight().values())
        seconds = (self._world.clock.now - self._began).total_seconds()
        number = round(seconds / STEP.total_seconds())
        began = self._began.timestamp()
        found = {"up{": 1.0, "process_start_time_seconds{": (self._process - self._began).total_seconds()}
        for line in self._page.scrape().splitlines():
            if line.startswith(("#", "process_")) or "_bucket{" in line:
                continue
            series, _, value = line.rpartition(" ")
            name, _, labels = series.rstrip("}").partition("{")
            is_time = name.endswith("_timestamp_seconds")
            found[f"{name}{{{labels}"] = float(value) - (began if is_time else 0)
        for name in self.series.keys() | found.keys():
            values = self.series.setdefault(name, [])
            values.extend([None] * (number - len(values)))
            values.append(_number(found[name]) if name in found else None)
        self.samples = number + 1

    def alerts(self, *, levels: bool = True) -> dict[tuple[str, str], int]:
        """Every alert that fired, with its severity, and in how many evaluations. Evaluated by promtool every two minutes."""
        groups = shipped_dashboard.yaml(shipped_dashboard.RULES)["groups"]
        groups = [group for group in groups if levels or not group["name"].startswith(("heartbeatd-service", "heartbeatd-burn"))]
        for group in groups:  # no alert uses the levels of 30 days, and promtool would need an hour for them
            rules = [rule for rule in group["rules"] if "[30d]" not in rule["expr"]]
            group["rules"] = [{**rule, "expr": rule["expr"].replace("[90s]", f"[{GAP}]")} for rule in rules]
        (self.folder / "rules.yml").write_text(json.dumps({"groups": groups}))
        end = int((self.samples - 1) * STEP.total_seconds())
        used = {name for group in groups for rule in group["rules"] for name in re.findall(r"[a-z]\w+(?=\{)", rule["expr"])}
        inputs = [
            {"series": name.replace("{", '{job="heartbeatd",instance="a",', 1) + "}", "values": " ".join(_runs(values))}
            for name, values in self.series.items()
            if name.partition("{")[0] in used
        ]
        every = f'count_over_time(ALERTS{{alertstate="firing",alertname!="Watchdog"}}[{end}s])'
        test = {
            "interval": f"{int(STEP.total_seconds())}s",
            "input_series": inputs,
            "promql_expr_test": [{"expr": every, "eval_time": f"{end}s", "exp_samples": []}],
        }
        path = self.folder / "month.yml"
        path.write_text(json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "2m", "tests": [test]}))
        evaluated = subprocess.run(
            ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False, timeout=1500
        )
        output = evaluated.stdout + evaluated.stderr
        (self.folder / "promtool.txt").write_text(output)
        assert evaluated.returncode == 0 or "got:" in output, output[-2000:]
        found: dict[tuple[str, str], int] = {}
        for line in (line for line in output.splitlines() if re.match(r" *got:", line)):
            for labels, value in re.findall(r"\{(.*?)\} ([\d.E+]+)", line):
                pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
                key = (" ".join(filter(None, (pairs["alertname"], pairs.get("name"), pairs.get("burn")))), pairs["severity"])
                found[key] = found.get(key, 0) + int(float(value))
        return found


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _runs(values: list[str | None]) -> Iterator[str]:
    """A series as promtool reads it: equal values and equal steps are shortened, and a gap begins with a stale marker."""
    number = 0
    while number < len(values):
        value, following = values[number], number + 1
        if value is None:
            while following < len(values) and values[following] is None:
                following += 1
            yield "stale" if number else "_"
            if following - number > 1:
                yield f"_x{following - number - 1}"
        else:
            while following < len(values) and values[following] == value:
                following += 1
            yield value if following - number == 1 else f"{value}+0x{following - number - 1}"
        number = following


def needless(alerts: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """The alerts that would have notified a person."""
    return {key: count for key, count in alerts.items() if key[1] in {"warning", "critical"}}
