"""Tests lanes across machines: `heartbeatd busy` and programs left behind block the runs of an agent on all machines."""

from __future__ import annotations

import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import required_programs
from cluster_processes import Cluster, config_of, waiting_script
from patience import PATIENCE, wait_until
from remote_bench import queue_in
from servers.postgres import PostgresServer
from warm_start import Heartbeatd

from scheduler.cli.busy import _keep_until_unlocked, _take_in_cluster
from scheduler.extras.cluster.executors import QueueLane

pytestmark = [required_programs.needs("initdb"), pytest.mark.process]

HOLD = "touch '{folder}/locked'; while [ ! -e '{folder}/unlock' ]; do sleep 0.05; done"


def make_cluster(folder: Path, dsn: str, *, script: str | None = None, workers: bool = True, lease: str = "2m") -> Cluster:
    """The lease is long, so that none ends while this machine is busy with something else."""
    yaml = config_of(script or waiting_script(folder), **{"lease": lease} if workers else {"state": dsn, "lease": None})
    return Cluster(folder, yaml, dsn)


@pytest.fixture
def cluster(tmp_path: Path, postgres: PostgresServer) -> Iterator[Cluster]:
    with make_cluster(tmp_path, postgres.database()) as cluster:
        yield cluster


def hold(cluster: Cluster, host: str, *, sign: str = "locked") -> Heartbeatd:
    """`heartbeatd busy` on another host, until the file `unlock` appears. It creates the file `sign` when it has the lane."""
    script = HOLD.format(folder=cluster.folder).replace("locked", sign)
    return cluster.start("busy", "ops", "--", "sh", "-c", script, folder=cluster.folder / host)


def has(cluster: Cluster, name: str) -> bool:
    return (cluster.folder / name).exists()


def waiting(cluster: Cluster) -> list[str]:
    """Why runs wait."""
    query = "select coalesce(error, '') from {} where state = 'waiting'"
    if not has(cluster, "state/h.db"):
        return cluster.query(query.format("heartbeatd.run")).splitlines()
    with closing(sqlite3.connect(f"file:{cluster.folder}/state/h.db?mode=ro", uri=True)) as db:
        return [row[0] for row in db.execute(query.format("run"))]


def log_of(cluster: Cluster, host: str) -> str:
    return (cluster.folder / host / "busy.log").read_text()


@pytest.mark.parametrize("workers", [True, False], ids=["queue", "leader"])
def test_a_command_waits_for_other_hosts_and_then_delays_their_runs(
    tmp_path: Path, postgres: PostgresServer, workers: bool
) -> None:
    with make_cluster(tmp_path, postgres.database(), workers=workers) as cluster:
        cluster.start("run")
        if workers:
            cluster.start("worker", "--name", "b-1", folder=tmp_path / "b")
        wait_until(lambda: has(cluster, "marks"))
        hold(cluster, "a")
        in_progress = "a run is in progress on b-1" if workers else "run 1 is in progress"
        wait_until(lambda: f"agent/ops is busy: {in_progress}; waiting until it is free" in log_of(cluster, "a"))
        last = hold(cluster, "c", sign="later")
        wait_until(lambda: "waiting" in log_of(cluster, "c"))
        (tmp_path / "gate").touch()
        wait_until(lambda: has(cluster, "locked"))
        cluster.call("wake", "ops")
        wait_until(lambda: any(error.startswith("heartbeatd busy on ") for error in waiting(cluster)))
        assert not has(cluster, "later")
        (tmp_path / "unlock").touch()
        assert last.wait(PATIENCE) == 0
        assert has(cluster, "later")
        table = "heartbeatd_lane" if workers else "heartbeatd.hold"
        wait_until(lambda: cluster.query(f"select count(*) from {table}") == "0")


def test_the_lane_of_a_command_that_was_killed_is_released(cluster: Cluster) -> None:
    command = hold(cluster, "a")
    wait_until(lambda: has(cluster, "locked"))
    command.send_signal(signal.SIGKILL)
    command.wait(PATIENCE)
    wait_until(lambda: cluster.query("select count(*) from heartbeatd_lane") == "0")


class InterruptedLane(QueueLane):
    """A lane whose command gets a Ctrl-C while it waits."""

    def take(self) -> str | None:
        super().take()
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def dsn(postgres: PostgresServer) -> str:
    return postgres.database()


def test_a_command_prolongs_the_time_for_which_it_has_the_lane(dsn: str, postgres: PostgresServer) -> None:
    lane, held = QueueLane("ops", queue_in(dsn, "heartbeatd", lease=1.0), "a"), list[str]()

    def is_locked() -> bool:
        held.append(postgres.query(dsn, "select until_at from heartbeatd_lane"))
        return len(held) < 2

    assert lane.take() is None
    _keep_until_unlocked(lane, is_locked)  # looks twice a second
    assert held[0] < held[1]
    assert postgres.query(dsn, "select count(*) from heartbeatd_lane") == "0"


def test_a_command_that_is_interrupted_while_it_waits_no_longer_delays_runs(dsn: str, postgres: PostgresServer) -> None:
    with pytest.raises(KeyboardInterrupt):
        _take_in_cluster(InterruptedLane("ops", queue_in(dsn, "heartbeatd", lease=1.0), "a"), "ops")
    assert postgres.query(dsn, "select count(*) from heartbeatd_lane") == "0"


def test_a_run_that_calls_busy_for_its_own_agent_does_not_wait_for_itself(tmp_path: Path, postgres: PostgresServer) -> None:
    script = f"{sys.executable} -m scheduler -c '{tmp_path}/b/config.yaml' busy ops -- echo HEARTBEAT_OK"
    with make_cluster(tmp_path, postgres.database(), script=script) as cluster:
        cluster.start("run")
        cluster.start("worker", folder=tmp_path / "b")
        wait_until(lambda: cluster.outcomes() == ["ok"])


def test_a_program_that_a_run_leaves_behind_blocks_the_agent_on_other_hosts(tmp_path: Path, postgres: PostgresServer) -> None:
    script = f"(while [ ! -e '{tmp_path}/gate' ]; do sleep 0.05; done) >/dev/null 2>&1 & echo HEARTBEAT_OK"
    with make_cluster(tmp_path, postgres.database(), script=script, lease="20s") as cluster:
        cluster.start("run")
        cluster.start("worker", "--name", "b-1", folder=tmp_path / "b")
        wait_until(lambda: cluster.outcomes() == ["ok"])
        hold(cluster, "a")
        wait_until(lambda: "busy: a program that a run has left behind on b-1 has locked it; waiting" in log_of(cluster, "a"))
        (tmp_path / "gate").touch()
        wait_until(lambda: has(cluster, "locked"))
        (tmp_path / "unlock").touch()
