"""Of several daemons on one PostgreSQL server one leads; another takes over, and the first writes nothing more."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast
from urllib.parse import urlsplit

import patience
import psycopg
import pytest
import required_programs
from cluster_comparison import BeatProgram, Comparison, Fault, Message
from daemon_process import Daemon as DaemonProcess
from servers.postgres import ONE_BOOT, PostgresServer
from servers.postgres_proxy import PostgresProxy
from simulated_clock import SimulatedClock
from simulation import size
from world import QUIET, Delayed, MakeWorld, utc

from scheduler.app import STANDS_BY_AGAIN, Daemon, read_clocks
from scheduler.cli.busy import _lane_in_cluster
from scheduler.cli.daemon_files import locate_files
from scheduler.cli.main import main
from scheduler.engine.observed_problems import DATABASE
from scheduler.extras.cluster.leadership import GIVE_UP_AFTER, LEASE, PATIENCE, Leadership, _is_down_for_all, lead_for_a_command
from scheduler.extras.cluster.postgresql import WRITER_SETTINGS, ServerConnection
from scheduler.extras.cluster.stores import ServerLane
from scheduler.insight.installation_checks import check_records, check_replication
from scheduler.insight.status_data import read_status
from scheduler.model.problem import Subject
from scheduler.model.timestamps import to_millis
from scheduler.store import boots, clock_changes, lane_holds, problems
from scheduler.store.database import DatabaseUnavailable, LeadershipLost, Store
from scheduler.store.locations import open_for_writing
from scheduler.store.transaction import Transaction
from scheduler.system.state_lock import StateLock, make_state_folder

pytestmark = required_programs.needs("initdb")

EXPIRE = "update heartbeatd._leader set until_at = clock_timestamp() - interval '1 second'"
LEASE_OF_LAST_BOOT = "update heartbeatd._leader set holder = boot.instance, until_at = now() + interval '{}' from heartbeatd.boot"
LEASED_UNTIL = "select until_at from heartbeatd._leader where until_at > clock_timestamp()"


class Hosts:
    """Daemons on hosts with these names, each with its lease and its store."""

    def __init__(self, address: str, postgres: PostgresServer, closing: ExitStack) -> None:
        self.clock = SimulatedClock()
        self.lost: list[str] = []
        self._address, self._postgres, self._closing = address, postgres, closing

    def add(self, host: str) -> tuple[Leadership, Store]:
        lease = Leadership(self._address, f"instance-{host}", host, self.clock, self.lost.append)
        store = open_for_writing(self._address)
        self._closing.callback(store.close)
        self._closing.callback(lambda: lease.stop(release=False))
        return lease, store

    def add_leader(self, host: str) -> tuple[Leadership, Store]:
        lease, store = self.add(host)
        lead(lease, store)
        return lease, store

    def expire(self, standby: Leadership | None = None) -> None:
        """Let the lease of the leader end, and this standby see that for so long that it may lead."""
        self._postgres.query(self._address, EXPIRE)
        if standby is not None:
            standby.try_to_lead()
            self.clock.now += PATIENCE


@pytest.fixture
def hosts(address: str, postgres: PostgresServer) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(address, postgres, stack)


def lead(lease: Leadership, store: Store) -> None:
    assert lease.try_to_lead() is None
    store.epoch = lease.epoch


def test_the_commands_on_a_host_without_a_daemon_show_the_leader_as_running_while_it_has_the_lease(
    make_world: MakeWorld, address: str, postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The clock of the server decides. That of the other host may differ."""
    world = make_world(AGENT, server=address)

    def output_of(command: str) -> str:
        assert main(["-c", str(world.config), *command.split()]) == 0
        return capsys.readouterr().out

    for left, expected, has_ended in (
        ("1 hour", "daemon: running on another machine, last tick", False),
        ("-1 second", "daemon: down since", True),
    ):
        postgres.query(address, LEASE_OF_LAST_BOOT.format(left))
        assert expected in output_of("status")
        ended = {
            "status": "the daemon is down",
            "status --format json": '"running": false',
            "logs": "ended unexpectedly",
            "explain": "the daemon has not run",
            "report": "The daemon was down once",
            "plan": "daemon: down",
        }
        assert [words in output_of(command) for command, words in ended.items()] == [has_ended] * len(ended)
    postgres.query(address, LEASE_OF_LAST_BOOT.format("1 hour"))
    world.stop()
    assert "shut down" in output_of("status")


def test_a_busy_command_waits_for_the_runs_of_the_agent_and_its_jobs_but_not_for_those_of_a_leader_that_crashed(
    make_world: MakeWorld, address: str, postgres: PostgresServer
) -> None:
    digest = "digest: {schedule: 30 8 * * *, stagger: 0s, prompt: Write the digest., agent: ops, deliver: log}"
    world = make_world(f"{AGENT.replace('30m', '1h, stagger: 0s')}cron: {{{digest}}}\n", server=address)
    world.scripts["digest"] = lambda call: Delayed(QUIET, timedelta(minutes=5))
    world.run_until("2026-03-02 08:31")
    lane = _lane_in_cluster("ops", world.config, locate_files(world.config))
    assert lane is not None
    for left, obstacle in (("1 hour", "run 2 is in progress"), ("-1 second", None)):
        postgres.query(address, LEASE_OF_LAST_BOOT.format(left))
        assert lane.take() == obstacle


def test_status_and_doctor_of_a_standby_name_the_leader(
    hosts: Hosts, address: str, tmp_path: Path, postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    lease, store = hosts.add("one")
    lead(lease, store)
    postgres.query(address, "update heartbeatd._leader set until_at = now() + interval '1 hour'")  # nobody renews it here
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(address=address, host="two"), "utf-8")
    lock = locate_files(config).lock_file
    make_state_folder(lock.parent)
    for instance, expected in (("instance-one", "running since"), ("another", "standby (one leads) since")):
        with StateLock.take(lock, started_at=utc("2026-03-02 08:00"), instance=instance):
            for command in ("status", "doctor"):
                main(["-c", str(config), command])
                line = next(line for line in capsys.readouterr().out.splitlines() if " since 2026-" in line and "pid" in line)
                assert expected in line
            main(["-c", str(config), "status", "--format", "json"])
            daemon = json.loads(capsys.readouterr().out)["daemon"]
            assert (daemon["standby"], daemon["leader"]) == (None if instance == "instance-one" else "one leads", "one")


def test_a_server_that_may_lose_commits_and_a_clock_that_differs_are_reported(address: str) -> None:
    """Each row: whether commits wait for a standby, `synchronous_commit`, and the number of standbys."""
    for replication, level, words in (
        (boots.Replication(waits=False, commits="on", standbys=0), "ok", "no standby"),
        (boots.Replication(waits=True, commits="on", standbys=2), "ok", "2 standby servers, synchronous"),
        (boots.Replication(waits=False, commits="on", standbys=1), "warn", "1 standby server, asynchronous: a failover loses"),
        (boots.Replication(waits=True, commits="local", standbys=1), "warn", "synchronous_commit is local"),
        (boots.Replication(waits=True, commits="off", standbys=0), "warn", "synchronous_commit is off: a crash"),
    ):
        found = check_replication(replication)
        assert (found.level, words in found.text) == (level, True), found
    with closing(open_for_writing(address)) as store:
        assert boots.read_replication(store.connection) == boots.Replication(waits=False, commits="on", standbys=0)
        for hours, level, words in ((0, "ok", "agrees"), (1, "warn", "3600 s behind"), (-1, "warn", "3600 s ahead of")):
            now = datetime.now(UTC) + timedelta(hours=hours)
            listed = {each.what: each for each in check_records(store.connection, now, str, "UTC")}
            assert (listed["clock"].level, words in listed["clock"].text, listed["server"].level) == (level, True, "ok")


def test_an_expired_lease_is_taken_over_and_the_former_leader_writes_nothing(hosts: Hosts) -> None:
    (one, store), (two, other) = hosts.add_leader("one"), hosts.add("two")
    hosts.expire()
    assert two.try_to_lead() == "one led until now"  # after a restart of the server the leader is first
    hosts.clock.now += PATIENCE
    lead(two, other)
    with pytest.raises(LeadershipLost, match="two leads"), store.transaction() as db:
        db.execute(ONE_BOOT)
    assert store.is_fenced
    assert one._renew() == "another daemon has taken over"
    with other.transaction() as db:
        assert boots.all_boots(db) == []


def test_a_former_leader_does_not_finish_the_commit_whose_answer_was_lost(hosts: Hosts) -> None:
    (_, store), (two, other) = hosts.add_leader("one"), hosts.add("two")
    with store.transaction() as db:
        store._unknown = db.execute("select pg_current_xact_id()::text as number").fetchone()["number"]
        db.execute(ONE_BOOT)
    assert store.was_committed()
    hosts.expire(two)
    lead(two, other)
    with pytest.raises(LeadershipLost, match="two leads"):
        store.was_committed()  # the runs that it has claimed belong to the other one
    assert store.is_fenced


def test_a_lost_commit_is_not_decided_while_the_server_is_still_carrying_it_out(hosts: Hosts, address: str) -> None:
    _, store = hosts.add("one")
    with psycopg.connect(address) as other:
        row = other.execute("select pg_current_xact_id()::text").fetchone()
        assert row is not None
        store._unknown = row[0]  # type: ignore[attr-defined]
        with pytest.raises(DatabaseUnavailable, match="has not finished the last commit"):
            store.was_committed()
        other.commit()
        assert store.was_committed()


def test_a_leader_that_renews_while_another_daemon_takes_over_stays(hosts: Hosts) -> None:
    (one, store), (two, _) = hosts.add_leader("one"), hosts.add("two")
    hosts.expire(two)
    two._connection.set_trace_callback(lambda statement: one._renew() if statement.startswith("update") else None)  # type: ignore[union-attr]
    assert two.try_to_lead() == "another daemon leads"
    with store.transaction() as db:
        db.execute(ONE_BOOT)


def test_a_former_leader_that_stops_does_not_end_the_lease_of_the_next_one(hosts: Hosts) -> None:
    (one, _), (two, other), (three, _) = hosts.add_leader("one"), hosts.add("two"), hosts.add("three")
    hosts.expire(two)
    lead(two, other)
    one.stop()
    assert three.try_to_lead() == "two leads"


@pytest.mark.parametrize("sends", [True, False], ids=["while it sends statements", "while it receives rows over a Unix socket"])
def test_the_transaction_of_a_frozen_leader_is_ended_before_another_daemon_leads(hosts: Hosts, *, sends: bool) -> None:
    """None of the timeouts of PostgreSQL ends it."""
    (_, store), (two, other) = hosts.add_leader("one"), hosts.add("two")
    hosts.expire()
    two.try_to_lead()
    two._connect().execute("set lock_timeout = 50")
    hosts.clock.now += PATIENCE
    transaction = store.transaction()
    transaction.__enter__().execute(ONE_BOOT)
    frozen = cast("ServerConnection", store.connection)._raw.pgconn
    if sends:
        frozen.enter_pipeline_mode()
        frozen.send_query_params(b"select 1", None)  # more was to follow
    else:
        frozen.send_query(b"select repeat('x', 1000) from generate_series(1, 100000)")
    frozen.flush()
    assert "lock timeout" in str(two.try_to_lead())
    two._connect().execute("set lock_timeout = 10000")  # the server ends a transaction some time after it was told to
    lead(two, other)
    assert boots.all_boots(other.connection) == []


def test_a_leader_that_renews_its_expired_lease_during_a_long_transaction_keeps_the_transaction(
    hosts: Hosts, address: str, postgres: PostgresServer
) -> None:
    (one, store), (two, _) = hosts.add_leader("one"), hosts.add("two")
    hosts.expire(two)
    with store.transaction() as db, ThreadPoolExecutor() as pool:
        db.execute(ONE_BOOT)
        standby = pool.submit(two.try_to_lead)
        while not postgres.query(address, "select 1 from pg_locks where not granted"):
            assert not standby.done()
        assert one._renew() is None
        assert "lock timeout" in str(standby.result())
    assert two.try_to_lead() == "one leads"
    assert len(boots.all_boots(store.connection)) == 1


def test_a_command_says_so_if_another_program_locks_an_expired_lease(hosts: Hosts, address: str) -> None:
    hosts.add_leader("one")
    hosts.expire()
    with psycopg.connect(address) as other, hosts.clock.passing():
        other.execute("select 1 from heartbeatd._leader for update")
        with pytest.raises(DatabaseUnavailable, match="lock timeout"):
            lead_for_a_command(address, "command", hosts.clock)


def test_a_leader_that_is_frozen_while_it_reads_many_rows_does_not_keep_another_one_from_leading() -> None:
    """The server waits in the transaction until they are received. None of the timeouts of PostgreSQL ends that."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ExitStack() as stack:
        server = stack.enter_context(closing(PostgresServer(port=str(port))))
        server.accept_from("127.0.0.1/32")
        address = f"postgresql://heartbeatd@127.0.0.1:{port}{urlsplit(server.start().database()).path}"
        store = stack.enter_context(closing(open_for_writing(address)))
        other = stack.enter_context(closing(ServerConnection(address, {"lock_timeout": 30_000})))
        transaction = store.transaction()
        transaction.__enter__()
        frozen = cast("ServerConnection", store.connection)._raw.pgconn
        frozen.send_query(b"select repeat('x', 1000) from generate_series(1, 100000)")
        frozen.flush()
        assert other.execute("update _leader set epoch = epoch + 1").rowcount == 1


RUN = "insert into run (id, kind, name, slot, trigger, state) values (7, 'heartbeat', 'ops', 0, 'interval', 'running')"


def lane(host: str, *, name: str = "ops", jobs: Sequence[str] = ()) -> ServerLane:
    """The lock of a command on this host, over a connection that the caller gives it."""
    return ServerLane(name, "", jobs, f"heartbeatd busy on {host}")


def test_a_frozen_busy_command_blocks_neither_the_lease_nor_the_ticks_of_the_leader(hosts: Hosts, address: str) -> None:
    one, store = hosts.add_leader("one")
    one._connect().execute("set lock_timeout = 50")
    store.connection.execute("set lock_timeout = 50")

    def tick(_: str = "") -> None:
        assert one._renew() is None
        with store.transaction() as db:
            db.execute("update boot set pid = 2")

    with closing(ServerConnection(address, WRITER_SETTINGS)) as command:
        command.set_trace_callback(tick)  # the command is frozen before each of its statements
        assert lane("a?", jobs=["a", "it's"]).take_over(command) is None
        tick()
        assert "on a? has locked it" in str(lane("b").take_over(command))
        assert lane("b", name="other").take_over(command) is None
        assert one._problem is None


def test_a_busy_command_waits_for_the_tick_in_progress_and_sees_its_run(hosts: Hosts, address: str) -> None:
    one, store = hosts.add_leader("one")
    with closing(ServerConnection(address, WRITER_SETTINGS)) as command, ThreadPoolExecutor() as pool:
        with store.transaction() as db:
            db.execute(RUN)
            obstacle = pool.submit(lane("a").take_over, command)
            with pytest.raises(TimeoutError):
                obstacle.result(0.3)
            assert one._renew() is None  # also while a command waits
        assert obstacle.result(20) == "run 7 is in progress"


@pytest.mark.parametrize("days", [-2, 0, 2])
def test_the_clock_of_the_server_decides_how_long_a_busy_command_has_a_lane(hosts: Hosts, address: str, days: int) -> None:
    """The daemon that leads, or one that has crashed, may be on a host whose clock differs."""
    _one, store = hosts.add_leader("one")
    now = datetime.now(UTC)

    def is_held() -> bool:
        with store.transaction() as db:
            tx = Transaction(db, now + timedelta(days=days), "one")
            clock_changes.limit_future_times(tx, never_was=False)
            lane_holds.delete_ended_holds(tx)
            return lane_holds.is_lane_held(tx, "ops")

    with store.transaction() as db:
        db.execute(ONE_BOOT)  # of a daemon that has crashed
        db.execute("update boot set last_tick_at = ?", (to_millis(now + timedelta(days=1)),))
    with closing(ServerConnection(address, WRITER_SETTINGS)) as command:
        assert lane("a").take_over(command) is None
        assert is_held()
        command.execute("update hold set until_at = until_at - 120000")
    assert not is_held()


def test_a_leader_that_cannot_renew_stops_before_another_one_may_start(hosts: Hosts) -> None:
    one, _ = hosts.add_leader("one")
    one._disconnect()
    one._url = "postgresql://127.0.0.1:1/cut"  # as a network that refuses
    assert one._renew() is None
    hosts.clock.now += GIVE_UP_AFTER
    assert "could not be renewed" in str(one._renew())
    assert GIVE_UP_AFTER + 1 < LEASE


def test_a_leader_outlasts_a_restart_of_the_server(hosts: Hosts) -> None:
    with closing(PostgresServer().start()) as server:
        address = server.database()
        open_for_writing(address).close()
        lease = Leadership(address, "a", "a", hosts.clock, hosts.lost.append)
        assert lease.try_to_lead() is None
        server.stop()
        for _ in range(3):
            hosts.clock.now += GIVE_UP_AFTER
            assert lease._renew() is None
        server.start()
        assert lease._renew() is None
        lease.stop()


@pytest.mark.parametrize("several", ["address", "variable", "service"])
def test_a_leader_gives_up_if_only_one_of_several_hosts_is_down(
    hosts: Hosts, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several: str
) -> None:
    """Another host may be the new primary, on which another daemon takes the lease."""
    one, _ = hosts.add_leader("one")
    one._disconnect()
    places = f"{tmp_path},127.0.0.1"  # nothing listens there
    one._url = f"postgresql:///beats?host={places}&port=1" if several == "address" else "postgresql:///beats"
    if several == "variable":
        monkeypatch.setenv("PGHOST", places)
    if several == "service":
        (tmp_path / "services").write_text(f"[beats]\nhost={places}\nport=1\n")
        monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
        one._url = "postgresql:///beats?service=beats"
    hosts.clock.now += GIVE_UP_AFTER
    problem = str(one._renew())
    assert "could not be renewed" in problem
    assert "No such file" in problem


@pytest.mark.parametrize(
    ("place", "is_down"),
    [
        ('at "127.0.0.1", port 5432', True),
        ('on socket "/run/postgresql/.s.PGSQL.5432"', True),
        ('at "db.example" (10.0.0.7), port 5432', False),
    ],
)
def test_only_a_server_on_the_same_host_counts_as_down_for_all(place: str, *, is_down: bool) -> None:
    """On another host, a name may lead to several servers, and this one may start while another one is the primary."""
    assert _is_down_for_all(f"connection to server {place} failed: FATAL:  the database system is starting up") is is_down


def test_a_leader_gives_up_in_time_if_the_server_accepts_a_renewal_and_never_answers(hosts: Hosts, address: str) -> None:
    lost: list[tuple[str, float]] = []
    one = Leadership(address, "a", "a", hosts.clock, lambda problem: lost.append((problem, hosts.clock.now)))
    assert one.try_to_lead() is None
    began = hosts.clock.now
    with psycopg.connect(address) as other:
        other.execute("select 1 from heartbeatd._leader for update")  # the renewal waits for it
        one._connect().execute("set lock_timeout = 0")
        one._connect().execute("set statement_timeout = 0")
        one.start()
        hosts.clock.server_hangs = True
        hosts.clock.wait_until(lambda: lost)
    one.stop(release=False)
    ((problem, at),) = lost
    assert problem == "the lease could not be renewed: the server does not answer"
    assert GIVE_UP_AFTER <= at - began < LEASE


def test_a_lease_is_confirmed_until_another_daemon_may_take_it_soon(hosts: Hosts) -> None:
    one, _ = hosts.add_leader("one")
    hosts.clock.now += GIVE_UP_AFTER - 0.1
    assert one.is_confirmed
    hosts.clock.now += 0.1  # it was frozen, for example
    assert not one.is_confirmed
    assert one._renew() is None
    assert one.is_confirmed


def test_a_lease_is_confirmed_from_before_the_request_for_it(hosts: Hosts) -> None:
    one, _ = hosts.add_leader("one")

    def freeze(_: str) -> None:
        hosts.clock.now += GIVE_UP_AFTER

    one._connect().set_trace_callback(freeze)  # before the answer arrives
    assert one._renew() is None
    assert not one.is_confirmed


def test_a_leader_whose_connection_was_lost_during_a_freeze_renews_over_a_new_one(
    hosts: Hosts, address: str, postgres: PostgresServer
) -> None:
    one, _ = hosts.add_leader("one")
    pid = one._connect().execute("select pg_backend_pid() as pid").fetchone()["pid"]
    postgres.query(address, f"select pg_terminate_backend({pid}, 5000)")
    hosts.clock.now += GIVE_UP_AFTER
    assert one._renew() is None
    assert one.is_confirmed


def test_a_leader_that_was_frozen_finds_out_whether_it_still_leads_before_it_gives_up(hosts: Hosts) -> None:
    one, _ = hosts.add_leader("one")
    one.start()
    hosts.clock.wait_until(lambda: hosts.clock.waiting == 2)  # for the next renewal, and for the next look at the lease
    hosts.clock.now += GIVE_UP_AFTER + 1
    hosts.clock.wait_until(lambda: one.is_confirmed)
    assert hosts.lost == []


def test_a_daemon_learns_that_it_has_lost_the_lease_even_if_its_connection_cannot_be_aborted(hosts: Hosts) -> None:
    one, _ = hosts.add("one")

    class Broken:
        def abort(self) -> None:
            raise RuntimeError("broken")

    one._connection = cast("ServerConnection", Broken())
    with pytest.raises(RuntimeError, match="broken"):
        one._end("another daemon has taken over", threading.Event())
    one._connection = None
    assert hosts.lost == ["another daemon has taken over"]


def test_an_aborted_connection_leaves_a_file_alone_that_has_its_number(address: str) -> None:
    """The driver may close its socket in the thread that owns the connection, while another thread aborts it."""
    mine, other = socket.socketpair()
    with mine, other, closing(ServerConnection(address, {})) as connection:
        os.dup2(mine.fileno(), connection._raw.fileno())
        connection.abort()
        mine.send(b"still open")
        assert other.recv(100) == b"still open"


def test_a_command_takes_the_expired_lease_of_a_killed_daemon(hosts: Hosts, address: str) -> None:
    hosts.add_leader("one")
    hosts.expire()
    with hosts.clock.passing():
        lease = lead_for_a_command(address, "command", hosts.clock)
    assert lease.epoch == 2
    lease.stop()


def test_run_once_takes_the_expired_lease_of_a_killed_daemon(address: str, tmp_path: Path, postgres: PostgresServer) -> None:
    (tmp_path / "config.yaml").write_text(
        CONFIG.format(address=address, host="b").replace("interval: 1s", "interval: 1h"), "utf-8"
    )
    postgres.query(address, "update heartbeatd._leader set host = 'a', holder = 'killed', epoch = epoch + 1")
    postgres.query(address, EXPIRE)
    command = [sys.executable, "-m", "scheduler", "run", "--once", "-c", str(tmp_path / "config.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience.PATIENCE, check=False)
    assert (done.returncode, "leading" in done.stderr) == (0, True)


def test_a_command_changes_nothing_while_a_daemon_leads(hosts: Hosts, address: str) -> None:
    one, _ = hosts.add_leader("one")
    with pytest.raises(DatabaseUnavailable, match="one leads: run this command on that host"):
        lead_for_a_command(address, "me", hosts.clock)
    one.stop()
    lead_for_a_command(address, "me", hosts.clock).stop()


AGENT = """
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, checklist: "- look\\n", deliver: phone}
channels: {phone: {kind: webhook, url: "http://127.0.0.1:9/"}}
"""


@pytest.mark.parametrize("before", [False, True], ids=["the commit was carried out", "it was not"])
def test_a_commit_whose_answer_is_lost_neither_loses_nor_doubles_anything(
    make_world: MakeWorld, address: str, *, before: bool
) -> None:
    with TemporaryDirectory() as folder, PostgresProxy(address, Path(folder)) as proxy:
        world = make_world(AGENT, server=proxy.dsn, scripts={"ops": lambda call: f"Disk full at {call.at:%H:%M}."})
        proxy.before = before
        for _ in range(12):
            proxy.lose_commits = proxy.lost + 1
            world.run(minutes=29)
        assert proxy.lost > 3  # on a slow machine, hours of the virtual clock pass before the server has answered
        world.run(minutes=30)
    # A slow server may take hours of the virtual clock to answer: then slots are missed, but recorded.
    records = world.records("ops")
    assert sum(record["planned_runs"] for record in records) == 13
    assert {record["result"] for record in records} <= {"alert", "skipped"}
    assert len(world.calls) == sum(record["result"] == "alert" for record in records) > 0
    # The daemon may report the slow server, too.
    alerts = [text for _, _, text in world.delivered if text.startswith("Disk full")]
    assert alerts == [f"Disk full at {call.at:%H:%M}." for call in world.calls]


CONFIG = """
state: {address}
host: {host}
server: {{listen: "127.0.0.1:0"}}
limits: {{min_interval: 1s}}
agents:
  ops:
    runner: {{kind: command, argv: [/bin/sh, -c, "cat > /dev/null; echo HEARTBEAT_OK"]}}
    heartbeat: {{interval: 1s, stagger: 0s, checklist: "- look\\n", deliver: log}}
"""


class RealDaemon(DaemonProcess):
    """A daemon in a folder of its own, which may lead or stand by."""

    sign_of_start = r"\b(leading|standby|database_unavailable)\b"

    def __init__(self, folder: Path, address: str) -> None:
        folder.mkdir()
        super().__init__(folder, CONFIG.format(address=address, host=folder.name))

    def _get(self, path: str) -> tuple[int, str]:
        try:
            return super()._get(path)
        except (OSError, ValueError):  # it does not listen while it returns to standby
            return 0, ""

    def wait_until_it_leads(self) -> None:
        self.wait_until(lambda: self.readiness()[0] == 200)

    def wait_until_standby(self, reason: str) -> None:
        """Wait until it is not ready, for this reason."""
        self.wait_until(lambda: reason in self.readiness()[1])

    def wait_until_logged(self, words: str) -> None:
        if not any(words in line for line in self.log):
            self.expect(re.escape(words))

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()


def test_everyone_sees_who_leads_since_when_and_from_whom_it_took_over(hosts: Hosts) -> None:
    (one, _), (two, store) = hosts.add("one"), hosts.add("two")
    assert boots.find_leader(store.connection) is None
    one.try_to_lead()
    hosts.expire(two)
    assert two.try_to_lead() is None
    leader = boots.find_leader(store.connection)
    assert leader is not None
    assert leader.since is not None
    assert (leader.host, leader.epoch, leader.former_host, leader.lag < LEASE) == ("two", 2, "one", True)
    assert abs(leader.since - datetime.now(UTC)) < timedelta(minutes=5)
    said = replace(leader, lag=0.4).describe(lambda since: "08:00")
    assert said == "two leads since 08:00 (epoch 2), took over from one; its lease was renewed 0.4 s ago"
    read = read_status(store.connection, datetime.now(UTC)).leader
    assert read is not None
    assert (read.host, read.epoch, read.since) == ("two", 2, leader.since)


@pytest.mark.process
def test_a_standby_takes_over_from_a_frozen_leader_which_then_stands_by(
    address: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    with closing(RealDaemon(tmp_path / "one", address)) as one, closing(RealDaemon(tmp_path / "two", address)) as two:
        one.wait_until(lambda: 200 in (one.readiness()[0], two.readiness()[0]))
        leader, standby = (one, two) if one.readiness()[0] == 200 else (two, one)
        standby.wait_until_standby(f"standby: {leader.folder.name} leads")
        assert ("heartbeatd_standby 0" in leader.metrics(), "heartbeatd_standby 1" in standby.metrics()) == (True, True)
        leader.process.send_signal(signal.SIGSTOP)
        postgres.query(address, EXPIRE)
        standby.wait_until_it_leads()
        leader.process.send_signal(signal.SIGCONT)
        leader.wait_until_standby(f"standby: {standby.folder.name} leads")
        assert "heartbeatd_leader_epoch 2\n" in standby.metrics()
        assert [leader.stop(), standby.stop()] == [0, 0]
        assert any(" leadership_lost " in line for line in leader.log)


@pytest.mark.process
def test_a_daemon_waits_for_a_server_that_is_down_and_runs_when_it_is_up(tmp_path: Path) -> None:
    with closing(PostgresServer().start()) as server:
        address = server.database()
        server.stop()
        with closing(RealDaemon(tmp_path / "one", address)) as one:
            one.wait_until_standby("cannot connect to postgresql://heartbeatd@/test1")
            assert "heartbeatd_standby 1" in one.metrics()
            server.start()
            one.wait_until_it_leads()
            assert one.stop() == 0
            log = "\n".join(one.log)
            assert log.count(" ERROR database_unavailable ") == log.count(" WARNING database_available") == 1


@pytest.mark.process
def test_a_leader_that_is_cut_off_stands_by_and_leads_again(address: str, tmp_path: Path, postgres: PostgresServer) -> None:
    with PostgresProxy(address) as proxy, closing(RealDaemon(tmp_path / "one", proxy.dsn)) as one:
        one.wait_until_it_leads()
        proxy.cut_off()
        valid = one.config.read_text("utf-8")
        one.config.write_text("agents: [", "utf-8")
        one.wait_until_logged("leadership_lost")
        one.wait_until_standby("cannot connect to")
        postgres.query(address, EXPIRE)
        proxy.listen()
        one.wait_until_it_leads()
        one.wait_until_logged("by=standby")
        one.config.write_text(valid.replace("host: one", "host: renamed"), "utf-8")
        one.wait_until_logged("one -> renamed")
        assert one.stop() == 0


FLEET = """
state: {address}
reload: {reload}
agents:
  a: {{runner: {{kind: command, argv: [cat]}}, heartbeat: {{interval: 1h, deliver: log}}}}
  b: {{runner: {{kind: command, argv: [cat]}}, heartbeat: {{interval: 1h, deliver: log}}}}
  c: {{runner: {{kind: command, argv: [cat]}}, heartbeat: {{interval: 1h, deliver: log}}}}
  d: {{runner: {{kind: command, argv: [cat]}}, heartbeat: {{interval: 1h, deliver: log}}}}
"""


BEATS = """
state: {address}
server: {{listen: "127.0.0.1:0"}}
limits: {{min_interval: 1s, shutdown_grace: 1s}}
defaults:
  heartbeat: {{interval: 1s, stagger: 0s, checklist: "- look\\n", deliver: log, dedup: {{window: 0s}}}}
agents: {{{agents}}}
"""
BEATING = "{name}: {{runner: {{kind: command, argv: [perl, {program}, {name}]}}, heartbeat: {{}}}}"


@pytest.mark.simulation
@pytest.mark.parametrize("step", range(size(1, 16)))
def test_a_lease_that_is_lost_between_any_two_statements_of_a_new_leader_loses_and_doubles_nothing(
    address: str, tmp_path: Path, postgres: PostgresServer, step: int
) -> None:
    """Before its first transaction, while it recovers what the last one has left, or while it claims slots."""
    program, names = BeatProgram(tmp_path), ["a", "b", "c", "d"]
    agents = ", ".join(BEATING.format(name=name, program=program.write(0.05)) for name in names)
    config = tmp_path / "config.yaml"
    config.write_text(BEATS.format(address=address, agents=agents), "utf-8")

    def lose_at(daemon: Daemon, statement: int) -> None:
        executed = itertools.count(1)

        def lose(_: str) -> None:
            if next(executed) == statement:
                daemon._standby.lose("the test takes it away")

        daemon.store.connection.set_trace_callback(lose)

    with ExitStack() as stack:
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT):
            stack.callback(signal.signal, each, signal.getsignal(each))
        daemon = Daemon(config, {})
        for statement in range(1 + step, 200, 16):
            lose_at(daemon, statement)
            assert daemon.run(until=time.monotonic() + patience.PATIENCE) == STANDS_BY_AGAIN
            postgres.query(address, "update heartbeatd._leader set until_at = '-infinity'")
            daemon = Daemon(config, {}, after=daemon)
        assert daemon.run(until=time.monotonic() + 1.5) == 0
        with closing(open_for_writing(address)) as store:
            rows = {
                table: [dict(zip(row.keys(), row, strict=True)) for row in store.connection.execute(f"select * from {table}")]
                for table in ("entry", "run", "outbox")
            }
    beats, overlaps = program.read(lambda *_: "here")
    losses = Fault(0.0, float("inf"), "losses of the lease", None)
    sent = [Message(row["key"], b"", "here", 0.0) for row in rows["outbox"]]  # or will be: some wait for another attempt
    outbox = [row | {"state": "delivered"} for row in rows["outbox"]]
    found = Comparison(rows["entry"], rows["run"], outbox, beats, sent, [losses], dict.fromkeys(names, 1.0))
    assert (found.lost, found.doubled, overlaps) == ([], [], [])
    assert found.counted["beats"] > 0


class FormerLeader:
    """A daemon that leads. After a change of its config, it loses the lease, and another daemon of the same process stands by."""

    def __init__(self, folder: Path, address: str, reload: str = "watch", environ: Mapping[str, str] | None = None) -> None:
        self.config, self.environ = folder / "config.yaml", environ or {}
        self.yaml = FLEET.format(address=address, reload=reload)
        self.config.write_text(self.yaml, "utf-8")
        self._daemon = Daemon(self.config, self.environ, listen=False)
        self.lead()

    @property
    def store(self) -> Store:
        return self._daemon.store

    def return_to_standby(self) -> Daemon:
        self._daemon._close_connections()  # this also releases the lease, so that the test need not wait for its end
        self._daemon = Daemon(self.config, self.environ, listen=False, after=self._daemon)
        return self._daemon

    def lose_lease(self) -> Daemon:
        """The daemon ends without the lease, which another daemon may take when it has expired. Another one stands by."""
        self._daemon._yield_leadership()
        self._daemon = Daemon(self.config, self.environ, listen=False, after=self._daemon)
        return self._daemon

    def tick_later(self, after: timedelta = timedelta()) -> None:
        """The daemon that leads ticks, as if so much time had passed."""
        reading = read_clocks()
        self._daemon.engine.tick(replace(reading, now=reading.now + after, monotonic=reading.monotonic + after.total_seconds()))

    def lead(self) -> None:
        assert self._daemon._wait_to_lead(None)
        self._daemon._start_engine(at_once=False)

    def lead_again(self) -> list[str]:
        """The agents of the daemon that leads."""
        self.lead()
        self._daemon._run_tick()
        return sorted(
            row["name"] for row in self._daemon.store.connection.execute("select name from entry where state <> 'removed'")
        )

    def close(self) -> None:
        self._daemon._close_connections()


@pytest.mark.parametrize("another_leads", [False, True], ids=["alone", "another daemon leads in the meantime"])
def test_a_daemon_that_loses_its_lease_because_the_server_is_down_reports_for_how_long(
    address: str, tmp_path: Path, postgres: PostgresServer, *, another_leads: bool
) -> None:
    """Its last ticks could not say so, and the one that leads next has not seen them."""
    with PostgresProxy(address) as proxy, closing(FormerLeader(tmp_path, proxy.dsn)) as former:
        former.tick_later()
        proxy.cut_off()
        former.tick_later(timedelta(seconds=1))
        former.lose_lease()
        postgres.query(address, EXPIRE)
        proxy.listen()
        if another_leads:
            postgres.query(address, "update heartbeatd.boot set last_tick_at = last_tick_at + 60000")
        former.lead()
        former.tick_later(timedelta(minutes=5))
        found = problems.problems_of(former.store.connection, Subject.of_daemon())
        assert [each.key for each in found if each.over_at] == ([] if another_leads else [DATABASE])


def test_a_new_leader_renews_its_lease_while_it_reads_its_tables(address: str, tmp_path: Path, postgres: PostgresServer) -> None:
    (tmp_path / "config.yaml").write_text(FLEET.format(address=address, reload="watch"), "utf-8")
    clock, found = SimulatedClock(), set[str]()
    with ExitStack() as stack:
        daemon = Daemon(tmp_path / "config.yaml", {}, listen=False, clock=clock)
        stack.callback(daemon._close_connections)
        pool, other = stack.enter_context(ThreadPoolExecutor()), stack.enter_context(psycopg.connect(address))
        other.execute("lock table heartbeatd.config_in_force in access exclusive mode")
        leads = pool.submit(daemon._wait_to_lead, None)
        clock.wait_until(lambda: found.update(postgres.query(address, LEASED_UNTIL).splitlines()) or len(found) > 1)
        other.rollback()
        assert leads.result(20)


def test_a_daemon_that_cannot_write_gives_the_lease_back_and_may_lead_again(hosts: Hosts) -> None:
    (one, store), (two, other) = hosts.add("one"), hosts.add("two")
    for epoch in (1, 3):
        lead(one, store)
        one.start()
        assert (one.epoch, two.try_to_lead()) == (epoch, "one leads")
        one.give_back()
        assert (one.epoch, one.is_confirmed) == (None, False)
        lead(two, other)
        assert one.try_to_lead() == "two leads"
        two.give_back()
    assert hosts.lost == []


@pytest.mark.parametrize(
    ("change", "reload", "problem"),
    [
        (lambda yaml: yaml + "color: red\n", "watch", "color: unknown key"),
        (lambda yaml: "agents: [", "watch", "a value or a closing bracket is missing"),
        (lambda yaml: None, "watch", "config.yaml"),
        (lambda yaml: yaml[: yaml.index("  b:")], "watch", "the changed file removes 3 of 4 entries"),
        # It would lead in the new database, and the other daemon, which has not been restarted, in the old one.
        (
            lambda yaml: yaml.replace("state: ", "state: postgresql://x@other/y  # "),
            "watch",
            "restart all daemons of this config",
        ),
        (lambda yaml: yaml.replace("  d:", "  e:"), "watch", None),
        (lambda yaml: yaml.replace("  d:", "  e:"), "manual", None),
    ],
    ids=["an unknown key", "no YAML", "no file", "half of a file", "another database", "another agent", "reloads are manual"],
)
def test_a_former_leader_stands_by_with_the_changed_file_or_with_its_last_config_and_the_errors_of_the_file(
    address: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[str], str | None],
    reload: str,
    problem: str | None,
) -> None:
    with closing(FormerLeader(tmp_path, address, reload)) as former:
        changed = change(former.yaml)
        if changed is None:
            former.config.unlink()
        else:
            former.config.write_text(changed, "utf-8")
        for _ in range(2):  # the second daemon stands by with the config of the first
            caplog.clear()
            daemon = former.return_to_standby()
            assert daemon.settings.postgresql == address
            assert str(problem) in str(daemon.reloader.reload_state.problem)
            assert ("reload_refused" in caplog.messages) is (problem is not None)
            assert former.lead_again() == ["a", "b", "c", "d" if problem or reload == "manual" else "e"]
            assert problem is None or problem in str(problems.problems_of(daemon.store.connection, Subject.of_daemon()))
        former.config.write_text(former.yaml, "utf-8")
        assert former.return_to_standby().reloader.reload_state.problem is None


def test_a_daemon_that_leads_again_and_again_leaves_no_pipe_open(address: str, tmp_path: Path) -> None:
    def pipes() -> int:
        found = 0
        for each in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # of the folder itself
                found += str(each.readlink()).startswith("pipe:")
        return found

    with closing(FormerLeader(tmp_path, address)) as former:
        before = pipes()
        for _ in range(3):
            former.return_to_standby()
        assert pipes() <= before
