"""Many days with hostile agents, providers, crashes and clock changes never cost more than the computed daily maximum."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from servers.completions import completion, tool
from servers.scripted import Act, Request, Server, hang_up, reply
from simulation import IS_LONG, seeds, size
from world import ON_SERVER, AgentCall, Delayed, MakeWorld

from scheduler.config.settings.load import load_config
from scheduler.insight.daily_maximum import compute_daily_maximum

pytestmark = pytest.mark.simulation

# Both include 28 March, when Berlin's clocks go forward, and 4 April, when Sydney's go back.
START, DAYS = ("2027-03-24 00:00", size(13, 30)) if ON_SERVER or not IS_LONG else ("2027-02-20 00:00", 100)
ZONES = {"ops": ZoneInfo("Europe/Berlin"), "far": ZoneInfo("Australia/Sydney"), "tool": ZoneInfo("UTC")}
INPUT, OUTPUT = 2.0, 10.0  # USD per million tokens
CONFIG = """
timezone: UTC
limits: {{wake_gap: 1s, wake_flood: 20 per 10m, budget: {{usd_per_day: 0.30}}}}
history: {{keep: 200d, runs: 100000}}
providers: {{local: {{kind: openai, base_url: "{url}"}}}}
prices:
  ops: {{input: 2.0, output: 10.0, cache_write: 2.0}}
  far: {{input: 2.0, output: 10.0, cache_write: 2.0}}
defaults:
  heartbeat: {{stagger: 0s, checklist: "- look\\n", deliver: log, max_output_tokens: 500}}
agents:
  ops:
    runner: {{kind: openai, provider: local}}
    model: ops
    heartbeat: {{interval: 4h, timezone: Europe/Berlin, max_input_tokens: 3k, decide: {{model: ops}}, budget: {{usd_per_day: 0.12}}}}
  far:
    runner: {{kind: openai, provider: local}}
    model: far
    heartbeat: {{interval: 3h, timezone: Australia/Sydney, budget: {{usd_per_day: 0.10, usd_per_try: 0.011}}}}
  tool:
    runner: {{kind: command, argv: [agent]}}
    heartbeat: {{interval: 2h, budget: {{usd_per_day: 0.16, usd_per_try: 0.03}}}}
"""


@dataclass
class Provider(Server):
    """A provider that charges the maximum: a token per byte of the prompt, and the longest answers. It often reports no usage."""

    chance: random.Random = field(default_factory=random.Random)
    bill: Callable[[str, float], None] = lambda name, usd: None

    def _next(self, request: Request) -> Act:
        body = request.json
        prompt_bytes = sum(len(turn["content"].encode()) for turn in body["messages"])
        mood = self.chance.random()
        if mood < 0.2:  # overloaded: nothing is done and nothing charged
            return reply({"error": {"message": "slow down"}}, 429, retry_after=self.chance.choice(("1", "30", "9999")))
        self.bill(body["model"], (prompt_bytes * INPUT + body["max_tokens"] * OUTPUT) / 1e6)
        if mood < 0.3:
            return self.chance.choice((hang_up(), reply({"error": {"message": "broken"}}, 500)))
        usage: Any = {"prompt_tokens": prompt_bytes, "completion_tokens": body["max_tokens"]}
        if mood < 0.5:
            nothing, less = dict.fromkeys(usage, 0), {key: -number for key, number in usage.items()}
            usage = self.chance.choice((None, {}, nothing, less, {"prompt_tokens": 1}))
        return reply(completion("ALERT: again", calls=self._decision() if "tools" in body else None, usage=usage))

    def _decision(self) -> list[Any]:
        """A decision to run, sometimes with more tasks than may be sent."""
        return [tool("decide", {"action": "run", "tasks": "look again " * self.chance.randrange(1, 300)})]


class Days:
    """The days of three agents with random faults between their runs."""

    def __init__(self, make_world: MakeWorld, server: Provider, seed: int) -> None:
        self.chance, server.chance = random.Random(seed), random.Random(seed + 1)
        self.cost: Counter[tuple[str, date]] = Counter()
        self.asked = 0
        server.bill = self._bill
        self.world = make_world(CONFIG.format(url=server.url), start=START, scripts={"tool": self._tool})

    def play(self) -> None:
        world, ends = self.world, self.world.clock.now + timedelta(days=DAYS)
        while world.clock.now < ends:
            self.chance.choice((self._nothing, self._nothing, self._storm, self._storm, self._kill, self._set_the_clock))()
            world.run(minutes=self.chance.randrange(30, 36 * 60))

    def _bill(self, name: str, usd: float) -> None:
        self.asked += 1
        now = self.world.clock.now
        self.cost[name, now.astimezone(ZONES[name]).date()] += usd
        self.cost["", now.date()] += usd

    def _tool(self, call: AgentCall) -> Any:
        """A program that uses its whole limit and seldom reports it."""
        self._bill("tool", 0.03)
        output = self.chance.choice(("ALERT: again", '{"result": "ALERT: again", "total_cost_usd": 0.03}', 1))
        return Delayed(output, timedelta(minutes=self.chance.choice((0, 0, 4))))

    def _nothing(self) -> None:
        """Let an hour pass without a fault."""

    def _storm(self) -> None:
        for name in ("ops", "far", "tool") * 3:
            self.world.wake(name, "look! " * self.chance.randrange(1, 500), sender=f"bot{self.chance.randrange(3)}")
            self.world.run(seconds=self.chance.choice((1, 40)))

    def _kill(self) -> None:
        """Kill the daemon during a call, several times in a row."""
        for name in ("ops", "far", "tool"):
            self.world.wake(name, "now")
        for _ in range(self.chance.randrange(1, 4)):
            self.world.clock.advance(timedelta(seconds=self.chance.choice((1, 31))))
            self.world.engine.tick(self.world.clock.read())
            self.world.kill()
            self.world.boot()

    def _set_the_clock(self) -> None:
        self.world.clock.now += timedelta(hours=self.chance.choice((-26, -3, -1, 1, 5, 30)))


@pytest.mark.long_on_server("a month of simulated time")
@seeds(1, 3)
def test_no_day_costs_more_than_the_computed_daily_maximum(make_world: MakeWorld, seed: int) -> None:
    with Provider([]) as server:
        days = Days(make_world, server, seed)
        computed = compute_daily_maximum(load_config(days.world.config, {}).settings, days.world.clock.now)
        days.play()
    ceilings = {"": computed.usd_per_day} | {ceiling.name: ceiling.usd_per_day for ceiling in computed.entries}
    assert ceilings == {"": 0.3, "ops": 0.12, "far": 0.1, "tool": 0.16}
    over = {key: usd for key, usd in days.cost.items() if usd > (ceilings[key[0]] or 0) + 1e-9}
    assert not over
    assert days.asked > 10 * DAYS
    # The maximum must be nearly reached, or the test shows little.
    used = {name: max(usd for (who, _), usd in days.cost.items() if who == name) / (ceilings[name] or 1) for name in ceilings}
    assert min(used.values()) > 0.5
