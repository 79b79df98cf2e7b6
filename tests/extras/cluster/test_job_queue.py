"""Tests the queue of the workers over a real PostgreSQL: what blocks a run, what is ended, and what is counted."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import required_programs
from checkout import HOME
from patience import PATIENCE
from remote_bench import RemoteBench, queue_in, use_queue
from servers.postgres import PostgresServer

from scheduler import __version__
from scheduler.extras.cluster import job_queue
from scheduler.extras.cluster.job_queue import AttemptEnd, FetchedJob, JobQueue, NewAttempt, QueueUnavailable
from scheduler.model.daemon_health import WorkerState
from scheduler.system.boot_clock import BootClock

pytestmark = [required_programs.needs("initdb"), pytest.mark.anyio]

LEASE = 60.0
OVER = -1.0  # seconds; of a lease that ended a second ago
NAMES = (f"own{number}" for number in itertools.count(1))


class OwnQueue(JobQueue):
    """A queue that no other test uses. `owner` is the only scheduler, `lane` the lane of its agent."""

    def __init__(self, dsn: str) -> None:
        self.owner = next(NAMES)
        self.lane = f"agent/{self.owner}"
        self.dsn = dsn
        super().__init__(queue_in(dsn, self.owner))

    def attempt(self, run: int = 1) -> NewAttempt:
        """The first attempt of a run of the agent."""
        return NewAttempt(f"{self.owner}/{run}/1", self.owner, self.lane, "{}", 60.0)

    async def submit_and_fetch(self, run: int = 1) -> FetchedJob:
        """The job of an attempt that a worker has fetched."""
        await self.submit([self.attempt(run)])
        (job,) = await self.fetch(await self.register("w"), 1)
        return job

    async def fetch_again(self, job: FetchedJob, room: int = 1) -> list[str | None]:
        """The keys of the jobs that the worker of this job fetches next."""
        assert job.worker_id is not None
        return [each.key for each in await self.fetch(job.worker_id, room)]


@asynccontextmanager
async def opened(queue: JobQueue) -> AsyncIterator[None]:
    await queue.open()
    try:
        yield
    finally:
        await queue.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def own(postgres: PostgresServer) -> AsyncIterator[OwnQueue]:
    queue = OwnQueue(RemoteBench(postgres, BootClock()).dsn)
    async with opened(queue):
        yield queue


async def test_a_run_is_blocked_by_a_program_that_holds_its_lane_but_not_by_one_that_has_vanished(own: OwnQueue) -> None:
    own.lease = OVER
    await own.hold_lanes([own.lane], "vanished")
    for seconds, holder in ((LEASE, "living"), (OVER, None)):
        own.lease = seconds
        await own.hold_lanes([own.lane], "living")
        job = await own.submit_and_fetch()
        assert job.held_by == holder
        await own.finish([(job, "{}")])
        await own.forget([own.attempt().key])


async def test_commands_get_a_lane_in_turn_but_do_not_wait_for_one_that_has_vanished(own: OwnQueue) -> None:
    take = lambda name: own.take_lane(own.lane, name)  # noqa: E731
    job = await own.submit_and_fetch()
    assert await take("first") == "a run is in progress on w"
    await own.finish([(job, "{}")])
    assert await take("second") == "first has locked it"  # it has waited for longer
    own.lease = OVER
    await own.hold_lanes([own.lane], "first", is_held=False)  # its machine was suspended
    own.lease = LEASE
    for _ in range(2):  # again, because the answer was lost
        assert await take("second") is None
    assert await take("first") == "second has locked it"


async def test_a_worker_that_renewed_its_lease_too_long_ago_is_not_listed_and_no_command_waits_for_it(
    own: OwnQueue, postgres: PostgresServer
) -> None:
    job = await own.submit_and_fetch()
    renewed = "update procrastinate_workers set last_heartbeat = now() - interval '{} s'"
    for change, why, listed in (
        (renewed.format(50), "a run is in progress on w", ["w"]),
        (renewed.format(70), None, []),
        ("delete from procrastinate_workers", None, []),
    ):
        postgres.query(own.dsn, f"{change} where id = {job.worker_id}")
        assert await own.take_lane(own.lane, "command") == why
        assert [each.name for each in await own.find_workers()] == listed


async def test_clusters_in_one_database_share_no_locks_and_do_not_remove_each_others_workers(own: OwnQueue) -> None:
    """They differ in `executor.queue`. Both have an agent of the same name, and the lease of the other one is shorter."""
    other = OwnQueue(own.dsn)
    async with opened(other):
        await other.submit([replace(other.attempt(), lock=own.lane)])  # no worker takes it
        await other.hold_lanes([own.lane], "busy")
        job = await own.submit_and_fetch()
        assert (job.key, job.held_by) == (own.attempt().key, None)
        assert await other.take_lane(own.lane, "busy") is None
        other.lease = OVER
        await other.remove_dead_workers()
    assert job.worker_id is not None
    assert await own.renew(job.worker_id) is False
    own.lease = OVER
    await own.remove_dead_workers()
    assert await own.renew(job.worker_id) is None


async def test_a_program_of_an_earlier_run_is_not_taken_for_one_of_the_run_in_progress(own: OwnQueue) -> None:
    await own.submit_and_fetch(run=12)
    assert [await own.is_in_progress(own.lane, f"{own.owner}/{run}") for run in (12, 1)] == [True, False]


async def test_the_run_of_a_worker_whose_row_is_gone_is_ended_but_not_soon_after_a_start_of_the_server(own: OwnQueue) -> None:
    job = await own.submit_and_fetch()
    assert job.worker_id is not None
    await own.unregister(job.worker_id)
    for own.lease, ended in ((86400.0, []), (0.0, [job.key])):
        assert await own.reap([own.owner], lambda worker: "{}") == ended


async def test_a_job_that_nobody_wants_does_not_keep_its_lane_locked_when_its_worker_is_gone(own: OwnQueue) -> None:
    job = await own.submit_and_fetch()
    await own.forget([job.key or ""])
    following = own.attempt(run=2)
    await own.submit([following])
    for own.lease, fetched in ((LEASE, []), (OVER, [following.key])):
        await own.reap([own.owner], lambda worker: "{}")
        assert await own.fetch_again(job) == fetched


async def test_a_cancelled_run_keeps_the_lock_of_its_agent_until_its_worker_has_ended_it(own: OwnQueue) -> None:
    job, following = await own.submit_and_fetch(), own.attempt(run=2)
    await own.submit([following])
    assert await own.withdraw([job.key or ""], "cancelled") == []
    assert await own.fetch_again(job) == []
    await own.finish([(job, "{}")])
    assert await own.fetch_again(job) == [following.key]


async def test_an_attempt_whose_submission_is_being_committed_is_withdrawn_and_does_not_count_as_absent(
    own: OwnQueue, postgres: PostgresServer
) -> None:
    """Otherwise a worker would execute a cancelled run."""
    key, cancelling, answers = own.attempt().key, ThreadPoolExecutor(1), list[Future[list[str]]]()
    waiting = (
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        " and query like 'insert into heartbeatd_attempt%'"
    )

    def cancel_before_the_commit() -> bool:
        withdraw = lambda queue: queue.withdraw([key], "cancelled", "unbegun", absent=[key])  # noqa: E731
        answers.append(cancelling.submit(use_queue, own.dsn, own.owner, withdraw))
        deadline = time.monotonic() + PATIENCE
        while not answers[0].done() and postgres.query(own.dsn, waiting) == "0":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return True

    await own.submit([own.attempt()], cancel_before_the_commit)
    # If the second withdrawal were first, the attempt would be absent.
    assert await asyncio.wrap_future(answers[0]) == [key]
    assert await own.results([own.owner], []) == []
    assert await own.withdraw([key], "cancelled", "unbegun", absent=[key]) == []
    assert await own.results([own.owner], []) == [AttemptEnd(key, "unbegun", None)]


async def test_an_attempt_that_is_submitted_twice_is_executed_once(own: OwnQueue) -> None:
    job = await own.submit_and_fetch()
    await own.submit([own.attempt()])  # again, because the answer was lost
    await own.finish([(job, "{}")])
    assert await own.fetch_again(job) == []


async def test_a_scheduler_gets_its_own_results_only(own: OwnQueue) -> None:
    job = await own.submit_and_fetch()
    await own.finish([(job, "{}")])
    assert [[end.key for end in await own.results([owner], [])] for owner in (own.owner, "another")] == [[job.key], []]


async def test_a_result_is_accepted_only_from_the_worker_that_has_fetched_the_attempt(own: OwnQueue) -> None:
    job, other = await own.submit_and_fetch(), await own.register("other")
    for wrong in (replace(job, worker_id=other), replace(job, key=own.attempt(run=2).key), replace(job, job_id=job.job_id + 1)):
        assert await own.finish([(wrong, "{}")]) == set()
        assert await own.end_reasons([wrong]) == {wrong.key: "cancelled"}  # that worker is told to end it
    assert await own.end_reasons([job]) == {}
    assert [await own.finish([(job, "{}")]) for _ in range(2)] == [{job.key}, set()]


async def test_the_queue_calls_no_function_of_the_database_that_belongs_to_the_library_and_writes_none_of_its_tables() -> None:
    """These may differ in its next version. The methods of its `JobManager` are documented."""
    source = inspect.getsource(job_queue)
    assert re.findall(r"procrastinate_\w+_v\d|(?:insert into|update|delete from) procrastinate_", source) == []


@pytest.mark.parametrize(
    ("burst", "fetched", "idle"),
    [(200, 200, 20), (3000, 16, 0)],
    ids=["after a vacuum of the empty table", "without statistics"],
)
async def test_a_burst_does_not_read_the_whole_table_for_each_run(
    postgres: PostgresServer, burst: int, fetched: int, idle: int
) -> None:
    """PostgreSQL keeps a plan that it made while the table was empty. Without statistics, it compared all locks for each run."""
    own = OwnQueue(dsn := postgres.database())
    async with opened(own):
        worker = await own.register("w")
        if idle:
            postgres.query(dsn, "vacuum analyze procrastinate_jobs")
        for _ in range(idle):
            await own.fetch(worker, 16)
        attempts = [replace(own.attempt(run), lock=f"agent/{run}") for run in range(burst)]
        for start in range(0, burst, 500):
            await own.submit(attempts[start : start + 500])
        assert sum([len(await own.fetch(worker, 16)) for _ in range(0, fetched, 16)]) == fetched
    read = "select seq_tup_read, idx_tup_fetch from pg_stat_user_tables where relname = 'procrastinate_jobs'"
    by_table, by_index = map(int, postgres.query(dsn, f"select pg_stat_force_next_flush(); {read}").split()[-1].split("|"))
    assert by_table < 10 * burst
    assert idle or by_index < 2 * burst


async def test_a_worker_fetches_only_runs_of_its_queues(own: OwnQueue) -> None:
    await own.submit(
        [replace(own.attempt(run), lock=f"{own.lane}/{run}", queue=name) for run, name in enumerate(("default", "gpu", "big"))]
    )
    for serves, runs in ((["default"], [0]), (["big", "gpu"], [1, 2])):
        served = JobQueue(queue_in(own.dsn, own.owner), serves)
        async with opened(served):
            fetched = await served.fetch(await served.register("w"), 10)
        assert sorted(str(job.key) for job in fetched) == [own.attempt(run).key for run in runs]


async def test_the_runs_that_wait_are_counted_by_queue_and_those_of_another_cluster_or_in_progress_are_not(own: OwnQueue) -> None:
    await own.submit_and_fetch(run=8)
    other = JobQueue(queue_in(own.dsn, f"{own.owner}-2"))
    await own.submit([replace(own.attempt(run), queue=name) for run, name in enumerate(["gpu", "default", "gpu"])])
    async with opened(other):
        await other.submit([replace(own.attempt(run + 5), queue="gpu") for run in range(3)])
    assert {name: waiting.count for name, waiting in (await own.find_waiting()).items()} == {"default": 1, "gpu": 2}


async def test_a_worker_is_listed_with_its_queues_its_runs_and_whether_it_drains(own: OwnQueue) -> None:
    await own.submit([own.attempt()])
    serving, other = JobQueue(queue_in(own.dsn, own.owner), ["default", "gpu"]), OwnQueue(own.dsn)
    async with opened(serving), opened(other):
        await other.register("of another cluster")
        worker = await serving.register("w")
        await serving.fetch(worker, 1)
    listed = WorkerState("w", ("default", "gpu"), __version__, running=1)
    assert await own.find_workers() == [listed]
    assert (await own.drain("w"), await own.drain("other"), await own.renew(worker)) == ([1], [], True)
    assert await own.find_workers() == [replace(listed, is_draining=True)]


async def test_a_worker_works_with_the_rights_that_the_documentation_gives_to_it(postgres: PostgresServer) -> None:
    page = (HOME / "docs" / "scaling.md").read_text("utf-8")
    create_users, grant_rights = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    dsn = postgres.database()
    as_user = lambda name: JobQueue(queue_in(dsn.replace("heartbeatd@", f"heartbeatd_{name}@"), "shared"))  # noqa: E731
    postgres.query(dsn, "revoke create on schema public from public")
    postgres.query(dsn, create_users)
    attempts = [NewAttempt(f"owner/{run}/1", "owner", f"agent/{run}", "{}", 60.0) for run in (1, 2)]
    async with opened(scheduler := as_user("scheduler")):
        await scheduler.submit(attempts)
        postgres.query(dsn, grant_rights)
        async with opened(worker := as_user("worker")):
            number = await worker.register("w")
            jobs = await worker.fetch(number, 2)
            await worker.hold_lanes(["agent/1"], "w")
            await worker.release_lanes("w")
            assert (await worker.renew(number), await worker.end_reasons(jobs)) == (False, {})
            assert await worker.fetched_jobs(number, [job.job_id for job in jobs]) == []
            assert len(await worker.finish([(each, "{}") for each in jobs])) == 2
            await worker.remove_dead_workers()
            await worker.unregister(number)
            with pytest.raises(QueueUnavailable, match="permission denied for table heartbeatd_attempt"):
                await worker.submit([replace(attempts[0], key="owner/3/1")])
        assert len(await scheduler.results(["owner"], [])) == 2
    # A new version needs another table. "If the workers have only the rights above, update the scheduler first"
    postgres.query(dsn, "drop table heartbeatd_lane")
    with pytest.raises(QueueUnavailable, match="permission denied for schema public"):
        await as_user("worker").open()
    for user in ("scheduler", "worker"):
        async with opened(queue := as_user(user)):
            await queue.find_workers()
