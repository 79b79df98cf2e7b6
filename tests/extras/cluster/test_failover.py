"""What happens to runs if the database loses its last commits: another server has taken over that was behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import required_programs
from failover_simulation import FailoverSimulation
from patience import wait_until
from remote_bench import Call, RemoteBench, Work, faulty, use_queue, wait_for_event
from servers.postgres import ONE_BOOT, PostgresServer
from servers.postgres_proxy import PostgresProxy
from simulated_clock import SimulatedClock
from test_story_slots import agent, job
from world import Delayed, MakeWorld, World

from heartbeat.runners import ProcessResult
from scheduler.extras.cluster.executors import RemoteExecutor
from scheduler.extras.cluster.job_queue import QueueUnavailable
from scheduler.extras.cluster.leadership import Leadership
from scheduler.extras.cluster.postgresql import ServerConnection, ServerError, read_server_identity
from scheduler.extras.cluster.remote_worker import RemoteWorker
from scheduler.model.events import RunRecovered
from scheduler.model.outcome import Kind, Trigger
from scheduler.store import boots
from scheduler.store.database import DatabaseUnavailable, LeadershipLost, back_up
from scheduler.store.locations import open_for_writing
from scheduler.system.boot_clock import BootClock


def lose_from(world: World, at: str, until: str) -> None:
    """Fail over at `until` to a server that has nothing of what was written after `at`."""
    world.run_until(f"2026-03-02 {at}")
    copy = world.folder / "standby.db"
    back_up(world.state, copy)
    world.run_until(f"2026-03-02 {until}")
    world.fail_over(copy)


@pytest.mark.parametrize(
    ("at", "until", "takes", "calls", "tries"),
    [
        ("08:29", "08:31", 0, ["08:00", "08:30", "08:31", "09:00"], {"08:00": 1, "08:30": 2, "09:00": 1}),
        ("08:00", "08:05", 1, ["08:00", "08:05", "08:30"], {"08:00": 2, "08:30": 1}),
        ("08:31", "08:31", 0, ["08:00", "08:30", "09:00"], {"08:00": 1, "08:30": 1, "09:00": 1}),
    ],
    ids=["a run is lost", "the end of a run is lost", "nothing is lost"],
)
def test_a_run_that_a_failover_may_repeat_says_so_and_the_others_do_not(
    make_world: MakeWorld, at: str, until: str, takes: int, calls: list[str], tries: dict[str, int]
) -> None:
    world = make_world(agent(retries="0"))
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=takes))
    lose_from(world, at, until)
    world.run(minutes=40)
    assert [call.at.strftime("%H:%M") for call in world.calls] == calls
    assert {row["planned_at"][11:16]: row["tries"] for row in world.records()} == tries
    assert [event.again for event in world.events_of(RunRecovered)] == [True] * (max(tries.values()) - 1)


def test_a_command_that_a_failover_may_repeat_is_not_repeated_but_reported(make_world: MakeWorld) -> None:
    world = make_world(job(every="1h", deliver="log"))
    lose_from(world, "08:59", "09:01")
    world.run(minutes=90)
    assert world.history() == ["03-02 09:00 every abandoned child_may_still_run", "03-02 10:00 every ok"]
    assert len(world.calls) == 2
    assert "the database lost its last commits" in world.delivered[0][2]


def test_a_wake_that_a_failover_brings_back_starts_a_run_that_says_so(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    world.run_until("2026-03-02 08:10")
    world.wake("ops", source=Trigger.MANUAL, sender="anna")
    world.wake("ops", source=Trigger.MANUAL, sender="ben")  # it waits for wake_gap
    lose_from(world, "08:10", "08:12")
    world.run(minutes=5)
    assert len(world.calls) == 4
    assert [(row["trigger"], row["tries"]) for row in world.records()] == [("interval", 1), ("manual", 1), ("manual", 2)]


def test_an_attempt_after_a_wait_that_a_failover_may_repeat_counts_as_interrupted(make_world: MakeWorld, tmp_path: Path) -> None:
    """The retries of both come at about 1, 3 and 7 seconds. The last one has worked, and its record is lost."""
    fails = ProcessResult(3)
    for name, config, calls, expected in (
        ("agent", agent(retries="3"), 5, "03-02 08:00 interval ok heartbeat_ok"),
        ("job", job(every="1h", retries="3", deliver="log"), 4, "03-02 09:00 every abandoned child_may_still_run"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        world = make_world(config, folder=folder)
        for each in ("ops", "measure"):
            world.scripts[each] = lambda call, world=world: fails if len(world.calls) < 4 else "HEARTBEAT_OK"
        begin = "08:00" if name == "agent" else "09:00"
        lose_from(world, f"{begin}:04", f"{begin}:30")
        world.run(minutes=10)
        assert (len(world.calls), world.history()) == (calls, [expected])
        assert [event.again for event in world.events_of(RunRecovered)] == [name == "agent"]


def test_a_server_whose_timeline_cannot_be_read_now_is_no_other_server() -> None:
    """Each row: the error of the second query, and the identity."""

    class Server:
        def __init__(self, sqlstate: str) -> None:
            self.sqlstate = sqlstate

        def execute(self, statement: str) -> Any:
            if "walfile" in statement:
                raise ServerError("no", self.sqlstate)
            return SimpleNamespace(fetchone=lambda: ("7",))

    for sqlstate, expected in (("42501", "7"), ("57014", None), ("55000", None), ("", None)):
        assert read_server_identity(cast("ServerConnection", Server(sqlstate))) == expected, sqlstate


def test_an_agent_whose_run_nobody_carries_out_runs_again_within_a_minute(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=4)) if len(world.calls) == 1 else "HEARTBEAT_OK"
    world.run(minutes=2)
    world.runs.ack(list(world.runs.inflight()))  # the executor forgets it
    world.run(minutes=1)
    assert world.history() == ["03-02 08:00 interval ok heartbeat_ok"]
    assert [(row["tries"], row["planned_at"][11:16]) for row in world.records()] == [(2, "08:00")]
    assert [(event.kind, event.again) for event in world.events_of(RunRecovered)] == [(Kind.HEARTBEAT, True)]


def test_another_server_counts_as_one_that_may_lack_commits_unless_the_last_write_is_there(tmp_path: Path) -> None:
    """Each row: the server of the last boot, the server now, how much later the last write of this process was, the answer."""
    for before, now, later, expected in (
        ("1/1", "1/1", None, False), ("1/1", "1/2", None, True), ("1/1", "2/1", None, True),
        (None, "1/1", None, False), ("1/1", None, None, False),
        ("1/1", "1/2", 0, False), ("1/1", "1/1", 0, False), ("1/1", "1/1", 1, True), (None, None, 1, True),
    ):  # fmt: skip
        folder = tmp_path / f"{before}-{now}-{later}".replace("/", ".")
        folder.mkdir()
        world = World(folder, agent())
        with world.store.transaction() as db:
            db.execute("update boot set database_server = ?", (before,))
        at = boots.last_tick_at(world.store.connection)
        assert at is not None
        last_write = None if later is None else ("boot1", at + timedelta(seconds=later))
        assert boots.may_lack_commits(world.store.connection, now, last_write) is expected, (before, now, later)
        world.store.close()


@required_programs.needs("initdb")
def test_a_leader_whose_server_was_replaced_writes_nothing_more_and_gives_up_the_lease(tmp_path: Path) -> None:
    clock, lost = SimulatedClock(), list[str]()
    with ExitStack() as stack:
        primary = stack.enter_context(closing(PostgresServer())).start()
        proxy = stack.enter_context(PostgresProxy(primary.database()))
        store = stack.enter_context(closing(open_for_writing(proxy.dsn)))
        lease = Leadership(proxy.dsn, "one", "one", clock, lost.append)
        stack.callback(lambda: lease.stop(release=False))
        assert lease.try_to_lead() is None
        store.epoch = lease.epoch
        first, epoch = store.server_identity, lease.epoch
        with store.transaction() as db:
            db.execute(ONE_BOOT)
        standby = stack.enter_context(closing(primary.standby()))
        proxy.lead_to(standby)
        standby.promote()
        with pytest.raises(DatabaseUnavailable), store.transaction():  # the connection is lost
            pass
        for _ in range(2):
            with pytest.raises(LeadershipLost, match="another database server has taken over"), store.transaction() as db:
                db.execute(ONE_BOOT)
        assert store.is_fenced
        assert "another database server has taken over" in str(lease._renew())
        second = stack.enter_context(closing(open_for_writing(proxy.dsn)))
        assert (first or "").rpartition("/")[0] == (second.server_identity or "").rpartition("/")[0]  # the same cluster
        assert first != second.server_identity
        assert len(boots.all_boots(second.connection)) == 1
        standby.query(standby.dsn_of(proxy.database), "update heartbeatd._leader set until_at = '-infinity'")
        again = Leadership(proxy.dsn, "two", "one", clock, lost.append)
        stack.callback(lambda: again.stop(release=False))
        assert (again.try_to_lead(), again.epoch) == (None, (epoch or 0) + 1)


class ReplacedServer:
    """A server that is replaced by a standby, which lacks what was written after `start_standby`."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._server = stack.enter_context(closing(PostgresServer())).start()
        self._proxy = stack.enter_context(PostgresProxy(self._server.database()))
        self._has_failed_over = threading.Event()
        self.bench = RemoteBench(self._server, BootClock())
        self.bench.dsn = self._proxy.dsn
        self.work = Work()

    def submit(self, *, is_confirmed: bool = True) -> RemoteExecutor:
        """A scheduler that submits the task `a`. It gets no answer of the server before the failover, but perhaps this one."""

        async def submit(call: Call) -> None:
            await call()
            if not (is_confirmed or self._has_failed_over.is_set()):
                await wait_for_event(self._has_failed_over)
                raise QueueUnavailable("the connection was lost")

        async def results(call: Call) -> Any:
            return await call() if self._has_failed_over.is_set() else []

        executor = self.bench.submit("a", kind=faulty(submit=submit, results=results))
        if is_confirmed:
            wait_until(executor.is_flushed)
        return executor

    def execute(self) -> RemoteWorker:
        """A worker that has executed the task."""
        worker = self.bench.start_worker(self.work)
        wait_until(lambda: self.work.begun and worker.in_progress == 0)
        return worker

    def start_standby(self) -> None:
        self._standby = self._stack.enter_context(closing(self._server.standby()))

    def fail_over(self) -> None:
        self._proxy.cut_off()
        self._server.kill()
        self._standby.promote()
        self._proxy.lead_to(self._standby)
        self._proxy.listen()
        self._has_failed_over.set()


@pytest.fixture
def replaced() -> Iterator[ReplacedServer]:
    with ExitStack() as servers:
        replaced = ReplacedServer(servers)
        with replaced.bench:
            yield replaced


# A run that the daemon has to declare as repeated, or as abandoned, has ended as `lost`.


@required_programs.needs("initdb")
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["another worker takes it", "no worker takes it in time"])
def test_a_run_that_was_executed_before_a_failover_that_lost_it_does_not_begin_again(
    replaced: ReplacedServer, is_cancelled: bool
) -> None:
    """The other worker starts after the failover, and knows nothing of the time before."""
    executor = replaced.submit()
    replaced.start_standby()
    replaced.execute().stop()
    replaced.fail_over()
    if is_cancelled:
        executor.cancel(1, "timeout")
        assert replaced.bench.ends(executor) == ["lost"]
        return
    replaced.bench.start_worker(replaced.work, name="second")
    executor.submit(2, "b")
    assert (replaced.bench.ends(executor, 2), replaced.work.begun) == (["lost", "B"], ["a", "b"])


@required_programs.needs("initdb")
def test_a_worker_does_not_begin_again_what_it_has_executed_before_a_failover_that_lost_the_end(replaced: ReplacedServer) -> None:
    executor, work = replaced.submit(), replaced.work
    work.gate.clear()
    worker = replaced.bench.start_worker(work)
    wait_until(lambda: work.begun)
    replaced.start_standby()  # it says that the worker executes the run
    work.gate.set()
    wait_until(lambda: worker.in_progress == 0)
    replaced.fail_over()
    assert (replaced.bench.ends(executor), work.begun) == (["lost"], ["a"])


@required_programs.needs("initdb")
def test_a_run_that_is_submitted_again_after_a_failover_may_have_been_executed(replaced: ReplacedServer) -> None:
    replaced.start_standby()
    executor = replaced.submit(is_confirmed=False)
    replaced.execute()
    replaced.fail_over()
    assert (replaced.bench.ends(executor), replaced.work.begun) == (["lost"], ["a"])


@required_programs.needs("initdb")
def test_a_run_may_begin_on_another_server_only_if_its_own_cannot_be_read_or_loses_no_commits() -> None:
    """Each row: who asks, what is done before, and whether a run that is submitted now may begin on any server."""
    with ExitStack() as stack:
        primary = stack.enter_context(closing(PostgresServer())).start()
        replica = PostgresServer(copy_of=primary, primary_conninfo=f"host={primary.folder} user=heartbeatd")
        stack.enter_context(closing(replica)).start()
        dsn = primary.database()
        primary.query(dsn, "create role guest login")
        guest = dsn.replace("heartbeatd@", "guest@")
        for user, statement, expected in (
            (dsn, "select 1", False),
            (guest, "select 1", False),
            (guest, "revoke execute on function pg_control_system() from public", True),
            (dsn, "alter system set synchronous_standby_names = '*'", False),
            (dsn, "select pg_reload_conf(), pg_sleep(0.1)", True),
            (dsn, "alter role heartbeatd set synchronous_commit = local", False),
        ):
            primary.query(dsn, statement)
            assert (ask_for_server(user) is None) is expected, statement
        with pytest.raises(QueueUnavailable, match="recovery is in progress"):
            ask_for_server(dsn.replace(str(primary.folder), str(replica.folder)))


def ask_for_server(dsn: str) -> str | None:
    return use_queue(dsn, "asked", lambda queue: queue.find_server())


@required_programs.needs("initdb")
@pytest.mark.process
@pytest.mark.long_simulation
def test_no_agent_stays_silent_after_a_failover_and_each_repeated_run_says_so(tmp_path: Path) -> None:
    """With real processes, and runs on workers. `python -m bench.cluster_failover` does it twenty times."""
    simulation = FailoverSimulation(tmp_path, remote=True, agents=2, slow=2, jobs=1, behind=2.0)
    found = simulation.play(1, rest=2.0)
    assert (found.silent, found.undeclared, found.unknown) == ([], [], [])
    assert found.beats > 0
