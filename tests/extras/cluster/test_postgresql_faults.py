"""The daemon on a PostgreSQL server that is slow, restarted within a transaction, full of connections, or replaced by its standby."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta

import psycopg
import pytest
import required_programs
from servers.postgres import ONE_BOOT, PostgresServer
from servers.postgres_proxy import PostgresProxy
from world import MakeWorld, World

from scheduler.extras.cluster.postgresql import READER_SETTINGS, ServerConnection, ServerError
from scheduler.store import boots
from scheduler.store.database import CommitUnknown, DatabaseUnavailable
from scheduler.store.locations import open_for_writing

pytestmark = required_programs.needs("initdb")

AGENT = """
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: phone}
channels: {phone: {kind: webhook, url: "http://127.0.0.1:9/"}}
"""


@pytest.fixture(scope="module")
def small_server() -> Iterator[PostgresServer]:
    """A server of these tests alone, with five connections, from which a standby can be made."""
    server = PostgresServer(max_connections="5", superuser_reserved_connections="0")
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def world(make_world: MakeWorld, small_server: PostgresServer) -> World:
    return make_world(AGENT, server=small_server.database(), scripts={"ops": lambda call: f"Disk full at {call.at:%H:%M}."})


def check_nothing_lost(world: World, slots: int) -> None:
    """Each slot has one record, each call of the agent one message."""
    assert world.engine.health.problem is None
    records = world.records("ops")
    assert sum(record["planned_runs"] for record in records) == slots
    assert [record["result"] for record in records] == ["alert"] * slots
    assert [text for _, _, text in world.delivered] == [f"Disk full at {call.at:%H:%M}." for call in world.calls]
    assert len(world.calls) == slots


def test_answers_that_come_late_and_in_pieces_change_nothing(make_world: MakeWorld, small_server: PostgresServer) -> None:
    with PostgresProxy(small_server.database()) as proxy:
        world = make_world(AGENT, server=proxy.dsn, scripts={"ops": lambda call: f"Disk full at {call.at:%H:%M}."})
        proxy.delay = 0.001
        world.run(minutes=2)
        check_nothing_lost(world, 1)
        world.store.close()


@pytest.mark.parametrize("end", [PostgresServer.stop, PostgresServer.kill], ids=["restarted", "killed"])
def test_a_server_that_ends_just_before_a_commit_loses_and_doubles_nothing(
    world: World, small_server: PostgresServer, end: Callable[[PostgresServer], None]
) -> None:
    commits = 0

    def end_server(statement: str) -> None:
        nonlocal commits
        commits += statement == "commit"
        if statement == "commit" and commits in (2, 4):
            end(small_server)
            small_server.start()

    for _ in range(3):
        commits = 0
        world.store.connection.set_trace_callback(end_server)
        world.run(minutes=20)
        world.store.connection.set_trace_callback(None)
        world.run(minutes=10)
    check_nothing_lost(world, 4)


def test_another_transaction_with_the_id_of_the_lost_one_is_not_taken_for_it(
    make_world: MakeWorld, small_server: PostgresServer
) -> None:
    """After a failover to a standby that has not received the last transactions, new ones get their ids."""
    with ExitStack() as stack:
        proxy = stack.enter_context(PostgresProxy(small_server.database()))
        world = make_world(AGENT, server=proxy.dsn, scripts={"ops": lambda call: f"Disk full at {call.at:%H:%M}."})
        stack.callback(world.store.close)
        world.run_until("2026-03-02 08:29")
        standby = small_server.standby()
        stack.callback(standby.close)
        world.clock.advance(timedelta(minutes=1))
        proxy.lose_commits = 1
        world.engine.tick(world.clock.read())
        assert proxy.lost == 1
        proxy.lead_to(standby)
        standby.promote()
        with psycopg.connect(proxy.dsn, autocommit=True) as other:
            for _ in range(50):
                other.execute("select pg_current_xact_id()")
        world.run(minutes=2)
        check_nothing_lost(world, 2)


def test_a_daemon_that_gets_no_connection_waits_for_one(world: World, small_server: PostgresServer) -> None:
    assert world.server
    world.run(minutes=40)
    with ExitStack() as others:
        small_server.query(
            world.server, "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'heartbeatd'"
        )
        with pytest.raises(ServerError, match="too many clients"):
            for _ in range(6):
                others.enter_context(closing(ServerConnection(world.server, READER_SETTINGS)))
        for _ in range(5):
            world.clock.advance(timedelta(seconds=1))
            world.engine.tick(world.clock.read())
        assert "too many clients" in str(world.engine.health.problem)
    world.run(minutes=20)
    check_nothing_lost(world, 3)


def test_a_standby_is_not_written_and_decides_nothing_about_a_lost_commit_before_its_promotion(
    small_server: PostgresServer,
) -> None:
    """The address may lead to a standby that has not received the last transactions of its primary yet."""
    with ExitStack() as stack:
        proxy = stack.enter_context(PostgresProxy(small_server.database()))
        store = stack.enter_context(closing(open_for_writing(proxy.dsn)))
        standby = small_server.standby()
        stack.callback(standby.close)
        proxy.lose_commits = 1
        with pytest.raises(CommitUnknown), store.transaction() as db:
            db.execute(ONE_BOOT)
        proxy.lead_to(standby)
        with pytest.raises(DatabaseUnavailable, match="standby"):
            store.was_committed()
        with pytest.raises(DatabaseUnavailable, match="standby"), store.transaction() as db:
            db.execute(ONE_BOOT)
        with pytest.raises(DatabaseUnavailable, match="standby"):
            open_for_writing(proxy.dsn)
        proxy.lead_to(small_server)
        assert store.was_committed()
        proxy.lead_to(standby)
        standby.promote()
        with pytest.raises(DatabaseUnavailable):  # the connection to the primary has ended
            store.was_committed()
        assert not store.was_committed()  # the primary is gone, and its last transaction with it
        with store.transaction() as db:
            db.execute(ONE_BOOT)
        assert len(boots.all_boots(store.connection)) == 1
