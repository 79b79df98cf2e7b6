"""Tests workers over a real PostgreSQL: its failures, lost and frozen workers, deadlines, and whole processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import required_programs
from checkout import HOME
from click.testing import CliRunner
from cluster_processes import Cluster, config_of, waiting_script
from missing_libraries import run_without
from patience import PATIENCE, wait_until
from procrastinate.connector import LISTEN_TIMEOUT
from remote_bench import Call, HeldBack, Once, RemoteBench, Work, faulty, queue_in, use_queue
from run_async import new_http_client
from servers.postgres import PostgresServer
from servers.scripted import Server, reply
from simulated_clock import SimulatedClock
from warm_start import Heartbeatd

from heartbeat.runners.call_errors import CallError
from scheduler.app import Daemon
from scheduler.cli.main import commands
from scheduler.extras.cluster.executors import CLOSE_SECONDS, RemoteExecutor
from scheduler.extras.cluster.job_queue import (
    SCHEMA_LOCK,
    AttemptEnd,
    FetchedJob,
    JobQueue,
    NewAttempt,
    QueueUnavailable,
)
from scheduler.extras.cluster.payloads import AttemptRefused, ClaimCodec
from scheduler.extras.cluster.remote_worker import TIME_OVER, TOO_LATE, Permit
from scheduler.extras.cluster.worker_guard import HEADER
from scheduler.model.entry import Claim, Facts
from scheduler.model.outcome import UNSENT_CALL, Failure, Outcome
from scheduler.system.orphans import find_orphans
from scheduler.system.process import Children
from scheduler.work.executor import Done, Interrupted, NeverBegun
from scheduler.work.run_extras import resources_of_run

pytestmark = [required_programs.needs("initdb"), pytest.mark.process]

LEASE = 2.0
JOBS = "select count(*) from procrastinate_jobs where queue_name = '{queue}'"


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def bench(postgres: PostgresServer, clock: SimulatedClock) -> Iterator[RemoteBench]:
    bench = RemoteBench(postgres, clock, clock.wait_until)
    yield bench
    with clock.passing():
        bench.close()


async def start_program(task: str, children: Children) -> str:
    await children.start(["sleep", "60"], stdin=b"", env={}, cwd=Path("/"))
    return task.upper()


async def take_long(task: str, children: Children) -> str:
    await asyncio.sleep(PATIENCE)
    return task


# The scheduler.


def test_results_survive_a_kill_of_the_server_and_arrive_once(clock: SimulatedClock) -> None:
    server, work = PostgresServer().start(), Work(is_open=False)
    try:
        with clock.passing(), RemoteBench(server, clock) as bench:
            bench.start_worker(work)
            executor = bench.submit("task1", "task2", "task3")
            wait_until(lambda: len(work.begun) == 3)
            server.kill()
            clock.server_hangs = True
            executor.submit(4, "task4")  # while PostgreSQL is down
            work.gate.set()
            wait_until(lambda: executor.problem is not None)
            server.start()
            assert bench.ends(executor, 4) == ["TASK1", "TASK2", "TASK3", "TASK4"]
            clock.server_hangs = False
            executor.ack([1, 2, 3, 4])
            wait_until(executor.is_flushed)
            left = "select (select count(*) from heartbeatd_attempt), (select count(*) from procrastinate_jobs)"
            assert bench.query(left) == "0|0"
    finally:
        server.close()


@pytest.mark.parametrize("first", [[], [True]], ids=["before a submission", "during a submission"])
def test_a_scheduler_submits_nothing_while_another_one_may_lead(
    bench: RemoteBench, clock: SimulatedClock, first: list[bool]
) -> None:
    answers, leads, asked = iter([*first, False]), threading.Event(), threading.Event()

    def may_submit() -> bool:
        answer = next(answers, None)
        if answer is None:
            asked.set()
        return leads.is_set() if answer is None else answer

    executor = bench.submit("a", may_submit=may_submit)
    clock.wait_until(asked.is_set)
    assert bench.query(JOBS) == "0"
    leads.set()
    clock.wait_until(executor.is_flushed)
    assert bench.query(JOBS) == "1"


def test_an_executor_receives_results_while_a_withdrawal_waits_for_the_server(bench: RemoteBench, clock: SimulatedClock) -> None:
    work, is_withdrawing = Work(is_open=False), threading.Event()

    async def never_answer(call: Call) -> Any:
        is_withdrawing.set()
        await asyncio.sleep(PATIENCE)

    bench.start_worker(work)
    executor = bench.submit_all("a", "b", kind=faulty(withdraw=never_answer))
    executor.cancel(1, "cancelled")
    clock.wait_until(is_withdrawing.is_set)
    work.gate.set()
    assert bench.ends(executor, 2) == ["A", "B"]


def test_a_task_that_cannot_be_written_is_its_own_error_and_the_next_one_runs(bench: RemoteBench) -> None:
    bench.start_worker()
    executor = bench.make_executor()
    unwritable = replace(executor.claim(1, "a"), facts=Facts(named=cast("Any", [object()])))
    RemoteExecutor.submit(executor, 1, unwritable)
    executor.submit(2, "next")
    (error, following) = bench.ends(executor, 2)
    assert (error.partition(":")[0], following) == ("PydanticSerializationError", "NEXT")


def test_a_second_scheduler_process_adopts_what_the_first_has_submitted(bench: RemoteBench, clock: SimulatedClock) -> None:
    bench.submit_all("a", "b", owner="first")
    second = bench.make_executor(owner="second")
    with clock.passing():
        assert second.adopt_runs([("first", 1, 1), ("first", 9, 1)], ["first"], lambda: False)
    assert second.inflight() == {1: "a"}  # 9 never reached the queue, and no scheduler waits for 2
    bench.start_worker()
    assert bench.ends(second) == ["A"]


@pytest.mark.parametrize("is_made", [False, True], ids=["before anything is written", "after the commit"])
@pytest.mark.parametrize("given_up", [False, True])
def test_a_run_that_is_cancelled_after_a_failed_submission_is_not_submitted(
    bench: RemoteBench, clock: SimulatedClock, is_made: bool, given_up: bool
) -> None:
    """At the moment of the cancellation, the scheduler does not know whether it still leads."""
    leads = threading.Event()
    leads.set()
    executor = bench.submit("a", may_submit=lambda: leads.is_set(), kind=faulty(submit=Once(is_made=is_made)))
    clock.wait_until(lambda: executor.problem is not None)
    leads.clear()
    if given_up:
        executor.give_up(1, Done("a", None, NeverBegun()))
    else:
        executor.cancel(1, "cancelled")
    clock.wait_until(lambda: executor.problem is None)
    assert (bench.ends(executor), executor.inflight()) == (["never begun"], {})
    executor.ack([1])
    attempts = "select count(*) from heartbeatd_attempt where owner = '{queue}'"
    clock.wait_until(lambda: bench.query(attempts) == "0")
    leads.set()
    clock.wait_until(executor.is_flushed)
    assert (bench.query(attempts), bench.query(JOBS)) == ("0", "0")


def test_a_run_that_no_worker_takes_in_time_says_that_it_needs_one_of_its_queue(bench: RemoteBench) -> None:
    executor = bench.submit_all("a")
    executor.cancel(1, "timeout")
    advice = "start one, or raise limits.concurrency there"
    assert bench.ends(executor) == [f"no worker of its queue took the run within its timeout; {advice}"]


def test_a_run_that_is_cancelled_while_a_worker_fetches_it_does_not_go_on(bench: RemoteBench, clock: SimulatedClock) -> None:
    locked = [[f"{bench.queue}/1/1"]]  # the answer to the first withdrawal

    async def withdraw(call: Call) -> Any:
        return locked.pop() if locked else await call()

    executor = bench.submit_all("a", kind=faulty(withdraw=withdraw))
    executor.cancel(1, "cancelled")
    assert bench.ends(executor) == ["never begun"]


def test_a_scheduler_that_closes_sends_what_is_left_although_the_server_no_longer_answers_its_listening_connection(
    bench: RemoteBench, clock: SimulatedClock
) -> None:
    """psycopg answers the first cancellation of the listening task by waiting for the server."""
    leads = threading.Event()
    executor = bench.submit("a", may_submit=leads.is_set)
    listening = "select pid from pg_stat_activity where pid <> pg_backend_pid() and query ~ '^(LISTEN|SELECT 1)'"
    clock.wait_until(lambda: bench.query(listening))
    pid = int(bench.query(listening).split()[0])
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
    assert bench.query(JOBS) == "1"


def test_no_worker_executes_what_an_earlier_scheduler_has_left_although_the_server_fails_in_between(
    bench: RemoteBench, clock: SimulatedClock
) -> None:
    bench.submit_all("a", owner="left-first")
    second = bench.make_executor(owner="left-second", kind=faulty(forget_all=Once()))
    with clock.passing():
        assert second.adopt_runs([], ["left-first"], lambda: False)
    assert bench.query(JOBS) == "0"


def test_after_an_interruption_workers_get_the_time_of_a_lease_to_reach_the_queue_again(
    bench: RemoteBench, clock: SimulatedClock
) -> None:
    lease, reached, reaped, fails_once = 60.0, list[float](), list[float](), Once()

    async def results(call: Call) -> Any:
        received = await fails_once(call)
        reached.append(clock.now)
        return received

    async def reap(call: Call) -> Any:
        reaped.append(clock.now)
        return await call()

    bench.submit("a", lease=lease, kind=faulty(results=results, reap=reap))
    clock.wait_until(lambda: reaped)
    assert reaped[0] - reached[0] >= lease


# Tasks that a worker does not begin.


def test_a_task_that_is_fetched_after_its_deadline_does_not_begin(bench: RemoteBench) -> None:
    """The deadline has passed in the queue. The clock of the worker's machine is ten minutes off, which makes no difference."""
    work = Work()
    bench.entries.seconds = -1.0
    executor = bench.submit_all("late")
    bench.offset = 600.0
    bench.start_worker(work)
    assert (bench.ends(executor), work.begun) == ([TOO_LATE], [])


def test_a_worker_that_is_frozen_before_a_task_begins_does_not_begin_it(bench: RemoteBench) -> None:
    class FreezingCodec(ClaimCodec):
        def read_task(self, payload: str) -> Claim:
            bench.offset = 600.0
            return super().read_task(payload)

    work = Work()
    bench.start_worker(work, lease=LEASE, codec=FreezingCodec)
    (end,) = bench.ends(bench.submit("a"))
    assert (end in ("lost", "stopped"), work.begun) == (True, [])


def test_a_worker_that_loses_its_lease_during_a_fetch_does_not_begin_the_task(bench: RemoteBench, clock: SimulatedClock) -> None:
    """The answer to the fetch comes only after the worker has registered again."""
    work, fetch = Work(), HeldBack()

    async def register(call: Call) -> Any:
        worker_id = await call()
        if fetch.has_come.is_set():
            fetch.go_on.set()
        return worker_id

    bench.start_worker(work, lease=LEASE, kind=faulty(fetch=fetch, register=register))
    executor = bench.submit("a")
    clock.wait_until(fetch.has_come.is_set)
    bench.offset = 5 * LEASE
    assert (bench.ends(executor), work.begun) == (["stopped"], [])


def test_a_worker_that_is_stopped_while_it_fetches_a_task_gives_the_task_back(
    bench: RemoteBench, clock: SimulatedClock, postgres: PostgresServer
) -> None:
    executor = bench.submit_all("a")
    fetching = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like 'update heartbeatd_attempt%'"
    with postgres.locked(bench.dsn, f"select 1 from heartbeatd_attempt where owner = '{bench.queue}' for update"):
        worker = bench.start_worker()
        clock.wait_until(lambda: bench.query(fetching) == "1")
        worker.stop()
        clock.wait_until(lambda: worker.find_problem() == "it is stopping")
    assert bench.ends(executor) == ["stopped"]


def test_a_worker_that_drains_while_it_fetches_a_task_still_carries_it_out(bench: RemoteBench, clock: SimulatedClock) -> None:
    fetch, executor = HeldBack(), bench.submit_all("a")
    worker = bench.start_worker(lease=LEASE, kind=faulty(fetch=fetch))
    clock.wait_until(fetch.has_come.is_set)
    assert bench.use(lambda queue: queue.drain("worker")) == [1]
    clock.wait_until(lambda: worker.find_problem() == "it takes no more runs")
    fetch.go_on.set()
    assert bench.ends(executor) == ["A"]


def test_a_task_that_is_cancelled_while_it_waits_for_another_config_ends_without_having_begun(
    bench: RemoteBench, clock: SimulatedClock
) -> None:
    refused = threading.Event()

    class WaitingCodec(ClaimCodec):
        def read_task(self, payload: str) -> Claim:
            refused.set()
            raise AttemptRefused("another config", may_change=True)

    bench.start_worker(codec=WaitingCodec)
    executor = bench.submit("a")
    clock.wait_until(refused.is_set)
    executor.cancel(1, "cancelled")
    assert bench.ends(executor) == ["never begun"]


@pytest.mark.parametrize(
    ("may_wait", "reload_error", "problem"),
    [
        (False, None, "maximum recursion depth exceeded"),
        (True, None, "maximum recursion depth exceeded"),
        (True, OSError("too many open files"), "too many open files"),
    ],
)
def test_a_task_that_cannot_be_read_is_refused_and_the_others_run(
    bench: RemoteBench, may_wait: bool, reload_error: OSError | None, problem: str
) -> None:
    class BrokenCodec(ClaimCodec):
        waits = may_wait

        def read_task(self, payload: str) -> Claim:
            if "broken" not in payload:
                return super().read_task(payload)
            if self.waits:
                self.waits = False
                raise AttemptRefused("another config", may_change=True)
            raise RecursionError("maximum recursion depth exceeded")

    def reload() -> None:
        if reload_error:
            raise reload_error

    executor = bench.submit_all("broken", "next")
    bench.start_worker(codec=BrokenCodec, reload=reload)
    assert bench.ends(executor, 2) == [f"worker cannot run it: {problem}", "NEXT"]
    refused = next(done.result for number, done in RemoteExecutor.results(executor) if number == 1)
    assert refused is not None
    assert (refused.outcome, refused.reason, refused.transient) == (Outcome.FAILED, Failure.EXIT, True)  # it may be retried
    assert refused.calls == (UNSENT_CALL,)  # and costs nothing


# Tasks that a worker has begun.


def test_a_worker_whose_machine_was_frozen_ends_its_tasks_and_works_on(bench: RemoteBench, clock: SimulatedClock) -> None:
    """The clock jumps by ten minutes, as after SIGSTOP and SIGCONT. PostgreSQL has not given the task away in the meantime."""
    began = threading.Event()

    async def carry(task: str, children: Children) -> str:
        began.set()
        return await start_program(task, children) if task == "slow" else task.upper()

    worker = bench.start_worker(carry, lease=LEASE)
    executor = bench.submit("slow")
    clock.wait_until(began.is_set)
    bench.offset = 600.0
    (end,) = bench.ends(executor)
    assert end in ("lost", "stopped")  # the task may have ended first, if it was about to start its program
    clock.wait_until(lambda: worker.counts["lost_leases"] == 1)
    executor.ack([1])
    executor.submit(2, "next")
    assert bench.ends(executor) == ["NEXT"]


@pytest.mark.parametrize("hurries", [False, True], ids=["after the grace", "at a second signal"])
def test_a_worker_that_stops_gives_its_tasks_back(bench: RemoteBench, clock: SimulatedClock, hurries: bool) -> None:
    worker = bench.start_worker(start_program, grace=3600.0 if hurries else 0.0)
    executor = bench.submit("a")
    clock.wait_until(lambda: worker.in_progress == 1)
    worker.stop()
    clock.wait_until(lambda: worker.find_problem() == "it is stopping")
    if hurries:
        worker.stop()
    assert bench.ends(executor) == ["stopped"]


def test_a_task_that_the_server_gives_to_its_worker_again_runs_once(bench: RemoteBench, clock: SimulatedClock) -> None:
    """After a failover that has lost the commit of the first fetch."""
    work = Work(is_open=False)
    worker = bench.start_worker(work, kind=faulty(fetch=Once(is_made=True)))
    executor = bench.submit("a")
    clock.wait_until(lambda: work.begun)
    fail_over = "update procrastinate_jobs set status = 'todo' where queue_name = '{queue}' and status = 'doing'"
    clock.wait_until(lambda: bench.query(f"{fail_over}; {JOBS} and status = 'todo'") == "1")
    executor.submit(2, "b")  # the worker fetches both
    clock.wait_until(lambda: "b" in work.begun)
    work.gate.set()
    assert bench.ends(executor, 2) == ["A", "B"]
    assert (work.begun, worker.in_progress) == (["a", "b"], 0)


def test_a_worker_ends_a_job_that_it_has_fetched_and_does_not_know(bench: RemoteBench, clock: SimulatedClock) -> None:
    """After a failover, the server says that the worker executes a job whose result it has lost. The job has the lock of its lane."""
    worker = bench.start_worker(lease=LEASE)
    executor = bench.make_executor()
    clock.wait_until(lambda: worker.find_problem() is None)
    bench.query(
        "insert into procrastinate_jobs (queue_name, task_name, lock, status, worker_id)"
        " select queue, 'x', '{queue}/agent/{queue}/a', 'doing', id from heartbeatd_worker where queue = '{queue}'"
    )
    executor.submit(1, "a")
    assert bench.ends(executor) == ["A"]


def test_a_worker_whose_lease_is_over_calls_nothing_and_is_not_ready(
    bench: RemoteBench, clock: SimulatedClock, tmp_path: Path
) -> None:
    server, problems, is_cut = Server([reply({})]), list[str | None](), threading.Event()

    async def call_agent(task: str, children: Children) -> str:
        async with new_http_client() as http:
            resources = resources_of_run(children, (), http)
            bench.offset = 600.0
            problems.append((await resources.start(["touch", "called"], stdin=b"", env={}, cwd=tmp_path)).problem)
            try:
                await resources.http.post(server.url, {}, b"", 1.0)
            except CallError as error:
                problems.append(str(error))
        return task

    async def register(call: Call) -> Any:
        if is_cut.is_set():
            raise QueueUnavailable("the network is down")
        return await call()

    worker = bench.start_worker(call_agent, lease=LEASE, kind=faulty(register=register))
    clock.wait_until(lambda: worker.find_problem() is None)
    assert Permit(worker, clock.now + 3600).allows_start()
    assert not Permit(worker, clock.now - 1).allows_start()  # the end of a task's time
    is_cut.set()
    with server:
        bench.ends(bench.submit("a"))
    assert problems == [TIME_OVER, TIME_OVER]
    assert (server.requests, list(tmp_path.iterdir())) == ([], [])
    assert worker.find_problem() is not None
    assert worker.metrics()["heartbeatd_worker_ready"] == 0.0


def test_a_lease_is_counted_from_before_the_request_for_it(bench: RemoteBench, clock: SimulatedClock) -> None:
    """The worker is frozen before it gets the answer. Another worker may have its tasks by then."""

    async def register(call: Call) -> Any:
        number = await call()
        bench.offset = 600.0
        return number

    worker = bench.start_worker(kind=faulty(register=register))
    clock.wait_until(lambda: worker.counts["lost_leases"] == 1)


@pytest.mark.parametrize(("outcome", "end"), [(Outcome.OK, "EXIT CODE -15"), (Outcome.FAILED, "lost")])
def test_only_the_success_of_a_task_counts_when_the_lease_of_its_worker_is_over(
    bench: RemoteBench, outcome: Outcome, end: str
) -> None:
    """The guard ends its program then, so that another worker can repeat the run. That is no result of the program."""

    async def carry(task: str, children: Children) -> str:
        bench.offset = 600.0
        if outcome is Outcome.OK:
            with suppress(asyncio.CancelledError):  # its answer arrives at the moment at which it is cancelled
                await asyncio.sleep(PATIENCE)
        return task.upper()

    bench.start_worker(carry, outcome=outcome)
    assert bench.ends(bench.submit("exit code -15")) == [end]


def test_the_late_result_of_a_worker_that_was_believed_lost_changes_nothing_and_is_counted(
    bench: RemoteBench, clock: SimulatedClock
) -> None:
    work = Work(is_open=False)
    lost = ClaimCodec(dict, Path(), "host").write_done(Done(None, None, Interrupted("worker was lost", was_stopped=False)))
    worker = bench.start_worker(work)
    executor = bench.submit("a")
    clock.wait_until(lambda: work.begun)

    async def reap(queue: JobQueue) -> list[str]:
        queue.lease = 0.0
        return await queue.reap([bench.queue], lambda _: lost)

    assert bench.use(reap) == [f"{bench.queue}/1/1"]
    work.gate.set()
    clock.wait_until(lambda: worker.metrics()["heartbeatd_worker_stale_results_total"] == 1)
    assert bench.ends(executor) == ["lost"]


@pytest.mark.parametrize("is_made", [False, True], ids=["before the call", "before the answer"])
@pytest.mark.parametrize("call", ["submit", "register", "renew", "fetch", "finish", "results", "forget"])
def test_a_cut_of_the_connection_loses_no_run_and_doubles_none(
    bench: RemoteBench, clock: SimulatedClock, call: str, is_made: bool
) -> None:
    """Each call of the scheduler and of the worker fails once. The result does not count as late."""
    work, fault = Work(is_open=False), Once(is_made=is_made)
    worker = bench.start_worker(work, lease=LEASE, kind=faulty(**{call: fault}))
    executor = bench.submit("a", kind=faulty(**{call: fault}))
    clock.wait_until(lambda: work.begun and (fault.has_failed or call in ("finish", "results", "forget")))
    ends_at = clock.now + LEASE
    clock.wait_until(lambda: clock.now > ends_at)  # the run lasts longer than a lease
    work.gate.set()
    assert bench.ends(executor) == ["A"]
    executor.ack([1])
    clock.wait_until(lambda: executor.is_flushed() and fault.has_failed and worker.in_progress == 0)
    assert (work.begun, worker.metrics()["heartbeatd_worker_stale_results_total"]) == (["a"], 0)
    assert bench.query(f"{JOBS}; select count(*) from heartbeatd_attempt where owner = '{{queue}}'") == "0\n0"


def test_a_worker_ends_a_task_that_its_scheduler_no_longer_wants(bench: RemoteBench, clock: SimulatedClock) -> None:
    worker = bench.start_worker(take_long)
    first = bench.submit("a", owner="unwanted-first")
    clock.wait_until(lambda: worker.in_progress == 1)
    first.give_up(1, Done("a", "given up", None))  # it does not end in time
    clock.wait_until(lambda: worker.in_progress == 0)
    first.submit(2, "b")
    clock.wait_until(lambda: worker.in_progress == 1)
    second = bench.make_executor(owner="unwanted-second")
    with clock.passing():
        assert second.adopt_runs([], ["unwanted-first"], lambda: False)  # the first was killed
    clock.wait_until(lambda: worker.in_progress == 0)


def test_the_lane_of_a_program_left_behind_is_locked_before_the_run_ends_and_free_when_it_has_gone(bench: RemoteBench) -> None:
    left, locked_at_end = list[str](), list[str]()
    query = "select lane from heartbeatd_lane where holder like '%left behind on {queue}'"

    async def finish(call: Call) -> Any:
        locked_at_end.append(bench.query(query))
        return await call()

    async def carry(task: str, children: Children) -> str:
        left[:] = [task] if task == "agent/left" else []
        return task

    bench.start_worker(carry, name=bench.queue, locked_lanes=lambda: list(left), kind=faulty(finish=finish))
    executor = bench.submit("agent/left")
    assert (bench.ends(executor), locked_at_end) == (["agent/left"], [f"{bench.queue}/agent/left"])
    executor.submit(2, "agent/other")
    assert (bench.ends(executor, 2), bench.query(query)) == (["agent/left", "agent/other"], "")


def test_the_programs_of_a_worker_end_before_another_worker_can_repeat_its_runs(
    bench: RemoteBench, clock: SimulatedClock
) -> None:
    """The guard ends them if the worker is frozen. Another worker may repeat the runs when the lease is over."""
    ends: list[tuple[float, float]] = []
    bench.start_worker(note_lease=lambda end: ends.append((clock.now, end)))
    clock.wait_until(lambda: len(ends) > 3)
    assert all(renewed_at < end < renewed_at + 60.0 for renewed_at, end in ends[1:])  # it connects before the first


# The queue when its server hangs, refuses or differs.


class Impatient(JobQueue):
    timeout = 0.5


def test_no_statement_waits_longer_than_its_timeout(bench: RemoteBench, postgres: PostgresServer) -> None:
    """Other programs lock all tables, so the server does not answer, like one that hangs."""
    tables = "heartbeatd_attempt, procrastinate_jobs, procrastinate_workers"
    locks = (f"lock table {tables}", f"select pg_advisory_xact_lock({SCHEMA_LOCK})")
    without_tables = postgres.database()

    async def try_all() -> None:
        queue, unopened = (Impatient(queue_in(each, "hanging")) for each in (bench.dsn, without_tables))
        await queue.open()
        worker = await queue.register("worker")
        with postgres.locked(without_tables, *locks[1:]), postgres.locked(bench.dsn, *locks):
            for waiting in (
                unopened.open(), queue.submit([NewAttempt("a", "owner", "a", "{}", 60.0)]), queue.withdraw(["a"], "cancelled"),
                queue.find(["a"]), queue.register("worker"), queue.renew(worker), queue.remove_dead_workers(),
                queue.fetch(worker, 1), queue.finish([(FetchedJob(1, "a", worker), "{}")]), queue.unregister(worker),
                queue.find_workers(), queue.find_waiting(), queue.is_in_progress("agent/a", "owner/1"),
                queue.find_in_progress(["owner"], 5.0),
            ):  # fmt: skip
                with pytest.raises(QueueUnavailable):
                    await asyncio.wait_for(waiting, PATIENCE)
        await queue.close()

    asyncio.run(try_all())


def problem_of(dsn: str, call: Callable[[JobQueue], Awaitable[object]] = lambda _: asyncio.sleep(0)) -> str:
    """Why the queue in a database cannot be used; empty if it can."""
    try:
        use_queue(dsn, "problems", call)
    except QueueUnavailable as error:
        return str(error)
    return ""


def test_a_queue_of_another_version_of_the_library_is_reported_as_such(postgres: PostgresServer) -> None:
    dsn = postgres.database()
    assert problem_of(dsn) == ""
    postgres.query(dsn, "drop function procrastinate_fetch_job_v2")
    assert re.fullmatch(
        r"function procrastinate_fetch_job_v2\(.*\) does not exist; the tables of the queue were created by another version of"
        r" Procrastinate than the installed 3\.\d+\.\d+; apply its migrations",
        problem_of(dsn, lambda queue: queue.fetch(1, 1)),
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
    problem = problem_of(dsn.replace("heartbeatd@", f"{user}@"), lambda queue: queue.find_workers())
    table = "table heartbeatd_worker" if has_tables else "schema public"
    assert problem == (
        f"permission denied for {table}; let the database user of `executor.dsn` own the tables of the queue, or grant it all"
        " rights for them"
    )


def test_the_doctor_creates_no_tables(tmp_path: Path, postgres: PostgresServer) -> None:
    dsn = postgres.database()
    with Cluster(tmp_path, config_of("true"), dsn) as cluster:
        assert re.search(
            r"bad +queue +the queue of the workers cannot be used: its tables do not exist yet;"
            r" `heartbeatd run` and `heartbeatd worker` create them",
            " ".join(cluster.call("doctor").split()),
        )
    assert postgres.query(dsn, "select count(*) from pg_tables where schemaname = 'public'") == "0"


def test_the_tables_of_an_emptied_queue_are_created_again(postgres: PostgresServer) -> None:
    dsn = postgres.database()

    async def empty_and_use(queue: JobQueue) -> object:
        postgres.query(dsn, "drop schema public cascade; create schema public")
        with pytest.raises(QueueUnavailable, match="does not exist"):
            await queue.find_workers()
        await queue.open()
        return await queue.find_workers()

    assert use_queue(dsn, "emptied", empty_and_use) == []


@pytest.mark.parametrize("has_begun", [False, True], ids=["before the attempt is marked as begun", "after that"])
def test_a_worker_that_is_frozen_while_it_fetches_a_job_does_not_stop_the_queue(
    bench: RemoteBench, postgres: PostgresServer, has_begun: bool
) -> None:
    name = bench.queue
    attempts = [NewAttempt(f"{name}/{number}/1", name, f"{name}/{number}", "{}", 60.0) for number in range(3)]
    fetch = f"update procrastinate_jobs set status = 'doing' where queue_name = '{name}'"
    begin = f"update heartbeatd_attempt set worker = 'frozen' where owner = '{name}'"

    async def use_beside_it(queue: JobQueue) -> None:
        opened_later = JobQueue(queue_in(bench.dsn, name))
        await queue.submit(attempts[:1])
        worker = await queue.register("worker")
        with postgres.locked(bench.dsn, fetch, *([begin] if has_begun else ())):
            await opened_later.open()
            await queue.submit(attempts[1:])
            assert await queue.withdraw([each.key for each in attempts[:2]], "timeout", "unbegun") == [attempts[0].key]
            assert await queue.results([name], []) == [AttemptEnd(attempts[1].key, "unbegun", None)]
            assert {job.key for job in await queue.fetch(worker, 4)} == {attempts[2].key}
        await opened_later.close()

    bench.use(use_beside_it)


def test_the_server_ends_the_transaction_of_a_frozen_process_before_statements_that_wait_for_it_fail(bench: RemoteBench) -> None:
    names = "'idle_in_transaction_session_timeout', 'lock_timeout', 'statement_timeout'"
    query = f"select name, setting::int as millis from pg_settings where name in ({names}) order by setting::int"
    rows = bench.use(lambda queue: queue._all(query))
    assert [(row["name"], row["millis"]) for row in rows] == [
        ("idle_in_transaction_session_timeout", 3000), ("lock_timeout", 6000), ("statement_timeout", 20_000),
    ]  # fmt: skip


# Whole processes.


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path, postgres: PostgresServer) -> Iterator[Cluster]:
    dsn = postgres.database()
    state = dsn if getattr(request, "param", "file") == "server" else "state/h.db"
    with Cluster(tmp_path, config_of(waiting_script(tmp_path), state=state), dsn) as cluster:
        yield cluster


def marks(cluster: Cluster) -> int:
    """How often the agent was called."""
    path = cluster.folder / "marks"
    return len(path.read_text().splitlines()) if path.exists() else 0


def start_run(cluster: Cluster) -> tuple[Heartbeatd, Heartbeatd]:
    """A scheduler, and a worker with a run in progress. The run ends after `finish_run`."""
    processes = cluster.start("run"), cluster.start("worker", "--name", "w1")
    wait_until(lambda: marks(cluster) == 1)
    return processes


def finish_run(cluster: Cluster) -> None:
    (cluster.folder / "gate").touch()


def end(process: Heartbeatd, number: int) -> int:
    """Send a signal to a process that ends. Returns its exit code."""
    process.send_signal(number)
    return process.wait(timeout=PATIENCE)


@pytest.mark.parametrize(
    ("cluster", "number"),
    [("file", signal.SIGKILL), ("server", signal.SIGKILL), ("file", signal.SIGTERM)],
    indirect=["cluster"],
    ids=["killed", "killed, with its state on the server", "stopped"],
)
def test_a_run_survives_the_end_of_the_scheduler_and_is_not_repeated(cluster: Cluster, number: int) -> None:
    """A scheduler that is stopped does not wait for it. Its result then comes while no scheduler runs."""
    scheduler, _ = start_run(cluster)
    assert end(scheduler, number) == (0 if number == signal.SIGTERM else -number)
    cluster.query("update heartbeatd._leader set until_at = clock_timestamp()")  # if there is one
    if number == signal.SIGTERM:
        finish_run(cluster)
        wait_until(lambda: cluster.query("select count(*) from heartbeatd_attempt where result is not null") == "1")
    cluster.start("run")
    finish_run(cluster)
    wait_until(lambda: cluster.outcomes() == ["ok"])
    assert marks(cluster) == 1
    assert cluster.query("select count(*) from heartbeatd_attempt where result is null") == "0"


def test_a_run_goes_to_a_worker_of_its_queue_and_until_then_people_see_what_it_waits_for(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    yaml = config_of("echo HEARTBEAT_OK") + "    executor: {queue: gpu}\n"
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
    _, worker = start_run(cluster)
    assert cluster.call("worker", "drain", "w1") == "w1 takes no more runs; it stops after its runs in progress: 1\n"
    finish_run(cluster)
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
        end(worker, signal.SIGKILL)
        cluster.query("update procrastinate_workers set last_heartbeat = last_heartbeat - interval '1 hour'")
        finish_run(cluster)  # ends the program of the killed worker, which holds the lane
        cluster.start("worker", "--name", "w2")
        run_until(daemon, lambda: cluster.outcomes() == ["ok"])
    assert marks(cluster) == 2
    assert re.search(r"^worker +w2$", cluster.call("show", "1"), re.MULTILINE)
    assert " ok heartbeat_ok on w2, took " in cluster.call("explain", "ops")


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
    marks = tmp_path / "marks"
    yaml = config_of(waiting_script(tmp_path)).replace("agents:\n  ops:\n", "defaults:\n") + "agents: {a: {}, b: {}}\n"
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
            finish_run(cluster)
            run_until(daemon, lambda: workers_of_runs(daemon, "closed") == ["w1", "w2"])
            wait_until(lambda: cluster.query("select count(*) from heartbeatd_attempt") == "0")
    assert sorted(marks.read_text("utf-8").split()) == ["a", "b"]  # no run was repeated


def find_programs(cluster: Cluster) -> list[int]:
    """The programs of the first run."""
    owner = cluster.query("select distinct owner from heartbeatd_attempt")
    return (find_orphans({f"{owner}/1"}) or {}).get(f"{owner}/1", [])


@pytest.mark.parametrize("how", ["killed", "killed with its guard", "frozen until its lease is over"])
def test_the_programs_of_a_worker_that_does_nothing_any_more_are_ended(cluster: Cluster, how: str) -> None:
    """By its guard, or else by the next worker."""
    _, worker = start_run(cluster)
    assert find_programs(cluster)
    (file,) = (cluster.folder / "state" / "workers").iterdir()
    if how.endswith("guard"):
        (guard,) = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()[:1]
        os.kill(int(guard), signal.SIGKILL)
    if how.startswith("frozen"):
        worker.send_signal(signal.SIGSTOP)
        with file.open("r+b") as lease_end:
            lease_end.write(f"{0:{HEADER - 1}}\n".encode())
    else:
        end(worker, signal.SIGKILL)
    if how.endswith("guard"):
        assert find_programs(cluster)
        cluster.start("worker")
    wait_until(lambda: not find_programs(cluster))
    if how == "killed":
        wait_until(lambda: "orphan_ended" in (cluster.folder / "worker.log").read_text() and not file.exists())


def test_a_cancelled_run_ends_on_its_worker(cluster: Cluster) -> None:
    start_run(cluster)
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
    yaml = config_of("echo HEARTBEAT_OK")
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


def test_without_the_libraries_the_config_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(config_of("true", state="postgresql://x@y/z"))
    done = run_without(tmp_path, ("procrastinate",), "check", "-c", str(tmp_path / "config.yaml"), DSN="postgresql://x@y/z")
    missing = "this needs an extra that is not installed; run pipx install --force './heartbeatd[cluster]' in the parent folder"
    assert done.returncode == 2
    assert f"executor.kind: {missing}" in done.stderr
    assert f"state: {missing}" in done.stderr
