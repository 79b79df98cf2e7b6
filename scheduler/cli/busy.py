"""The command `busy`: runs a command while the lane of an agent is locked."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

import click

from heartbeatd.state_folder import OVERRIDE_PREFIX
from scheduler.cli import daemon_files, options
from scheduler.cli.daemon_files import DaemonFiles
from scheduler.model.expected_error import InputError
from scheduler.model.outcome import Kind
from scheduler.model.settings import RemoteQueue
from scheduler.store import entries, lane_holds, runs
from scheduler.system import lanes
from scheduler.system.lanes import Lanes
from scheduler.system.orphans import RUN_ID_VARIABLE
from scheduler.system.state_lock import make_state_folder

if TYPE_CHECKING:  # of an extra
    from scheduler.store.job_queue import JobQueue

T = TypeVar("T")

WORKERS = "procrastinate"  # the value of `executor.kind` if there are workers
RETRY_SECONDS = 0.5
KEEPS_PER_LEASE = 10


def run_while_locked(agent: str, command: tuple[str, ...], path: Path) -> int:
    """Lock the agent and run the command, which replaces this process."""
    name = options.name_of_kind("agent", agent, "jobs have no lane")
    files = daemon_files.locate_files(path)
    with daemon_files.open_for_reading(files) as db:
        _check_known(name, db, path)
        own = lanes.lanes_beside(files.database).is_inherited(name) or (db is not None and _is_own_run(db, name))
    cluster = None if own else _lane_in_cluster(name, path, files)
    if not own and not (cluster and cluster.is_own_run()):  # a run that calls this command would wait for itself
        fd = _take_lane(name, files.database)
        if cluster is not None:
            _take_in_cluster(cluster, name)
            _keep_in_background(cluster, lanes.lanes_beside(files.database), name, fd)
    _replace_process(command)


def _check_known(name: str, db: sqlite3.Connection | None, path: Path) -> None:
    """Raise InputError if there is no such agent.

    The config is read only if the agent is not in the database, so that an invalid config does no harm.
    """
    found = entries.find_entry(db, Kind.HEARTBEAT, name) if db else None
    if found is not None and found.state != "removed":
        return
    from scheduler.config.settings.load import load_config

    declared = load_config(path, os.environ, for_worker=True).settings.heartbeats  # a worker may lack secrets of other agents
    if name not in declared:
        raise InputError(f"no agent {name!r}{options.suggest_entry(name, declared)}")


def _is_own_run(db: sqlite3.Connection, name: str) -> bool:
    run = runs.find_open_run(db, Kind.HEARTBEAT, name)
    return run is not None and os.environ.get(RUN_ID_VARIABLE) == f"{run.owner}/{run.run_id}"


def _take_lane(name: str, database: Path) -> int:
    """Lock the lane for this process and for the command that replaces it. Returns the descriptor of the lock."""
    make_state_folder(database.parent)
    waiting = f"heartbeatd: agent/{name} is busy; waiting until it is free"
    fd = lanes.lanes_beside(database).wait_for_lock(name, lambda: click.echo(waiting, err=True))
    os.set_inheritable(fd, True)
    return fd


class _ClusterLane(Protocol):
    """The lane of an agent on all machines of a cluster. Its methods raise _ClusterProblem."""

    keep_every: float  # seconds between calls of `keep`

    def is_own_run(self) -> bool:
        """Whether this command is part of a run that has the lane."""
        ...

    def take(self) -> str | None:
        """Take the lane, or prolong the time for which it is held. Returns what must end first; None: the lane is held."""
        ...

    def keep(self) -> None:
        """Prolong the time for which the lane is held."""
        ...

    def release(self) -> None: ...


class _ClusterProblem(Exception):
    """The database of the cluster cannot be used at the moment. The message is one line."""


class _QueueLane:
    """A lane in the queue of the workers."""

    def __init__(self, name: str, remote: RemoteQueue, host: str) -> None:
        from scheduler.work.payloads import lock_of_lane

        self._lock = lock_of_lane(name)
        self._remote = remote
        self._lease = remote.lease.total_seconds()
        self._holder = _holder_name(host)
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
        from scheduler.store.job_queue import JobQueue, QueueUnavailable

        async def connect_and_ask() -> T:
            queue = JobQueue(self._remote.dsn, self._remote.name)
            await queue.open()
            try:
                return await ask(queue)
            finally:
                await queue.close()

        try:
            return asyncio.run(connect_and_ask())
        except QueueUnavailable as error:
            raise _ClusterProblem(str(error)) from error


class _ServerLane:
    """A lane in the database of several daemons, one of which leads. `jobs` are the jobs in this lane."""

    def __init__(self, name: str, server: str, jobs: Sequence[str], host: str) -> None:
        self._name = name
        self._server = server
        self._jobs = jobs
        self._holder = _holder_name(host)
        self.keep_every = lane_holds.COMMAND_HOLD.total_seconds() / KEEPS_PER_LEASE

    def is_own_run(self) -> bool:
        return False  # the caller has asked the database already

    def take(self) -> str | None:
        return self._call(lambda db: lane_holds.try_to_hold_lane(db, self._name, self._jobs, self._holder))

    def keep(self) -> None:
        self.take()

    def release(self) -> None:
        self._call(lambda db: lane_holds.delete_hold_of_command(db, self._name, self._holder))

    def _call(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        from scheduler.store.locations import open_server_for_command

        try:
            with closing(open_server_for_command(self._server)) as db:
                return ask(db)
        except sqlite3.Error as error:
            raise _ClusterProblem(str(error)) from error


def _holder_name(host: str) -> str:
    return f"{lane_holds.COMMAND} on {host} (process {os.getpid()})"


def _lane_in_cluster(name: str, path: Path, files: DaemonFiles) -> _ClusterLane | None:
    """The lane on all machines; None if there is only this one. The config is loaded only if it may have workers."""
    if not (files.server or _may_have_workers(path)):
        return None
    from scheduler.config.settings.load import load_config
    from scheduler.work.payloads import missing_secret

    settings = load_config(path, os.environ, for_worker=True).settings
    if settings.remote is not None:
        if problem := missing_secret(settings.remote):
            raise InputError(f"cannot lock {name!r} on the other machines: {problem}")
        return _QueueLane(name, settings.remote, settings.host)
    if files.server is None:
        return None
    jobs = [job for job, agent in settings.job_agents.items() if agent.name == name]
    return _ServerLane(name, files.server, jobs, settings.host)


def _may_have_workers(path: Path) -> bool:
    """Whether the config may name a queue of workers. Most configs do not, and loading one takes half a second."""
    if any(WORKERS in value for key, value in os.environ.items() if key.startswith(OVERRIDE_PREFIX)):
        return True
    try:
        return WORKERS in path.read_text("utf-8", "replace")
    except OSError:
        return False


def _take_in_cluster(lane: _ClusterLane, name: str) -> None:
    """Take the lane on all machines, as soon as it is free there. A message says what this waits for."""
    reported = None
    try:
        while True:
            try:
                obstacle = lane.take()
            except _ClusterProblem as problem:
                obstacle = f"it cannot be locked for the other machines: {problem}"
            if obstacle is None:
                return
            if reported is None:
                click.echo(f"heartbeatd: agent/{name} is busy: {obstacle}; waiting until it is free", err=True)
            reported = obstacle
            time.sleep(RETRY_SECONDS)
    except BaseException:
        with suppress(_ClusterProblem):
            lane.release()
        raise


def _keep_in_background(lane: _ClusterLane, lanes_here: Lanes, name: str, fd: int) -> None:
    """Start a process that keeps the lane on all machines as long as a program holds the lock `fd` here, and then releases it.

    It is no child of the command, which may wait for all its children.
    """
    command = os.getpid()
    if (child := os.fork()) != 0:
        os.waitpid(child, 0)
        return
    try:
        if os.fork() == 0:
            os.setsid()  # a Ctrl-C in the terminal is for the command
            os.close(fd)
            with Path(os.devnull).open("r+b") as nothing:
                for each in (0, 1, 2):
                    os.dup2(nothing.fileno(), each)
            _keep_until_unlocked(lane, lambda: lanes_here.is_locked_by(name, command))
    finally:
        os._exit(0)


def _keep_until_unlocked(lane: _ClusterLane, is_locked: Callable[[], bool]) -> None:
    kept_at = time.monotonic()
    while is_locked():
        time.sleep(RETRY_SECONDS)
        if time.monotonic() - kept_at >= lane.keep_every:
            with suppress(_ClusterProblem):
                lane.keep()
                kept_at = time.monotonic()
    with suppress(_ClusterProblem):
        lane.release()


def _replace_process(command: tuple[str, ...]) -> NoReturn:
    """Replace this process by the command, which keeps the lane locked until it ends, and gets all signals."""
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the command would inherit that
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 (the user's own command line, without a shell)
    except FileNotFoundError:
        click.echo(f"heartbeatd: no such program: {command[0]!r}", err=True)
        raise SystemExit(127) from None
    except OSError as error:
        click.echo(f"heartbeatd: cannot start {command[0]!r}: {error.strerror}", err=True)
        raise SystemExit(126) from None
