"""`run --once` end to end: what it runs, and what the daemon runs after it."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from test_story_slots import agent, job
from world import MakeWorld, World


def test_run_once_before_the_first_daemon_does_not_disable_the_stagger(make_world: MakeWorld) -> None:
    names = [f"agent{number}" for number in range(8)]
    beat = '{runner: {kind: command, argv: [a]}, heartbeat: {interval: 30m, stagger: 50%, checklist: "- look\\n", deliver: log}}'
    world = make_world("x-a: 1\nagents:\n" + "".join(f"  {name}: {beat}\n" for name in names))
    world.store.close()
    world.delete_database()
    world.boot(at_once=True)
    anchors = {row[0] for row in world.store.connection.execute("select anchor from entry")}
    assert len(anchors) > 1


def world_after_run_once(make_world: MakeWorld, yaml: str, start: str = "2026-03-02 08:00:00.400") -> World:
    """A world in which a `run --once` sees these entries for the first time."""
    world = make_world("x-nothing: 1\ncron: {other: {every: 1d, command: nothing, enabled: false}}\n", start=start)
    world.kill()
    world.write_config(yaml)
    world.boot(at_once=True)
    return world


@pytest.mark.parametrize("takes", [0, 3])
def test_run_once_runs_a_new_agent_once_however_long_it_takes(make_world: MakeWorld, takes: int) -> None:
    world = world_after_run_once(make_world, agent(stagger="0s"))
    world.durations["ops"] = timedelta(seconds=takes)
    world.run(minutes=1)
    assert world.engine.is_idle(world.clock.now)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]


def test_the_daemon_runs_an_agent_once_per_interval_after_run_once(make_world: MakeWorld) -> None:
    world = world_after_run_once(make_world, agent(stagger="50%"))
    world.run(minutes=1)
    world.downtime(minutes=1)
    world.run(minutes=119)
    starts = [call.at for call in world.calls]
    assert len(starts) == 4
    assert timedelta(minutes=30) <= starts[1] - starts[0] <= timedelta(minutes=45)
    assert [later - earlier for earlier, later in pairwise(starts[1:])] == [timedelta(minutes=30)] * 2
    assert sum(row["planned_runs"] for row in world.records()) == 4


def test_run_once_outside_active_hours_is_recorded_and_the_daemon_runs_at_the_first_opening(
    make_world: MakeWorld,
) -> None:
    world = world_after_run_once(make_world, agent(interval="7d", active_hours='"08:00-22:00"'), start="2026-03-02 23:00")
    world.run(minutes=1)
    world.downtime(minutes=1)
    world.run(days=8)
    assert world.history() == [
        "03-02 23:00 interval skipped active_hours",
        "03-03 08:00 interval ok heartbeat_ok",
        "03-10 08:00 interval ok heartbeat_ok",
    ]


def test_an_agent_run_by_run_once_before_closing_does_not_run_again_at_the_next_opening(make_world: MakeWorld) -> None:
    keys = {"interval": "7d", "stagger": "10%", "active_hours": '"08:00-22:00"'}
    world = world_after_run_once(make_world, agent(**keys), start="2026-03-02 21:59")
    world.run(days=6)
    assert world.history() == ["03-02 21:59 interval ok heartbeat_ok"]


def test_run_once_runs_a_reboot_job_once(make_world: MakeWorld) -> None:
    world = world_after_run_once(make_world, job(schedule='"@reboot"'))
    world.run(minutes=1)
    assert len(world.calls) == 1
