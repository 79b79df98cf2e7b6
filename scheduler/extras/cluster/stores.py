"""What the core calls for a database on a PostgreSQL server, and the standby of a daemon until it has the lease of the server.

`ServerStores` in scheduler/store/locations.py lists the functions. In addition, scheduler/engine/standby.py calls `make_standby`,
and scheduler/cli/busy.py calls `make_lane`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from scheduler.engine.standby import DaemonParts, Standby
from scheduler.extras.cluster.command_lanes import ServerLane
from scheduler.extras.cluster.leadership import Leadership, lead_for_a_command
from scheduler.extras.cluster.postgresql import ServerStore, open_server_read_only
from scheduler.store.database import DatabaseUnavailable
from scheduler.system.log import log_event

__all__ = ["lead_for_a_command", "make_lane", "make_standby", "open_for_writing", "open_read_only"]

STANDBY_INTERVAL = 0.5  # seconds after which a standby asks again whether it can lead
LEASE_POLL = 0.05  # seconds between looks at a lease that is not confirmed


class ServerStandby(Standby):
    """Lets a daemon stand by until it has the lease, and start programs only while it has it."""

    is_possible = True

    def __init__(self, parts: DaemonParts) -> None:
        settings = parts.settings
        assert settings.postgresql is not None
        self._parts = parts
        self._lease = Leadership(settings.postgresql, parts.instance, settings.host, parts.clock, self.lose)

    def allows_start(self) -> bool:
        return self._lease.is_confirmed and not self.must_yield

    @property
    def must_yield(self) -> bool:
        return self.lost_because is not None or self._parts.store.is_fenced

    def wait_to_lead(self, is_over: Callable[[bool], bool]) -> bool:
        health = self._parts.engine.health
        while (standby := self._try_to_lead()) is not None:
            is_new = health.standby != standby
            if is_new and health.problem is None:
                log_event(logging.INFO, "standby", because=standby)
            health.standby = standby
            health.tried_at = self._parts.now()
            self._parts.report_standby(health.problem or f"standby: {standby}", is_new)
            if is_over(self._lease.has_seen_expired_lease):
                return False
            self._parts.wait(STANDBY_INTERVAL)
        health.standby = None
        return not self.must_yield

    def _try_to_lead(self) -> str | None:
        """Lead if no other daemon does. Returns why not; None: this daemon leads. A server that is down is logged once."""
        try:
            self._parts.store.connect()
            if (standby := self._lease.try_to_lead()) is None:
                self._see_that_rows_can_be_written()
        except DatabaseUnavailable as error:
            self._parts.engine.report_unavailable(self._parts.now(), str(error))
            return str(error)
        self._parts.engine.report_available()
        return standby

    def _see_that_rows_can_be_written(self) -> None:
        """Raises DatabaseUnavailable, and gives the lease back, if not."""
        self._lease.start()  # the rest may take longer than the lease lasts
        self._parts.store.epoch = self._lease.epoch
        try:
            self._parts.adopt_last_config()
        except DatabaseUnavailable:
            self._lease.give_back()
            raise
        log_event(logging.INFO, "leading", epoch=self._lease.epoch)

    async def wait_until_allowed(self) -> None:
        """A daemon that was frozen after the claim of a run must not start it: another one may have started it again."""
        while not self.allows_start():
            await asyncio.sleep(LEASE_POLL)

    def lose(self, problem: str) -> None:
        self.lost_because = problem
        self._parts.store.abort()
        self._parts.end_runs()

    def stop(self, *, release: bool) -> None:
        self._lease.stop(release=release)


open_for_writing = ServerStore.open_server
open_read_only = open_server_read_only
make_standby = ServerStandby
make_lane = ServerLane
