"""Tests the queue of the workers over a real PostgreSQL: what blocks a run, what is ended, and what is counted."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import pytest
import required_programs
from checkout import HOME
from patience import PATIENCE
from remote_bench import RemoteBench, use_queue
from servers.postgres import PostgresServer

from heartbeatd.secret import Secret
from scheduler import __version__
from scheduler.extras.cluster import job_queue
from scheduler.extras.cluster.job_queue import (
    AttemptEnd,
    FetchedJob,
    JobQueue,
    NewAttempt,
    QueueUnavailable,
    UnbegunEnds,
)
from scheduler.model.daemon_health import WorkerState
from scheduler.system.boot_clock import BootClock

pytestmark = required_programs.needs("initdb")

LEASE = 60.0
ENDS = UnbegunEnds("owner", "unbegun", "lost")
OVER = -1.0  # seconds; of a lease that ended a second ago
T = TypeVar("T")
NAMES = (f"own{number}" for number in itertools.count(1))


class OwnQueue:
    """A queue that no other test uses. `owner` is the only scheduler, `lane` the lane of its agent."""

    def __init__(self, dsn: Secret) -> None:
        self.owner = next(NAMES)
        self.lane = f"agent/{self.owner}"
        self.dsn = dsn

    def use(self, act: Callable[[JobQueue], Awaitable[T]], queue: str | None = None, serves: Sequence[str] = ("default",)) -> T:
        """The result of `act` over new connections."""
        return use_queue(self.dsn, queue or self.owner, act, serves=serves)

    def attempt(self, run: int = 1) -> NewAttempt:
        """The first attempt of a run of the agent."""
        return NewAttempt(f"{self.owner}/{run}/1", self.owner, self.lane, "{}", 60.0)

    async def submit_and_fetch(self, queue: JobQueue) -> tuple[int, FetchedJob]:
        """A worker, and the job of an attempt that it has fetched."""
        await queue.submit([self.attempt()])
        worker = await queue.register("w")
        (job,) = await queue.fetch(worker, "w", 1)
        return worker, job


@pytest.fixture
def own(postgres: PostgresServer) -> OwnQueue:
    return OwnQueue(RemoteBench(postgres, BootClock()).dsn)


def test_a_run_is_blocked_by_a_program_that_holds_its_lane_but_not_by_one_that_has_vanished(own: OwnQueue) -> None:
    async def fetch(queue: JobQueue) -> str | None:
        await queue.hold_lanes([own.lane], "vanished", OVER, is_held=True)
        await queue.hold_lanes([own.lane], holder, seconds, is_held=True)
        _worker, job = await own.submit_and_fetch(queue)
        await queue.finish([(job, "{}")])
        await queue.forget([own.attempt().key])
        return job.held_by

    holder, seconds = "living", LEASE
    assert own.use(fetch) == "living"
    seconds = OVER
    assert own.use(fetch) is None


def test_commands_get_a_lane_in_turn_but_do_not_wait_for_one_that_has_vanished(own: OwnQueue) -> None:
    async def take_turns(queue: JobQueue) -> list[str | None]:
        obstacle = lambda name: queue.find_lane_obstacle(own.lane, name, LEASE)  # noqa: E731
        await queue.hold_lanes([own.lane], "first", LEASE, is_held=False)
        await queue.hold_lanes([own.lane], "second", LEASE, is_held=False)
        found = [await obstacle("first"), await obstacle("second")]
        await queue.hold_lanes([own.lane], "first", OVER, is_held=False)  # its machine was suspended
        found.append(await obstacle("second"))
        await queue.hold_lanes([own.lane], "second", LEASE, is_held=True)
        await queue.hold_lanes([own.lane], "first", LEASE, is_held=False)
        await queue.hold_lanes([own.lane], "second", LEASE, is_held=False)  # again, because the answer was lost
        return [*found, await obstacle("first")]

    assert own.use(take_turns) == [None, "first has locked it", None, "second has locked it"]


def test_a_worker_that_renewed_its_lease_too_long_ago_is_not_listed_and_no_command_waits_for_it(
    own: OwnQueue, postgres: PostgresServer
) -> None:
    async def ask(queue: JobQueue) -> list[object]:
        worker, _ = await own.submit_and_fetch(queue)
        found: list[object] = []
        for change in (
            *(f"update {workers} set last_heartbeat = now() - interval '{age} s'" for age in (50, 70)),
            f"delete from {workers}",
        ):
            postgres.query(own.dsn.reveal(), f"{change} where id = {worker}")
            found += [
                await queue.find_lane_obstacle(own.lane, "command", LEASE),
                [each.name for each in await queue.find_workers(LEASE)],
            ]
        return found

    workers = "procrastinate_workers"
    assert own.use(ask) == ["a run is in progress on w", ["w"], None, [], None, []]


def test_a_program_of_an_earlier_run_is_not_taken_for_one_of_the_run_in_progress(own: OwnQueue) -> None:
    async def ask(queue: JobQueue) -> list[bool]:
        await queue.submit([own.attempt(run=12)])
        await queue.fetch(await queue.register("w"), "w", 1)
        return [await queue.is_in_progress(own.lane, f"{own.owner}/{run}") for run in (12, 1)]

    assert own.use(ask) == [True, False]


def test_the_run_of_a_worker_whose_row_is_gone_is_ended_but_not_soon_after_a_start_of_the_server(own: OwnQueue) -> None:
    async def reap(queue: JobQueue) -> list[list[str]]:
        worker, _ = await own.submit_and_fetch(queue)
        await queue.unregister(worker)
        return [await queue.reap([own.owner], lease, lambda worker: "{}") for lease in (86400.0, 0.0)]

    assert own.use(reap) == [[], [own.attempt().key]]


def test_a_job_that_nobody_wants_does_not_keep_its_lane_locked_when_its_worker_is_gone(own: OwnQueue) -> None:
    async def fetch_next(queue: JobQueue) -> list[list[str | None]]:
        worker, job = await own.submit_and_fetch(queue)
        await queue.forget([job.key or ""])
        await queue.submit([own.attempt(run=2)])
        found = []
        for lease in (LEASE, OVER):
            await queue.reap([own.owner], lease, lambda worker: "{}")
            found.append([each.key for each in await queue.fetch(worker, "w", 1)])
        return found

    assert own.use(fetch_next) == [[], [own.attempt(run=2).key]]


def test_only_workers_of_this_queue_with_a_lease_are_listed(own: OwnQueue) -> None:
    async def list_workers(queue: JobQueue) -> list[list[str]]:
        await queue.register("w")
        return [[each.name for each in await queue.find_workers(lease)] for lease in (LEASE, OVER)]

    own.use(lambda queue: queue.register("other"), queue=f"{own.owner}-other")
    assert own.use(list_workers) == [["w"], []]


def test_a_run_in_progress_no_longer_waits_for_a_worker(own: OwnQueue) -> None:
    async def ask(queue: JobQueue) -> list[bool]:
        await queue.submit([own.attempt()])
        waits = [bool(await queue.find_waiting())]
        await queue.fetch(await queue.register("w"), "w", 1)
        return [*waits, bool(await queue.find_waiting())]

    assert own.use(ask) == [True, False]


def test_a_cancelled_run_keeps_the_lock_of_its_agent_until_its_worker_has_ended_it(own: OwnQueue) -> None:
    async def cancel(queue: JobQueue) -> list[object]:
        worker, job = await own.submit_and_fetch(queue)
        await queue.submit([own.attempt(run=2)])
        again = await queue.withdraw([job.key or ""], "cancelled", ENDS)
        before = await queue.fetch(worker, "w", 1)
        await queue.finish([(job, "{}")])
        (following,) = await queue.fetch(worker, "w", 1)
        return [again, before, following.key]

    assert own.use(cancel) == [[], [], own.attempt(run=2).key]


def test_an_attempt_whose_submission_is_being_committed_is_withdrawn_and_does_not_count_as_absent(
    own: OwnQueue, postgres: PostgresServer
) -> None:
    """Otherwise a worker would execute a cancelled run."""
    key = own.attempt().key
    cancelling = ThreadPoolExecutor(1)

    def waits_for_a_lock() -> bool:
        waiting = (
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
            " and query like 'insert into heartbeatd_attempt%'"
        )
        return postgres.query(own.dsn.reveal(), waiting) != "0"

    def cancel_before_the_commit() -> bool:
        answer = cancelling.submit(own.use, lambda queue: queue.withdraw([key], "cancelled", ENDS, [key]))
        deadline = time.monotonic() + PATIENCE
        while not answer.done() and not waits_for_a_lock():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        answers.append(answer)
        return True

    async def submit(queue: JobQueue) -> list[AttemptEnd]:
        await queue.submit([own.attempt()], cancel_before_the_commit)
        await asyncio.wait([asyncio.wrap_future(answers[0])])  # if the second withdrawal were first, the attempt would be absent
        assert await queue.results([own.owner], []) == []
        assert await queue.withdraw([key], "cancelled", ENDS, [key]) == []
        return await queue.results([own.owner], [])

    answers: list[Future[list[str]]] = []
    assert own.use(submit) == [AttemptEnd(key, ENDS.unbegun, None)]
    assert [answer.result(20) for answer in answers] == [[key]]


def test_an_attempt_that_is_submitted_twice_is_executed_once(own: OwnQueue) -> None:
    async def submit_twice(queue: JobQueue) -> list[FetchedJob]:
        worker, job = await own.submit_and_fetch(queue)
        await queue.submit([own.attempt()])  # again, because the answer was lost
        await queue.finish([(job, "{}")])
        return await queue.fetch(worker, "w", 1)

    assert own.use(submit_twice) == []


def test_a_scheduler_gets_its_own_results_only(own: OwnQueue) -> None:
    async def finish(queue: JobQueue) -> list[list[str]]:
        _worker, job = await own.submit_and_fetch(queue)
        await queue.finish([(job, "{}")])
        return [[end.key for end in await queue.results([owner], [])] for owner in (own.owner, "another")]

    assert own.use(finish) == [[own.attempt().key], []]


def test_a_result_is_accepted_only_from_the_worker_that_has_fetched_the_attempt(own: OwnQueue) -> None:
    async def write_results(queue: JobQueue) -> list[object]:
        _, mine = await own.submit_and_fetch(queue)
        other = await queue.register("other")
        wrong = [replace(mine, worker_id=other), replace(mine, key=own.attempt(run=2).key), replace(mine, job_id=mine.job_id + 1)]
        written: list[object] = [await queue.finish([(each, "{}")]) for each in wrong]
        written += [await queue.end_reasons([each]) for each in (*wrong, mine)]  # the others are told to end theirs
        return [*written, await queue.finish([(mine, "{}")]), await queue.finish([(mine, "{}")])]

    key, other_key = own.attempt().key, own.attempt(run=2).key
    assert own.use(write_results) == [
        set(), set(), set(), {key: "cancelled"}, {other_key: "cancelled"}, {key: "cancelled"}, {}, {key}, set(),
    ]  # fmt: skip


def test_the_queue_calls_no_function_of_the_database_that_belongs_to_the_library_and_writes_none_of_its_tables() -> None:
    """These may differ in its next version. The methods of its `JobManager` are documented."""
    source = inspect.getsource(job_queue)
    assert re.findall(r"procrastinate_\w+_v\d|(?:insert into|update|delete from) procrastinate_", source) == []


@pytest.mark.parametrize(
    ("burst", "fetched", "idle"),
    [(200, 200, 20), (3000, 16, 0)],
    ids=["after a vacuum of the empty table", "without statistics"],
)
def test_a_burst_does_not_read_the_whole_table_for_each_run(
    postgres: PostgresServer, burst: int, fetched: int, idle: int
) -> None:
    """PostgreSQL keeps a plan that it made while the table was empty. Without statistics, it compared all locks for each run."""
    dsn = postgres.database()
    own = OwnQueue(Secret(dsn))

    async def fetch(queue: JobQueue) -> int:
        worker = await queue.register("w")
        if idle:
            postgres.query(dsn, "vacuum analyze procrastinate_jobs")
        for _ in range(idle):
            await queue.fetch(worker, "w", 16)
        attempts = [replace(own.attempt(run), lock=f"agent/{run}") for run in range(burst)]
        for start in range(0, burst, 500):
            await queue.submit(attempts[start : start + 500])
        return sum([len(await queue.fetch(worker, "w", 16)) for _ in range(0, fetched, 16)])

    assert own.use(fetch) == fetched
    read = "select seq_tup_read, idx_tup_fetch from pg_stat_user_tables where relname = 'procrastinate_jobs'"
    by_table, by_index = map(int, postgres.query(dsn, f"select pg_stat_force_next_flush(); {read}").split()[-1].split("|"))
    assert by_table < 10 * burst
    assert idle or by_index < 2 * burst


def test_a_worker_fetches_only_runs_of_its_queues(own: OwnQueue) -> None:
    async def submit(queue: JobQueue) -> None:
        await queue.submit([replace(own.attempt(run), lock=f"{own.lane}/{run}", queue=name) for run, name in enumerate(queues)])

    async def fetch(queue: JobQueue) -> list[str | None]:
        worker = await queue.register("w")
        return sorted(str(job.key).split("/")[1] for job in await queue.fetch(worker, "w", 10))

    queues = ("default", "gpu", "big")
    own.use(submit)
    assert own.use(fetch) == ["0"]
    assert own.use(fetch, serves=["big", "gpu"]) == ["1", "2"]


def test_the_runs_that_wait_are_counted_by_queue_and_those_of_another_cluster_are_not(own: OwnQueue) -> None:
    async def submit(queue: JobQueue) -> dict[str, int]:
        await queue.submit([replace(own.attempt(run), queue=name) for run, name in enumerate(["gpu", "default", "gpu"])])
        await other.submit([replace(own.attempt(run + 5), queue="gpu") for run in range(3)])
        return {name: waiting.count for name, waiting in (await queue.find_waiting()).items()}

    async def with_another(queue: JobQueue) -> dict[str, int]:
        await other.open()
        try:
            return await submit(queue)
        finally:
            await other.close()

    other = JobQueue(own.dsn, f"{own.owner}-2")
    assert own.use(with_another) == {"default": 1, "gpu": 2}


def test_a_worker_is_listed_with_its_queues_its_runs_and_whether_it_drains(own: OwnQueue) -> None:
    async def list_twice(queue: JobQueue) -> list[object]:
        worker, _ = await own.submit_and_fetch(queue)
        before = await queue.find_workers(LEASE)
        return [before, await queue.drain("w", LEASE), await queue.drain("other", LEASE), await queue.renew(worker)]

    (before,), running, nobody, renewal = own.use(list_twice, serves=["default", "gpu"])  # type: ignore[misc, attr-defined]
    assert before == WorkerState("w", ("default", "gpu"), __version__, running=1)
    assert (running, nobody, renewal) == ([1], [], True)


def test_the_row_of_a_worker_of_an_earlier_version_is_read_and_its_table_gets_the_new_columns(postgres: PostgresServer) -> None:
    dsn = postgres.database()
    old = OwnQueue(Secret(dsn))
    old.use(lambda queue: queue.register("new"))
    for column in ("serves", "version", "is_draining"):
        postgres.query(dsn, f"alter table heartbeatd_worker drop column {column}")
    found = old.use(lambda queue: queue.find_workers(LEASE))
    assert found == [WorkerState("new", ("default",))]


def test_a_worker_works_with_the_rights_that_the_documentation_gives_to_it(postgres: PostgresServer) -> None:
    page = (HOME / "docs" / "scaling.md").read_text("utf-8")
    create_users, grant_rights = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    dsn = postgres.database()
    as_user = lambda name: OwnQueue(Secret(dsn.replace("heartbeatd@", f"heartbeatd_{name}@")))  # noqa: E731
    postgres.query(dsn, "revoke create on schema public from public")
    postgres.query(dsn, create_users)
    scheduler, worker = as_user("scheduler"), as_user("worker")
    attempts = [scheduler.attempt(run) for run in (1, 2)]
    scheduler.use(lambda queue: queue.submit([replace(each, lock=f"{each.lock}{each.key}") for each in attempts]), "shared")
    postgres.query(dsn, grant_rights)

    async def work(queue: JobQueue) -> list[object]:
        number = await queue.register("w")
        jobs = await queue.fetch(number, "w", 2)
        await queue.hold_lanes([scheduler.lane], "w", LEASE, is_held=True)
        await queue.release_lanes("w")
        found: list[object] = [await queue.renew(number), await queue.end_reasons(jobs)]
        found += [await queue.fetched_jobs(number, "w", [job.job_id for job in jobs])]
        found += [len(await queue.finish([(each, "{}") for each in jobs]))]
        await queue.remove_dead_workers(LEASE)
        await queue.unregister(number)
        return found

    assert worker.use(work, "shared") == [False, {}, [], 2]
    with pytest.raises(QueueUnavailable, match="permission denied for table heartbeatd_attempt"):
        worker.use(lambda queue: queue.submit([worker.attempt()]), "shared")
    assert len(scheduler.use(lambda queue: queue.results([scheduler.owner], []), "shared")) == 2
    # A new version needs another column. "If the workers have only the rights above, update the scheduler first"
    postgres.query(dsn, "alter table heartbeatd_worker drop column is_draining")
    with pytest.raises(QueueUnavailable, match="permission denied for schema public"):
        worker.use(lambda queue: queue.register("w"), "shared")
    scheduler.use(lambda queue: queue.find_workers(LEASE), "shared")
    worker.use(lambda queue: queue.register("w"), "shared")
