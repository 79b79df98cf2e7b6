"""The command `worker`: executes the runs of daemons on other machines."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from heartbeat.words import list_names
from heartbeatd.state_folder import config_folder
from scheduler.config.file.diagnostics import ConfigError
from scheduler.config.settings import load
from scheduler.config.settings.daemon_settings import parse_address
from scheduler.config.settings.file_checks import find_missing_files
from scheduler.extras.cluster.job_queue import JobQueue, QueueUnavailable, ask_queue
from scheduler.extras.cluster.payloads import ClaimCodec, lock_of_lane, missing_secret
from scheduler.extras.cluster.remote_worker import RemoteWorker
from scheduler.extras.cluster.worker_guard import WorkerFile, end_programs_of_dead_workers
from scheduler.model.daemon_health import DEFAULT_QUEUE
from scheduler.model.entry import Claim
from scheduler.model.expected_error import InputError
from scheduler.model.outcome import AttemptResult, Skip
from scheduler.model.settings import RemoteQueue, Settings
from scheduler.net.http_client import HttpClient
from scheduler.system import file_limits, lanes, log
from scheduler.system.boot_clock import BootClock
from scheduler.system.file_watch import hash_of_file
from scheduler.system.lanes import Lanes
from scheduler.system.log import log_event
from scheduler.system.process import Children
from scheduler.system.state_lock import make_state_folder
from scheduler.work.executor import WorkerLoop
from scheduler.work.plan import Plan, make_plan
from scheduler.work.run_extras import Tracing, resources_of_run

if TYPE_CHECKING:
    from scheduler.web.server import ServerThread


class WorkerConfig:
    """The worker's copy of the config. `reload` reads the file again if it has changed; a file with errors is not applied."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        """Raises ConfigError."""
        self._path = path
        self._environ = environ
        self._content = hash_of_file(path)
        self.plan = self._load()

    def reload(self, *, always: bool = False) -> None:
        """Apply the file if it has changed. Errors are logged."""
        content = hash_of_file(self._path)
        if content == self._content and not always:
            return
        self._content = content
        try:
            self.plan = self._load()
        except ConfigError as error:
            for line in str(error).splitlines():
                log_event(logging.ERROR, "reload_refused", problem=line)
        else:
            log_event(logging.INFO, "reload", config=self._path)

    def _load(self) -> Plan:
        loaded = load.load_config(self._path, self._environ, for_worker=True)
        return make_plan(loaded.settings)


def find_unrunnable(plan: Plan) -> Iterator[tuple[str, str]]:
    """The agents and jobs that this worker cannot run, and why: a secret, a file or a program is missing on its machine."""
    for entry in plan.entries.values():
        if entry.enabled and (problem := missing_secret(entry)):
            yield entry.label, problem
    for section, name, _, message in find_missing_files(plan.settings):
        if section != "channels":
            yield f"{'agent' if section == 'agents' else 'cron'}/{name}", message


def run_worker(
    name: str | None,
    queues: Sequence[str] | None,
    concurrency: int | None,
    listen: str | None,
    form: log.LogFormat,
    level: str,
    path: Path,
) -> None:
    """Execute runs until a signal. Without `queues`, those of the default queue."""
    address = parse_address(listen) if listen else None
    if listen and address is None:
        raise InputError(f"--listen: {listen!r} is not an address; write 127.0.0.1:7858 or [::1]:7858")
    log.set_up_log(sys.stderr, form=form, level=getattr(logging, level.upper()))
    config = WorkerConfig(path, os.environ)
    settings, clock = config.plan.settings, BootClock()
    remote = _remote_queue(settings)
    name, queues = name or f"{settings.host}-{os.getpid()}", queues or (DEFAULT_QUEUE,)
    log.set_log_zone(settings.zone)
    make_state_folder(settings.state.parent)
    limit = concurrency or settings.limits.concurrency
    file_limits.raise_file_limit(limit)
    lanes_here = lanes.lanes_beside(settings.state)
    lanes_here.make_lock_files()
    http = HttpClient(lambda: config.plan.settings.network)
    traces = Tracing(lambda: config.plan.settings, name)
    end_programs_of_dead_workers(settings.state.parent / "workers")
    own_file = WorkerFile(settings.state.parent / "workers")
    guard = own_file.start_guard(clock.read)
    traces.prepare(settings)
    loop, runs = WorkerLoop(clock), _RunsHere(lanes_here, name, http, own_file, traces)
    running = RemoteWorker(
        JobQueue(remote, queues),
        ClaimCodec(lambda: config.plan.entries, config_folder(settings.path), name),
        runs.carry_out,
        loop,
        name=name,
        concurrency=limit,
        clock=clock.read,
        reload=config.reload,
        locked_lanes=runs.find_locked,
        note_lease=own_file.note_lease,
        process_id=own_file.process_id,
    )

    async def run_until_signal() -> None:
        main = asyncio.get_running_loop()
        main.add_signal_handler(signal.SIGTERM, running.stop)
        main.add_signal_handler(signal.SIGINT, running.stop)
        main.add_signal_handler(signal.SIGHUP, partial(config.reload, always=True))
        health = serve_health(*address, running) if address else None
        log_event(
            logging.INFO,
            "started",
            pid=os.getpid(),
            worker=name,
            config=settings.path,
            concurrency=limit,
            listen=health.url if health else None,
            queues=",".join(queues),
        )
        for entry, problem in find_unrunnable(config.plan):
            log_event(logging.WARNING, "cannot_run", entry=entry, problem=problem)
        for queue in sorted(set(queues) - {entry.queue for entry in config.plan.entries.values() if entry.enabled}):
            log_event(logging.WARNING, "queue_unused", queue=queue, problem="no enabled agent or job of this config uses it")
        try:
            await running.run(config.plan.settings.limits.shutdown_grace.total_seconds())
        finally:
            if health is not None:
                health.stop()

    asyncio.run(run_until_signal())
    loop.close(http.close)
    traces.close()
    own_file.close()
    os.waitpid(guard, 0)
    log_event(logging.INFO, "stopped", worker=name)


def serve_health(host: str, port: int, running: RemoteWorker) -> ServerThread:
    """Serve `/healthz` and `/metrics` in a thread of its own, without a token. Raises CannotListen."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    from scheduler.web.connection_timeouts import ClientTimeouts
    from scheduler.web.server import ServerThread, bind_socket  # they take half as long to import as all of the worker

    def healthz(_: object) -> PlainTextResponse:
        problem = running.find_problem()
        return PlainTextResponse(f"{problem or 'ok'}\n", status_code=200 if problem is None else 503)

    def metrics(_: object) -> PlainTextResponse:
        lines = "".join(f"{name} {value:g}\n" for name, value in running.metrics().items())
        return PlainTextResponse(lines, media_type="text/plain; version=0.0.4; charset=utf-8")

    app = Starlette(routes=[Route("/healthz", healthz), Route("/metrics", metrics)])
    listener = bind_socket(host, port)
    return ServerThread(app, listener, f"http://{host}:{listener.getsockname()[1]}", ClientTimeouts(), None)


def _remote_queue(settings: Settings) -> RemoteQueue:
    """Raises InputError if the runs are not executed by workers."""
    if settings.remote is None:
        raise InputError("the config has no queue for workers; write executor: {kind: procrastinate, dsn: ...}")
    return settings.remote


def drain_worker(name: str, path: Path) -> None:
    """Let a worker take no more runs."""
    remote = _remote_queue(WorkerConfig(path, os.environ).plan.settings)

    async def drain(queue: JobQueue) -> list[int]:
        if not (found := await queue.drain(name)):
            names = list_names([each.name for each in await queue.find_workers()])
            problem = f"no worker {name!r} is running; write one of these: {names}" if names else "no worker is running"
            raise InputError(problem)
        return found

    try:
        running = sum(ask_queue(remote, drain, may_create=False))
    except QueueUnavailable as error:
        raise InputError(f"the queue cannot be used: {error}") from error
    click.echo(f"{name} takes no more runs; it stops " + (f"after its runs in progress: {running}" if running else "now"))


class _RunsHere:
    """Carries out attempts on this machine, with their agents locked here as long as they last.

    After a run, a program that it has left behind may still hold the lock.
    """

    def __init__(self, lanes_here: Lanes, worker: str, http: HttpClient, own_file: WorkerFile, traces: Tracing) -> None:
        self._lanes = lanes_here
        self._worker = worker
        self._http = http
        self._own_file = own_file
        self._traces = traces
        self._lock = threading.Lock()
        self._left: set[str] = set()  # the agents whose locks ended runs have left behind

    async def carry_out(self, claim: Claim, children: Children) -> AttemptResult:
        """Carry out one attempt. If a program has the lock, its name is given with that of this machine."""
        started_at = time.monotonic()
        elapsed = lambda: timedelta(seconds=time.monotonic() - started_at)  # noqa: E731
        inherited: tuple[int, ...] = ()
        try:
            with self._lanes.lock_for_claim(claim) as (claim_in_lane, inherited), self._own_file.note_run(claim.run.mark):
                held_by = claim_in_lane.facts.blocked.get(Skip.BUSY)
                if claim_in_lane is not claim and held_by:
                    claim_in_lane = claim.blocked_by(Skip.BUSY, f"{held_by} on {self._worker}")
                resources = resources_of_run(children, inherited, self._http)
                return await self._traces.run_attempt(claim_in_lane, resources, elapsed)
        finally:
            if inherited and claim.entry.lane is not None and self._is_locked(claim.entry.lane):
                with self._lock:
                    self._left.add(claim.entry.lane)

    def find_locked(self) -> list[str]:
        """The locks in the queue that programs of ended runs still hold."""
        with self._lock:
            self._left = {name for name in self._left if self._is_locked(name)}
            return [lock_of_lane(name) for name in sorted(self._left)]

    def _is_locked(self, name: str) -> bool:
        return self._lanes.is_locked_by(name, os.getpid())
