"""Kills a real daemon whose agents have fallbacks, retries, reminders and questions, and compares costs with budgets."""

from __future__ import annotations

import json
import random
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request as Call
from urllib.request import urlopen

from daemon_process import Daemon
from servers.messages import Models, error_answer, message, tool
from servers.scripted import Act, Request, reply
from servers.tools import ToolServer

CONFIG = """\
state: state/h.db
timezone: UTC
server: {{listen: "127.0.0.1:0"}}
providers: {{anthropic: {{api_key: "sk-x", base_url: "{url}"}}}}
prices: {{claude-sonnet-5: {{input: 3.0, output: 15.0}}, claude-haiku-5-5: {{input: 1.0, output: 5.0}}}}
limits: {{budget: {{usd_per_day: {all}}}, wake_gap: 0s, min_interval: 1s}}
defaults:
  heartbeat: {{stagger: 0s, checklist: "- look\\n", deliver: log, active_hours: always, retries: 2, max_output_tokens: 1000, ask: log, budget: {{usd_per_day: {one}, usd_per_try: 0.08}}}}
agents:
  plain: {{model: claude-sonnet-5, fallbacks: [claude-haiku-5-5], heartbeat: {{interval: 2s}}}}
  other: {{model: claude-sonnet-5, fallbacks: [claude-haiku-5-5], heartbeat: {{interval: 3s}}}}
  asks:
    model: claude-sonnet-5
    fallbacks: [claude-haiku-5-5]
    runner:
      kind: anthropic
      tools:
        mcp: [{{name: disk, url: "{tools}", headers: {{X-Token: t}}, allow: clean, approve: clean, read_only: false}}]
        max_turns: 3
    heartbeat: {{interval: 2s}}
"""
PRICES = {"claude-sonnet-5": (3.0, 15.0), "claude-haiku-5-5": (1.0, 5.0)}  # USD per million tokens, input and output
PAID = re.compile(r" DEBUG paid .*cost_usd=(\S+)")

# Of runs whose only attempt was answered by its own model: all of their usage is known.
UNEQUAL_CHARGES = """
select id, charged_nanos / 1e9, cost_usd from run where outcome in ('ok', 'alert') and attempt = 1 and fallback is null
  and abs(charged_nanos / 1e9 - cost_usd) > 1e-8
"""
SUMS = """
select (select coalesce(sum(nanos), 0) from spend where name = '') / 1e9, (select coalesce(sum(charged_nanos), 0) from run) / 1e9
"""


class KilledSpending:
    """`KilledSpending(folder, number, chance).play()`, then `faults` and `describe()`.

    Each answer of the model has a number of tokens of its own, so that its cost is in the log once if it was charged once.
    """

    def __init__(self, folder: Path, number: int, chance: random.Random, one: float = 1.0, all_: float = 2.0) -> None:
        self.folder, self.number, self.chance = folder, number, chance
        self.budgets = {"plain": one, "other": one, "asks": one, "": all_}
        self.costs: list[float] = []
        self.requests: Counter[str] = Counter()
        self.faults: list[str] = []
        self.paid: list[float] = []
        self.spent: dict[str, float] = {}
        self.counted: dict[str, Any] = {}
        self._answers: Counter[str] = Counter()
        self._lock = threading.Lock()

    def play(self) -> None:
        """Kill the daemon at random moments, start it again, and compare at the end."""
        with Models(self._act) as models, ToolServer() as tools:
            yaml = CONFIG.format(url=models.url, tools=tools.url, all=self.budgets[""], one=self.budgets["plain"])
            Daemon.options = ("--log-level", "debug")
            it = Daemon(self.folder, yaml)
            for _ in range(self.number):
                self._answer_until(time.monotonic() + self.chance.uniform(1, 5))
                it.kill()
                it.start()
            self._answer_until(time.monotonic() + 10)
            it.stop()
        self.compare(it.log)

    def _act(self, request: Request) -> Act:
        """Fail in half of the calls of the larger model, ask for a tool, ask to be reminded, or have nothing to say."""
        model = request.json["model"]
        with self._lock:
            draw = self.chance.random()
            self.requests[model] += 1
            if draw < (0.5 if model == "claude-sonnet-5" else 0.1):
                return error_answer(529, "overloaded_error", "Overloaded")
            if draw < 0.55:
                return error_answer(500, "api_error", "Broken")
            used = {"input_tokens": 100, "output_tokens": 30 + len(self.costs)}
            self.costs.append(self._cost(model, used))
            if request.json.get("tools", [{}])[0].get("name") == "disk__clean" and len(request.json["messages"]) == 1:
                wanted = tool("disk__clean", {"path": f"/tmp/{len(self.costs)}"})
                return reply(message(wanted, model=model, stop_reason="tool_use", usage=used))
            remind = [{"text": f"look again at {len(self.costs)}", "in": "1s"}] if draw < 0.7 else []
            said = tool("report_findings", {"findings": [], "text": "HEARTBEAT_OK", "remind": remind})
            return reply(message(said, model=model, stop_reason="tool_use", usage=used))

    @staticmethod
    def _cost(model: str, used: dict[str, int]) -> float:
        of_input, of_output = PRICES[model]
        return (used["input_tokens"] * of_input + used["output_tokens"] * of_output) / 1e6

    def _answer_until(self, end: float) -> None:
        """Answer the questions that wait, with yes or no. The daemon may be starting, or about to be killed."""
        while time.monotonic() < end:
            with suppress(URLError, OSError, ValueError, KeyError):
                for question in self._call("status")["questions"]:
                    answer = self.chance.choice(question["options"])
                    self._call(f"questions/{question['id']}/answer", {"answer": answer})
                    self._answers[answer] += 1
            time.sleep(0.3)

    def _call(self, path: str, sent: dict[str, str] | None = None) -> Any:
        state = self.folder / "state"
        url = json.loads((state / "daemon.json").read_text())["url"]
        headers = {"Authorization": f"Bearer {(state / 'token').read_text().strip()}", "Content-Type": "application/json"}
        with urlopen(Call(f"{url}/api/v1/{path}", json.dumps(sent).encode() if sent else None, headers), timeout=5) as answer:
            return json.load(answer)

    def compare(self, log: Iterable[str]) -> None:
        """Add to `faults` what differs between the answers, the log and the database."""
        self.paid = [float(found[1]) for line in log if (found := PAID.search(line))]
        with closing(sqlite3.connect(self.folder / "state/h.db")) as db:
            for day, name, nanos in db.execute("select day, name, nanos from spend"):
                self.spent[name] = self.spent.get(name, 0) + nanos / 1e9
                if nanos / 1e9 > self.budgets[name] + 1e-9:
                    self.faults.append(f"{name or 'all'} spent {nanos / 1e9:.6f} of {self.budgets[name]} USD on {day}")
            of_runs = (
                "select outcome || coalesce(' (' || reason || ')', ''), count(*) from run group by 1 order by 2 desc limit 6"
            )
            for run, charged, cost in db.execute(UNEQUAL_CHARGES):
                self.faults.append(f"run {run} cost {cost:.6f} USD and was charged {charged:.6f}")
            of_budgets, of_all_runs = db.execute(SUMS).fetchone()
            if of_budgets != of_all_runs:
                self.faults.append(f"{of_all_runs:.6f} USD were charged for runs, and {of_budgets:.6f} to the budget of all")
            self.counted["runs"] = dict(db.execute(of_runs))
            self.counted["fallbacks"] = db.execute("select count(*) from run where fallback is not null").fetchone()[0]
            self.counted["questions"] = dict(db.execute("select state, count(*) from question group by 1"))
            self.counted["reminders"] = db.execute("select count(*) from wake where source = 'reminder'").fetchone()[0]
        known = Counter(round(cost, 9) for cost in self.costs)
        charged = Counter(round(cost, 9) for cost in self.paid)
        self.faults += [
            f"{cost} USD was charged {charged[cost]} times for {n} answers" for cost, n in known.items() if charged[cost] > n
        ]
        if sum(self.costs) > self.spent.get("", 0) + 1e-9:
            self.faults.append(f"{sum(self.costs):.6f} USD were used, and {self.spent.get('', 0):.6f} USD charged")
        if abs(sum(amount for name, amount in self.spent.items() if name) - self.spent.get("", 0)) > 1e-6:
            self.faults.append(f"the charges of the agents and of all differ: {self.spent}")

    def describe(self) -> str:
        """What was done, used and charged."""
        spent = ", ".join(f"{name or 'all'} {amount:.6f} of {self.budgets[name]}" for name, amount in self.spent.items())
        answered = f"{sum(self.requests.values())} requests, {len(self.costs)} of them answered for {sum(self.costs):.6f} USD"
        return f"{answered}; charged: {spent} USD; {len(self.paid)} charges in the log; answers {dict(self._answers)}; {self.counted}"
