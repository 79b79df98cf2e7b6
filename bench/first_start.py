"""How long the first start takes with many agents on PostgreSQL, from a config that is loaded until the first tick."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from servers.postgres import PostgresServer
from world import World

from scheduler.engine.tick import Engine, Executors
from scheduler.engine.tick_items import Inbox
from scheduler.store.boots import Boot


def measure(agents: int) -> None:
    """Print the time, and the time of the second start."""
    with closing(PostgresServer(fsync="on")) as server, tempfile.TemporaryDirectory() as name:
        world = World(
            Path(name), "agents: {first: {heartbeat: {interval: 30m, deliver: log}}}\n", server=server.start().database()
        )
        entries = "\n".join(f"  a{number}: {{}}" for number in range(agents))
        begun = time.perf_counter()
        world.write_config(f"defaults: {{heartbeat: {{interval: 30m, deliver: log}}}}\nagents:\n{entries}\n")
        plan = world.plan()
        print(f"{agents} agents: the config is loaded in {time.perf_counter() - begun:.1f} s", flush=True)
        for which in ("first", "second"):
            engine = Engine(
                world.store, plan, Executors(world.runs, world.deliveries), Inbox(lambda: None), [], which, random.Random(7)
            )  # fmt: skip
            begun = time.perf_counter()
            engine.add_new_entries(world.clock.read(), lambda: False)
            engine.start_boot(world.clock.read(), Boot(which, 1, "0", "0"), {})
            print(f"{which} start: {time.perf_counter() - begun:.1f} s", flush=True)
        world.store.close()


if __name__ == "__main__":
    for number in map(int, sys.argv[1:] or ("10000", "100000")):
        measure(number)
