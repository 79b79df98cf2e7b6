"""A simulated month with 40 events: the calls and the cost of an agent with and without a precheck and prompt caching.

The server stands in for the Messages API: it keeps parts of prompts as documented, and counts four bytes as a token. It always
answers that nothing needs attention. The prices are those of claude-haiku-4-5.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from servers.messages import text
from servers.prompt_cache import Bill, CachingModels
from world import World

CONFIG = """
providers: {{anthropic: {{api_key: "${{KEY}}", base_url: "{url}"}}}}
prices: {{claude-haiku-4-5: {{input: 1.0, output: 5.0, cache_read: 0.1}}}}
defaults: {{heartbeat: {{deliver: log, light_context: false, budget: unlimited}}}}
agents:
  ops:
    runner: {{kind: anthropic}}
    model: claude-haiku-4-5
    context: [SOUL.md]
    heartbeat: {{interval: {interval}, checklist: "- look\\n", answer: text{precheck}}}
"""
PRECHECK = ', precheck: {command: "./mail", unchanged: skip}'
AGENTS = ((30_000, "15m"), (400, "30m"))  # characters of context, and interval
PRICES = 1.0, 5.0  # USD per million tokens, input and output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--events", type=int, default=40)
    given = parser.parse_args()
    for line in table_lines(given.days, given.events):
        print(line, flush=True)


def table_lines(days: int = 30, events: int = 40) -> Iterator[str]:
    """The table in docs/money.md, line by line. It takes two minutes of CPU time."""
    yield "| context, interval | precheck | calls | USD | USD with caching |"
    yield "|---|---|---|---|---|"
    for size, interval in AGENTS:
        for has_precheck in (False, True):
            calls, bill = play(size, interval, days, events if has_precheck else None)
            costs = f"{bill.usd_without_cache(*PRICES):.2f} | {bill.usd(*PRICES):.2f}"
            yield f"| {size:,} characters, {interval} | {'yes' if has_precheck else 'no'} | {calls:,} | {costs} |"


def play(size: int, interval: str, days: int, events: int | None) -> tuple[int, Bill]:
    """The calls and the bill of a period, for a context file of `size` characters. Without `events` there is no precheck."""
    with tempfile.TemporaryDirectory() as folder, CachingModels(lambda _: [text("HEARTBEAT_OK")]) as server:
        yaml = CONFIG.format(url=server.url, interval=interval, precheck="" if events is None else PRECHECK)
        world = World(Path(folder), yaml, environ={"KEY": "k"}, start="2026-03-02 00:00")
        world.write("ops/SOUL.md", "I am ops. ".ljust(size, "x"))
        server.now = lambda: world.clock.now
        begun = world.clock.now
        chance = random.Random(1)
        at = [chance.uniform(0, days * 86_400) for _ in range(events or 0)]
        world.prechecks["ops"] = lambda _: f"{sum(each <= (world.clock.now - begun).total_seconds() for each in at)} mails"
        world.run(days=days)
        world.store.close()
        return len(server.requests), server.bills["ops"]


if __name__ == "__main__":
    main()
