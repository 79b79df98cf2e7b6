"""A model with tools over five turns: the conversation is kept from turn to turn, once the runs have shown how many there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from servers.messages import text, tool
from servers.prompt_cache import Bill, CachingModels
from servers.scripted import Request
from servers.tools import ToolServer
from world import MakeWorld, World

KEY = "sk-ant-canary-0123456789"


@pytest.fixture(scope="module")
def disk() -> Iterator[ToolServer]:
    with ToolServer() as server:
        yield server


def turns(number: int) -> Any:
    """Answers of a model that asks for a tool in all of its turns but the last."""

    def content(request: Request) -> list[dict[str, Any]]:
        asked = sum(each["role"] == "assistant" for each in request.json["messages"])
        use = tool("disk__free", {"path": "/"}) | {"id": f"toolu_{asked}"}
        return [text("HEARTBEAT_OK")] if asked == number - 1 else [use]

    return content


def make(make_world: MakeWorld, model: CachingModels, disk: ToolServer, budget: str, interval: str = "2h") -> World:
    world = make_world(
        f"""
providers: {{anthropic: {{api_key: "${{KEY}}", base_url: "{model.url}"}}}}
prices: {{claude-haiku-4-5: {{input: 1.0, output: 5.0, cache_read: 0.1}}}}
agents:
  ops:
    model: claude-haiku-4-5
    context: [SOUL.md]
    runner: {{kind: anthropic, tools: {{mcp: [{{name: disk, url: "{disk.url}", headers: {{X-Token: "${{TOKEN}}"}}, allow: [free]}}], max_turns: 8}}}}
    heartbeat: {{interval: {interval}, stagger: 0s, checklist: "- look\\n", deliver: log, answer: text, light_context: false, budget: {budget}}}
""",
        environ={"KEY": KEY, "TOKEN": "mcp-token-canary-5527"},
        start="2026-03-02 08:00",
    )
    world.write("ops/SOUL.md", "I am ops. ".ljust(24_000, "x"))
    model.now = lambda: world.clock.now
    return world


def ratio(bill: Bill) -> float:
    return bill.usd(1.0, 5.0) / bill.usd_without_cache(1.0, 5.0)


@pytest.mark.parametrize("budget", ["unlimited", "{usd_per_day: 2, usd_per_try: 0.4}"])
def test_five_turns_cost_less_than_half(make_world: MakeWorld, disk: ToolServer, budget: str) -> None:
    with CachingModels(turns(5)) as model:
        world = make(make_world, model, disk, budget)
        world.run(minutes=1)
        first = ratio(model.bills.pop("ops"))
        world.run(hours=4)
        assert [row["result"] for row in world.records()] == ["ok"] * 3
    assert first == pytest.approx(1)  # nothing is known of its turns yet
    assert ratio(model.bills["ops"]) <= 0.46
    assert model.marks[-5:] == [["5m"], ["5m", "5m"], ["5m", "5m"], ["5m", "5m"], ["5m"]]


def test_one_turn_is_not_kept_for_a_next_one(make_world: MakeWorld, disk: ToolServer) -> None:
    with CachingModels(turns(1)) as model:
        world = make(make_world, model, disk, "unlimited")
        world.run(hours=4)
    assert ratio(model.bills["ops"]) == pytest.approx(1)


def test_the_same_beginning_is_kept_for_an_hour_and_the_turns_for_five_minutes(make_world: MakeWorld, disk: ToolServer) -> None:
    with CachingModels(turns(3)) as model:
        world = make(make_world, model, disk, "unlimited", interval="30m")
        world.run(hours=1.5)
    assert model.marks[-3:] == [["1h", "5m"], ["1h", "5m", "5m"], ["1h", "5m"]]
    assert ratio(model.bills["ops"]) <= 0.35
