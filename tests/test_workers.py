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
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import required_programs
from cluster_processes import Cluster
from remote_bench import RemoteBench, TextCodec
from servers.postgres import PostgresServer

from scheduler.store.job_queue import SCHEMA_LOCK, FetchedJob, JobQueue, NewAttempt, QueueUnavailable
from scheduler.system.orphans import find_orphans
from scheduler.system.process import Children
from scheduler.work.executor import Interrupted, NeverBegun
from scheduler.work.payloads import AttemptRefused

pytestmark = [required_programs.needs("initdb"), pytest.mark.process, pytest.mark.once]

PATIENCE = 60
LEASE = 2.0


@pytest.fixture
def bench(postgres: PostgresServer) -> Iterator[RemoteBench]:
    with RemoteBench(postgres) as bench:
        yield bench


def wait_until(is_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def shout(task: str, children: Children) -> str:
    return task.upper()


def test_results_survive_a_kill_of_the_server_and_arrive_once() -> None:
    server = PostgresServer().start()
    began, go_on = threading.Semaphore(0), threading.Event()

    async def carry(task: str, children: Children) -> str:
        began.release()
        while not go_on.is_set():
            await children.start(["sleep", "0.05"], stdin=b"", env={}, cwd=Path("/"))
        return task.upper()

    try:
        with RemoteBench(server) as bench:
            executor = bench.make(carry, lambda: None)
            for number in range(3):
                executor.submit(number, f"task{number}")
            for _ in range(3):
                assert began.acquire(timeout=PATIENCE)
            server.kill()
            executor.submit(3, "task3")  # while PostgreSQL is down
            go_on.set()
            wait_until(lambda: executor.problem is not None)
            server.start()
            wait_until(lambda: len(executor.results()) == 4)
            assert sorted(str(done.result) for _, done in executor.results()) == ["TASK0", "TASK1", "TASK2", "TASK3"]
            executor.ack([0, 1, 2, 3])
            wait_until(executor.is_flushed)
            assert server.query(bench.dsn.reveal(), "select count(*) from heartbeatd_attempt") == "0"
            assert server.query(bench.dsn.reveal(), "select count(*) from procrastinate_jobs") == "0"
    finally:
        server.close()


def test_the_task_of_a_worker_that_vanished_comes_back_as_interrupted(bench: RemoteBench, postgres: PostgresServer) -> None:
    executor = bench.make_executor("vanished", lambda: None, lease=LEASE)
    executor.submit(1, "a")
    wait_until(executor.is_flushed)
    wait_until(
        lambda: postgres.query(bench.dsn.reveal(), "select count(*) from procrastinate_jobs where queue_name = 'vanished'") == "1"
    )
    postgres.query(  # what a worker leaves behind that was killed a moment after it fetched the job
        bench.dsn.reveal(),
        "select job.id from procrastinate_register_worker_v1() as worker (id), procrastinate_fetch_job_v2(array['vanished'], worker.id)"
        " as job",
    )
    wait_until(executor.results)
    exception = executor.results()[0][1].exception
    assert isinstance(exception, Interrupted)
    assert not exception.was_stopped


@pytest.mark.parametrize("first", [[], [True]], ids=["before a submission", "during a submission"])
def test_a_scheduler_submits_nothing_while_another_one_may_lead(
    bench: RemoteBench, postgres: PostgresServer, first: list[bool]
) -> None:
    answers, leads, asked = iter([*first, False]), threading.Event(), threading.Event()

    def may_submit() -> bool:
        answer = next(answers, None)
        if answer is None:
            asked.set()
        return leads.is_set() if answer is None else answer

    executor = bench.make_executor(f"standby{len(first)}", lambda: None, may_submit=may_submit)
    executor.submit(1, "a")
    assert asked.wait(PATIENCE)
    count = f"select count(*) from procrastinate_jobs where queue_name = 'standby{len(first)}'"
    assert postgres.query(bench.dsn.reveal(), count) == "0"
    leads.set()
    wait_until(executor.is_flushed)
    assert postgres.query(bench.dsn.reveal(), count) == "1"


def test_a_task_that_is_fetched_after_its_deadline_does_not_begin(bench: RemoteBench) -> None:
    """The deadline passes in the queue. The clock of the worker's machine is ten minutes off, which makes no difference."""
    begun: list[str] = []

    async def carry(task: str, children: Children) -> str:
        begun.append(task)
        return task

    executor = bench.make_executor("late", lambda: None, seconds=0.2)
    executor.submit(1, "late")
    wait_until(executor.is_flushed)
    time.sleep(0.3)
    bench.start_worker("late", carry, clock=lambda: time.monotonic() + 600)
    wait_until(executor.results)
    assert begun == []
    assert "the time of the run was over" in str(executor.results()[0][1].exception)


def test_a_worker_whose_machine_was_frozen_ends_its_tasks_and_works_on(bench: RemoteBench) -> None:
    """The clock jumps by ten minutes, as after SIGSTOP and SIGCONT. PostgreSQL has not given the task away in the meantime."""
    frozen = 0.0
    began = threading.Event()

    async def carry(task: str, children: Children) -> str:
        began.set()
        if task == "slow":
            await children.start(["sleep", "60"], stdin=b"", env={}, cwd=Path("/"))
        return task.upper()

    worker = bench.start_worker("frozen", carry, lease=LEASE, clock=lambda: time.monotonic() + frozen)
    executor = bench.make_executor("frozen", lambda: None, lease=60.0)
    executor.submit(1, "slow")
    assert began.wait(PATIENCE)
    frozen = 600.0
    wait_until(executor.results)
    exception = executor.results()[0][1].exception
    assert isinstance(exception, Interrupted)
    assert worker.counts.lost_leases == 1
    executor.ack([1])
    executor.submit(2, "next")
    wait_until(executor.results)
    assert executor.results()[0][1].result == "NEXT"


def test_a_worker_that_is_frozen_before_a_task_begins_does_not_begin_it(bench: RemoteBench) -> None:
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

    clock = lambda: time.monotonic() + frozen  # noqa: E731
    bench.start_worker("freezing", carry, lease=LEASE, clock=clock, codec=FreezingCodec("freezing"))
    executor = bench.make_executor("freezing", lambda: None, seconds=3600.0)
    executor.submit(1, "a")
    wait_until(executor.results)
    assert begun == []
    assert isinstance(executor.results()[0][1].exception, Interrupted)


def test_a_worker_that_stops_gives_its_tasks_back(bench: RemoteBench) -> None:
    began = threading.Event()

    async def carry(task: str, children: Children) -> str:
        began.set()
        await children.start(["sleep", "60"], stdin=b"", env={}, cwd=Path("/"))
        return task

    worker = bench.start_worker("stopping", carry)
    executor = bench.make_executor("stopping", lambda: None)
    executor.submit(1, "a")
    assert began.wait(PATIENCE)
    worker.stop()
    wait_until(executor.results)
    exception = executor.results()[0][1].exception
    assert isinstance(exception, Interrupted)
    assert exception.was_stopped


def test_a_task_that_is_cancelled_while_it_waits_for_another_config_ends_without_having_begun(bench: RemoteBench) -> None:
    refused = threading.Event()

    class WaitingCodec(TextCodec):
        def task_from_json(self, data: Mapping[str, Any]) -> str:
            refused.set()
            raise AttemptRefused("another config", may_change=True)

    bench.start_worker("configs", shout, codec=WaitingCodec("configs"))
    executor = bench.make_executor("configs", lambda: None)
    executor.submit(1, "a")
    assert refused.wait(PATIENCE)
    executor.cancel(1, "cancelled")
    wait_until(executor.results)
    assert isinstance(executor.results()[0][1].exception, NeverBegun)


def test_no_statement_waits_longer_than_its_timeout(bench: RemoteBench, postgres: PostgresServer) -> None:
    """Other programs lock all tables, so the server does not answer, like one that hangs."""
    tables = "heartbeatd_attempt, procrastinate_jobs, procrastinate_workers"
    locks = (f"lock table {tables}", f"select pg_advisory_xact_lock({SCHEMA_LOCK})")

    async def try_all() -> None:
        queue, unopened = JobQueue(bench.dsn, "hanging", 0.2), JobQueue(bench.dsn, "hanging", 0.2)
        await queue.open()
        worker = await queue.register("worker")
        with postgres.locked(bench.dsn.reveal(), *locks):
            for waiting in (
                unopened.open(), queue.submit([NewAttempt("a", "owner", "a", "{}", 60.0)]), queue.withdraw(["a"], "cancelled"),
                queue.find(["a"]), queue.register("worker"), queue.renew(worker), queue.remove_dead_workers(1.0),
                queue.fetch(worker, "worker", 1), queue.finish([(1, "{}")]), queue.unregister(worker),
                queue.find_workers(1.0), queue.longest_wait(), queue.is_in_progress("agent/a", "owner/1"),
            ):  # fmt: skip
                with pytest.raises(QueueUnavailable):
                    await asyncio.wait_for(waiting, PATIENCE)
        await queue.close()

    asyncio.run(try_all())


def test_a_task_that_cannot_be_written_is_its_own_error_and_the_next_one_runs(bench: RemoteBench) -> None:
    executor = bench.make(shout, lambda: None)
    executor.submit(1, {1, 2})  # type: ignore[arg-type]  # JSON has no sets
    executor.submit(2, "next")
    wait_until(lambda: len(executor.results()) == 2)
    assert [(number, done.result, type(done.exception)) for number, done in executor.results()] == [
        (1, None, TypeError), (2, "NEXT", type(None)),
    ]  # fmt: skip


def test_a_second_scheduler_process_adopts_what_the_first_has_submitted(bench: RemoteBench) -> None:
    first = bench.make_executor("adopted", lambda: None, owner="first")
    first.submit(1, "a")
    first.submit(2, "b")
    wait_until(first.is_flushed)
    second = bench.make_executor("adopted", lambda: None, owner="second")
    assert second.adopt({"first/1/a": 1, "first/9/z": 9}, ["first"], lambda payload: json.loads(payload)["task"], lambda: False)
    assert second.inflight() == {1: "a"}  # 9 never reached the queue, and no scheduler waits for 2
    bench.start_worker("adopted", shout)
    wait_until(second.results)
    assert [(number, done.result) for number, done in second.results()] == [(1, "A")]


class FailingForget(JobQueue):
    """A queue that fails once when the attempts of an earlier scheduler are to be withdrawn."""

    has_failed = False

    async def forget_all(self, owners: Collection[str], but: Collection[str]) -> int:
        if not self.has_failed:
            self.has_failed = True
            raise QueueUnavailable("the server is down")
        return await super().forget_all(owners, but)


def test_no_worker_executes_what_an_earlier_scheduler_has_left_although_the_server_fails_in_between(
    bench: RemoteBench, postgres: PostgresServer
) -> None:
    first = bench.make_executor("left", lambda: None, owner="left-first")
    first.submit(1, "a")
    wait_until(first.is_flushed)
    second = bench.make_executor("left", lambda: None, owner="left-second", kind=FailingForget)
    assert second.adopt({}, ["left-first"], lambda payload: None, lambda: False)
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


def test_a_task_is_executed_although_the_answer_to_its_fetch_was_lost(bench: RemoteBench) -> None:
    executor = bench.make_executor("unheard", lambda: None)
    executor.submit(1, "a")
    bench.start_worker("unheard", shout, kind=LosingFetch)
    wait_until(executor.results)
    assert [(number, done.result) for number, done in executor.results()] == [(1, "A")]


def test_a_worker_that_is_stopped_while_it_fetches_a_task_gives_the_task_back(
    bench: RemoteBench, postgres: PostgresServer
) -> None:
    executor, dsn = bench.make_executor("fetching", lambda: None), bench.dsn.reveal()
    executor.submit(1, "a")
    wait_until(executor.is_flushed)
    fetching = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like 'update heartbeatd_attempt%'"
    with postgres.locked(dsn, "select 1 from heartbeatd_attempt where owner = 'fetching' for update"):
        worker = bench.start_worker("fetching", shout)
        wait_until(lambda: postgres.query(dsn, fetching) == "1")
        worker.stop()
        wait_until(lambda: worker.find_problem() == "it is stopping")
    wait_until(executor.results)
    exception = executor.results()[0][1].exception
    assert isinstance(exception, Interrupted)
    assert exception.was_stopped


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


def test_the_run_of_a_killed_worker_is_repeated_by_another_one(cluster: Cluster) -> None:
    cluster.start("run")
    worker = cluster.start("worker", "--name", "w1")
    wait_until(lambda: marks(cluster) == 1)
    worker.send_signal(signal.SIGKILL)
    worker.wait(timeout=PATIENCE)
    (cluster.folder / "gate").touch()  # ends the program of the killed worker, which holds the lane
    cluster.start("worker", "--name", "w2")
    wait_until(lambda: cluster.outcomes() == ["ok"])
    assert marks(cluster) == 2
    assert re.search(r"^worker +w2$", cluster.call("show", "1"), re.MULTILINE)
    assert " ok heartbeat_ok on w2, took " in cluster.call("explain", "ops")


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


def test_the_programs_of_a_frozen_worker_are_ended_before_another_worker_can_repeat_its_run(cluster: Cluster) -> None:
    cluster.start("run")
    worker = cluster.start("worker")
    wait_until(lambda: marks(cluster) == 1)
    worker.send_signal(signal.SIGSTOP)
    wait_until(lambda: not find_programs(cluster))
    assert cluster.query("select count(*) from heartbeatd_attempt where result is null") == "1"  # not given away yet
    worker.send_signal(signal.SIGCONT)


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
    cluster.start("worker", "--listen", "127.0.0.1:0")
    log = cluster.folder / "worker.log"
    wait_until(lambda: "cannot_run" in log.read_text())
    assert "entry=agent/other" in log.read_text()
    url = re.search(r"listen=(\S+)", log.read_text())
    assert url is not None
    wait_until(lambda: get(url[1] + "/healthz") == "ok\n")
    assert "heartbeatd_worker_ready 1\n" in get(url[1] + "/metrics")


def test_the_daemon_reports_that_its_workers_or_their_queue_are_gone(tmp_path: Path) -> None:
    server = PostgresServer().start()
    yaml = AGENT.format(script="echo HEARTBEAT_OK", state="state/h.db")
    try:
        with Cluster(tmp_path, yaml, server.database()) as cluster:
            cluster.start("run")
            log = tmp_path / "run.log"
            wait_until(lambda: log.exists() and "listen=" in log.read_text())
            url = re.search(r"listen=(\S+)", log.read_text())
            assert url is not None
            metrics = lambda: get(f"{url[1]}/metrics")  # noqa: E731
            wait_until(lambda: "heartbeatd_queue_oldest_timestamp_seconds " in metrics())
            assert "heartbeatd_queue_available 1\nheartbeatd_workers 0" in without_comments(metrics())
            assert "workers: no worker is running; start `heartbeatd worker`" in cluster.call("status")
            assert get(f"{url[1]}/readyz") == '{"ok":true}'  # the daemon does its own part
            cluster.start("worker", "--name", "b-1")
            wait_until(lambda: "heartbeatd_workers 1" in metrics())
            assert "workers: " not in cluster.call("status")
            assert re.search(r"ok +queue +1 worker: b-1\n", cluster.call("doctor"))
            server.kill()
            wait_until(lambda: "the queue of the workers cannot be used: " in get(f"{url[1]}/readyz"))
            assert "heartbeatd_queue_available 0" in metrics()
            assert "heartbeatd_workers " not in without_comments(metrics())
            assert "workers: the queue of the workers cannot be used" in cluster.call("status")
            assert re.search(r"bad +queue +the queue of the workers cannot be used", cluster.call("doctor"))
            server.start()
            wait_until(lambda: get(f"{url[1]}/readyz") == '{"ok":true}')
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
    command = [sys.executable, "-m", "scheduler", "run", "--once", "-c", str(tmp_path / "config.yaml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path.cwd()) as process:
        assert process.stderr is not None
        wait_until(lambda: handles_hangups(process.pid))
        process.send_signal(signal.SIGINT)
        *log, error = process.stderr.read().splitlines()
    assert process.returncode == 1
    assert error.startswith("heartbeatd: stopped while it waited for the queue of the workers: ")
    assert not [line for line in log if line.startswith("Traceback")]


def test_a_daemon_without_workers_imports_nothing_of_the_extra() -> None:
    code = "import sys, scheduler.app, scheduler.cli.run; print({'procrastinate', 'psycopg', 'psycopg_pool'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


def test_without_the_extra_the_config_is_refused_in_one_line(tmp_path: Path) -> None:
    """The folder of the package's metadata is hidden by a program that runs with another import path."""
    (tmp_path / "config.yaml").write_text(AGENT.format(script="true", state="state/h.db"))
    hide = "import importlib.metadata as m, sys; old = m.version\ndef version(n):\n  if n == 'procrastinate': raise m.PackageNotFoundError(n)\n  return old(n)\nm.version = version\nfrom scheduler.cli.main import main; sys.exit(main(['check']))"
    done = subprocess.run(
        [sys.executable, "-c", hide], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "DSN": "postgresql://x@y/z"},
    )  # fmt: skip
    assert done.returncode == 2
    assert "executor.kind: this needs heartbeatd[cluster]; write: pip install 'heartbeatd[cluster]'" in done.stderr
