"""Several daemons share one config. Each slot runs once, in one of them, and no wake gets lost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import required_programs
from metrics_page import Page
from servers.postgres import PostgresServer
from world import World

from scheduler.engine import shard_moves
from scheduler.store import transfer
from scheduler.store.database import StoreError

FLEET = """\
shard: {of: 2}
defaults:
  agent: {runner: {kind: command, argv: [cat]}}
  heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}
agents: {a: {}, b: {}, c: {}, d: {}}
cron:
  wake-a: {every: 1h, stagger: 0s, command: x, wake_heartbeat: a, wake_on: always, deliver: none}
  wake-c: {every: 1h, stagger: 0s, command: x, wake_heartbeat: c, wake_on: always, deliver: none}
"""


class Fleet:
    """The daemons of all shards, over the same folder, and the same server if there is one."""

    def __init__(self, folder: Path, server: str | None) -> None:
        self.folder, self.server = folder, server
        self.worlds: list[World] = []

    def start(self, yaml: str, shards: int) -> None:
        self.worlds = [World(self.folder, yaml, server=self.server, shard=index) for index in range(shards)]

    def stop(self) -> None:
        for world in self.worlds:
            world.stop()
        self.worlds = []


@pytest.fixture(params=["file", pytest.param("server", marks=required_programs.needs("initdb"))])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    server: PostgresServer | None = request.getfixturevalue("postgres") if request.param == "server" else None
    found = Fleet(tmp_path, server.database() if server else None)
    yield found
    found.stop()


def test_each_slot_runs_once_in_one_shard_and_the_wakes_of_jobs_arrive(fleet: Fleet) -> None:
    fleet.start(FLEET, 2)
    for world in fleet.worlds:
        world.run(hours=3, minutes=1)
    slots = Counter(
        (row["name"], row["slot"]) for world in fleet.worlds for row in world.records() if row["trigger"] == "interval"
    )
    assert set(slots.values()) == {1}
    assert Counter(name for name, _ in slots) == {"a": 7, "b": 7, "c": 7, "d": 7}
    woken = Counter(row["name"] for world in fleet.worlds for row in world.records() if row["trigger"] == "cron")
    assert woken == {"a": 3, "c": 3}
    assert all({row["name"] for row in world.records()} for world in fleet.worlds)


def test_the_ids_of_two_shards_never_collide(fleet: Fleet) -> None:
    fleet.start(FLEET, 2)
    for world in fleet.worlds:
        with world.store.transaction() as db:
            transfer.reserve_ids_of_shard(db, world.shard or 0)
        world.run(hours=1)
    first, second = ([row["id"] for row in world.records()] for world in fleet.worlds)
    assert max(first) < 10**12 < min(second)


def test_a_start_with_another_number_of_shards_is_refused(fleet: Fleet) -> None:
    fleet.start(FLEET, 2)
    shard_moves.check_tables(fleet.worlds[0].engine.plan.settings)
    settings = [World.plan(world).settings for world in fleet.worlds]
    fleet.worlds[0].config.write_text(fleet.worlds[0].config.read_text("utf-8").replace("of: 2", "of: 5"), "utf-8")
    assert all(shard.shard for shard in settings)
    for index in (0, 4):  # one that loses entries, and one that gets some
        changed = fleet.worlds[0]
        changed.environ["HEARTBEATD_SHARD"] = str(index)
        with pytest.raises(StoreError, match=r"the config moves agent/\w+ from shard \d to shard \d"):
            shard_moves.check_tables(changed.plan().settings)


def test_a_start_without_shards_is_refused_while_shards_have_the_rows_and_the_other_way_round(fleet: Fleet) -> None:
    alone = FLEET.partition("\n")[2]
    world = World(fleet.folder, alone, server=fleet.server)
    world.stop()
    fleet.start(FLEET, 2)
    with pytest.raises(StoreError, match="agent/a from the database without shards to shard"):
        shard_moves.check_tables(fleet.worlds[0].engine.plan.settings)
    for each in fleet.worlds:
        each.store.close()
    fleet.worlds = []
    world.write_config(alone)
    with pytest.raises(StoreError, match=r"agent/\w from shard \d to the database without shards"):
        shard_moves.check_tables(world.plan().settings)


def test_the_metrics_of_a_shard_name_it_and_have_only_its_agents(tmp_path: Path) -> None:
    world = World(tmp_path, FLEET, shard=1)
    text = Page(world).text()
    world.stop()
    assert "heartbeatd_shards 2\n" in text
    assert 'heartbeatd_shard_info{index="1",of="2"} 1\n' in text
    assert set(re.findall(r'heartbeatd_entry_state{kind="\w+",name="([\w-]+)"', text)) == {"a", "b", "wake-a"}


def test_a_one_time_job_that_has_run_stays_valid_in_each_shard(fleet: Fleet) -> None:
    once = FLEET + '  once: {at: "2026-03-02T08:30:00Z", command: x, deliver: none}\n'
    fleet.start(once, 2)
    for world in fleet.worlds:
        world.run(hours=1)
    assert [row["outcome"] for world in fleet.worlds for row in world.records("once")] == ["ok"]
    for world in fleet.worlds:
        world.reload(once.replace("30m", "40m"))
