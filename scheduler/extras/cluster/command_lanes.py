"""Locks an agent for a command, such as `heartbeatd busy`, on all machines."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from datetime import timedelta
from typing import TypeVar

from heartbeatd.state_folder import RUN_ID_VARIABLE
from scheduler.extras.cluster.job_queue import JobQueue, QueueUnavailable, ask_queue
from scheduler.extras.cluster.payloads import lock_of_lane, missing_secret
from scheduler.extras.cluster.postgresql import LEADER_LOCK, WRITER_SETTINGS, ServerConnection
from scheduler.model.expected_error import InputError
from scheduler.model.settings import RemoteQueue
from scheduler.store.lane_holds import COMMAND, COMMAND_HOLD, SERVER_NOW
from scheduler.system.lanes import ClusterProblem

T = TypeVar("T")

KEEPS_PER_LEASE = 10

OTHER = (
    "select holder from hold where name = %(name)s and holder <> %(holder)s and holder like %(commands)s"  # noqa: S608
    f" and until_at > {SERVER_NOW} limit 1"
)
# A command takes the lock alone, and thus waits until the transaction of the leader has ended.
HOLD_LANE = f"""
select pg_advisory_xact_lock({LEADER_LOCK}, tableoid::int) from _leader;
insert into hold (name, holder, until_at) select %(name)s, %(holder)s, {SERVER_NOW} + %(millis)s where not exists ({OTHER})
  on conflict (name, holder) do update set until_at = excluded.until_at;
select ({OTHER}) as other, until_at > clock_timestamp() as leads, (select id from run where state = 'running'
  and (kind = 'heartbeat' and name = %(name)s or kind = 'cron' and name = any(%(jobs)s)) limit 1) as running from _leader
"""  # noqa: S608 (constants)


class QueueLane:
    """A lock in the queue of the workers: see `ClusterLane`."""

    def __init__(self, name: str, remote: RemoteQueue, holder: str) -> None:
        if problem := missing_secret(remote):
            raise InputError(f"cannot lock {name!r} on the other machines: {problem}")
        self._lock = lock_of_lane(name)
        self._remote = remote
        self._lease = remote.lease.total_seconds()
        self._holder = holder
        self.keep_every = self._lease / KEEPS_PER_LEASE

    def is_own_run(self) -> bool:
        mark = os.environ.get(RUN_ID_VARIABLE)
        return mark is not None and self._call(lambda queue: queue.is_in_progress(self._lock, mark))

    def take(self) -> str | None:
        return self._call(self._take)

    async def _take(self, queue: JobQueue) -> str | None:
        await queue.hold_lanes([self._lock], self._holder, self._lease, is_held=False)
        obstacle = await queue.find_lane_obstacle(self._lock, self._holder, self._lease)
        if obstacle is None:
            await queue.hold_lanes([self._lock], self._holder, self._lease, is_held=True)
        return obstacle

    def keep(self) -> None:
        self._call(lambda queue: queue.hold_lanes([self._lock], self._holder, self._lease, is_held=True))

    def release(self) -> None:
        self._call(lambda queue: queue.release_lanes(self._holder))

    def _call(self, ask: Callable[[JobQueue], Awaitable[T]]) -> T:
        try:
            return ask_queue(self._remote, ask)
        except QueueUnavailable as error:
            raise ClusterProblem(str(error)) from error


class ServerLane:
    """A lock in the database of several daemons, one of which leads: see `ClusterLane`. `jobs` are the jobs of this agent."""

    keep_every = COMMAND_HOLD.total_seconds() / KEEPS_PER_LEASE

    def __init__(self, name: str, server: str, jobs: Sequence[str], holder: str) -> None:
        self._name = name
        self._server = server
        self._jobs = jobs
        self._holder = holder

    def is_own_run(self) -> bool:
        return False  # the caller has asked the database already

    def take(self) -> str | None:
        return self._call(lambda db: try_to_hold_lane(db, self._name, self._jobs, self._holder))

    def keep(self) -> None:
        self.take()

    def release(self) -> None:
        self._call(lambda db: db.execute("delete from hold where name = ? and holder = ?", (self._name, self._holder)))

    def _call(self, ask: Callable[[ServerConnection], T]) -> T:
        try:
            with closing(ServerConnection(self._server, WRITER_SETTINGS)) as db:
                return ask(db)
        except sqlite3.Error as error:
            raise ClusterProblem(str(error)) from error


def try_to_hold_lane(db: ServerConnection, name: str, jobs: Sequence[str], holder: str) -> str | None:
    """Hold a lock for a command on any host. Returns what the command must wait for.

    None: the command has the lock, as long as it calls this again within `COMMAND_HOLD`. `jobs` are the jobs of this agent. It
    waits until the transaction of the leader has ended, so that no run begins at the same time, and does not block the renewal
    of the lease. All statements are sent at once, so a frozen command keeps no lock. The clock of the server decides, also when
    a daemon on any host looks for holds.
    """
    millis = COMMAND_HOLD // timedelta(milliseconds=1)
    values = {"name": name, "holder": holder, "commands": f"{COMMAND}%", "millis": millis, "jobs": [*jobs]}
    (row,) = db.execute_at_once(HOLD_LANE, values)
    if row["other"] is not None:
        return f"{row['other']} has locked it"
    return f"run {row['running']} is in progress" if row["running"] and row["leads"] else None
