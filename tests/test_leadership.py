"""Of several daemons on one PostgreSQL server one leads; another takes over, and the first writes nothing more."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
import required_programs
from servers.postgres import EmptyDatabases, PostgresServer
from servers.postgres_proxy import PostgresProxy
from world import Clock, MakeWorld, utc

from scheduler.store import boots
from scheduler.store.database import DatabaseUnavailable, LeadershipLost, Store
from scheduler.store.leadership import GIVE_UP_AFTER, LEASE, PATIENCE, Leadership, lead_for_a_command
from scheduler.store.locations import open_for_writing

pytestmark = [required_programs.needs("initdb"), pytest.mark.once]

ONE_BOOT = "insert into boot (instance, pid, version, tzdata, started_at, last_tick_at) values ('a', 1, '0', '0', 1, 1)"
EXPIRE = "update heartbeatd._leader set until_at = clock_timestamp() - interval '1 second'"
TAKEOVER = 10.0  # seconds


@pytest.fixture
def address(empty_databases: EmptyDatabases, tmp_path: Path, postgres: PostgresServer) -> Iterator[str]:
    found = empty_databases.borrow(tmp_path)
    yield found
    postgres.query(found, "update heartbeatd._leader set epoch = 0, until_at = '-infinity', holder = null, host = null")
    empty_databases.take_back()


class Hosts:
    """Daemons on hosts with these names, each with its lease and its store."""

    def __init__(self, address: str, closing: ExitStack) -> None:
        self.clock = Clock(utc("2026-03-02 08:00"))
        self.lost: list[str] = []
        self._address, self._closing = address, closing

    def add(self, host: str) -> tuple[Leadership, Store]:
        lease = Leadership(self._address, f"instance-{host}", host, lambda: self.clock.monotonic, self.lost.append)
        store = open_for_writing(self._address)
        self._closing.callback(store.close)
        self._closing.callback(lambda: lease.stop(release=False))
        return lease, store


@pytest.fixture
def hosts(address: str) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(address, stack)


def lead(lease: Leadership, store: Store) -> None:
    assert lease.try_to_lead() is None
    store.epoch = lease.epoch


def test_one_of_two_leads_and_the_other_names_its_host(hosts: Hosts) -> None:
    (one, store), (two, _) = hosts.add("one"), hosts.add("two")
    lead(one, store)
    assert two.try_to_lead() == "one leads"


def test_an_expired_lease_is_taken_over_and_the_former_leader_writes_nothing(
    hosts: Hosts, address: str, postgres: PostgresServer
) -> None:
    (one, store), (two, other) = hosts.add("one"), hosts.add("two")
    lead(one, store)
    postgres.query(address, EXPIRE)
    assert two.try_to_lead() == "one led until now"  # after a restart of the server the leader is first
    hosts.clock.monotonic += PATIENCE
    lead(two, other)
    with pytest.raises(LeadershipLost, match="two leads"), store.transaction() as db:
        db.execute(ONE_BOOT)
    assert store.is_fenced
    assert one._renew() == "another daemon has taken over"
    with other.transaction() as db:
        assert boots.all_boots(db) == []


def test_a_former_leader_does_not_finish_the_commit_whose_answer_was_lost(
    hosts: Hosts, address: str, postgres: PostgresServer
) -> None:
    (one, store), (two, other) = hosts.add("one"), hosts.add("two")
    lead(one, store)
    with store.transaction() as db:
        store._unknown = db.execute("select pg_current_xact_id()::text as number").fetchone()["number"]
        db.execute(ONE_BOOT)
    assert store.was_committed()
    postgres.query(address, EXPIRE)
    two.try_to_lead()
    hosts.clock.monotonic += PATIENCE
    lead(two, other)
    with pytest.raises(LeadershipLost, match="two leads"):
        store.was_committed()  # the runs that it has claimed belong to the other one


def test_a_leader_that_renews_in_time_stays(hosts: Hosts, address: str, postgres: PostgresServer) -> None:
    (one, store), (two, _) = hosts.add("one"), hosts.add("two")
    lead(one, store)
    postgres.query(address, EXPIRE)
    two.try_to_lead()
    assert one._renew() is None
    hosts.clock.monotonic += PATIENCE
    assert two.try_to_lead() == "one leads"


def test_nobody_takes_over_during_a_transaction_of_the_leader(hosts: Hosts, address: str, postgres: PostgresServer) -> None:
    (one, store), (two, other) = hosts.add("one"), hosts.add("two")
    lead(one, store)
    postgres.query(address, EXPIRE)
    two.try_to_lead()
    two._connect().execute("set lock_timeout = 50")
    hosts.clock.monotonic += PATIENCE
    with store.transaction() as db:
        db.execute(ONE_BOOT)
        assert "lock timeout" in str(two.try_to_lead())
    two.try_to_lead()
    hosts.clock.monotonic += PATIENCE
    lead(two, other)
    assert len(boots.all_boots(other.connection)) == 1


def test_the_leader_renews_its_lease_during_its_own_long_transaction(
    hosts: Hosts, address: str, postgres: PostgresServer
) -> None:
    (one, store), (two, _) = hosts.add("one"), hosts.add("two")
    lead(one, store)
    postgres.query(address, EXPIRE)
    one._connect().execute("set lock_timeout = 50")
    with store.transaction() as db:
        db.execute(ONE_BOOT)
        hosts.clock.monotonic += GIVE_UP_AFTER + 1
        assert one._renew() is None
        assert two.try_to_lead() == "one leads"


def test_a_lease_that_was_given_back_is_free_at_once(hosts: Hosts) -> None:
    (one, store), (two, other) = hosts.add("one"), hosts.add("two")
    lead(one, store)
    one.stop()
    lead(two, other)
    assert (one.epoch, two.epoch) == (1, 2)


def test_a_leader_that_cannot_renew_stops_before_another_one_may_start(hosts: Hosts) -> None:
    one, store = hosts.add("one")
    lead(one, store)
    one._disconnect()
    one._url = "postgresql://127.0.0.1:1/cut"  # as a network that refuses
    assert one._renew() is None
    hosts.clock.monotonic += GIVE_UP_AFTER
    assert "could not be renewed" in str(one._renew())
    assert GIVE_UP_AFTER + 1 < LEASE


def test_a_leader_outlasts_a_restart_of_the_server(hosts: Hosts) -> None:
    server = PostgresServer()
    try:
        address = server.start().database()
        open_for_writing(address).close()
        lease = Leadership(address, "a", "a", lambda: hosts.clock.monotonic, hosts.lost.append)
        assert lease.try_to_lead() is None
        server.stop()
        for _ in range(3):
            hosts.clock.monotonic += GIVE_UP_AFTER
            assert lease._renew() is None
        server.start()
        assert lease._renew() is None
        lease.stop()
    finally:
        server.close()


def test_a_leader_gives_up_in_time_if_the_server_accepts_a_renewal_and_never_answers(hosts: Hosts, address: str) -> None:
    told = threading.Event()

    def note(problem: str) -> None:
        hosts.lost.append(problem)
        told.set()

    one = Leadership(address, "a", "a", lambda: 4 * time.monotonic(), note)
    assert one.try_to_lead() is None
    with psycopg.connect(address) as other:
        other.execute("select 1 from heartbeatd._leader for update")  # the renewal waits for it
        one._connect().execute("set lock_timeout = 0")
        one._connect().execute("set statement_timeout = 0")
        one.start()
        assert told.wait(20)
    one.stop(release=False)
    assert hosts.lost == ["the lease could not be renewed: the server does not answer"]


def test_a_lease_is_confirmed_until_another_daemon_may_take_it_soon(hosts: Hosts) -> None:
    one, store = hosts.add("one")
    lead(one, store)
    hosts.clock.monotonic += GIVE_UP_AFTER - 0.1
    assert one.is_confirmed
    hosts.clock.monotonic += 0.1  # it was frozen, for example
    assert not one.is_confirmed
    assert one._renew() is None
    assert one.is_confirmed


def test_a_command_takes_the_expired_lease_of_a_killed_daemon(hosts: Hosts, address: str, postgres: PostgresServer) -> None:
    one, store = hosts.add("one")
    lead(one, store)
    postgres.query(address, EXPIRE)
    lease = lead_for_a_command(address, "command")
    assert lease.epoch == 2
    lease.stop()


def test_a_command_changes_nothing_while_a_daemon_leads(hosts: Hosts, address: str) -> None:
    one, store = hosts.add("one")
    lead(one, store)
    with pytest.raises(DatabaseUnavailable, match="one leads: run this command on that host"):
        lead_for_a_command(address, "me")
    one.stop()
    lead_for_a_command(address, "me").stop()


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
    assert sum(record["slots"] for record in records) == 13
    assert {record["outcome"] for record in records} <= {"alert", "skipped"}
    assert len(world.calls) == sum(record["outcome"] == "alert" for record in records) > 0
    assert [text for _, _, text in world.delivered] == [f"Disk full at {call.at:%H:%M}." for call in world.calls]


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


class RealDaemon:
    """A real daemon in a folder of its own."""

    def __init__(self, folder: Path, address: str, config: str = CONFIG) -> None:
        folder.mkdir()
        self.folder = folder
        (folder / "config.yaml").write_text(config.format(address=address, host=folder.name), "utf-8")
        self.log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scheduler", "run", "-c", str(folder / "config.yaml")], stderr=self.log, cwd=Path.cwd()
        )

    def url(self) -> str:
        return str(json.loads((self.folder / "state/daemon.json").read_text("utf-8"))["url"])

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.url()}/metrics", timeout=20) as page:
            return str(page.read(), "utf-8")

    def ready(self) -> str:
        """`ok`, or why it is not ready."""
        try:
            url = self.url()
            with urllib.request.urlopen(f"{url}/healthz", timeout=5), urllib.request.urlopen(f"{url}/readyz", timeout=5):
                return "ok"
        except urllib.error.HTTPError as error:
            with error:
                return str(json.load(error)["error"]["message"])
        except (OSError, ValueError) as error:
            return str(error)

    def wait_until(self, expected: str, seconds: float = 60.0) -> float:
        """Wait until it is ready, or not ready for this reason; returns for how long."""
        began = time.monotonic()
        while (found := self.ready()) != expected:
            assert time.monotonic() < began + seconds, (found, Path(self.log.name).read_text("utf-8"))
            time.sleep(0.1)
        return time.monotonic() - began

    def wait_until_contains(self, reason: str) -> None:
        """Wait until it is not ready for a reason that contains this."""
        began = time.monotonic()
        while reason not in (found := self.ready()):
            assert time.monotonic() < began + 60, (found, Path(self.log.name).read_text("utf-8"))
            time.sleep(0.1)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(20)
        self.log.close()


@pytest.mark.process
def test_a_standby_takes_over_from_a_frozen_leader_which_then_stands_by(address: str, tmp_path: Path) -> None:
    with closing(RealDaemon(tmp_path / "one", address)) as one, closing(RealDaemon(tmp_path / "two", address)) as two:
        deadline = time.monotonic() + 60
        while "ok" not in (one.ready(), two.ready()):
            assert time.monotonic() < deadline, (one.ready(), two.ready())
            time.sleep(0.1)
        leader, standby = (one, two) if one.ready() == "ok" else (two, one)
        standby.wait_until(f"standby: {leader.folder.name} leads")
        assert ("heartbeatd_standby 0" in leader.metrics(), "heartbeatd_standby 1" in standby.metrics()) == (True, True)
        leader.process.send_signal(signal.SIGSTOP)
        assert standby.wait_until("ok") < TAKEOVER + 5  # the machine may be busy
        leader.process.send_signal(signal.SIGCONT)
        leader.wait_until(f"standby: {standby.folder.name} leads")
        assert "leadership_lost" in (leader.folder / "log").read_text("utf-8")
        for each in (leader, standby):
            each.process.send_signal(signal.SIGTERM)
        assert [each.process.wait(30) for each in (leader, standby)] == [0, 0]


@pytest.mark.process
def test_a_daemon_waits_for_a_server_that_is_down_and_runs_when_it_is_up(tmp_path: Path) -> None:
    server = PostgresServer()
    try:
        address = server.start().database()
        server.stop()
        with closing(RealDaemon(tmp_path / "one", address)) as one:
            one.wait_until_contains("cannot connect to postgresql://heartbeatd@/test1")
            assert "heartbeatd_standby 1" in one.metrics()
            server.start()
            one.wait_until("ok")
            log = (one.folder / "log").read_text("utf-8")
            assert log.count(" ERROR database_unavailable ") == log.count(" WARNING database_available") == 1
            one.process.send_signal(signal.SIGTERM)
            assert one.process.wait(30) == 0
    finally:
        server.close()


@pytest.mark.process
def test_a_leader_that_is_cut_off_stands_by_and_leads_again(address: str, tmp_path: Path) -> None:
    with PostgresProxy(address) as proxy, closing(RealDaemon(tmp_path / "one", proxy.dsn)) as one:
        one.wait_until("ok")
        proxy.cut_off()
        deadline = time.monotonic() + 60
        while "leadership_lost" not in (one.folder / "log").read_text("utf-8"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        one.wait_until_contains("cannot connect to")
        proxy.listen()
        one.wait_until("ok")
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(30) == 0
