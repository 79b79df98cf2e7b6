"""The queue in PostgreSQL between a scheduler and its workers: attempts are submitted as jobs, and their results come back.

Procrastinate's tables hold the jobs, and `heartbeatd_attempt` holds what belongs to them: the payload, the deadline and the
result. `heartbeatd_lane` has the locks that a program on some machine holds for all machines, or waits for. The lock of a
run in progress needs no row there: its job has the lock. Deadlines and leases are compared by the clock of the database only.
The library is an optional extra of the package, and only this file imports it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, TypeVar

import psycopg
from procrastinate import PsycopgConnector, exceptions
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager
from procrastinate.schema import SchemaManager
from psycopg.rows import TupleRow

from scheduler import __version__
from scheduler.extras.cluster.postgresql import CONNECTION_DEFAULTS, IDENTITY
from scheduler.model.daemon_health import DEFAULT_QUEUE, WaitingRuns, WorkerState
from scheduler.model.settings import DEFAULT_CLUSTER, RemoteQueue
from scheduler.system.process import EndReason

T = TypeVar("T")

TASK = "heartbeatd.attempt"
RESULT_CHANNEL = "heartbeatd_result"
KEPT_DAYS = 7
MAX_CONNECTIONS = 4  # of one process, in addition to the one that waits for notifications
CONNECT_TIMEOUT = 5.0  # seconds that a statement waits for a connection
RECONNECT_TIMEOUT = 3.0  # seconds; the pool's pauses between attempts double, and start again from the shortest after this time
STATEMENT_TIMEOUT = 20.0  # seconds; schedulers and workers must notice a server that hangs
LISTEN_RETRY = 0.5  # seconds until it listens again, after PostgreSQL could not be reached
LOCKED_RETRY = 0.1  # seconds until a withdrawal is tried again
IDLE_TIMEOUT = 3.0  # seconds after which the server ends a transaction whose process is frozen or cut off
# Seconds. Longer than IDLE_TIMEOUT, so that the server ends the transaction of a frozen process before statements that wait for
# its locks fail.
LOCK_TIMEOUT = 6.0
# The server closes the connections of a host that is gone, as CONNECTION_DEFAULTS does on the side of the client.
SERVER_KEEPALIVES = {
    "tcp_keepalives_idle": "5", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3", "tcp_user_timeout": "8000",
}  # fmt: skip
SERVER_SETTING = "heartbeatd.server"  # of a connection: the identity of its server; empty if that is not known
OWN_SERVER = f"nullif(current_setting('{SERVER_SETTING}'), '')"
MAY_HAVE_BEGUN = "the server of the queue was replaced, and the run may have been executed before"
SCHEMA_LOCK = 7_436_021_955  # any number: of the advisory lock under which tables are created

SCHEMA = """
create table if not exists heartbeatd_attempt (
    key text primary key,
    owner text not null,
    job_id bigint,
    payload text not null,
    deadline timestamptz not null,
    created_at timestamptz not null default now(),
    worker text,
    started_at timestamptz,
    end_reason text,
    result text,
    ended_at timestamptz
);
create index if not exists heartbeatd_attempt_job on heartbeatd_attempt (job_id);
create index if not exists heartbeatd_attempt_result on heartbeatd_attempt (owner) where result is not null;
create table if not exists heartbeatd_lane (
    id bigint generated always as identity,
    lane text not null,
    holder text not null,
    is_held boolean not null,
    until_at timestamptz not null,
    primary key (lane, holder)
);
create table if not exists heartbeatd_worker (
    id bigint primary key,
    queue text not null,
    name text not null,
    serves text[] not null,
    version text not null,
    is_draining boolean not null
);
"""
RELATIONS = ["procrastinate_jobs", *re.findall(r"if not exists (\w+)", SCHEMA)]
IS_COMPLETE = "select not exists (select from unnest(%s::text[]) as wanted (name) where to_regclass(name) is null)"

READ_IDENTITY = f"select ({IDENTITY[0]}) || '/' || ({IDENTITY[1]})"
# A server whose commits wait for a synchronous standby loses none.
MAY_LOSE_COMMITS = (
    f"select {OWN_SERVER} as server where current_setting('synchronous_standby_names') = ''"
    " or current_setting('synchronous_commit') in ('off', 'local')"
)
LIVING_WORKERS = (
    "select id from heartbeatd_worker join procrastinate_workers using (id) where queue = %(cluster)s"
    " and last_heartbeat > clock_timestamp() - make_interval(secs => %(lease)s)"
)
IN_CLUSTER = "(queue_name = %(cluster)s or starts_with(queue_name, %(cluster)s || '/'))"
FIND_RESULTS = (
    "select key, result as payload, worker from heartbeatd_attempt where owner = any(%(owners)s) and result is not null"
    " and key <> all(%(known)s) order by ended_at limit 1000"
)
FIND_IN_PROGRESS = (
    "select key, worker from heartbeatd_attempt where owner = any(%(owners)s) and worker is not null and result is null"
    " and created_at <= clock_timestamp() - make_interval(secs => %(seconds)s)"
)
BEGIN_ATTEMPTS = (
    "update heartbeatd_attempt set worker = (select name from heartbeatd_worker where id = %(worker_id)s), started_at = now()"  # noqa: S608 (a constant)
    " from unnest(%(id)s::bigint[], %(lock)s::text[], %(servers)s::text[]) as job (id, lock, server)"
    " where job_id = job.id and result is null"
    " returning job_id, key, payload, extract(epoch from deadline - clock_timestamp())::float8,"
    " (select holder from heartbeatd_lane where lane = job.lock and until_at > clock_timestamp() order by id limit 1),"
    f" coalesce(job.server <> {OWN_SERVER}, false)"
)
HOLD_LANES = (
    "insert into heartbeatd_lane (lane, holder, is_held, until_at)"
    " select lane, %(holder)s, %(is_held)s, clock_timestamp() + make_interval(secs => %(seconds)s)"
    " from unnest(%(lanes)s::text[]) as wanted (lane) on conflict (lane, holder) do update"
    " set until_at = excluded.until_at, is_held = heartbeatd_lane.is_held or excluded.is_held"
)
LANE_OBSTACLES = (
    "select holder || ' has locked it' as why from heartbeatd_lane as other"  # noqa: S608 (a constant)
    " where lane = %(lane)s and holder <> %(holder)s and until_at > clock_timestamp() and (is_held or id < coalesce("
    "(select id from heartbeatd_lane as own where own.lane = %(lane)s and own.holder = %(holder)s), 0))"
    " union all select 'a run is in progress on ' || coalesce(attempt.worker, 'a worker') from procrastinate_jobs as job"
    " join heartbeatd_attempt as attempt on attempt.job_id = job.id"
    f" where job.lock = %(lane)s and job.status = 'doing' and job.worker_id in ({LIVING_WORKERS}) limit 1"
)
RELEASE_LANES = (
    "delete from heartbeatd_lane where (holder = %(holder)s and lane <> all(%(but)s))"
    " or until_at < clock_timestamp() - make_interval(days => %(days)s)"
)
CLAIM = ("job_id", "key", "worker_id")  # of a `FetchedJob`
# The jobs of these attempts that are still those of the worker that has fetched them.
CLAIMED = (
    "select wanted.number, job.id, wanted.key from unnest(%(job_id)s::bigint[], %(key)s::text[], %(worker_id)s::bigint[])"
    " with ordinality as wanted (id, key, worker_id, number) join procrastinate_jobs as job on job.id = wanted.id"
    " and job.status = 'doing' and (job.worker_id = wanted.worker_id or job.worker_id is null)"
    " left join heartbeatd_attempt as attempt on attempt.job_id = job.id"
    " where attempt.key is null or attempt.key = wanted.key"
)
END_ATTEMPTS = (
    f"with mine as ({CLAIMED} for update of job),"  # noqa: S608 (a constant)
    " ended as (update heartbeatd_attempt as attempt set result = (%(results)s::text[])[mine.number], ended_at = now()"
    " from mine where attempt.job_id = mine.id and attempt.key = mine.key and attempt.result is null"
    " returning attempt.key, attempt.owner),"
    " notified as (select pg_notify(%(channel)s, owner) from (select distinct owner from ended) as owners)"
    " select mine.id, ended.key, (select count(*) from notified) from mine left join ended on ended.key = mine.key"
)
END_REASONS = (
    f"with mine as ({CLAIMED})"  # noqa: S608 (a constant)
    " select wanted.key, coalesce(end_reason, 'cancelled') as why from unnest(%(key)s::text[]) as wanted (key)"
    " left join mine on mine.key = wanted.key"
    " left join heartbeatd_attempt as attempt on attempt.job_id = mine.id and attempt.key = mine.key"
    " where attempt.key is null or end_reason is not null"
)
# Of jobs in progress whose workers are lost: those without an attempt, which would keep their agents locked, and those of a
# scheduler. None for as long as a lease after a start of the server, so that workers can reach it first. One that another process
# has locked must not delay the others.
FIND_LOST = (
    "with lost as (select id, worker_id from procrastinate_jobs where status = 'doing'"  # noqa: S608 (constants)
    f" and {IN_CLUSTER} and (worker_id is null or worker_id not in ({LIVING_WORKERS}))"
    " and pg_postmaster_start_time() < now() - make_interval(secs => %(lease)s)),"
    " own as (select key, job_id, worker from heartbeatd_attempt where owner = any(%(owners)s) and result is null"
    " and job_id in (select id from lost) for update skip locked)"
    " select lost.id, lost.worker_id, own.key, own.worker from lost left join own on own.job_id = lost.id"
    " where own.key is not null or not exists (select from heartbeatd_attempt where job_id = lost.id)"
)
# Rows that another process has locked are left out: it fetches or ends the job at this moment, or is frozen.
WITHDRAW = (
    "with mine as (select attempt.key, job.id, job.status = 'todo' as waits,"  # noqa: S608 (a constant)
    f" coalesce(job.args ->> 'server' <> {OWN_SERVER}, false) as may_have_begun from heartbeatd_attempt as attempt"
    " join procrastinate_jobs as job on job.id = attempt.job_id where attempt.key = any(%(keys)s) and attempt.result is null"
    " for update of attempt, job skip locked)"
    " update heartbeatd_attempt as attempt set end_reason = %(why)s, ended_at = case when waits then now() end,"
    " result = case when waits then case when may_have_begun then %(lost)s else %(unbegun)s end end"
    " from mine where attempt.key = mine.key returning mine.id, waits"
)
# Inserting a key waits for a submission of it whose commit is still under way.
END_ABSENT = (
    "insert into heartbeatd_attempt (key, owner, payload, deadline, result, ended_at)"
    " select key, regexp_replace(key, '/[^/]+/[^/]+$', ''), '', now(), %(unbegun)s, now()"  # the owner is its first part
    " from unnest(%(keys)s::text[]) as new (key) on conflict (key) do nothing"
)
FIND_OPEN = (
    "select key from heartbeatd_attempt as attempt join procrastinate_jobs as job on job.id = job_id"
    " where key = any(%(keys)s) and result is null and end_reason is distinct from %(why)s"
)
RUNNING = "(select count(*) from procrastinate_jobs where worker_id = worker.id and status = 'doing') as running"
FIND_WORKERS = (
    f"select name, serves as queues, version, is_draining, {RUNNING}"  # noqa: S608 (constants)
    f" from heartbeatd_worker as worker where id in ({LIVING_WORKERS}) order by name, id"
)
DRAIN = (
    "update heartbeatd_worker as worker set is_draining = true"  # noqa: S608 (constants)
    f" where name = %(name)s and id in ({LIVING_WORKERS}) returning {RUNNING}"
)
FIND_DEAD_WORKERS = f"select id from heartbeatd_worker where queue = %(cluster)s and id not in ({LIVING_WORKERS})"  # noqa: S608 (constants)
FIND_WAITING = (
    "select substr(queue_name, length(%(cluster)s) + 2) as queue, count(*),"  # noqa: S608 (a constant)
    " extract(epoch from clock_timestamp() - min(created_at))::float8 as longest from heartbeatd_attempt"
    f" join procrastinate_jobs as job on job.id = job_id where status = 'todo' and {IN_CLUSTER} group by queue_name"
)
MAX_FETCHED = 16  # jobs at a time

NO_RIGHTS = "let the database user of `executor.dsn` own the tables of the queue, or grant it all rights for them"
OTHER_VERSION = "the tables of the queue were created by another version of Procrastinate than the installed"

logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # QueueUnavailable reports the same, once


class QueueUnavailable(Exception):
    """PostgreSQL cannot be reached, or does not carry out a statement now. The message is one line."""


@dataclass(frozen=True, slots=True)
class NewAttempt:
    """An attempt to submit. Of all jobs with the same `lock` only one runs at a time. `seconds` is the time until its deadline.

    `key` is unique: submitting it again has no effect. `server` is the only server on which it may begin; None: on each. Only
    workers of `queue` may fetch it.
    """

    key: str
    owner: str
    lock: str
    payload: str
    seconds: float
    server: str | None = None
    queue: str = DEFAULT_QUEUE


@dataclass(frozen=True, slots=True)
class FetchedJob:
    """A job that a worker has fetched. `key` None: its attempt was withdrawn. `seconds_left` is negative after its deadline.

    `job_id` alone is not enough to name it: after a failover of the server that has lost commits, another job may get it. So
    `worker_id` is the registration of the worker when it fetched the job. `held_by` is the program that has its lock for all
    machines; None if none has. `may_have_begun`: it was submitted to a server that this one has replaced, and that may have lost
    that a worker has executed it.
    """

    job_id: int
    key: str | None
    worker_id: int | None
    payload: str = ""
    seconds_left: float = 0.0
    held_by: str | None = None
    may_have_begun: bool = False


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The result of an attempt, and the name of the worker that has fetched it; None if none has."""

    key: str
    payload: str
    worker: str | None


class JobQueue:
    """One process's connections to the queues of one cluster, for one event loop. Every method raises QueueUnavailable.

    A worker takes jobs of the queues in `serves`. QueueUnavailable is also raised for a statement that takes longer than
    `timeout` seconds.
    """

    timeout = STATEMENT_TIMEOUT

    def __init__(self, remote: RemoteQueue, serves: Sequence[str] = (DEFAULT_QUEUE,)) -> None:
        self.lease = remote.lease.total_seconds()
        self._cluster = remote.name
        self._serves = serves
        self._served = [self._name_of(each) for each in serves]  # as Procrastinate knows them
        # Another cluster may have an agent of the same name. The default has the locks of earlier versions.
        self._lock_prefix = "" if remote.name == DEFAULT_CLUSTER else f"{remote.name}/"
        self._settings = {
            **SERVER_KEEPALIVES,
            "statement_timeout": f"{self.timeout:.3f}s",
            "lock_timeout": f"{LOCK_TIMEOUT:.3f}s",
            "idle_in_transaction_session_timeout": f"{IDLE_TIMEOUT:.3f}s",
            # PostgreSQL keeps the plan of the function that fetches jobs. A plan that was made while the table was empty reads
            # the whole table for each job: https://github.com/procrastinate-org/procrastinate/issues/1242
            "enable_seqscan": "off",
            # Without statistics, it would compare the lock of each waiting job with all others, and sort them, for each job.
            "enable_bitmapscan": "off",
            "jit": "off",  # a table without an index then seems so expensive that each statement would be compiled
        }
        self._conninfo = remote.dsn.reveal()
        self._options: dict[str, object] = {**CONNECTION_DEFAULTS, "connect_timeout": int(CONNECT_TIMEOUT)}
        self._connector = PsycopgConnector(
            conninfo=self._conninfo,
            kwargs=self._options,
            min_size=1,
            max_size=MAX_CONNECTIONS,
            timeout=CONNECT_TIMEOUT,
            reconnect_timeout=RECONNECT_TIMEOUT,
            configure=self._configure,
        )
        self._manager = JobManager(self._connector)
        self._is_open = False
        self._opening = asyncio.Lock()

    async def open(self, *, may_create: bool = True) -> None:
        """Connect, and create the tables that are missing. Does nothing if that has been done.

        Without `may_create`, nothing is written, and missing tables are an error.
        """
        async with self._opening:
            if self._is_open:
                return
            try:
                async with self._in_time():  # the pool would try again for 30 s, and not say why it cannot connect
                    async with await psycopg.AsyncConnection.connect(self._conninfo, **self._options) as db:
                        await self._configure(db)
                    await self._connector.open_async()
                    await self._prepare_tables(may_create)
            except BaseException:
                await self.close()
                raise
            self._is_open = True

    async def close(self) -> None:
        """Close all connections."""
        self._is_open = False
        async with self._translating_errors():
            await self._connector.close_async()

    async def _configure(self, db: psycopg.AsyncConnection[TupleRow]) -> None:
        settings = self._settings | {SERVER_SETTING: await _read_identity(db)}
        await db.execute(
            "select set_config(name, value, false) from unnest(%s::text[], %s::text[]) as new (name, value)",
            (list(settings), list(settings.values())),
        )
        await db.commit()

    async def _prepare_tables(self, may_create: bool) -> None:
        """Create the tables that are missing. If none is, no lock is taken: `create index` would wait for open transactions."""
        async with self._connector.pool.connection() as db:
            if await (await db.execute(IS_COMPLETE, (RELATIONS,))).fetchone() == (True,):
                return
            if not may_create:
                raise QueueUnavailable("its tables do not exist yet; `heartbeatd run` and `heartbeatd worker` create them")
            await db.execute("select pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
            found = await (await db.execute("select to_regclass('procrastinate_jobs')")).fetchone()
            if found == (None,):
                await db.execute(SchemaManager.get_schema())
            await db.execute(SCHEMA)

    def _name_of(self, queue: str) -> str:
        """The name of a queue in Procrastinate."""
        return self._cluster if queue == DEFAULT_QUEUE else f"{self._cluster}/{queue}"

    # What a scheduler calls.

    async def find_server(self) -> str | None:
        """The server on which alone an attempt may begin that is submitted now, or None: see `NewAttempt`.

        A server that replaces this one may have lost that a worker has begun it. Ask before the attempt is submitted at first.
        """
        rows = await self._all(MAY_LOSE_COMMITS)
        return rows[0]["server"] if rows else None

    async def submit(self, attempts: Sequence[NewAttempt], may_submit: Callable[[], bool] = lambda: True) -> None:
        """Submit attempts as jobs that are due now, in one transaction. It is not committed if `may_submit` is false at its end.

        If the connection is lost during it, the server rolls it back before another scheduler leads.
        """
        async with self._transaction() as (db, manager):
            rows = await db.execute(
                "insert into heartbeatd_attempt (key, owner, payload, deadline)"
                " select key, owner, payload, now() + make_interval(secs => seconds)"
                " from unnest(%(key)s::text[], %(owner)s::text[], %(payload)s::text[], %(seconds)s::float8[])"
                " as new (key, owner, payload, seconds)"
                " on conflict (key) do nothing returning key",
                _columns(attempts, "key", "owner", "payload", "seconds"),
            )
            new = {key for (key,) in await rows.fetchall()}
            jobs = [
                Job(
                    id=None, queue=self._name_of(each.queue), lock=self._lock_prefix + each.lock, queueing_lock=None,
                    task_name=TASK, task_kwargs={"attempt": each.key, "server": each.server},
                )
                for each in attempts
                if each.key in new
            ]  # fmt: skip
            if not jobs:
                return
            created = await manager.batch_defer_jobs_async(jobs)
            await db.execute(
                "update heartbeatd_attempt set job_id = new.id from unnest(%s::text[], %s::bigint[]) as new (key, id)"
                " where heartbeatd_attempt.key = new.key",
                ([job.task_kwargs["attempt"] for job in created], [job.id for job in created]),
            )
            if not may_submit():
                raise QueueUnavailable("this daemon was frozen or cut off, and another one may lead")

    async def find(self, keys: Collection[str]) -> dict[str, str]:
        """The payloads of those attempts that exist, by key."""
        rows = await self._all("select key, payload from heartbeatd_attempt where key = any(%(keys)s)", keys=list(keys))
        return {row["key"]: row["payload"] for row in rows}

    async def results(self, owners: Collection[str], known: Collection[str]) -> list[AttemptEnd]:
        """The results of attempts of these owners that have ended, without those that are `known`."""
        rows = await self._all(FIND_RESULTS, owners=list(owners), known=list(known))
        return [AttemptEnd(**row) for row in rows]

    async def find_in_progress(self, owners: Collection[str], seconds: float) -> dict[str, str]:
        """The workers of attempts in progress, by the key, that these owners submitted at least so many seconds ago."""
        rows = await self._all(FIND_IN_PROGRESS, owners=list(owners), seconds=seconds)
        return {row["key"]: row["worker"] for row in rows}

    async def withdraw(
        self, keys: Sequence[str], why: EndReason, unbegun: str = "", lost: str = "", absent: Sequence[str] = ()
    ) -> list[str]:
        """End the attempts that no worker has fetched, and ask for the end of the others. Returns those to withdraw again.

        Another process fetches or ends these, or has just submitted them. What is ended gets the result `unbegun`, or `lost` if
        it may have begun. Those of `absent` that are not in the queue get `unbegun`, and can no longer be submitted. It waits
        until a submission of these is committed, and for no other lock.
        """
        arguments = {"keys": list(keys), "why": why, "unbegun": unbegun, "lost": lost}
        async with self._transaction() as (db, manager):
            for job_id, is_waiting in await (await db.execute(WITHDRAW, arguments)).fetchall():
                # The worker is notified of the first reason only.
                await manager.cancel_job_by_id_async(job_id, abort=not is_waiting, delete_job=is_waiting)
            if absent:
                await db.execute(END_ABSENT, arguments | {"keys": sorted(absent)})
            return [key for (key,) in await (await db.execute(FIND_OPEN, arguments)).fetchall()]

    async def forget(self, keys: Sequence[str]) -> None:
        """Delete attempts whose results are recorded, or no longer wanted."""
        await self._run("delete from heartbeatd_attempt where key = any(%(keys)s)", keys=list(keys))

    async def forget_all(self, owners: Collection[str], but: Collection[str]) -> int:
        """Withdraw and delete every attempt of these owners, except some. Returns their number.

        What owners that never came back have left is deleted after `KEPT_DAYS`.
        """
        async with self._transaction() as (db, manager):
            rows = await db.execute(
                "delete from heartbeatd_attempt where coalesce(ended_at, deadline) < now() - make_interval(days => %s)"
                " returning job_id",
                (KEPT_DAYS,),
            )
            for (job_id,) in await rows.fetchall():
                await manager.cancel_job_by_id_async(job_id, delete_job=True)  # unless a worker has fetched it
        others = "select key from heartbeatd_attempt where owner = any(%(owners)s) and key <> all(%(but)s)"
        found = await self._all(others, owners=list(owners), but=list(but))
        left = keys = [row["key"] for row in found]
        while left and (left := await self.withdraw(left, "cancelled")):
            await asyncio.sleep(LOCKED_RETRY)  # for at most IDLE_TIMEOUT, if a worker was frozen while it fetched one
        await self.forget(keys)
        return len(keys)

    async def reap(self, owners: Collection[str], result: Callable[[str], str]) -> list[str]:
        """End the attempts whose workers have not renewed their lease; returns their keys. `result` gets the worker's name."""
        rows = await self._all(FIND_LOST, cluster=self._cluster, owners=list(owners), lease=self.lease)
        lost = [(FetchedJob(row["id"], row["key"], row["worker_id"]), result(row["worker"] or "its worker")) for row in rows]
        return sorted(await self.finish(lost)) if lost else []

    async def find_workers(self) -> list[WorkerState]:
        """The workers that have renewed their lease, by name."""
        rows = await self._all(FIND_WORKERS, cluster=self._cluster, lease=self.lease)
        return [WorkerState(**row | {"queues": tuple(row["queues"])}) for row in rows]

    async def find_waiting(self) -> dict[str, WaitingRuns]:
        """The attempts that wait for a worker, by queue."""
        rows = await self._all(FIND_WAITING, cluster=self._cluster)
        return {row["queue"] or DEFAULT_QUEUE: WaitingRuns(row["count"], row["longest"]) for row in rows}

    async def drain(self, name: str) -> list[int]:
        """Let the workers with this name take no more jobs. Returns for each how many it has in progress."""
        rows = await self._all(DRAIN, name=name, cluster=self._cluster, lease=self.lease)
        return [row["running"] for row in rows]

    # What a worker calls.

    async def register(self, name: str, *, is_draining: bool = False) -> int:
        """Register a worker; returns its id."""
        async with self._transaction() as (db, manager):
            worker_id: int = await manager.register_worker()
            await db.execute(
                "insert into heartbeatd_worker (id, queue, name, serves, version, is_draining) values (%s, %s, %s, %s, %s, %s)",
                (worker_id, self._cluster, name, list(self._serves), __version__, is_draining),
            )
        return worker_id

    async def unregister(self, worker_id: int) -> None:
        """Remove a worker that has stopped."""
        async with self._transaction() as (db, manager):
            await manager.unregister_worker(worker_id)
            await db.execute("delete from heartbeatd_worker where id = %s", (worker_id,))

    async def renew(self, worker_id: int) -> bool | None:
        """Renew the lease of a worker. Returns whether it is to take no more jobs; None: its registration was removed."""
        async with self._in_time():
            await self._manager.update_heartbeat(worker_id)
        registered = "select is_draining from procrastinate_workers join heartbeatd_worker using (id) where id = %(id)s"
        rows = await self._all(registered, id=worker_id)
        return bool(rows[0]["is_draining"]) if rows else None

    async def remove_dead_workers(self) -> None:
        """Remove the workers of this cluster that have not renewed their lease for ten times its length.

        Other clusters may have longer leases. So may programs that use the tables of the library for themselves.
        """
        for row in await self._all(FIND_DEAD_WORKERS, cluster=self._cluster, lease=10 * self.lease):
            await self.unregister(row["id"])

    async def fetch(self, worker_id: int, room: int) -> list[FetchedJob]:
        """Fetch jobs that may run now, at most `room`, and not more than `MAX_FETCHED`."""
        async with self._transaction() as (db, manager):
            if (first := await manager.fetch_job(self._served, worker_id)) is None:
                return []
            # One answer and one commit for several jobs save most of the time.
            async with db.pipeline():
                others = (manager.fetch_job(self._served, worker_id) for _ in range(min(room, MAX_FETCHED) - 1))
                jobs = [first, *(job for job in await asyncio.gather(*others) if job is not None)]
            return await self._begin_attempts(db, jobs, worker_id)

    async def fetched_jobs(self, worker_id: int, but: Collection[int]) -> list[FetchedJob]:
        """The jobs that a worker has fetched, except those that it knows: the answer to a fetch may have been lost."""
        async with self._transaction() as (db, manager):
            found = await manager.list_jobs_async(status=Status.DOING.value, worker_id=worker_id)
            jobs = [job for job in found if job.id not in but]
            return await self._begin_attempts(db, jobs, worker_id) if jobs else []

    async def _begin_attempts(
        self, db: psycopg.AsyncConnection[TupleRow], jobs: Sequence[Job], worker_id: int
    ) -> list[FetchedJob]:
        servers = [job.task_kwargs.get("server") for job in jobs]
        columns = _columns(jobs, "id", "lock")
        rows = await (await db.execute(BEGIN_ATTEMPTS, {"worker_id": worker_id, "servers": servers, **columns})).fetchall()
        begun = {job_id: FetchedJob(job_id, key, worker_id, *more) for job_id, key, *more in rows}
        return [begun.get(job.id) or FetchedJob(job.id, None, worker_id) for job in jobs]

    async def hold_lanes(self, lanes: Collection[str], holder: str, *, is_held: bool = True) -> None:
        """Take locks for all machines, or wait for them in turn if not `is_held`. It ends after a lease without a repeat.

        From now on no run of these agents begins. Runs in progress continue.
        """
        locks = [self._lock_prefix + lane for lane in lanes]
        await self._run(HOLD_LANES, lanes=locks, holder=holder, seconds=self.lease, is_held=is_held)

    async def take_lane(self, lane: str, holder: str) -> str | None:
        """Take a lock for all machines, or prolong its time. Returns what the holder, in its turn, must still wait for."""
        await self.hold_lanes([lane], holder, is_held=False)
        # Waits for a worker that is fetching a job of this agent at the moment.
        lock = self._lock_prefix + lane
        await self._run("select 1 from procrastinate_jobs where lock = %(lock)s and status = 'todo' for share", lock=lock)
        rows = await self._all(LANE_OBSTACLES, lane=lock, holder=holder, cluster=self._cluster, lease=self.lease)
        if rows:
            return str(rows[0]["why"])
        await self.hold_lanes([lane], holder)
        return None

    async def release_lanes(self, holder: str, but: Collection[str] = ()) -> None:
        """Release all locks of a holder, except some. Rows of holders that have vanished are deleted too."""
        kept = [self._lock_prefix + lane for lane in but]
        await self._run(RELEASE_LANES, holder=holder, but=kept, days=KEPT_DAYS)

    async def is_in_progress(self, lane: str, run_mark: str) -> bool:
        """Whether a worker executes a run with this mark, `<owner>/<run id>`, of this agent."""
        async with self._in_time():
            jobs = await self._manager.list_jobs_async(status=Status.DOING.value, lock=self._lock_prefix + lane)
        return any(str(job.task_kwargs.get("attempt")).startswith(f"{run_mark}/") for job in jobs)

    async def finish(self, results: Sequence[tuple[FetchedJob, str]]) -> set[str]:
        """End attempts with their results, and notify the schedulers. Returns the keys of those whose results were accepted.

        A result is accepted only from the worker that has fetched the attempt, and only the first one.
        """
        arguments = {"results": [result for _, result in results], "channel": RESULT_CHANNEL}
        claimed = _columns([job for job, _ in results], *CLAIM)
        async with self._transaction() as (db, manager):
            rows = await (await db.execute(END_ATTEMPTS, claimed | arguments)).fetchall()
            async with db.pipeline():
                for job_id, _, _ in rows:
                    await manager.finish_job_by_id_async(job_id, Status.SUCCEEDED, delete_job=True)
        return {key for _, key, _ in rows if key is not None}

    async def end_reasons(self, attempts: Sequence[FetchedJob]) -> dict[str, EndReason]:
        """The attempts in progress that must end: the reason by key.

        An attempt that no longer exists, or that the server has given to another worker, is `cancelled`.
        """
        rows = await self._all(END_REASONS, **_columns(attempts, *CLAIM))
        return {row["key"]: row["why"] for row in rows}

    # What both call.

    async def listen_for_results(self, notify: Callable[[str], None]) -> None:
        """Call `notify` with the owner of each new result. Ends by a cancellation only."""

        async def call_back(*, channel: str, payload: str) -> None:  # noqa: ARG001 (the library passes it)
            notify(payload)

        await self._listen(partial(self._connector.listen_notify, on_notification=call_back, channels=[RESULT_CHANNEL]))

    async def listen_for_jobs(self, notify: Callable[[str], None]) -> None:
        """Call `notify` with the kind of the news if there is a new job, or one is to end. Ends by a cancellation only."""

        async def call_back(*, channel: str, notification: Mapping[str, str]) -> None:  # noqa: ARG001 (the library passes it)
            notify(notification["type"])

        await self._listen(partial(self._manager.listen_for_jobs, on_notification=call_back, queues=self._served))

    async def _listen(self, listen: Callable[[], Awaitable[None]]) -> None:
        while True:
            with suppress(QueueUnavailable):
                await self.open()
                async with self._translating_errors():
                    await listen()
            await asyncio.sleep(LISTEN_RETRY)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[tuple[psycopg.AsyncConnection[TupleRow], JobManager]]:
        """A transaction: its connection, and the manager of jobs that does everything in it."""
        async with self._in_time(), self._connector.pool.connection() as db:
            connector = PsycopgConnector()
            # What a connector uses of a pool: it gives this connection, in whose transaction everything is done.
            await connector.open_async(SimpleNamespace(connection=partial(nullcontext, db)))
            yield db, JobManager(connector)

    async def _all(self, statement: str, **arguments: object) -> list[dict[str, Any]]:
        async with self._in_time():
            rows: list[dict[str, Any]] = await self._connector.execute_query_all_async(statement, **arguments)
        return rows

    async def _run(self, statement: str, **arguments: object) -> None:
        async with self._in_time():
            await self._connector.execute_query_async(statement, **arguments)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        async with self._translating_errors(), asyncio.timeout(self.timeout):
            yield

    @asynccontextmanager
    async def _translating_errors(self) -> AsyncIterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise QueueUnavailable(f"the server did not answer within {self.timeout:g} s") from error
        except (exceptions.ConnectorException, exceptions.AppNotOpen, psycopg.Error, OSError) as error:
            cause = error.__cause__ or error if isinstance(error, exceptions.ConnectorException) else error
            if isinstance(cause, psycopg.errors.UndefinedTable):
                self._is_open = False  # the database was emptied
            raise QueueUnavailable(_problem_of(cause)) from error


def ask_queue(remote: RemoteQueue, ask: Callable[[JobQueue], Awaitable[T]], *, may_create: bool = True) -> T:
    """The answer of the queue to a command, over connections of its own. Raises QueueUnavailable. `may_create`: as in `open`."""

    async def connect_and_ask() -> T:
        queue = JobQueue(remote)
        try:
            await queue.open(may_create=may_create)
            return await ask(queue)
        finally:
            with suppress(QueueUnavailable):
                await queue.close()

    return asyncio.run(connect_and_ask())


async def _read_identity(db: psycopg.AsyncConnection[TupleRow]) -> str:
    """As `read_server_identity`, but empty if not all of it can be read.

    Raises psycopg.Error on a standby: after its promotion, the identity of an open connection would not be known.
    """
    try:
        found = await (await db.execute(READ_IDENTITY)).fetchone()
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFunction):
        await db.rollback()
        return ""
    return str(found[0]) if found else ""


def _columns(values: Sequence[object], *names: str) -> dict[str, object]:
    return {name: [getattr(each, name) for each in values] for name in names}


def _problem_of(error: BaseException) -> str:
    """The first line of an error, with what a person can do if the statement can never work.

    The connection string is not in it: PostgreSQL's own errors do not contain it.
    """
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, psycopg.errors.UndefinedFunction):
        return f"{line}; {OTHER_VERSION} {version('procrastinate')}; apply its migrations"
    return f"{line}; {NO_RIGHTS}" if isinstance(error, psycopg.errors.InsufficientPrivilege) else line
