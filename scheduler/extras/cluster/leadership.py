"""Lets one of several daemons lead, by a lease on the PostgreSQL server. The clock of the server decides."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf

from scheduler.engine.standby import DaemonParts, Standby
from scheduler.extras.cluster.postgresql import (
    LEADER_LOCK,
    SERVER_REPLACED,
    ServerConnection,
    ServerError,
    names_several_hosts,
    read_server_identity,
)
from scheduler.model.state_address import describe_server
from scheduler.store import boots
from scheduler.store.database import DatabaseUnavailable, StoreError
from scheduler.system.boot_clock import BootClock
from scheduler.system.log import log_event

LEASE = boots.LEASE.total_seconds()  # after its last renewal; another daemon may lead from then on
RENEW_EVERY = 1.0
GIVE_UP_AFTER = 4.0  # seconds without a renewal: the leader then ends its runs, before another daemon starts them
WATCH_EVERY = 0.2
FREEZE_GRACE = 1.0
STOP_TIMEOUT = 10.0  # seconds in which the threads of the lease end; a statement may take SETTINGS and CONNECTION together
# Seconds for which a standby waits after the lease has expired, so that after a restart of the server the leader renews it first.
PATIENCE = 1.0
SETTINGS = {"statement_timeout": 1_500, "lock_timeout": 1_200, "idle_in_transaction_session_timeout": 4_000}
CONNECTION = {"connect_timeout": "2", "tcp_user_timeout": "2000", "target_session_attrs": "primary"}

# The server on this host is starting or stopping, or does not run. Nobody else can take the lease then, so the leader keeps it.
# On another host, or with several, this says nothing: another server may be the primary, also behind the same name.
DOWN_FOR_ALL = re.compile(r"the database system is|connection to server on socket .* failed: (Connection refused|No such file)")
# The places of all attempts to connect in one error. A host name, or a service file, may stand for several.
PLACES = re.compile(r"""connection to server (?:at|on socket) "([^"]+)"|hostaddr: '([^']+)'""")
LOCALHOST = frozenset({"localhost", "127.0.0.1", "::1"})

LOCKED = "55P03"

SEEN = (
    "select epoch, coalesce(host, '') as host, until_at::text as until_at, until_at <= clock_timestamp() as is_over,"
    " until_at = '-infinity' as is_free from _leader"
)
TAKE = (
    "update _leader set epoch = epoch + 1, holder = ?, host = ?, until_at = clock_timestamp() + make_interval(secs => ?),"
    " since_at = clock_timestamp(), former_host = host"
    " where epoch = ? and until_at <= clock_timestamp() returning epoch"
)
RENEW = (
    "update _leader set until_at = clock_timestamp() + make_interval(secs => ?) where epoch = ? and holder = ? returning epoch"
)
END_TRANSACTIONS = (
    "select pg_terminate_backend(pid) from pg_locks, _leader where until_at <= clock_timestamp()"  # noqa: S608 (a constant)
    f" and locktype = 'advisory' and classid = {LEADER_LOCK} and objid = _leader.tableoid and objsubid = 2"
    " and database = (select oid from pg_database where datname = current_database()) and mode = 'ShareLock' and granted"
)
RELEASE = "update _leader set until_at = '-infinity' where epoch = ? and holder = ?"

STANDBY_INTERVAL = 0.5  # seconds after which a standby asks again whether it can lead
LEASE_POLL = 0.05  # seconds between looks at a lease that is not confirmed


class Leadership:
    """The lease of one daemon. `holder` is its instance id, `host` the name of its machine.

    `on_lost` is called once, in another thread, when this daemon must stop at once, because another one leads or may lead soon.
    """

    def __init__(self, url: str, holder: str, host: str, clock: BootClock, on_lost: Callable[[str], None]) -> None:
        self.epoch: int | None = None
        self._url, self._holder, self._host = url, holder, host
        self._clock = clock
        self._on_lost = on_lost
        self._connection: ServerConnection | None = None
        self._server: str | None = None  # the server that has the lease
        self._expired: tuple[object, float] | None = None  # the expired lease, and since when a standby has seen it
        self._renewed_at = 0.0
        self._problem: str | None = None  # of the last renewal
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._ends = threading.Lock()  # so that only one of the threads notifies this daemon that it must stop

    def try_to_lead(self) -> str | None:
        """Take the lease if it is free. Returns why this daemon does not lead; None: it leads now.

        Raises DatabaseUnavailable if the server cannot be reached, and StoreError if there are no tables of this version.
        """
        try:
            asked_at = self._clock.read()
            seen = self._connect().execute(SEEN).fetchone()
            if not seen["is_over"]:
                self._expired = None
                return f"{seen['host'] or 'another daemon'} leads"
            lease = (seen["epoch"], seen["until_at"])
            if self._expired is None or self._expired[0] != lease:
                self._expired = (lease, asked_at)
            if not seen["is_free"] and asked_at - self._expired[1] < PATIENCE:
                return f"{seen['host'] or 'another daemon'} led until now"
            row = self._connect().execute(TAKE, (self._holder, self._host, LEASE, seen["epoch"])).fetchone()
        except ServerError as error:
            if error.sqlstate == LOCKED and self._ends_transactions_of_former_leader():
                return str(error)
            self._disconnect()
            self._expired = None
            if error.sqlstate == LOCKED:  # by another program, or this user may not end the transaction
                return str(error)
            if not error.is_passing or error.sqlstate == "42P01":
                raise StoreError(f"cannot use {describe_server(self._url)}: {error}") from error
            raise DatabaseUnavailable(str(error)) from error
        if row is None:
            return "another daemon leads"
        self.epoch, self._renewed_at = row["epoch"], asked_at
        self._server = read_server_identity(self._connect())
        return None

    def _ends_transactions_of_former_leader(self) -> bool:
        """End what locks an expired lease: a leader that was frozen in a transaction. Returns whether there was one.

        If it was frozen while it sent many statements at once, no timeout of the server ends the transaction. A leader that has
        renewed the lease in the meantime keeps its transaction.
        """
        try:
            return bool(self._connect().execute(END_TRANSACTIONS).fetchall())
        except ServerError:
            return False

    @property
    def is_confirmed(self) -> bool:
        """Whether no other daemon can lead yet. If not, this one starts nothing: it was frozen or cut off for a while."""
        return self._clock.read() - self._renewed_at < GIVE_UP_AFTER

    @property
    def has_seen_expired_lease(self) -> bool:
        """Whether the lease had expired when it was last looked at."""
        return self._expired is not None

    def give_back(self) -> None:
        """Let another daemon lead, because this one cannot write. It may try to lead again."""
        self.stop()
        self.epoch = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Renew the lease from now on, in a thread. Call this directly after `try_to_lead`: the lease ends soon."""
        for work, name in ((self._keep, "lease"), (self._watch, "lease-watch")):
            thread = threading.Thread(target=work, args=(self._stopped,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, *, release: bool = True) -> None:
        """Stop renewing, and confirm the lease to nobody any more. With `release`, another daemon may lead at once."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(STOP_TIMEOUT)
        if any(thread.is_alive() for thread in self._threads) and self._connection is not None:
            self._connection.abort()  # a statement without an answer would also hold up the release
        self._threads.clear()
        if release and self.epoch is not None:
            self._renewed_at = -inf
            with suppress(ServerError):
                self._connect().execute(RELEASE, (self.epoch, self._holder))
        self._disconnect()

    def _keep(self, stopped: threading.Event) -> None:
        while not self._clock.wait(stopped, RENEW_EVERY):
            if (problem := self._renew()) is not None:
                self._end(problem, stopped)

    def _watch(self, stopped: threading.Event) -> None:
        """Give up in time, even while the server or a proxy before it accepts a renewal and never answers.

        After a freeze of this process, the thread that renews gets the time of `FREEZE_GRACE` to find out who leads.
        """
        looked_at = self._clock.read()
        forgiven_until = looked_at
        while not self._clock.wait(stopped, WATCH_EVERY):
            now = self._clock.read()
            if now - looked_at > FREEZE_GRACE:
                forgiven_until = now + FREEZE_GRACE
            looked_at = now
            if not self.is_confirmed and now >= forgiven_until:
                self._end(f"the lease could not be renewed: {self._problem or 'the server does not answer'}", stopped)

    def _end(self, problem: str, stopped: threading.Event) -> None:
        with self._ends:
            if stopped.is_set():
                return
            stopped.set()
        connection = self._connection  # the other thread may disconnect meanwhile
        try:
            if connection is not None:
                connection.abort()
        finally:
            self._on_lost(problem)

    def _renew(self) -> str | None:
        """Renew the lease. Returns why this daemon must stop; None if it may continue."""
        asked_at = self._clock.read()
        was_connected = self._connection is not None
        try:
            before, connection = self._connection, self._connect()
            if connection is not before and (read_server_identity(connection) or self._server) != self._server:
                return SERVER_REPLACED
            row = connection.execute(RENEW, (LEASE, self.epoch, self._holder)).fetchone()
        except ServerError as error:
            self._disconnect()
            self._problem = str(error)
            if was_connected:
                return self._renew()  # over a new connection
            if not names_several_hosts(self._url) and _is_down_for_all(str(error)):
                self._renewed_at = self._clock.read()
            if self._clock.read() - self._renewed_at < GIVE_UP_AFTER:
                return None
            return f"the lease could not be renewed: {error}"
        if row is None:
            return "another daemon has taken over"
        self._renewed_at, self._problem = asked_at, None
        return None

    def _connect(self) -> ServerConnection:
        if self._connection is None or self._connection.is_lost:
            self._disconnect()
            self._connection = ServerConnection(self._url, SETTINGS, CONNECTION)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _is_down_for_all(error: str) -> bool:
    places = {first or second for first, second in PLACES.findall(error)}
    is_here = bool(places) and (places <= LOCALHOST or (len(places) == 1 and min(places).startswith("/")))
    return is_here and DOWN_FOR_ALL.search(error) is not None


def lead_for_a_command(url: str, holder: str, clock: BootClock, host: str = "a command") -> Leadership:
    """The lease for a command that needs the database for itself. Raises DatabaseUnavailable if a daemon leads.

    `host` names the command for daemons that wait for it. An expired lease is taken after PATIENCE seconds.
    """
    found = Leadership(url, holder, host, clock, lambda _: None)  # its epoch keeps a command that has lost it from writing
    while (standby := found.try_to_lead()) is not None and found.has_seen_expired_lease:
        clock.wait(threading.Event(), WATCH_EVERY)
    if standby is None:
        found.start()
        return found
    found.stop(release=False)
    raise DatabaseUnavailable(f"{standby}: run this command on that host, or use its HTTP API")


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
                self._begin_to_lead()
        except DatabaseUnavailable as error:
            self._parts.engine.report_unavailable(self._parts.now(), str(error))
            return str(error)
        self._parts.engine.report_available()
        return standby

    def _begin_to_lead(self) -> None:
        """Raises DatabaseUnavailable, and gives the lease back, if rows cannot be written."""
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
