"""Tests the lane of an agent that `heartbeatd busy` locks on any host, if the database is on a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import required_programs
from servers.postgres import EmptyDatabases, PostgresServer
from world import QUIET, Delayed, MakeWorld, World

from scheduler.cli.busy import _lane_in_cluster
from scheduler.cli.daemon_files import locate_files
from scheduler.extras.cluster.command_lanes import try_to_hold_lane
from scheduler.extras.cluster.postgresql import WRITER_SETTINGS, ServerConnection, ServerError

pytestmark = required_programs.needs("initdb")

CONFIG = """
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log}
cron:
  digest: {schedule: "30 8 * * *", stagger: 0s, prompt: Write the digest., agent: ops, deliver: log}
"""
LEADS = "update heartbeatd._leader set until_at = clock_timestamp() + interval '1 hour'"
COMMAND_ENDED = "update heartbeatd.hold set until_at = extract(epoch from clock_timestamp()) * 1000"  # without releasing the lane
CRASHED = "update heartbeatd._leader set until_at = clock_timestamp() - interval '1 second'"


@pytest.fixture
def address(empty_databases: EmptyDatabases, tmp_path: Path, postgres: PostgresServer) -> Iterator[str]:
    found = empty_databases.borrow(tmp_path)
    postgres.query(found, LEADS)
    yield found
    postgres.query(found, "update heartbeatd._leader set until_at = '-infinity'")
    empty_databases.take_back()


def take(world: World) -> str | None:
    """What `heartbeatd busy ops` must wait for; None: it has the lane."""
    lane = _lane_in_cluster("ops", world.config, locate_files(world.config))
    assert lane is not None
    return lane.take()


def test_a_command_waits_for_the_runs_of_the_agent_and_its_jobs_but_not_for_those_of_a_leader_that_crashed(
    make_world: MakeWorld, address: str, postgres: PostgresServer
) -> None:
    world = make_world(CONFIG, server=address)
    world.scripts["digest"] = lambda call: Delayed(QUIET, timedelta(minutes=5))
    world.run_until("2026-03-02 08:31")
    assert take(world) == "run 2 is in progress"
    postgres.query(address, CRASHED)
    assert take(world) is None


def test_a_lane_stays_locked_although_the_clock_of_the_leader_is_ahead_of_that_of_the_server(
    make_world: MakeWorld, address: str, postgres: PostgresServer
) -> None:
    world = make_world(CONFIG, server=address, start="2066-03-02 08:00")
    world.run(seconds=10)
    assert take(world) is None
    world.wake("ops", "look")
    world.run(minutes=1)
    assert len(world.calls) == 1
    postgres.query(address, COMMAND_ENDED)
    world.run(minutes=2)
    assert len(world.calls) == 2


def test_a_command_does_not_get_the_lane_while_the_leader_may_be_starting_a_run(make_world: MakeWorld, address: str) -> None:
    world = make_world(CONFIG, server=address)
    impatient = ServerConnection(address, WRITER_SETTINGS | {"lock_timeout": 50})
    with closing(impatient) as db, world.store.transaction(), pytest.raises(ServerError, match="lock timeout"):
        try_to_hold_lane(db, "ops", [], "heartbeatd busy on b (process 1)")
