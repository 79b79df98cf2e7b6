"""Builds the daemon from a config file, and starts, runs, reloads and stops it. Only this module reads the real clocks."""

from __future__ import annotations

import gc
import logging
import os
import random
import secrets
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from math import ceil
from pathlib import Path

from scheduler import __version__
from scheduler.config.file.diagnostics import ConfigError
from scheduler.config.settings import load
from scheduler.config.settings.load import LoadedConfig
from scheduler.config.settings.time_checks import TimeCheck
from scheduler.engine import config_reload, observed_problems, startup
from scheduler.engine.clock_adjustment import ClockReading
from scheduler.engine.config_reload import Reloader
from scheduler.engine.daemon_executors import DaemonExecutors
from scheduler.engine.deadman_switch import Pinger
from scheduler.engine.delivery import Poller, button_listener
from scheduler.engine.observed_problems import FailedWrites
from scheduler.engine.runs_in_progress import describe_runs
from scheduler.engine.standby import DaemonParts, Standby, make_standby
from scheduler.engine.tick import Engine, Executors
from scheduler.engine.tick_items import Inbox, Refused, Request, Tick
from scheduler.model.config_changes import StoredConfig
from scheduler.model.daemon_health import QueueState
from scheduler.model.entry import Claim
from scheduler.model.events import Event, RunClosed
from scheduler.model.outcome import FAILURES, Skip
from scheduler.store import boots, config_history, entries, runs
from scheduler.store.boots import Boot
from scheduler.store.database import DatabaseUnavailable, StoreError
from scheduler.system import file_limits, log
from scheduler.system.boot_clock import BootClock
from scheduler.system.file_limits import FileDescriptors
from scheduler.system.file_watch import FileWatch
from scheduler.system.log import log_event
from scheduler.system.systemd import ServiceManager
from scheduler.system.wakeup import MainLoop, Signals, Wakeup
from scheduler.telemetry.event_feed import EventFeed
from scheduler.telemetry.event_log import EventLog
from scheduler.telemetry.metrics import Metrics
from scheduler.web.app_state import AppState
from scheduler.web.server import HttpServer, connections_that_fit

MAX_SLEEP = 15.0  # seconds; while a machine is suspended its monotonic clock stands still, so a long sleep would end too late
SWITCH_INTERVAL = 0.0005  # seconds after which a busy thread leaves the interpreter to the main loop; Python's default is 0.005
END_RUNS_TIMEOUT = 5.0  # seconds that runs may take to end after they were cancelled
STOP_REPORT_INTERVAL = 10.0  # seconds between log lines with the runs that a stop waits for
COMMITS_LOST = "another database server has taken over without the last commits, so runs since then may be repeated"
START_RETRY = 2.0  # seconds after a start that the database has ended
STANDS_BY_AGAIN = -1  # instead of an exit code: this daemon does not lead any more, and a new one should stand by
CLOSE_TIMEOUT = 30.0  # seconds that closing connections and the database takes at most, on a busy disk


def utc_now() -> datetime:
    """The system clock, in whole milliseconds, as all times are stored."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def read_clocks() -> ClockReading:
    """Both clocks at one instant, and how long the machine was suspended, if the system reports that."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)  # Linux; it counts the time of suspends
    monotonic = time.monotonic()
    return ClockReading(utc_now(), monotonic, max(0.0, time.clock_gettime(boot_time) - monotonic) if boot_time else 0.0)


class _StoppedAtStart(Exception):
    """A signal has stopped the daemon while it waited for PostgreSQL."""


class Daemon:
    """The daemon over one config file, from its start to its end.

    `after` is the daemon that has led until now in this process: a stop signal that it got too late is for this one. `run_once`
    needs no HTTP interface, so it is left out without `listen`. `clock` measures the lease, and the waits for the queue of the
    workers. Raises AlreadyRunning, StateFolderError, StoreError and, unless
    there is one in `after`, ConfigError: each says in words what is wrong.
    """

    engine: Engine
    reloader: Reloader
    _standby: Standby
    _signals: Signals

    @load.pause_garbage_collection()
    def __init__(
        self,
        path: Path,
        environ: Mapping[str, str],
        *,
        listen: bool = True,
        after: Daemon | None = None,
        clock: BootClock = BootClock(),  # noqa: B008 (it has no state)
    ) -> None:
        self._clock = clock
        self._watch = FileWatch(
            path,
            partial(self._reload_config, "file watch", doubt=True),
            is_wanted=lambda: self.engine.plan.settings.reload == "watch",
        )  # made first: it counts changes from here on
        self._systemd = ServiceManager(environ)
        rejected: ConfigError | Refused | None = None
        if after is None:
            loaded = config_reload.load_for_start(path, environ, utc_now())
        else:
            in_force, loaded = after.engine.plan, after.reloader.loaded
            loaded, rejected = config_reload.load_for_standby(in_force, loaded, path, environ, utc_now())
        self.settings = loaded.settings
        log.set_log_zone(self.settings.zone)
        for warning in loaded.warnings:
            log_event(logging.WARNING, "config", problem=str(warning))
        sys.setswitchinterval(SWITCH_INTERVAL)
        file_limits.raise_file_limit(self.settings.limits.concurrency)
        self._descriptors = FileDescriptors(time.monotonic)
        self._wakeup: Wakeup = Wakeup() if after is None else after._wakeup
        self._main_loop = MainLoop(self._wakeup, time.monotonic, time.sleep)
        self._signals = Signals(self._wakeup, lambda: self.engine.note_continued(), after._signals if after else None)
        self._closed_runs = self._failed_runs = 0
        self._last_write = after.last_write if after else None
        self.instance = secrets.token_hex(8)
        self._lock = startup.take_lock(self.settings, self.instance, utc_now)
        self.store = startup.open_store(self.settings.database)
        last = config_history.config_in_force(self.store.connection) if self.settings.postgresql is None else None
        first_plan, self._changed_since_last_boot = config_reload.plan_for_start(loaded, last[0] if last else None)
        inbox = Inbox(self._wakeup.notify)
        self._executors = DaemonExecutors(
            self.settings,
            lambda: self.engine.plan,
            self.instance,
            clock,
            read_clocks,
            self._wakeup.notify,
            self._note_queue_state,
            self._note_workers,
            inbox.submit,
        )
        self.runs = self._executors.runs
        self.metrics = Metrics(self.settings, version=__version__, tzdata=version("tzdata"))
        self._feed = EventFeed(self.instance)
        self.engine = Engine(
            self.store,
            first_plan,
            Executors(self.runs, self._executors.deliveries, runs_survive_stop=True)
            if self._executors.remote
            else Executors(self.runs, self._executors.deliveries, self._descriptors.runs_that_fit, waits=self._executors.waits),
            inbox,
            [
                EventLog().log_event,
                self.metrics.count_event,
                self._feed.publish,
                self._count_failed_run,
                self._executors.approvals.note_event,
            ],
            self.instance,
            random.Random(),  # noqa: S311 (spreads retries; nothing is secret about it)
        )
        report = lambda problem: inbox.submit(lambda tick: boots.record_deadman_problem(tick.tx, problem))  # noqa: E731
        self.engine.failed_writes = after.engine.failed_writes if after else None
        self._pinger = Pinger(self._executors.pings, self.engine.health, report)
        self._buttons: Poller | None = None
        self._daily_check = startup.DailyCheck(
            self.settings.database, partial(self._note_problem, observed_problems.DAMAGE), time.monotonic()
        )
        self.reloader = Reloader(partial(self._load_config, path, environ), loaded, lambda: self.engine.plan, inbox, utc_now)
        if after is not None and loaded.data is after.reloader.loaded.data:  # the file was not loaded again
            self.reloader.reload_state = after.reloader.reload_state
        if self._executors.remote is None:
            self._note_problem(observed_problems.WORKERS, None)  # an earlier boot may have had workers
        if rejected is None:
            self._note_problem(observed_problems.CONFIG, None)
        else:
            self.reloader.report_rejection(rejected, "standby")
        self._server = self._make_server() if listen else None
        self._standby = self._executors.standby = make_standby(
            DaemonParts(
                self.settings,
                self.instance,
                clock,
                utc_now,
                self.store,
                self.engine,
                self._adopt_last_config,
                self._report_standby,
                self._wait_for_signal,
                self._end_runs_at_once,
            )
        )
        if after is None:
            gc.freeze()  # otherwise the first collection walks through the whole config

    def _make_server(self) -> HttpServer:
        connections = connections_that_fit(file_limits.spare_files(self.settings.limits.concurrency))
        return HttpServer(self._app_state(), report_scarcity=self._descriptors.log_shortage, max_connections=connections)

    def _note_queue_state(self, state: QueueState) -> None:
        """Called by the executor in its own thread."""
        before, self.engine.health.queue = self.engine.health.queue, state
        if before is None or before.why_runs_wait != state.why_runs_wait:
            self._note_problem(observed_problems.WORKERS, state.why_runs_wait)

    def _note_problem(self, key: str, problem: str | None) -> None:
        self.engine.inbox.submit(partial(observed_problems.note_daemon, key=key, problem=problem))

    def _note_workers(self, workers: Sequence[tuple[Claim, str]]) -> None:
        """Called by the executor in its own thread."""

        def record(tick: Tick) -> None:
            for claim, worker in workers:
                runs.record_worker(tick.tx, claim, worker)

        self.engine.inbox.submit(record)

    def run(self, *, until: float | None = None) -> int:
        """Run until a stop signal, or until this time of the monotonic clock. Returns the exit code."""
        assert self._server is not None
        self._server.start()  # first of all: if it cannot listen, nothing has been started
        self._signals.install()
        try:
            if not self._wait_to_lead(until):
                raise _StoppedAtStart
            self._start_engine(at_once=False)
        except (DatabaseUnavailable, sqlite3.OperationalError) as error:
            self._server.stop()
            if not self._standby.is_possible:
                raise
            self._standby.lost_because = self._standby.lost_because or str(error)
            self._wakeup.wait_for(START_RETRY)
            return self._yield_leadership()
        except _StoppedAtStart:
            self._server.stop()
            if self._standby.must_yield:
                return self._yield_leadership()
            self._close_connections()
            return 0
        self._watch.start()
        self._run_ticks(lambda: self._is_over(until), until)
        self.reloader.stop()  # otherwise the next two lines wait 30 s for a reload that waits for a tick
        self._watch.stop()
        self._server.stop()
        if self._standby.must_yield:
            return self._yield_leadership()
        self._wait_for_runs()
        self._close_everything()
        return 0

    def run_once(self) -> int:
        """Run what is due now, with its retries, wakes and deliveries; 1 if a run failed. A new entry counts as due."""
        self._start_without_server()
        self._run_tick()
        self._run_ticks(lambda: self._signals.stops > 0 or self.engine.is_idle(utc_now()), None)
        if not self._closed_runs:
            log_event(logging.INFO, "nothing_to_run", next=entries.next_due_at(self.store.connection))
        self._wait_for_runs()
        self._close_everything()
        return 1 if self._failed_runs else 0

    def _start_without_server(self) -> None:
        """Start the engine without the HTTP server.

        Raises DatabaseUnavailable if another daemon leads, and StoreError if it is stopped before.
        """
        self._signals.install()
        if not self._wait_to_lead(time.monotonic()):
            raise DatabaseUnavailable(
                f"{self._standby.lost_because or self.engine.health.standby}; --once does not wait for that"
            )
        try:
            self._start_engine(at_once=True)
        except _StoppedAtStart:
            why = self._standby.lost_because or (self._executors.remote.problem if self._executors.remote else None) or "a signal"
            self._close_connections(release_lease=not self._standby.must_yield)
            raise StoreError(f"stopped while it waited for the queue of the workers: {why}; nothing was run") from None

    def _is_over(self, until: float | None) -> bool:
        return self._signals.stops > 0 or self._standby.must_yield or (until is not None and time.monotonic() >= until)

    def _wait_to_lead(self, until: float | None) -> bool:
        """Stand by until no other daemon leads. False if this daemon is to stop before."""
        # An expired lease is soon free or renewed, so `--once` waits for that.
        return self._standby.wait_to_lead(lambda has_expired: self._is_over(None if has_expired else until))

    def _report_standby(self, status: str, is_new: bool) -> None:
        if is_new:
            self._systemd.report_ready()
        self._systemd.report_status(status)
        self._systemd.ping_watchdog(time.monotonic())

    def _wait_for_signal(self, seconds: float) -> None:
        self._wakeup.wait_for(seconds)
        self._wakeup.clear()

    def _adopt_last_config(self) -> None:
        """Compare the config with the one that the last leader had in force. Raises DatabaseUnavailable."""
        last = self._last_config()
        self.engine.plan, self._changed_since_last_boot = config_reload.plan_for_start(
            self.reloader.loaded, last[0] if last else None
        )

    def _last_config(self) -> tuple[StoredConfig, datetime] | None:
        """The last config in force, read in a transaction, which also shows that this daemon leads."""
        try:
            with self.store.transaction() as db:
                return config_history.config_in_force(db)
        except DatabaseUnavailable:  # the connection of a standby may be from before a restart of the server
            with self.store.transaction() as db:
                return config_history.config_in_force(db)

    def _end_runs_at_once(self) -> None:
        if self._executors.remote is None:
            for run_id in self.runs.inflight():
                self.runs.cancel(run_id, "shutdown")
        self._wakeup.notify()

    def _yield_leadership(self) -> int:
        """End without writing anything, because another daemon leads or may lead. Returns STANDS_BY_AGAIN."""
        problem = self._standby.lost_because or self.engine.health.problem
        log_event(logging.ERROR, "leadership_lost", problem=problem)
        # The new engine reports how long the database could not be written, unless another daemon leads in the meantime.
        self.engine.failed_writes = self.engine.failed_writes or FailedWrites(utc_now(), problem or "another daemon leads")
        self._standby.lose(problem or "")
        deadline = time.monotonic() + END_RUNS_TIMEOUT
        while self._executors.remote is None and self.runs.inflight() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._close_connections(release_lease=False)
        return STANDS_BY_AGAIN if not self._signals.stops else 0

    def _app_state(self) -> AppState:
        return AppState(
            settings=lambda: self.engine.plan.settings,
            submit_request=self._submit_request,
            reloader=self.reloader,
            metrics=self.metrics,
            health=self.engine.health,
            count_running=lambda: Counter(claim.entry.kind.value for claim in self.runs.inflight().values()),
            clock=utc_now,
            database_path=self.settings.state,
            feed=self._feed,
            server=self.settings.postgresql,
        )

    def _submit_request(self, request: Request) -> Future[object]:
        if self.engine.health.standby is not None:
            if self.engine.health.problem is not None:
                raise Refused("standby", f"this daemon does not lead: {self.engine.health.problem}")
            raise Refused("standby", f"this daemon is on standby: {self.engine.health.standby}; send the request there")
        return self.engine.inbox.submit(request)

    def _start_engine(self, *, at_once: bool) -> None:
        may_lack = boots.may_lack_commits(self.store.connection, self.store.server_identity, self._last_write)
        if may_lack:
            log_event(logging.ERROR, "commits_lost", problem=COMMITS_LOST, since=boots.last_tick_at(self.store.connection))
        failed, last_tick_at = self.engine.failed_writes, boots.last_tick_at(self.store.connection)
        if failed is not None and last_tick_at is not None and last_tick_at > failed.since:
            self.engine.failed_writes = None  # another daemon has led, so it could be written
        if (difference := boots.find_clock_difference(self.store.connection, utc_now())) is not None:
            log_event(logging.WARNING, "clock_differs", problem=difference)
        survivors = startup.end_orphans(self.store, runs_here=self._executors.remote is None)
        written_by = self._last_write[0] if self._last_write else None
        if not self._executors.adopt_runs(self.store.connection, written_by, self._is_queue_wait_over, may_lack_commits=may_lack):
            raise _StoppedAtStart
        self._executors.prepare(self.settings)
        threading.Thread(target=self.prepare_lanes, name="warm", daemon=True).start()
        boot = Boot(self.instance, os.getpid(), __version__, version("tzdata"), self.store.server_identity)
        if not self.engine.add_new_entries(read_clocks(), self._is_start_over, at_once=at_once):
            raise _StoppedAtStart
        self.engine.start_boot(
            read_clocks(), boot, survivors, at_once=at_once, changed=self._changed_since_last_boot, may_lack_commits=may_lack
        )
        listens = self._server.url if self._server else None
        entries = len(self.engine.plan.entries)
        log_event(logging.INFO, "started", pid=os.getpid(), config=self.settings.path, entries=entries, listen=listens)
        for line in self._changed_since_last_boot.diff.lines(config_reload.MAX_LINES) if self._changed_since_last_boot else ():
            log_event(logging.INFO, "config_changed", change=line)
        for each in self.engine.plan.stored_config.overrides if self.engine.plan.stored_config else ():
            log_event(logging.INFO, "override", variable=each.variable, key=each.key, file=each.in_file, value=each.value)
        self._systemd.report_ready()

    @property
    def last_write(self) -> tuple[str, datetime] | None:
        """The instance id and the time of the last write of this process that is known to be committed."""
        written_at = self.engine.last_write_at
        return self._last_write if written_at is None else (self.instance, written_at)

    def _is_start_over(self) -> bool:
        """Whether the start is to end. The service manager sees a daemon that works, and does not restart it."""
        self._systemd.ping_watchdog(time.monotonic())
        return self._signals.stops > 0 or self._standby.must_yield

    def _is_queue_wait_over(self) -> bool:
        """Whether the start is to end. It waits for the queue of the workers, which the service manager is told."""
        problem = self._executors.remote.problem if self._executors.remote else None
        if problem is not None:
            self._systemd.report_ready()
            self._systemd.report_status(f"waiting for the queue: {problem}")
        return self._is_start_over()

    def prepare_lanes(self) -> None:
        """Prepare a burst of runs in another thread."""
        gc.collect()
        gc.freeze()  # objects that exist by now stay, so the garbage collector need not walk through them during a burst of runs
        self._executors.make_lock_files(self.settings)

    def _run_ticks(self, over: Callable[[], bool], until: float | None) -> None:
        self._main_loop.run(self._run_tick, over, until)

    def _run_tick(self) -> float:
        """Run one tick; returns the seconds until the next one."""
        again_at = self.engine.tick(read_clocks())
        ping_in = self._pinger.ping_if_due(time.monotonic(), self.engine.plan.settings.deadman if self._server else None)
        if self._signals.wants_reload:  # a reload waits for the engine, so this thread must not wait for it
            self._signals.wants_reload = False
            threading.Thread(target=self._reload_config, args=("SIGHUP",), name="reload", daemon=True).start()
        self._daily_check.begin_if_due(time.monotonic())
        problem = self.engine.health.why_not_working or self.reloader.reload_state.problem
        self._systemd.report_status(problem or f"{len(self.engine.plan.entries)} agents and jobs")
        watchdog_in = self._systemd.ping_watchdog(time.monotonic())  # only here: if this thread hangs, the pings must stop
        waits = ((again_at - utc_now()).total_seconds(), MAX_SLEEP, ping_in, watchdog_in, self._poll_buttons())
        return min(wait for wait in waits if wait is not None)

    def _poll_buttons(self) -> float | None:
        """Ask for pressed buttons. Returns the seconds until the next call; None: no limit."""
        channels = self.engine.plan.settings.channels
        if self._server is None or self.engine.stopping:
            return None
        if self._buttons is None and (listener := button_listener(channels)) is not None:
            executors, submit = self._executors, self.engine.inbox.submit
            self._buttons = listener.make_poller(executors.http, executors.loop, self._wakeup.notify, submit)
        return self._buttons.poll(time.monotonic(), channels) if self._buttons else None

    def _wait_for_runs(self) -> None:
        """Wait for the runs in progress, at most for `shutdown_grace`, then end them. Messages are sent as far as time allows."""
        grace_seconds = self.engine.plan.settings.limits.shutdown_grace.total_seconds()
        self._systemd.report_stopping(grace_seconds + END_RUNS_TIMEOUT + CLOSE_TIMEOUT)
        self.engine.stopping = True
        hurry = 2 if self._signals.stops else 1  # the number of stop signals that stops the daemon immediately
        deadline = time.monotonic() + grace_seconds
        while self.engine.is_busy() and self._signals.stops < hurry and time.monotonic() < deadline:
            self._log_runs_in_progress(deadline - time.monotonic())
            report_at = min(deadline, time.monotonic() + STOP_REPORT_INTERVAL)
            self._run_ticks(partial(self._is_stop_over, hurry, report_at), report_at)
        if self.runs.inflight():
            why = "a second signal" if self._signals.stops >= hurry else "the end of limits.shutdown_grace"
            log_event(logging.WARNING, "stopping_now", ends=describe_runs(self.runs.inflight().values(), utc_now()), by=why)
        self.engine.end_all_runs(read_clocks())
        deadline = time.monotonic() + END_RUNS_TIMEOUT
        self._run_ticks(lambda: not self.engine.is_busy() or time.monotonic() >= deadline, deadline)

    def _is_stop_over(self, hurry: int, until: float) -> bool:
        return not self.engine.is_busy() or self._signals.stops >= hurry or time.monotonic() >= until

    def _log_runs_in_progress(self, seconds_left: float) -> None:
        """Log which runs the daemon waits for before it stops, for how long at most, and how to stop it at once."""
        if self.runs.inflight():
            advice = "Ctrl-C or SIGTERM again ends them now"
            waits = describe_runs(self.runs.inflight().values(), utc_now())
            log_event(logging.INFO, "stopping", waits_for=waits, seconds_at_most=ceil(seconds_left), advice=advice)

    def _close_everything(self) -> None:
        try:
            if not self.engine.is_busy():  # otherwise a program may outlive the daemon, and the next start must look for it
                self.engine.finish_boot(read_clocks())
        except DatabaseUnavailable as error:
            log_event(logging.ERROR, "database_unavailable", problem=str(error))
        self._close_connections()

    def _close_connections(self, *, release_lease: bool = True) -> None:
        self._executors.close(release_lease=release_lease)
        self.store.close()
        self._lock.release()
        log_event(logging.INFO, "stopped")
        self._systemd.close()

    def _reload_config(self, by: str, *, doubt: bool = False) -> None:
        with self._systemd.report_reload(time.monotonic()):
            try:
                self.reloader.reload(by=by, doubt=doubt)
            except (ConfigError, Refused):
                return  # the log, /metrics and status report it

    def _load_config(self, path: Path, environ: Mapping[str, str], *, content: bytes | None = None) -> LoadedConfig:
        today = TimeCheck(utc_now(), entries.has_seen_one_time_job)
        loaded = load.load_config(path, environ, content=content, time_check=today)
        self._executors.prepare(loaded.settings)
        return loaded

    def _count_failed_run(self, happened: Event) -> None:
        self._closed_runs += isinstance(happened, RunClosed) and happened.result.reason is not Skip.REMOVED
        self._failed_runs += isinstance(happened, RunClosed) and happened.result.outcome in FAILURES
