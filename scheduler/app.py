"""The daemon as a whole: built from a config, started, reloaded, stopped; the place that hands on the real clocks."""

from __future__ import annotations

import gc
import logging
import os
import random
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import FrameType

from heartbeat.runners import Resources
from heartbeat.runners import dispatch as runners
from scheduler import __version__
from scheduler.channels.message import DeliveryResult
from scheduler.config.build import load
from scheduler.config.build.load import LoadedConfig
from scheduler.config.build.time_checks import TimeCheck
from scheduler.config.file.diagnostics import ConfigError
from scheduler.engine import deadman_switch, delivery, startup
from scheduler.engine.config_reload import Reloader
from scheduler.engine.deadman_switch import Ping, Pinger
from scheduler.engine.delivery import Delivery
from scheduler.engine.inbox import Inbox, Refused
from scheduler.engine.loop import ClockReading, Engine
from scheduler.engine.requests import NoteDeadmanProblem
from scheduler.engine.rhythm import Rhythm
from scheduler.model.entry import Claim
from scheduler.model.events import Event, RunClosed
from scheduler.model.outcome import FAILURES, AttemptResult
from scheduler.model.settings import Settings
from scheduler.net.http_client import HttpClient
from scheduler.store import entries
from scheduler.store.boots import Boot
from scheduler.store.database import DatabaseUnavailable
from scheduler.system import file_limits, lanes
from scheduler.system.file_limits import FileDescriptors
from scheduler.system.file_watch import FileWatch
from scheduler.system.log import log_event
from scheduler.system.process import Children
from scheduler.system.systemd import ServiceManager
from scheduler.system.wakeup import Wakeup
from scheduler.telemetry.event_log import EventLog
from scheduler.telemetry.metrics import Metrics
from scheduler.web.app_state import AppState
from scheduler.web.server import HttpServer
from scheduler.work import plan
from scheduler.work.executor import LocalExecutor, WorkerLoop

LONGEST_SLEEP = 15.0  # seconds; a suspended machine's steady clock stands still, so a long sleep would end too late
CUT_TAKES = 5.0  # seconds that a run may take to end once it was told to
END_TAKES = 30.0  # seconds that closing connections and the database takes at most, on a busy disk


def utc_now() -> datetime:
    """The wall clock, in whole milliseconds as all times are kept."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def now() -> ClockReading:
    """Both clocks at one instant."""
    return ClockReading(utc_now(), time.monotonic())


class Daemon:
    """One life of the daemon over one config file.

    `listen` False leaves the HTTP interface out (one single round of work needs none). Raises ConfigError, AlreadyRunning,
    StateFolderError, StoreError: each says in words what is wrong.
    """

    def __init__(self, path: Path, environ: Mapping[str, str], *, listen: bool = True) -> None:
        self._watch = FileWatch(path, self._file_changed)  # made first: what changes from here on is a change
        self._systemd = ServiceManager(environ)
        loaded = load.load_config(path, environ, time_check=TimeCheck(utc_now(), entries.has_seen_one_time_job, strict=False))
        self.settings = loaded.settings
        for warning in loaded.warnings:
            log_event(logging.WARNING, "config", problem=str(warning))
        file_limits.raise_file_limit(self.settings.limits.concurrency)
        self._descriptors = FileDescriptors(time.monotonic)
        self._bell = Wakeup()
        self._rhythm = Rhythm(self._bell, time.monotonic, time.sleep)
        self._stops = 0
        self._reload_wanted = False
        self._failed_runs = 0
        self.instance = secrets.token_hex(8)
        self._lock = startup.take_lock(self.settings, self.instance, utc_now)
        self.store = startup.open_store(self.settings.state)
        self._lanes = lanes.lanes_beside(self.settings.state)
        self._lanes.make_lock_files()
        inbox = Inbox(self._bell.notify)
        self._workers = WorkerLoop()
        self._http = HttpClient(lambda: self.engine.plan.settings.network)
        self.runs: LocalExecutor[Claim, AttemptResult] = LocalExecutor(self._carry, _mark, self._bell.notify, self._workers)
        deliveries: LocalExecutor[Delivery, DeliveryResult] = LocalExecutor(
            self._send, self._delivery_mark, self._bell.notify, self._workers
        )
        self.metrics = Metrics(self.settings, version=__version__, tzdata=version("tzdata"))
        self.engine = Engine(
            self.store,
            plan.make(self.settings),
            self.runs,
            deliveries,
            inbox,
            [EventLog().log_event, self.metrics.count_event, self._hear],
            self.instance,
            random.Random(),  # noqa: S311 (spreads retries; nothing is secret about it)
            self._descriptors.runs_that_fit,
        )
        pings: LocalExecutor[Ping, DeliveryResult] = LocalExecutor(self._ping, _no_mark, _no_bell, self._workers)
        self._pinger = Pinger(pings, self.engine.health, lambda problem: inbox.submit(NoteDeadmanProblem(problem)))
        self.reloader = Reloader(partial(_load, path, environ), lambda: self.engine.plan, inbox, utc_now)
        self._server = HttpServer(self._app_state(), report_scarcity=self._descriptors.log_shortage) if listen else None

    def run(self, *, duration: timedelta | None = None) -> int:
        """Run until told to stop, or for `duration`; gives the exit code."""
        assert self._server is not None
        self._server.start()  # first of all: where it cannot listen, no life has begun
        try:
            self._begin(at_once=False)
        except DatabaseUnavailable:
            self._server.stop()
            raise
        self._watch.start()
        until = None if duration is None else time.monotonic() + duration.total_seconds()
        self._loop(lambda: self._stops > 0 or (until is not None and time.monotonic() >= until), until)
        self._watch.stop()
        self._server.stop()
        self._stop()
        self._end()
        return 0

    def run_once(self) -> int:
        """Do what is due now, a new entry counting as due, with its retries, wakes and deliveries; 1 if a run failed."""
        self._begin(at_once=True)
        self._turn()
        self._loop(lambda: self._stops > 0 or self.engine.is_idle(utc_now()), None)
        self._stop()
        self._end()
        return 1 if self._failed_runs else 0

    def _app_state(self) -> AppState:
        return AppState(
            settings=lambda: self.engine.plan.settings,
            submit_request=self.engine.inbox.submit,
            reload_config=self.reloader.reload,
            reload_state=lambda: self.reloader.reload_state,
            metrics=self.metrics,
            health=self.engine.health,
            count_running=self._running,
            clock=utc_now,
            database_path=self.settings.state,
        )

    def _running(self) -> Mapping[str, int]:
        return Counter(claim.entry.kind.value for claim in self.runs.inflight().values())

    def _begin(self, *, at_once: bool) -> None:
        for number, handler in ((signal.SIGTERM, self._on_stop), (signal.SIGINT, self._on_stop), (signal.SIGHUP, self._on_hup)):
            signal.signal(number, handler)
        survivors = startup.end_orphans(self.store)
        warm_runners(self.settings)
        threading.Thread(target=self.warm_up, name="warm", daemon=True).start()
        boot = Boot(self.instance, os.getpid(), __version__, version("tzdata"))
        self.engine.start_boot(now(), boot, survivors, at_once=at_once)
        listens = self._server.url if self._server else None
        entries = len(self.engine.plan.entries)
        log_event(logging.INFO, "started", pid=os.getpid(), config=self.settings.path, entries=entries, listen=listens)
        self._systemd.report_ready()

    def warm_up(self) -> None:
        """Make the files of the lanes: for a thousand agents half a second that no run should wait for."""
        gc.collect()
        gc.freeze()  # what is there by now stays, so a burst of beats need not have its garbage collected through all of that
        self._lanes.make_lock_files([*self.settings.heartbeats, *self.settings.job_agents])

    def _loop(self, over: Callable[[], bool], until: float | None) -> None:
        self._rhythm.keep(self._turn, over, until)

    def _turn(self) -> float:
        """One turn; gives the seconds until the next one."""
        again_at = self.engine.tick(now())
        ping_in = self._pinger.ping_if_due(time.monotonic(), self.engine.plan.settings.deadman if self._server else None)
        self._start_reload()
        self._systemd.report_status(self._status())
        watchdog_in = self._systemd.ping_watchdog(time.monotonic())  # here alone: where this thread hangs, the pings must stop
        waits = ((again_at - utc_now()).total_seconds(), LONGEST_SLEEP, ping_in, watchdog_in)
        return min(wait for wait in waits if wait is not None)

    def _status(self) -> str:
        """The line that `systemctl status` shows: what is wrong, or how much there is to do."""
        problem = self.engine.health.problem or self.reloader.reload_state.problem
        return problem or f"{len(self.engine.plan.entries)} agents and jobs"

    def _stop(self) -> None:
        """Let what runs end within the grace, then cut it; messages go out as far as time allows."""
        grace_seconds = self.engine.plan.settings.limits.shutdown_grace.total_seconds()
        self._systemd.report_stopping(grace_seconds + CUT_TAKES + END_TAKES)
        self.engine.stopping = True
        hurry = 2 if self._stops else 1  # which signal means "at once"
        grace = time.monotonic() + grace_seconds
        self._loop(lambda: not self.engine.is_busy() or self._stops >= hurry or time.monotonic() >= grace, grace)
        self.engine.end_all_runs(now())
        cut = time.monotonic() + CUT_TAKES
        self._loop(lambda: not self.engine.is_busy() or time.monotonic() >= cut, cut)

    def _end(self) -> None:
        try:
            if not self.engine.is_busy():  # else something may outlive us, and the next life is to look for it
                self.engine.finish_boot(now())
        except DatabaseUnavailable as error:
            log_event(logging.ERROR, "database_unavailable", problem=str(error))
        self._workers.close(self._http.close)
        self.store.close()
        self._lock.release()
        log_event(logging.INFO, "stopped")
        self._systemd.close()

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._stops += 1
        self._bell.notify()

    def _on_hup(self, number: int, frame: FrameType | None) -> None:
        self._reload_wanted = True
        self._bell.notify()

    def _start_reload(self) -> None:
        """A reload waits for the engine, so the engine's thread must not wait for it."""
        if self._reload_wanted:
            self._reload_wanted = False
            threading.Thread(target=self._reload, name="reload", daemon=True).start()

    def _file_changed(self) -> None:
        self._reload(doubt=True)

    def _reload(self, *, doubt: bool = False) -> None:
        with self._systemd.report_reload(time.monotonic()):
            try:
                self.reloader.reload(doubt=doubt)
            except (ConfigError, Refused):
                return  # told in the log, in /metrics and in status

    async def _carry(self, claim: Claim, children: Children) -> AttemptResult:
        """One attempt, with its agent's lane taken as long as it lasts; its children inherit the lane."""
        begun = time.monotonic()
        with lanes.lane_of_claim(self._lanes, claim) as (claim_in_lane, inherited):
            start = partial(children.start, inherited=inherited)
            elapsed = lambda: timedelta(seconds=time.monotonic() - begun)  # noqa: E731
            return await claim.entry.carry(claim_in_lane, Resources(start, self._http), elapsed)

    async def _send(self, outgoing: Delivery, children: Children) -> DeliveryResult:
        return await delivery.send_delivery(outgoing, children.start, self._http)

    async def _ping(self, ping: Ping, children: Children) -> DeliveryResult:  # pinging starts no children
        return await deadman_switch.send_ping(ping, self._http)

    def _delivery_mark(self, outgoing: Delivery) -> str:
        return f"{self.instance}/outbox/{outgoing.message.id}"

    def _hear(self, happened: Event) -> None:
        self._failed_runs += isinstance(happened, RunClosed) and happened.outcome in FAILURES


def warm_runners(settings: Settings) -> None:
    """Import what the runners of these settings need, so that no run's time goes into that."""
    beats = [beat.runner for beat in settings.heartbeats.values() if beat.enabled]
    deciding = [beat.decide.runner for beat in settings.heartbeats.values() if beat.enabled and beat.decide]
    runners.import_libraries([*beats, *deciding, *(agent.runner for agent in settings.job_agents.values())])


def _load(path: Path, environ: Mapping[str, str]) -> LoadedConfig:
    loaded = load.load_config(path, environ, time_check=TimeCheck(utc_now(), entries.has_seen_one_time_job))
    warm_runners(loaded.settings)
    return loaded


def _mark(claim: Claim) -> str:
    return claim.run_mark


def _no_mark(ping: Ping) -> str:  # noqa: ARG001
    return ""


def _no_bell() -> None:
    """How a ping went can wait for the next turn."""
