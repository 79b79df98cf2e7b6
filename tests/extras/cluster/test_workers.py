"""Tests workers over a real PostgreSQL: its failures, lost and frozen workers, deadlines, and whole processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
import pytest
import required_programs
from checkout import HOME
from click.testing import CliRunner
from cluster_processes import Cluster
from missing_libraries import run_without
from patience import PATIENCE, wait_until
from procrastinate.connector import LISTEN_TIMEOUT
from remote_bench import RemoteBench, TextCodec
from run_async import new_http_client
from servers.postgres import PostgresServer
from servers.scripted import Server, reply
from simulated_clock import SimulatedClock
from warm_start import Heartbeatd

from heartbeat.runners.errors import CallError
from heartbeatd.secret import Secret
from scheduler.app import Daemon
from scheduler.cli.main import commands
from scheduler.extras.cluster.job_queue import (
    SCHEMA_LOCK,
    AttemptEnd,
    Claimed,
    FetchedJob,
    JobQueue,
    NewAttempt,
    QueueUnavailable,
    UnbegunEnds,
)
from scheduler.extras.cluster.payloads import SCHEMA, AttemptRefused
from scheduler.extras.cluster.remote_executor import CLOSE_SECONDS
from scheduler.extras.cluster.remote_worker import TIME_OVER
from scheduler.extras.cluster.worker_guard import HEADER
from scheduler.model.daemon_health import WorkerState
from scheduler.system.orphans import find_orphans
from scheduler.system.process import Children
from scheduler.work.executor import Done, Interrupted, NeverBegun
from scheduler.work.run_extras import resources_of_run

pytestmark = [required_programs.needs("initdb"), pytest.mark.process]

LEASE = 2.0
ENDS = UnbegunEnds("owner", "unbegun", "lost")


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def bench(postgres: PostgresServer, clock: SimulatedClock) -> Iterator[RemoteBench]:
    bench = RemoteBench(postgres, clock)
    yield bench
    with clock.passing():
        bench.close()


async def shout(task: str, children: Children) -> str:
    return task.upper()


def test_results_survive_a_kill_of_the_server_and_arrive_once(clock: SimulatedClock) -> None:
    server = PostgresServer().start()
    begun, go_on = list[str](), threading.Event()

    async def carry(task: str, children: Children) -> str:
        begun.append(task)
        while not go_on.is_set():
            await children.start(["sleep", "0.05"], stdin=b"", env={}, cwd=Path("/"))
        return task.upper()

    try:
        with clock.passing(), RemoteBench(server, clock) as bench:
            executor = bench.make(carry, lambda: None)
            for number in range(3):
                executor.submit(number, f"task{number}")
            wait_until(lambda: len(begun) == 3)
            server.kill()
            clock.server_hangs = True
            executor.submit(3, "task3")  # while PostgreSQL is down
            go_on.set()
            wait_until(lambda: executor.problem is not None)
            server.start()
            wait_until(lambda: len(executor.results()) == 4)
            clock.server_hangs = False
            assert sorted(str(done.result) for _, done in executor.results()) == ["TASK0", "TASK1", "TASK2", "TASK3"]
            executor.ack([0, 1, 2, 3])
            wait_until(executor.is_flushed)
            assert server.query(bench.dsn.reveal(), "select count(*) from heartbeatd_attempt") == "0"
            assert server.query(bench.dsn.reveal(), "select count(*) from procrastinate_jobs") == "0"
    finally:
        server.close()


def test_the_task_of_a_worker_that_vanished_comes_back_as_interrupted(
    bench: RemoteBench, clock: SimulatedClock, postgres: PostgresServer
) -> None:
    executor = bench.make_executor("vanished", lambda: None, lease=LEASE)
    executor.submit(1, "a")
    clock.wait_until(executor.is_flushed)

    async def fetch() -> None:
        queue = JobQueue(bench.dsn, "vanished")
        await queue.open()
        assert await queue.fetch(await queue.register("w"), "w", 1)
        await queue.close()

    asyncio.run(fetch())
    postgres.query(bench.dsn.reveal(), "update procrastinate_workers set last_heartbeat = now() - interval '1 hour'")
    clock.wait_until(executor.results)
    exception = executor.results()[0][1].exception
    assert isinstance(exception, Interrupted)
    assert not exception.was_stopped


@pytest.mark.parametrize("first", [[], [True]], ids=["before a submission", "during a submission"])
def test_a_scheduler_submits_nothing_while_another_one_may_lead(
    bench: RemoteBench, clock: SimulatedClock, postgres: PostgresServer, first: list[bool]
) -> None:
    answers, leads, asked = iter([*first, False]), threading.Event(), threading.Event()

    def may_submit() -> bool:
        answer = next(answers, None)
        if answer is None:
            asked.set()
        return leads.is_set() if answer is None else answer

    executor = bench.make_executor(f"standby{len(first)}", lambda: None, may_submit=may_submit)
    executor.submit(1, "a")
    clock.wait_until(asked.is_set)
    count = f"select count(*) from procrastinate_jobs where queue_name = 'standby{len(first)}'"
    assert postgres.query(bench.dsn.reveal(), count) == "0"
    leads.set()
    clock.wait_until(executor.is_flushed)
    assert postgres.query(bench.dsn.reveal(), count) == "1"


def test_a_task_that_is_fetched_after_its_deadline_does_not_begin(bench: RemoteBench, clock: SimulatedClock) -> None:
    """The deadline has passed in the queue. The clock of the worker's machine is ten minutes off, which makes no difference."""
    begun: list[str] = []

    async def carry(task: str, children: Children) -> str:
        begun.append(task)
        return task

    executor = bench.make_executor("late", lambda: None, seconds=-1.0)
    executor.submit(1, "late")
    clock.wait_until(executor.is_flushed)
    bench.start_worker("late", carry, offset=lambda: 600.0)
    clock.wait_until(executor.results)
    assert begun == []
    assert "the time of the run was over" in str(executor.results()[0][1].exception)


def test_a_worker_whose_machine_was_frozen_ends_its_tasks_and_works_on(bench: RemoteBench, clock: SimulatedClock) -> None:
    """The clock jumps by ten minutes, as after SIGSTOP and SIGCONT. PostgreSQL has not given the task away in the meantime."""
    frozen = 0.0
    began = threading.Event()

    async def carry(task: str, children: Children) -> str:
        began.set()
        if task == "slow":
            await children.start(["sleep", "60"], stdin=b"", env={}, cwd=Path("/"))
        return task.upper()

    worker = bench.start_worker("frozen", carry, lease=LEASE, offset=lambda: frozen)
    executor = bench.make_executor("frozen", lambda: None, lease=60.0)
    executor.submit(1, "slow")
    clock.wait_until(began.is_set)
    frozen = 600.0
    clock.wait_until(executor.results)
    exception = executor.results()[0][1].exception
    assert isinstance(exception, Interrupted)
    # The task may have ended first, if it was about to start its program.
    clock.wait_until(lambda: worker.counts.lost_leases == 1)
    executor.ack([1])
    executor.submit(2, "next")
    clock.wait_until(executor.results)
    assert executor.results()[0][1].result == "NEXT"


def test_a_worker_that_is_frozen_before_a_task_begins_does_not_begin_it(bench: RemoteBench, clock: SimulatedClock) -> None:
    begun: list[str] = []
    frozen = 0.0

    async def carry(task: str, children: Children) -> str:
        begun.append(task)
        return task

    class FreezingCodec(TextCodec):
        def task_from_json(self, data: Mapping[str, Any]) -> str:
            nonlocal frozen
            frozen = 600.0
            return super().task_from_json(data)

    bench.start_worker("freezing", carry, lease=LEASE, offset=lambda: frozen, codec=FreezingCodec("freezing"))
    executor = bench.make_executor("freezing", lambda: None, seconds=3600.0)
    executor.submit(1, "a")
    clock.wait_until(executor.results)
    assert begun == []
    assert isinstance(executor.results()[0][1].exception, Interrupted)


def test_a_worker_that_stops_gives_its_tasks_back(bench: RemoteBench, clock: SimulatedClock) -> None:
    began = threading.Event()

    async def carry(task: str, children: Children) -> str:
        began.set()
        await children.start(["sleep", "60"], stdin=b"", env={}, cwd=Path("/"))
        return task

    worker = bench.start_worker("stopping", carry)
    executor = bench.make_executor("stopping", lambda: None)
    executor.submit(1, "a")
    clock.wait_until(began.is_set)
    worker.stop()
    clock.wait_until(executor.results)
    exception = executor.results()[0][1].exception
    assert isinstance(exception, Interrupted)
    assert exception.was_stopped


class SlowAnswer(JobQueue):
    """A queue whose answer to a fetch with jobs comes late."""

    has_fetched = threading.Event()
    go_on = threading.Event()

    async def fetch(self, worker_id: int, name: str, room: int) -> list[FetchedJob]:
        jobs = await super().fetch(worker_id, name, room)
        self.has_fetched.set()
        while jobs and not self.go_on.is_set():
            await asyncio.sleep(0.01)
        return jobs


def test_a_worker_that_drains_while_it_fetches_a_task_still_carries_it_out(bench: RemoteBench, clock: SimulatedClock) -> None:
    executor = bench.make_executor("drains", lambda: None)
    executor.submit(1, "a")
    clock.wait_until(executor.is_flushed)
    worker = bench.start_worker("drains", shout, lease=LEASE, kind=SlowAnswer)
    clock.wait_until(SlowAnswer.has_fetched.is_set)

    async def drain() -> list[int]:
        queue = JobQueue(bench.dsn, "drains")
        await queue.open()
        try:
            return await queue.drain("worker", 60.0)
        finally:
            await queue.close()

    assert asyncio.run(drain()) == [1]
    clock.wait_until(lambda: worker.find_problem() == "it takes no more runs")
    SlowAnswer.go_on.set()
    clock.wait_until(executor.results)
    assert [(number, done.result) for number, done in executor.results()] == [(1, "A")]


def test_a_task_that_is_cancelled_while_it_waits_for_another_config_ends_without_having_begun(
    bench: RemoteBench, clock: SimulatedClock
) -> None:
    refused = threading.Event()

    class WaitingCodec(TextCodec):
        def task_from_json(self, data: Mapping[str, Any]) -> str:
            refused.set()
            raise AttemptRefused("another config", may_change=True)

    bench.start_worker("configs", shout, codec=WaitingCodec("configs"))
    executor = bench.make_executor("configs", lambda: None)
    executor.submit(1, "a")
    clock.wait_until(refused.is_set)
    executor.cancel(1, "cancelled")
    clock.wait_until(executor.results)
    assert isinstance(executor.results()[0][1].exception, NeverBegun)


class BrokenCodec(TextCodec):
    """A codec that fails in an unexpected way for the task `broken`, at once or while it waits for another config."""

    def __init__(self, prefix: str, *, may_wait: bool) -> None:
        super().__init__(prefix)
        self._waits = may_wait

    def task_from_json(self, data: Mapping[str, Any]) -> str:
        if data["task"] != "broken":
            return super().task_from_json(data)
        if self._waits:
            self._waits = False
            raise AttemptRefused("another config", may_change=True)
        raise RecursionError("maximum recursion depth exceeded")


@pytest.mark.parametrize("may_wait", [False, True])
def test_a_task_that_cannot_be_read_is_refused_and_the_others_run(
    bench: RemoteBench, clock: SimulatedClock, may_wait: bool
) -> None:
    name = f"broken{may_wait}"
    executor = bench.make_executor(name, lambda: None)
    for number, task in enumerate(["broken", "next"]):
        executor.submit(number, task)
    clock.wait_until(executor.is_flushed)
    bench.start_worker(name, shout, codec=BrokenCodec(name, may_wait=may_wait))
    clock.wait_until(lambda: len(executor.results()) == 2)
    assert [(number, done.result) for number, done in sorted(executor.results())] == [
        (0, "refused: worker cannot run it: maximum recursion depth exceeded"), (1, "NEXT"),
    ]  # fmt: skip


def test_a_task_that_waits_for_another_config_is_refused_if_that_cannot_be_read(
    bench: RemoteBench, clock: SimulatedClock
) -> None:
    def reload() -> None:
        raise OSError("too many open files")

    executor = bench.make_executor("unreadable", lambda: None)
    executor.submit(1, "broken")
    bench.start_worker("unreadable", shout, codec=BrokenCodec("unreadable", may_wait=True), reload=reload)
    clock.wait_until(executor.results)
    assert [done.result for _, done in executor.results()] == ["refused: worker cannot run it: too many open files"]


class VersionCodec(TextCodec):
    """The codec of another version: it has a further field in tasks and results."""

    def __init__(self, prefix: str, schema: int) -> None:
        super().__init__(prefix)
        self.schema = schema

    def task_to_json(self, task: str) -> Mapping[str, Any]:
        return {**super().task_to_json(task), "colour": "red"}


@pytest.mark.parametrize("schema", [SCHEMA - 1, SCHEMA, SCHEMA + 1, SCHEMA + 2])
def test_during_an_upgrade_runs_are_executed_by_workers_that_are_one_version_behind_or_ahead(
    bench: RemoteBench, clock: SimulatedClock, schema: int
) -> None:
    """A result of a version that is too far away cannot be read by the scheduler either, which says so."""
    name = f"upgrade{schema}"
    bench.start_worker(name, shout, codec=VersionCodec(name, schema))
    executor = bench.make_executor(name, lambda: None)
    executor.submit(1, "a")
    clock.wait_until(executor.results)
    done = executor.results()[0][1]
    if schema > SCHEMA + 1:
        assert f"the worker writes schema {schema}, and this is schema {SCHEMA}; update heartbeatd" in str(done.exception)
    else:
        assert done.result == "A"


def test_no_statement_waits_longer_than_its_timeout(bench: RemoteBench, postgres: PostgresServer) -> None:
    """Other programs lock all tables, so the server does not answer, like one that hangs."""
    tables = "heartbeatd_attempt, procrastinate_jobs, procrastinate_workers"
    locks = (f"lock table {tables}", f"select pg_advisory_xact_lock({SCHEMA_LOCK})")
    without_tables = postgres.database()

    async def try_all() -> None:
        queue, unopened = JobQueue(bench.dsn, "hanging", 0.5), JobQueue(Secret(without_tables), "hanging", 0.5)
        await queue.open()
        worker = await queue.register("worker")
        with postgres.locked(without_tables, *locks[1:]), postgres.locked(bench.dsn.reveal(), *locks):
            for waiting in (
                unopened.open(), queue.submit([NewAttempt("a", "owner", "a", "{}", 60.0)]), queue.withdraw(["a"], "cancelled", ENDS),
                queue.find(["a"]), queue.register("worker"), queue.renew(worker), queue.remove_dead_workers(1.0),
                queue.fetch(worker, "worker", 1), queue.finish([(Claimed(1, "a", worker), "{}")]), queue.unregister(worker),
                queue.find_workers(1.0), queue.find_waiting(), queue.is_in_progress("agent/a", "owner/1"),
                queue.find_in_progress(["owner"], 5.0),
            ):  # fmt: skip
                with pytest.raises(QueueUnavailable):
                    await asyncio.wait_for(waiting, PATIENCE)
        await queue.close()

    asyncio.run(try_all())


def problem_of(dsn: str, call: Callable[[JobQueue], Awaitable[object]] = lambda _: asyncio.sleep(0)) -> str:
    """Why the queue in a database cannot be used; empty if it can."""

    async def use_queue() -> str:
        queue = JobQueue(Secret(dsn), "problems")
        try:
            await queue.open()
            await call(queue)
        except QueueUnavailable as error:
            return str(error)
        finally:
            await queue.close()
        return ""

    return asyncio.run(asyncio.wait_for(use_queue(), PATIENCE))


def test_a_queue_of_another_version_of_the_library_is_reported_as_such(postgres: PostgresServer) -> None:
    dsn = postgres.database()
    assert problem_of(dsn) == ""
    postgres.query(dsn, "drop function procrastinate_fetch_job_v2")
    assert re.fullmatch(
        r"function procrastinate_fetch_job_v2\(.*\) does not exist; the tables of the queue were created by another version of"
        r" Procrastinate than the installed 3\.\d+\.\d+; apply its migrations",
        problem_of(dsn, lambda queue: queue.fetch(1, "worker", 1)),
    )


def test_a_server_that_is_down_is_reported_with_the_cause(tmp_path: Path) -> None:
    # A pool that waited for the server would only report that its time is over.
    assert "No such file or directory" in problem_of(f"postgresql:///none?host={tmp_path}")


@pytest.mark.parametrize("has_tables", [False, True])
def test_a_user_without_rights_for_the_queue_is_reported_as_such(postgres: PostgresServer, has_tables: bool) -> None:
    dsn = postgres.database()
    if has_tables:
        assert problem_of(dsn) == ""
    user = f"guest{has_tables}".lower()
    postgres.query(dsn, f"create role {user} login")
    postgres.query(dsn, "revoke create on schema public from public")
    problem = problem_of(dsn.replace("heartbeatd@", f"{user}@"), lambda queue: queue.find_workers(1.0))
    table = "table heartbeatd_worker" if has_tables else "schema public"
    assert problem == (
        f"permission denied for {table}; let the database user of `executor.dsn` own the tables of the queue, or grant it all"
        " rights for them"
    )


def test_the_doctor_creates_no_tables(tmp_path: Path, postgres: PostgresServer) -> None:
    dsn = postgres.database()
    with Cluster(tmp_path, AGENT.format(script="true", state="state/h.db"), dsn) as cluster:
        assert re.search(
            r"bad +queue +the queue of the workers cannot be used: its tables do not exist yet;"
            r" `heartbeatd run` and `heartbeatd worker` create them",
            " ".join(cluster.call("doctor").split()),
        )
    assert postgres.query(dsn, "select count(*) from pg_tables where schemaname = 'public'") == "0"


def test_the_tables_of_an_emptied_queue_are_created_again(postgres: PostgresServer) -> None:
    dsn = postgres.database()

    async def use_queue() -> list[WorkerState]:
        queue = JobQueue(Secret(dsn), "emptied")
        await queue.open()
        postgres.query(dsn, "drop schema public cascade; create schema public")
        with pytest.raises(QueueUnavailable, match="does not exist"):
            await queue.find_workers(1.0)
        await queue.open()
        try:
            return await queue.find_workers(1.0)
        finally:
            await queue.close()

    assert asyncio.run(asyncio.wait_for(use_queue(), PATIENCE)) == []


class FrozenFetch(JobQueue):
    """The queue of a worker that is frozen during a fetch: before or after the attempt is marked as begun."""

    def __init__(self, dsn: Secret, queue: str, *, has_begun: bool, idle_timeout: float) -> None:
        super().__init__(dsn, queue, idle_timeout=idle_timeout)
        self._has_begun = has_begun
        self.is_frozen = False

    async def _begin_attempts(self, db: psycopg.AsyncConnection[Any], jobs: Sequence[Any], name: str) -> list[FetchedJob]:
        if self._has_begun:
            await super()._begin_attempts(db, jobs, name)
        self.is_frozen = True
        await asyncio.sleep(PATIENCE)
        return []


@asynccontextmanager
async def a_frozen_worker(dsn: Secret, queue: str, *, has_begun: bool, idle_timeout: float = PATIENCE) -> AsyncIterator[None]:
    """A worker that is frozen while it fetches a job, for the duration of the context."""
    frozen = FrozenFetch(dsn, queue, has_begun=has_begun, idle_timeout=idle_timeout)
    await frozen.open()
    fetching = asyncio.create_task(frozen.fetch(await frozen.register("frozen"), "frozen", 4))
    while not frozen.is_frozen and not fetching.done():
        await asyncio.sleep(0.01)
    yield
    fetching.cancel()
    await asyncio.wait([fetching])
    await frozen.close()


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_worker_that_is_frozen_while_it_fetches_a_job_does_not_stop_the_queue(bench: RemoteBench, has_begun: bool) -> None:
    name = f"freezes{has_begun}"
    attempts = [NewAttempt(f"{name}/{number}/1", name, f"{name}/{number}", "{}", 60.0) for number in range(3)]

    async def use_queue() -> None:
        queue, opened_later = JobQueue(bench.dsn, name), JobQueue(bench.dsn, name)
        await queue.open()
        await queue.submit(attempts[:1])
        worker = await queue.register("worker")
        async with a_frozen_worker(bench.dsn, name, has_begun=has_begun):
            await opened_later.open()
            await queue.submit(attempts[1:])
            assert await queue.withdraw([each.key for each in attempts[:2]], "timeout", ENDS) == [attempts[0].key]
            assert await queue.results([name], []) == [AttemptEnd(attempts[1].key, ENDS.unbegun, None)]
            fetched = {job.key for job in await queue.fetch(worker, "worker", 4)}
            assert fetched == {attempts[2].key}
        await queue.close()
        await opened_later.close()

    asyncio.run(asyncio.wait_for(use_queue(), PATIENCE))


@pytest.mark.parametrize("has_begun", [False, True])
def test_the_server_ends_the_transaction_of_a_worker_that_is_frozen_while_it_fetches_a_job(
    bench: RemoteBench, has_begun: bool
) -> None:
    name = f"ends{has_begun}"

    async def use_queue() -> None:
        queue = JobQueue(bench.dsn, name)
        await queue.open()
        await queue.submit([NewAttempt(f"{name}/1/1", name, name, "{}", 60.0)])
        async with a_frozen_worker(bench.dsn, name, has_begun=has_begun, idle_timeout=0.2):
            while await queue.withdraw([f"{name}/1/1"], "timeout", ENDS):
                await asyncio.sleep(0.02)
            assert [end.payload for end in await queue.results([name], [])] == [ENDS.unbegun]
        await queue.close()

    asyncio.run(asyncio.wait_for(use_queue(), PATIENCE))


class StuckWithdrawal(JobQueue):
    """A queue whose server never answers the first withdrawal."""

    is_withdrawing = threading.Event()

    async def withdraw(self, keys: Sequence[str], why: str, ends: UnbegunEnds, absent: Sequence[str] = ()) -> list[str]:
        if not self.is_withdrawing.is_set():
            self.is_withdrawing.set()
            await asyncio.sleep(PATIENCE)
        return await super().withdraw(keys, why, ends, absent)


def test_an_executor_receives_results_while_a_withdrawal_waits_for_the_server(bench: RemoteBench, clock: SimulatedClock) -> None:
    go_on = threading.Event()

    async def carry(task: str, children: Children) -> str:
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return task.upper()

    bench.start_worker("stuck", carry)
    executor = bench.make_executor("stuck", lambda: None, kind=StuckWithdrawal)
    executor.submit(1, "a")
    executor.submit(2, "b")
    clock.wait_until(executor.is_flushed)
    executor.cancel(1, "cancelled")
    clock.wait_until(StuckWithdrawal.is_withdrawing.is_set)
    go_on.set()
    clock.wait_until(lambda: len(executor.results()) == 2)


def test_a_task_that_cannot_be_written_is_its_own_error_and_the_next_one_runs(bench: RemoteBench, clock: SimulatedClock) -> None:
    executor = bench.make(shout, lambda: None)
    executor.submit(1, {1, 2})  # type: ignore[arg-type]  # JSON has no sets
    executor.submit(2, "next")
    clock.wait_until(lambda: len(executor.results()) == 2)
    assert [(number, done.result, type(done.exception)) for number, done in executor.results()] == [
        (1, None, TypeError), (2, "NEXT", type(None)),
    ]  # fmt: skip


def test_a_second_scheduler_process_adopts_what_the_first_has_submitted(bench: RemoteBench, clock: SimulatedClock) -> None:
    first = bench.make_executor("adopted", lambda: None, owner="first")
    first.submit(1, "a")
    first.submit(2, "b")
    clock.wait_until(first.is_flushed)
    second = bench.make_executor("adopted", lambda: None, owner="second")
    with clock.passing():
        assert second.adopt_runs([("first", 1, "a"), ("first", 9, "z")], ["first"], lambda: False)
    assert second.inflight() == {1: "a"}  # 9 never reached the queue, and no scheduler waits for 2
    bench.start_worker("adopted", shout)
    clock.wait_until(second.results)
    assert [(number, done.result) for number, done in second.results()] == [(1, "A")]


class FailingSubmission(JobQueue):
    """A queue whose first submission fails: before anything is written, or after its commit."""

    is_committed = False
    has_failed = False

    async def submit(self, attempts: Sequence[NewAttempt], may_submit: Callable[[], bool] = lambda: True) -> None:
        if self.has_failed or self.is_committed:
            await super().submit(attempts, may_submit)
        if not self.has_failed:
            self.has_failed = True
            raise QueueUnavailable("the connection was lost")


class LostAnswerToSubmission(FailingSubmission):
    is_committed = True


@pytest.mark.parametrize("kind", [FailingSubmission, LostAnswerToSubmission])
@pytest.mark.parametrize("given_up", [False, True])
def test_a_run_that_is_cancelled_after_a_failed_submission_is_not_submitted(
    bench: RemoteBench, clock: SimulatedClock, postgres: PostgresServer, kind: type[FailingSubmission], given_up: bool
) -> None:
    """At the moment of the cancellation, the scheduler does not know whether it still leads."""
    leads, name = threading.Event(), f"failing{kind.__name__}{given_up}"
    leads.set()

    def may_submit() -> bool:
        return leads.is_set()

    executor = bench.make_executor(name, lambda: None, may_submit=may_submit, kind=kind)
    executor.submit(1, "a")
    clock.wait_until(lambda: executor.problem is not None)
    leads.clear()
    if given_up:
        executor.give_up(1, Done("a", None, NeverBegun()))
    else:
        executor.cancel(1, "cancelled")
    clock.wait_until(lambda: executor.problem is None)
    leads.set()
    clock.wait_until(executor.results)
    assert [(number, type(done.exception)) for number, done in executor.results()] == [(1, NeverBegun)]
    assert executor.inflight() == {}
    executor.ack([1])
    left = f"select (select count(*) from heartbeatd_attempt where owner = '{name}')"
    left += f" + (select count(*) from procrastinate_jobs where queue_name = '{name}')"
    clock.wait_until(lambda: postgres.query(bench.dsn.reveal(), left) == "0")


class FetchingWithdrawal(JobQueue):
    """A queue in which a worker fetches a job during its first withdrawal."""

    is_fetching = True

    async def withdraw(self, keys: Sequence[str], why: str, ends: UnbegunEnds, absent: Sequence[str] = ()) -> list[str]:
        if self.is_fetching:
            self.is_fetching = False
            return list(keys)
        return await super().withdraw(keys, why, ends, absent)


def test_a_run_that_is_cancelled_while_a_worker_fetches_it_does_not_go_on(bench: RemoteBench, clock: SimulatedClock) -> None:
    executor = bench.make_executor("fetched", lambda: None, kind=FetchingWithdrawal)
    executor.submit(1, "a")
    clock.wait_until(executor.is_flushed)
    executor.cancel(1, "cancelled")
    clock.wait_until(executor.results)
    assert isinstance(executor.results()[0][1].exception, NeverBegun)


def test_a_scheduler_that_closes_sends_what_is_left_although_the_server_no_longer_answers_its_listening_connection(
    bench: RemoteBench, clock: SimulatedClock, postgres: PostgresServer
) -> None:
    """psycopg answers the first cancellation of the listening task by waiting for the server."""
    leads, dsn = threading.Event(), bench.dsn.reveal()
    executor = bench.make_executor("closing", lambda: None, may_submit=leads.is_set)
    executor.submit(1, "a")
    listening = "select pid, query from pg_stat_activity where pid <> pg_backend_pid() and query ~ '^(LISTEN|SELECT 1)'"
    clock.wait_until(lambda: postgres.query(dsn, listening))
    pid = int(postgres.query(dsn, listening).split("|")[0])
    os.kill(pid, signal.SIGSTOP)
    try:
        clock.advance(LISTEN_TIMEOUT)  # it asks the server for a sign of life
        leads.set()
        began_at = clock.now
        with clock.passing():
            executor.close()
        assert clock.now - began_at < CLOSE_SECONDS
    finally:
        os.kill(pid, signal.SIGCONT)
    assert postgres.query(dsn, "select count(*) from procrastinate_jobs where queue_name = 'closing'") == "1"


class FailingForget(JobQueue):
    """A queue that fails once when the attempts of an earlier scheduler are to be withdrawn."""

    has_failed = False

    async def forget_all(self, owners: Collection[str], but: Collection[str]) -> int:
        if not self.has_failed:
            self.has_failed = True
            raise QueueUnavailable("the server is down")
        return await super().forget_all(owners, but)


def test_no_worker_executes_what_an_earlier_scheduler_has_left_although_the_server_fails_in_between(
    bench: RemoteBench, clock: SimulatedClock, postgres: PostgresServer
) -> None:
    first = bench.make_executor("left", lambda: None, owner="left-first")
    first.submit(1, "a")
    clock.wait_until(first.is_flushed)
    second = bench.make_executor("left", lambda: None, owner="left-second", kind=FailingForget)
    with clock.passing():
        assert second.adopt_runs([], ["left-first"], lambda: False)
    left = "select count(*) from procrastinate_jobs where queue_name = 'left'"
    assert postgres.query(bench.dsn.reveal(), left) == "0"


class LosingFetch(JobQueue):
    """A queue whose first fetch is committed, but its answer is lost."""

    has_failed = False

    async def fetch(self, worker_id: int, name: str, room: int) -> list[FetchedJob]:
        fetched = await super().fetch(worker_id, name, room)
        if fetched and not self.has_failed:
            self.has_failed = True
            raise QueueUnavailable("the connection was lost")
        return fetched


def test_a_task_is_executed_although_the_answer_to_its_fetch_was_lost(bench: RemoteBench, clock: SimulatedClock) -> None:
    executor = bench.make_executor("unheard", lambda: None)
    executor.submit(1, "a")
    bench.start_worker("unheard", shout, kind=LosingFetch)
    clock.wait_until(executor.results)
    assert [(number, done.result) for number, done in executor.results()] == [(1, "A")]


def test_a_task_that_the_server_gives_to_its_worker_again_runs_once(
    bench: RemoteBench, clock: SimulatedClock, postgres: PostgresServer
) -> None:
    """After a failover that has lost the commit of the first fetch."""
    begun: list[str] = []
    go_on = threading.Event()

    async def carry(task: str, children: Children) -> str:
        begun.append(task)
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return task.upper()

    executor = bench.make_executor("again", lambda: None)
    worker = bench.start_worker("again", carry, kind=LosingFetch)
    executor.submit(1, "a")
    clock.wait_until(lambda: begun)
    clock.wait_until(
        lambda: (
            postgres.query(
                bench.dsn.reveal(),
                "update procrastinate_jobs set status = 'todo' where queue_name = 'again' and status = 'doing'; select count(*) from"
                " procrastinate_jobs where queue_name = 'again' and status = 'todo'",
            )
            == "1"
        )
    )
    executor.submit(2, "b")  # the worker fetches both
    clock.wait_until(lambda: "b" in begun)
    go_on.set()
    clock.wait_until(lambda: len(executor.results()) == 2)
    assert (begun, worker.in_progress) == (["a", "b"], 0)
    assert [done.result for _, done in sorted(executor.results())] == ["A", "B"]


def test_a_worker_ends_a_job_that_it_has_fetched_and_does_not_know(
    bench: RemoteBench, clock: SimulatedClock, postgres: PostgresServer
) -> None:
    """After a failover, the server says that the worker executes a job whose result it has lost. The job has the lock of its lane."""
    worker = bench.start_worker("forgotten", shout, lease=LEASE)
    executor = bench.make_executor("forgotten", lambda: None)
    clock.wait_until(lambda: worker.find_problem() is None)
    postgres.query(
        bench.dsn.reveal(),
        "insert into procrastinate_jobs (queue_name, task_name, lock, status, worker_id) select queue, 'x', 'forgotten/a', 'doing', id"
        " from heartbeatd_worker where queue = 'forgotten'",
    )
    executor.submit(1, "a")
    clock.wait_until(executor.results)
    assert executor.results()[0][1].result == "A"


class LateFetch(JobQueue):
    """A queue whose first fetch of a job returns only after the worker has registered again."""

    fetched, registered_again = threading.Event(), threading.Event()

    async def register(self, name: str, *, is_draining: bool = False) -> int:
        worker_id = await super().register(name, is_draining=is_draining)
        if self.fetched.is_set():
            self.registered_again.set()
        return worker_id

    async def fetch(self, worker_id: int, name: str, room: int) -> list[FetchedJob]:
        fetched = await super().fetch(worker_id, name, room)
        if fetched and not self.fetched.is_set():
            self.fetched.set()
            while not self.registered_again.is_set():
                await asyncio.sleep(0.01)
        return fetched


def test_a_worker_that_loses_its_lease_during_a_fetch_does_not_begin_the_task(bench: RemoteBench, clock: SimulatedClock) -> None:
    begun: list[str] = []
    frozen = 0.0

    async def carry(task: str, children: Children) -> str:
        begun.append(task)
        return task

    bench.start_worker("slow", carry, lease=LEASE, offset=lambda: frozen, kind=LateFetch)
    executor = bench.make_executor("slow", lambda: None)
    executor.submit(1, "a")
    clock.wait_until(LateFetch.fetched.is_set)
    frozen = 5 * LEASE
    clock.wait_until(executor.results)
    exception = executor.results()[0][1].exception
    assert isinstance(exception, Interrupted)
    assert exception.was_stopped
    assert begun == []


def test_a_worker_that_is_stopped_while_it_fetches_a_task_gives_the_task_back(
    bench: RemoteBench, clock: SimulatedClock, postgres: PostgresServer
) -> None:
    executor, dsn = bench.make_executor("fetching", lambda: None), bench.dsn.reveal()
    executor.submit(1, "a")
    clock.wait_until(executor.is_flushed)
    fetching = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like 'update heartbeatd_attempt%'"
    with postgres.locked(dsn, "select 1 from heartbeatd_attempt where owner = 'fetching' for update"):
        worker = bench.start_worker("fetching", shout)
        clock.wait_until(lambda: postgres.query(dsn, fetching) == "1")
        worker.stop()
        clock.wait_until(lambda: worker.find_problem() == "it is stopping")
    clock.wait_until(executor.results)
    exception = executor.results()[0][1].exception
    assert isinstance(exception, Interrupted)
    assert exception.was_stopped


class CutOff(JobQueue):
    """A queue that a worker cannot reach to get a lease, while `is_cut` is set."""

    is_cut = False

    async def register(self, name: str, *, is_draining: bool = False) -> int:
        if CutOff.is_cut:
            raise QueueUnavailable("the network is down")
        return await super().register(name, is_draining=is_draining)


def test_a_worker_whose_lease_is_over_calls_nothing_and_is_not_ready(
    bench: RemoteBench, clock: SimulatedClock, tmp_path: Path
) -> None:
    frozen = 0.0
    server = Server([reply({})])
    problems: list[str | None] = []

    async def call_agent(task: str, children: Children) -> str:
        nonlocal frozen
        async with new_http_client() as http:
            resources = resources_of_run(children, (), http)
            frozen = 600.0
            problems.append((await resources.start(["touch", "called"], stdin=b"", env={}, cwd=tmp_path)).problem)
            try:
                await resources.http.post(server.url, {}, b"", 1.0)
            except CallError as error:
                problems.append(str(error))
        return task

    CutOff.is_cut = False
    worker = bench.start_worker("over", call_agent, lease=LEASE, offset=lambda: frozen, kind=CutOff)
    clock.wait_until(lambda: worker.find_problem() is None)
    assert worker.permit_until(clock.now + 3600).allows_start()
    assert not worker.permit_until(clock.now - 1).allows_start()  # the end of a task's time
    CutOff.is_cut = True
    executor = bench.make_executor("over", lambda: None)
    with server:
        executor.submit(1, "a")
        clock.wait_until(executor.results)
    assert problems == [TIME_OVER, TIME_OVER]
    assert (server.requests, list(tmp_path.iterdir())) == ([], [])
    assert worker.find_problem() is not None
    assert worker.metrics()["heartbeatd_worker_ready"] == 0.0


def test_a_lease_is_counted_from_before_the_request_for_it(bench: RemoteBench, clock: SimulatedClock) -> None:
    """The worker is frozen before it gets the answer. Another worker may have its tasks by then."""
    frozen = 0.0

    class Freezing(JobQueue):
        async def register(self, name: str, *, is_draining: bool = False) -> int:
            nonlocal frozen
            number = await super().register(name, is_draining=is_draining)
            frozen = 600.0
            return number

    worker = bench.start_worker("counted", shout, offset=lambda: frozen, kind=Freezing)
    clock.wait_until(lambda: worker.counts.lost_leases == 1)


def test_a_worker_has_not_lost_its_first_lease_while_it_still_removes_dead_workers(
    bench: RemoteBench, clock: SimulatedClock
) -> None:
    class Slow(JobQueue):
        async def remove_dead_workers(self, lease: float) -> None:
            await asyncio.sleep(5)  # of the simulated clock
            await super().remove_dead_workers(lease)

    worker = bench.start_worker("new", shout, kind=Slow)
    clock.wait_until(lambda: worker.find_problem() is None)
    assert worker.counts.lost_leases == 0


def test_a_task_that_has_ended_well_counts_although_its_worker_has_lost_its_lease(
    bench: RemoteBench, clock: SimulatedClock
) -> None:
    frozen = 0.0
    began = threading.Event()

    class SuccessCodec(TextCodec):
        def is_success(self, result: str) -> bool:
            return True

    async def carry(task: str, children: Children) -> str:
        began.set()
        with suppress(asyncio.CancelledError):  # its answer arrives at the moment at which it is cancelled
            await asyncio.sleep(PATIENCE)
        return task.upper()

    bench.start_worker("ended", carry, offset=lambda: frozen, codec=SuccessCodec("ended"))
    executor = bench.make_executor("ended", lambda: None)
    executor.submit(1, "a")
    clock.wait_until(began.is_set)
    frozen = 600.0
    clock.wait_until(executor.results)
    assert executor.results()[0][1].result == "A"


def test_a_task_that_fails_when_the_lease_of_its_worker_is_over_counts_as_interrupted(
    bench: RemoteBench, clock: SimulatedClock
) -> None:
    """The guard ends its program then, so that another worker can repeat the run. That is no result of the program."""
    frozen = 0.0

    async def carry(task: str, children: Children) -> str:
        nonlocal frozen
        frozen = 600.0
        return "exit code -15"

    bench.start_worker("failed", carry, offset=lambda: frozen)
    executor = bench.make_executor("failed", lambda: None)
    executor.submit(1, "a")
    clock.wait_until(executor.results)
    exception = executor.results()[0][1].exception
    assert isinstance(exception, Interrupted)
    assert not exception.was_stopped


def test_the_late_result_of_a_worker_that_was_believed_lost_changes_nothing_and_is_counted(
    bench: RemoteBench, clock: SimulatedClock
) -> None:
    began, go_on = threading.Event(), threading.Event()

    async def carry(task: str, children: Children) -> str:
        began.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return task.upper()

    async def end_as_lost() -> None:
        queue = JobQueue(bench.dsn, "stale")
        await queue.open()
        lost = TextCodec("stale").write_done(Done(None, None, Interrupted("worker was lost", was_stopped=False)))
        assert await queue.reap(["stale"], 0.0, lambda _: lost) == ["stale/1/a"]
        await queue.close()

    worker = bench.start_worker("stale", carry)
    executor = bench.make_executor("stale", lambda: None)
    executor.submit(1, "a")
    clock.wait_until(began.is_set)
    asyncio.run(end_as_lost())
    go_on.set()
    clock.wait_until(lambda: worker.metrics()["heartbeatd_worker_stale_results_total"] == 1)
    clock.wait_until(executor.results)
    assert isinstance(executor.results()[0][1].exception, Interrupted)


class LosingFinish(JobQueue):
    """A queue whose first result is committed, but the answer is lost."""

    has_failed = False

    async def finish(self, results: Sequence[tuple[Claimed, str]]) -> set[str]:
        written = await super().finish(results)
        if not self.has_failed:
            self.has_failed = True
            raise QueueUnavailable("the connection was lost")
        return written


def test_a_recorded_result_does_not_count_as_late_although_the_answer_was_lost(bench: RemoteBench, clock: SimulatedClock) -> None:
    executor = bench.make_executor("unconfirmed", lambda: None)
    worker = bench.start_worker("unconfirmed", shout, kind=LosingFinish)
    executor.submit(1, "a")
    clock.wait_until(executor.results)
    clock.wait_until(lambda: worker.in_progress == 0)
    assert [(number, done.result) for number, done in executor.results()] == [(1, "A")]
    assert worker.metrics()["heartbeatd_worker_stale_results_total"] == 0


async def take_long(task: str, children: Children) -> str:
    await asyncio.sleep(PATIENCE)
    return task


def test_a_second_signal_ends_the_tasks_of_a_worker_at_once(bench: RemoteBench, clock: SimulatedClock) -> None:
    hurry = asyncio.Event()
    worker = bench.start_worker("hurried", take_long, grace=3600.0, hurry=hurry)
    executor = bench.make_executor("hurried", lambda: None)
    executor.submit(1, "a")
    clock.wait_until(lambda: worker.in_progress == 1)
    worker.stop()
    clock.wait_until(lambda: worker.is_stopping)
    hurry.set()
    clock.wait_until(executor.results)
    assert isinstance(executor.results()[0][1].exception, Interrupted)


def test_a_worker_ends_a_task_that_its_scheduler_no_longer_wants(bench: RemoteBench, clock: SimulatedClock) -> None:
    worker = bench.start_worker("unwanted", take_long)
    first = bench.make_executor("unwanted", lambda: None, owner="unwanted-first")
    first.submit(1, "a")
    clock.wait_until(lambda: worker.in_progress == 1)
    first.give_up(1, Done("a", "given up", None))  # it does not end in time
    clock.wait_until(lambda: worker.in_progress == 0)
    first.submit(2, "b")
    clock.wait_until(lambda: worker.in_progress == 1)
    second = bench.make_executor("unwanted", lambda: None, owner="unwanted-second")
    with clock.passing():
        assert second.adopt_runs([], ["unwanted-first"], lambda: False)  # the first was killed
    clock.wait_until(lambda: worker.in_progress == 0)


def test_after_an_interruption_workers_get_the_time_of_a_lease_to_reach_the_queue_again(
    bench: RemoteBench, clock: SimulatedClock
) -> None:
    lease = 60.0
    reached: list[float] = []
    reaped: list[float] = []
    failures = [QueueUnavailable("the network is down")]

    class Failing(JobQueue):
        async def results(self, owners: Collection[str], known: Collection[str]) -> list[AttemptEnd]:
            if failures:
                raise failures.pop()
            reached.append(clock.now)
            return await super().results(owners, known)

        async def reap(self, owners: Collection[str], lease: float, result: Callable[[str], str]) -> list[str]:
            reaped.append(clock.now)
            return await super().reap(owners, lease, result)

    bench.make_executor("cut", lambda: None, lease=lease, kind=Failing).submit(1, "a")
    clock.wait_until(lambda: reaped)
    assert reaped[0] - reached[0] >= lease


def test_the_lane_of_a_program_left_behind_is_locked_before_the_run_ends_and_free_when_it_has_gone(
    bench: RemoteBench, clock: SimulatedClock, postgres: PostgresServer
) -> None:
    left: list[str] = []
    locked_at_end: list[str] = []
    query = "select lane from heartbeatd_lane where holder like '%left behind on leaving'"

    class Watched(JobQueue):
        async def finish(self, results: Sequence[tuple[Claimed, str]]) -> set[str]:
            locked_at_end.append(postgres.query(bench.dsn.reveal(), query))
            return await super().finish(results)

    async def carry(task: str, children: Children) -> str:
        left[:] = [task] if task == "agent/left" else []
        return task

    bench.start_worker("leaving", carry, name="leaving", locked_lanes=lambda: list(left), kind=Watched)
    executor = bench.make_executor("leaving", lambda: None)
    executor.submit(1, "agent/left")
    clock.wait_until(executor.results)
    assert locked_at_end == ["agent/left"]
    executor.submit(2, "agent/other")
    clock.wait_until(lambda: len(executor.results()) == 2)
    assert postgres.query(bench.dsn.reveal(), query) == ""


AGENT = """\
state: {state}
server: {{listen: "127.0.0.1:0"}}
executor: {{kind: procrastinate, dsn: "${{DSN}}", lease: 10s}}
agents:
  ops:
    runner: {{kind: command, argv: [sh, -c, "{script}"]}}
    heartbeat: {{interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log}}
"""
COUNTED = "echo x >>{marks}; while [ ! -e {gate} ]; do sleep 0.05; done; echo HEARTBEAT_OK"


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer) -> Iterator[Cluster]:
    marks, gate, dsn = tmp_path / "marks", tmp_path / "gate", postgres.database()
    script = COUNTED.format(marks=f"'{marks}'", gate=f"'{gate}'")
    state = dsn if getattr(request, "param", "file") == "server" else "state/h.db"
    with Cluster(tmp_path, AGENT.format(script=script, state=state), dsn) as cluster:
        yield cluster


def marks(cluster: Cluster) -> int:
    """How often the agent was called."""
    path = cluster.folder / "marks"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("cluster", ["file", "server"], indirect=True)
def test_a_run_survives_a_kill_of_the_scheduler_and_is_not_repeated(cluster: Cluster) -> None:
    scheduler = cluster.start("run")
    cluster.start("worker")
    wait_until(lambda: marks(cluster) == 1)
    scheduler.send_signal(signal.SIGKILL)
    scheduler.wait(timeout=PATIENCE)
    cluster.query("update heartbeatd._leader set until_at = clock_timestamp()")  # if there is one
    cluster.start("run")
    (cluster.folder / "gate").touch()
    wait_until(lambda: cluster.outcomes() == ["ok"])
    assert marks(cluster) == 1
    assert cluster.query("select count(*) from heartbeatd_attempt where result is null") == "0"


def test_a_stopped_scheduler_does_not_wait_for_runs_of_workers(cluster: Cluster) -> None:
    scheduler = cluster.start("run")
    cluster.start("worker")
    wait_until(lambda: marks(cluster) == 1)
    scheduler.send_signal(signal.SIGTERM)
    assert scheduler.wait(timeout=PATIENCE) == 0
    (cluster.folder / "gate").touch()
    wait_until(lambda: cluster.query("select count(*) from heartbeatd_attempt where result is not null") == "1")
    cluster.start("run")
    wait_until(lambda: cluster.outcomes() == ["ok"])
    assert marks(cluster) == 1


def test_a_run_goes_to_a_worker_of_its_queue_and_until_then_people_see_what_it_waits_for(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    yaml = AGENT.format(script="echo HEARTBEAT_OK", state="state/h.db") + "    executor: {queue: gpu}\n"
    yaml += "cron:\n  report: {schedule: 0 9 1 1 *, agent: ops, prompt: Report.}\n"  # it has the queue of its agent
    unserved = "no worker serves the queue gpu; start `heartbeatd worker --queue gpu`"
    with Cluster(tmp_path, yaml, postgres.database()) as cluster:
        cluster.start("worker", "--name", "plain")
        cluster.start("run")
        wait_until(lambda: f"warn queue {unserved}" in " ".join(cluster.call("doctor").split()))
        (warning,) = json.loads(cluster.call("check", "--format", "json"))["warnings"]
        assert (warning["path"], warning["message"]) == (
            "agents.ops.executor.queue", "no worker serves this queue now; start `heartbeatd worker --queue gpu`",
        )  # fmt: skip
        wait_until(lambda: f"critical: daemon workers: {unserved}" in " ".join(cluster.call("status").split()))
        assert cluster.outcomes() == []
        cluster.start("worker", "--name", "fast", "--queue", "gpu,default")
        wait_until(lambda: cluster.outcomes() == ["ok"])
        assert re.search(r"^worker +fast$", cluster.call("show", "1"), re.MULTILINE)
        served = "ok queue 2 workers: fast (queue gpu+default), plain"  # once the job of the run has left the queue
        wait_until(lambda: served in " ".join(cluster.call("doctor").split()))
        assert json.loads(cluster.call("check", "--format", "json"))["warnings"] == []


def test_a_worker_that_drains_takes_no_more_runs_and_ends_after_those_in_progress(cluster: Cluster) -> None:
    worker = cluster.start("worker", "--name", "w1")
    cluster.start("run")
    wait_until(lambda: marks(cluster) == 1)
    assert cluster.call("worker", "drain", "w1") == "w1 takes no more runs; it stops after its runs in progress: 1\n"
    (cluster.folder / "gate").touch()
    assert worker.wait(timeout=PATIENCE) == 0
    wait_until(lambda: cluster.outcomes() == ["ok"])


def test_the_first_steps_of_the_documentation_end_with_a_run_that_a_worker_has_executed(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    page = (HOME / "docs" / "scaling.md").read_text("utf-8").partition("## Try it on one machine")[2].partition("\n## ")[0]
    (config,) = re.findall(r"```yaml\n(.*?) *```", page, re.DOTALL)
    starts, calls = ([line.split()[1:] for line in block] for block in command_blocks(page) if block[0].startswith("heartbeatd"))
    dsn = postgres.database()
    yaml = 'server: {listen: "127.0.0.1:0"}\n' + dedent(config)
    with Cluster(tmp_path, yaml, dsn, environ={"HEARTBEATD_DSN": dsn}) as cluster:
        for command in starts:
            cluster.start(*command)
        wait_until(lambda: cluster.call("status").startswith("daemon: running"))
        wake, runs = (cluster.call(*command) for command in calls)
    assert wake.startswith("run 1: alert")
    assert re.search(r"^RUN .* WORKER\n1 +agent/host .* w1$", runs, re.MULTILINE)


def command_blocks(page: str) -> list[list[str]]:
    """The lines of each block of commands in a list of steps."""
    return [dedent(block).split("\n")[:-1] for block in re.findall(r"```text\n(.*?\n) *```", page, re.DOTALL)]


def test_the_run_of_a_killed_worker_is_repeated_by_another_one(cluster: Cluster, clock: SimulatedClock) -> None:
    worker = cluster.start("worker", "--name", "w1")
    with crashing_daemon(cluster, clock) as daemon, clock.passing():
        run_until(daemon, lambda: len(daemon.runs.inflight()) == 1)
        wait_until(lambda: marks(cluster) == 1)
        worker.send_signal(signal.SIGKILL)
        worker.wait(timeout=PATIENCE)
        cluster.query("update procrastinate_workers set last_heartbeat = last_heartbeat - interval '1 hour'")
        (cluster.folder / "gate").touch()  # ends the program of the killed worker, which holds the lane
        cluster.start("worker", "--name", "w2")
        run_until(daemon, lambda: cluster.outcomes() == ["ok"])
    assert marks(cluster) == 2
    assert re.search(r"^worker +w2$", cluster.call("show", "1"), re.MULTILINE)
    assert " ok heartbeat_ok on w2, took " in cluster.call("explain", "ops")


OF_TWO = """\
state: state/h.db
server: {{listen: "127.0.0.1:0"}}
executor: {{kind: procrastinate, dsn: "${{DSN}}", lease: 10s}}
defaults:
  runner: {{kind: command, argv: [sh, -c, "{script}"]}}
  heartbeat: {{interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: log}}
agents: {{a: {{}}, b: {{}}}}
"""
NAMED = "echo $HEARTBEATD_AGENT >>{marks}; while [ ! -e {gate} ]; do sleep 0.05; done; echo HEARTBEAT_OK"


@contextmanager
def crashing_daemon(cluster: Cluster, clock: SimulatedClock, *, listen: bool = False) -> Iterator[Daemon]:
    """The daemon in this process. It ends as after a crash: its boot stays open."""
    daemon = Daemon(cluster.folder / "config.yaml", {**os.environ, "DSN": cluster.dsn}, listen=listen, clock=clock)
    try:
        if daemon._server is not None:
            daemon._server.start()
        with clock.passing():
            daemon._start_engine(at_once=False)
        yield daemon
    finally:
        if daemon._server is not None:
            daemon._server.stop()
        with clock.passing():
            daemon._close_connections()


def run_until(daemon: Daemon, is_over: Callable[[], bool]) -> None:
    """Run the main loop of a daemon."""
    daemon._run_ticks(is_over, time.monotonic() + PATIENCE)
    assert is_over()


def workers_of_runs(daemon: Daemon, state: str) -> list[str]:
    """The workers that the records of runs in this state name."""
    query = "select worker from run where state = ? and worker is not null order by worker"
    return [row["worker"] for row in daemon.store.connection.execute(query, (state,))]


def test_a_daemon_names_the_workers_of_the_runs_that_went_on_during_its_restart(
    tmp_path: Path, postgres: PostgresServer, clock: SimulatedClock
) -> None:
    marks, gate = tmp_path / "marks", tmp_path / "gate"
    yaml = OF_TWO.format(script=NAMED.format(marks=f"'{marks}'", gate=f"'{gate}'"))
    with Cluster(tmp_path, yaml, postgres.database()) as cluster:
        for name in ("w1", "w2"):
            cluster.start("worker", "--name", name, "--concurrency", "1")
        with crashing_daemon(cluster, clock) as daemon, clock.passing():
            run_until(daemon, lambda: len(daemon.runs.inflight()) == 2)
            wait_until(lambda: marks.exists() and len(marks.read_text("utf-8").split()) == 2)
        cluster.query("update heartbeatd_attempt set started_at = started_at - interval '1 minute'")  # as after a long time
        with crashing_daemon(cluster, clock) as daemon, clock.passing():
            assert len(daemon.runs.inflight()) == 2
            run_until(daemon, lambda: workers_of_runs(daemon, "running") == ["w1", "w2"])
            gate.touch()
            run_until(daemon, lambda: workers_of_runs(daemon, "closed") == ["w1", "w2"])
            wait_until(lambda: cluster.query("select count(*) from heartbeatd_attempt") == "0")
    assert sorted(marks.read_text("utf-8").split()) == ["a", "b"]  # no run was repeated


def find_programs(cluster: Cluster) -> list[int]:
    """The programs of the first run."""
    owner = cluster.query("select distinct owner from heartbeatd_attempt")
    return (find_orphans({f"{owner}/1"}) or {}).get(f"{owner}/1", [])


def test_the_programs_of_a_killed_worker_are_ended_at_once(cluster: Cluster) -> None:
    cluster.start("run")
    worker = cluster.start("worker")
    wait_until(lambda: marks(cluster) == 1)
    assert find_programs(cluster)
    worker.send_signal(signal.SIGKILL)
    wait_until(lambda: not find_programs(cluster))
    log = cluster.folder / "worker.log"
    wait_until(lambda: "orphan_ended" in log.read_text())
    wait_until(lambda: not list((cluster.folder / "state" / "workers").iterdir()))


def test_the_programs_of_a_frozen_worker_are_ended_when_its_lease_is_over(cluster: Cluster) -> None:
    cluster.start("run")
    worker = cluster.start("worker")
    wait_until(lambda: marks(cluster) == 1)
    worker.send_signal(signal.SIGSTOP)
    assert find_programs(cluster)
    (file,) = (cluster.folder / "state" / "workers").iterdir()
    with file.open("r+b") as lease_end:
        lease_end.write(f"{0:{HEADER - 1}}\n".encode())
    wait_until(lambda: not find_programs(cluster))
    worker.send_signal(signal.SIGCONT)


def test_the_programs_of_a_worker_end_before_another_worker_can_repeat_its_runs(
    bench: RemoteBench, clock: SimulatedClock
) -> None:
    """The guard ends them if the worker is frozen. Another worker may repeat the runs when the lease is over."""
    ends: list[tuple[float, float]] = []
    bench.start_worker("guarded", shout, lease=60.0, note_lease=lambda end: ends.append((clock.now, end)))
    clock.wait_until(lambda: len(ends) > 3)
    assert all(renewed_at < end < renewed_at + 60.0 for renewed_at, end in ends[1:])  # it connects before the first


def test_a_worker_ends_the_programs_of_one_that_was_killed_with_its_guard(cluster: Cluster) -> None:
    cluster.start("run")
    worker = cluster.start("worker")
    wait_until(lambda: marks(cluster) == 1)
    (guard,) = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()[:1]
    for pid in (int(guard), worker.pid):
        os.kill(pid, signal.SIGKILL)
    worker.wait(PATIENCE)
    assert find_programs(cluster)
    cluster.start("worker")
    wait_until(lambda: not find_programs(cluster))


def test_a_cancelled_run_ends_on_its_worker(cluster: Cluster) -> None:
    cluster.start("run")
    cluster.start("worker")
    wait_until(lambda: marks(cluster) == 1)
    cluster.call("cancel", "1")
    wait_until(lambda: cluster.outcomes() == ["abandoned cancelled"])
    assert cluster.query("select count(*) from procrastinate_jobs") == "0"


def test_a_worker_reports_its_health_and_what_it_cannot_run(cluster: Cluster) -> None:
    config = cluster.folder / "config.yaml"
    config.write_text(
        config.read_text() + "  other: {runner: {kind: command, argv: [no-such-program]}, heartbeat: {interval: 1h}}\n"
    )
    cluster.start("worker", "--listen", "127.0.0.1:0", "--queue", "default,gppu")
    log = cluster.folder / "worker.log"
    wait_until(lambda: "queue_unused" in log.read_text())
    assert "cannot_run entry=agent/other" in log.read_text()
    assert re.findall("queue_unused queue=(.*) problem=", log.read_text()) == ["gppu"]
    url = re.search(r"listen=(\S+)", log.read_text())
    assert url is not None
    wait_until(lambda: get(url[1] + "/healthz") == "ok\n")
    assert "heartbeatd_worker_ready 1\n" in get(url[1] + "/metrics")


@pytest.mark.parametrize("names", ["gpu,,default", "gpu default", ""])
def test_a_worker_refuses_names_that_no_queue_can_have(names: str) -> None:
    done = CliRunner().invoke(commands, ["worker", "--queue", names])
    assert done.exit_code == 2
    assert "is not a name; use 1 to 63 characters" in done.stderr


@contextmanager
def listening_daemon(cluster: Cluster, clock: SimulatedClock) -> Iterator[str]:
    """The daemon in a thread of this process. Yields its URL."""
    started: list[Daemon] = []
    is_over = threading.Event()

    def run() -> None:
        with crashing_daemon(cluster, clock, listen=True) as daemon:
            started.append(daemon)
            daemon._run_ticks(is_over.is_set, None)

    with ThreadPoolExecutor() as pool:
        running = pool.submit(run)
        wait_until(lambda: started or running.done())
        try:
            yield str(started[0]._server.url) if started and started[0]._server else ""
        finally:
            is_over.set()
            for daemon in started:
                daemon._wakeup.notify()
            running.result(PATIENCE)


def test_the_daemon_reports_that_its_workers_or_their_queue_are_gone(tmp_path: Path, clock: SimulatedClock) -> None:
    server = PostgresServer().start()
    yaml = AGENT.format(script="echo HEARTBEAT_OK", state="state/h.db")
    try:
        with (
            Cluster(tmp_path, yaml, server.database()) as cluster,
            listening_daemon(cluster, clock) as url,
            clock.passing(),
        ):
            metrics = lambda: get(f"{url}/metrics")  # noqa: E731
            wait_until(lambda: 'heartbeatd_queue_oldest_timestamp_seconds{queue="default"}' in metrics())
            assert 'heartbeatd_queue_available 1\nheartbeatd_workers{queue="default"} 0' in without_comments(metrics())
            wait_until(lambda: "critical: daemon workers: no worker takes runs;" in cluster.call("status"))
            assert get(f"{url}/readyz") == '{"ok":true}'  # the daemon does its own part
            cluster.start("worker", "--name", "b-1")
            wait_until(lambda: 'heartbeatd_workers{queue="default"} 1' in metrics())
            wait_until(lambda: "daemon workers" not in cluster.call("status"))
            assert re.search(r"ok +queue +1 worker: b-1\b", cluster.call("doctor"))  # maybe with a run in progress
            server.kill()
            clock.server_hangs = True
            wait_until(lambda: "the queue of the workers cannot be used: " in get(f"{url}/readyz"))
            assert "heartbeatd_queue_available 0" in metrics()
            assert "heartbeatd_workers{" not in without_comments(metrics())
            wait_until(lambda: "workers: the queue of the workers cannot be used" in cluster.call("status"))
            assert re.search(r"bad +queue +the queue of the workers cannot be used", cluster.call("doctor"))
            server.start()
            wait_until(lambda: get(f"{url}/readyz") == '{"ok":true}')
    finally:
        server.close()


def without_comments(page: str) -> str:
    return "\n".join(line for line in page.splitlines() if not line.startswith("#"))


def get(url: str) -> str:
    try:
        with urlopen(url, timeout=PATIENCE) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        return str(error.read().decode())


def handles_hangups(pid: int) -> bool:
    """Whether a process has installed its signal handlers. Its first thread handles them between two of its steps."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << signal.SIGHUP - 1)


def test_an_interrupted_run_once_that_waits_for_the_queue_ends_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        f'state: state.db\nexecutor: {{kind: procrastinate, dsn: "postgresql:///none?host={tmp_path}"}}\n'
        'cron: {measure: {every: 1h, command: "true"}}\n',
        "utf-8",
    )
    with Heartbeatd("run", "--once", "-c", tmp_path / "config.yaml", stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        wait_until(lambda: handles_hangups(process.pid))
        process.send_signal(signal.SIGINT)
        *log, error = process.stderr.read().splitlines()
    assert process.returncode == 1
    assert error.startswith("heartbeatd: stopped while it waited for the queue of the workers: ")
    assert not [line for line in log if line.startswith("Traceback")]


def test_a_daemon_without_workers_imports_nothing_of_the_extra() -> None:
    code = "import sys, scheduler.app, scheduler.cli.run; print({'procrastinate', 'psycopg', 'psycopg_pool'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() == "set()"


def test_without_the_libraries_the_config_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(AGENT.format(script="true", state="postgresql://x@y/z"))
    done = run_without(tmp_path, ("procrastinate",), "check", "-c", str(tmp_path / "config.yaml"), DSN="postgresql://x@y/z")
    missing = "this needs an extra that is not installed; write: pip install 'heartbeatd[cluster]'"
    assert done.returncode == 2
    assert f"executor.kind: {missing}\n" in done.stderr
    assert f"state: {missing}\n" in done.stderr
