"""Tests the lane of an agent that `heartbeatd busy` locks on any host, if the database is on a PostgreSQL server."""

from __future__ import annotations

from datetime import timedelta

import required_programs
from servers.postgres import PostgresServer
from world import QUIET, Delayed, MakeWorld, World

from scheduler.cli.busy import _lane_in_cluster
from scheduler.cli.daemon_files import locate_files

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
CRASHED = "update heartbeatd._leader set until_at = clock_timestamp() - interval '1 second'"


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
    postgres.query(address, LEADS)
    assert take(world) == "run 2 is in progress"
    postgres.query(address, CRASHED)
    assert take(world) is None
