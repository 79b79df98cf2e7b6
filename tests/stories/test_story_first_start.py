"""The first start with many agents: in parts, and a stop in between loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_story_slots import agent
from world import World

from scheduler.engine import tick
from scheduler.store import entries

MANY = 2 * tick.NEW_ENTRIES_PER_PART + 100
AGENTS = "defaults: {heartbeat: {interval: 30m, deliver: log}}\nagents:\n" + "\n".join(
    f"  a{number}: {{}}" for number in range(MANY)
)


def rows_of(world: World) -> int:
    return len(entries.all_entries(world.store.connection))


@pytest.fixture(scope="module")
def many_agents(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A daemon whose config has got many agents, before its next start."""
    world = World(tmp_path_factory.mktemp("many"), agent())
    world.write_config(AGENTS)
    world.engine.plan = world.plan()
    return world


def test_many_new_agents_are_added_in_parts_and_a_stop_is_obeyed_between_them(many_agents: World, tmp_path: Path) -> None:
    world, seen = many_agents, list[int]()

    def is_over() -> bool:
        seen.append(rows_of(world))
        return len(seen) == 3

    assert not world.engine.add_new_entries(world.clock.read(), is_over)
    assert seen == [1, 1 + tick.NEW_ENTRIES_PER_PART, 1 + 2 * tick.NEW_ENTRIES_PER_PART]
    assert world.engine.add_new_entries(world.clock.read(), lambda: False)  # the last few are left to the boot
    assert rows_of(world) == 1 + 2 * tick.NEW_ENTRIES_PER_PART
    world.kill()
    world.boot()
    rows = entries.all_entries(world.store.connection)
    assert len([row for row in rows if row.state == "active"]) == MANY
    assert all(row.due_at is not None and row.due_at == row.expected_at for row in rows if row.state == "active")
    alone = World(tmp_path, AGENTS.partition("  a1:")[0])
    (expected,) = entries.all_entries(alone.store.connection)
    alone.store.close()
    found = next(row for row in rows if row.name == "a0")
    assert found._replace(id=0) == expected._replace(id=0)  # as an agent that is added alone
