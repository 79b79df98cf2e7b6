"""What the core calls for a database on a PostgreSQL server.

`ServerStores` in scheduler/store/locations.py lists the functions. In addition, scheduler/engine/standby.py calls `make_standby`,
and scheduler/cli/busy.py calls `make_lane`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from typing import TypeVar

from scheduler.extras.cluster.leadership import ServerStandby, lead_for_a_command
from scheduler.extras.cluster.postgresql import (
    LEADER_LOCK,
    WRITER_SETTINGS,
    ServerConnection,
    open_for_writing,
    open_read_only,
)
from scheduler.store.lane_holds import COMMAND, COMMAND_HOLD, SERVER_NOW
from scheduler.system.lanes import ClusterProblem

__all__ = ["lead_for_a_command", "make_lane", "make_standby", "open_for_writing", "open_read_only"]

T = TypeVar("T")

KEEPS_PER_HOLD = 10

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


class ServerLane:
    """A lock in the database of several daemons, one of which leads: see `ClusterLane`. `jobs` are the jobs of this agent."""

    keep_every = COMMAND_HOLD.total_seconds() / KEEPS_PER_HOLD

    def __init__(self, name: str, server: str, jobs: Sequence[str], holder: str) -> None:
        self._name = name
        self._server = server
        self._jobs = jobs
        self._holder = holder

    def is_own_run(self) -> bool:
        return False  # the caller has asked the database already

    def take(self) -> str | None:
        return self._call(self.take_over)

    def take_over(self, db: ServerConnection) -> str | None:
        """`take` over this connection.

        It waits until the transaction of the leader has ended, so that no run begins at the same time, and does not block the
        renewal of the lease. All statements are sent at once, so a frozen command keeps no lock. The clock of the server decides,
        also when a daemon on any host looks for holds.
        """
        millis = COMMAND_HOLD // timedelta(milliseconds=1)
        values = {"name": self._name, "holder": self._holder, "commands": f"{COMMAND}%", "millis": millis, "jobs": [*self._jobs]}
        (row,) = db.execute_at_once(HOLD_LANE, values)
        if row["other"] is not None:
            return f"{row['other']} has locked it"
        return f"run {row['running']} is in progress" if row["running"] and row["leads"] else None

    def release(self) -> None:
        self._call(lambda db: db.execute("delete from hold where name = ? and holder = ?", (self._name, self._holder)))

    def _call(self, ask: Callable[[ServerConnection], T]) -> T:
        try:
            with closing(ServerConnection(self._server, WRITER_SETTINGS)) as db:
                return ask(db)
        except sqlite3.Error as error:
            raise ClusterProblem(str(error)) from error


make_standby = ServerStandby
make_lane = ServerLane
