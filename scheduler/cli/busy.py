"""The command `busy`: runs a command while an agent is locked."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import click

from heartbeatd.state_folder import OVERRIDE_PREFIX, RUN_ID_VARIABLE
from scheduler.cli import daemon_files, options
from scheduler.cli.daemon_files import DaemonFiles
from scheduler.model.expected_error import InputError
from scheduler.model.outcome import Kind
from scheduler.store import entries, lane_holds, runs
from scheduler.system import extras, lanes
from scheduler.system.lanes import ClusterLane, ClusterProblem, Lanes
from scheduler.system.state_lock import make_state_folder

WORKERS = "procrastinate"  # the value of `executor.kind` if there are workers
RETRY_SECONDS = 0.5


def run_while_locked(agent: str, command: tuple[str, ...], path: Path) -> int:
    """Lock the agent and run the command, which replaces this process."""
    name = options.name_of_kind("agent", agent, "jobs have no lock")
    files = daemon_files.locate_files(path)
    with daemon_files.open_for_reading(files) as db:
        _check_known(name, db, path)
        own = lanes.lanes_beside(files.database).is_inherited(name) or _is_own_run(db, name)
    cluster = None if own else _lane_in_cluster(name, path, files)
    if not own and not (cluster and cluster.is_own_run()):  # a run that calls this command would wait for itself
        fd = _take_lane(name, files.database)
        if cluster is not None:
            _take_in_cluster(cluster, name)
            _keep_in_background(cluster, lanes.lanes_beside(files.database), name, fd)
    _replace_process(command)


def _check_known(name: str, db: sqlite3.Connection, path: Path) -> None:
    """Raise InputError if there is no such agent.

    The config is read only if the agent is not in the database, so that an invalid config does no harm.
    """
    found = entries.find_entry(db, Kind.HEARTBEAT, name)
    if found is not None and found.state != "removed":
        return
    from scheduler.config.settings.load import load_config

    declared = load_config(path, os.environ, for_worker=True).settings.heartbeats  # a worker may lack secrets of other agents
    if name not in declared:
        raise InputError(f"no agent {name!r}{options.suggest_entry(name, declared)}")


def _is_own_run(db: sqlite3.Connection, name: str) -> bool:
    run = runs.find_open_run(db, Kind.HEARTBEAT, name)
    return run is not None and os.environ.get(RUN_ID_VARIABLE) == f"{run.owner}/{run.id}"


def _take_lane(name: str, database: Path) -> int:
    """Take the lock for this process and for the command that replaces it. Returns the descriptor of the lock."""
    make_state_folder(database.parent)
    waiting = f"heartbeatd: agent/{name} is busy; waiting until it is free"
    fd = lanes.lanes_beside(database).wait_for_lock(name, lambda: click.echo(waiting, err=True))
    os.set_inheritable(fd, True)
    return fd


def _lane_in_cluster(name: str, path: Path, files: DaemonFiles) -> ClusterLane | None:
    """The lock on all machines; None if there is only this one. The config is loaded only if it may have workers."""
    if not (files.server or _may_have_workers(path)):
        return None
    from scheduler.config.settings.load import load_config

    settings = load_config(path, os.environ, for_worker=True).settings
    holder = f"{lane_holds.COMMAND} on {settings.host} (process {os.getpid()})"
    lane: ClusterLane | None = None
    if settings.remote is not None:
        lane = extras.load("executors", "procrastinate").make_lane(name, settings.remote, holder)
    elif files.server is not None:
        jobs = [job for job, agent in settings.job_agents.items() if agent.name == name]
        lane = extras.load("stores", "postgresql").make_lane(name, files.server, jobs, holder)
    return lane


def _may_have_workers(path: Path) -> bool:
    """Whether the config may name a queue of workers. Most configs do not, and loading one takes half a second."""
    if any(WORKERS in value for key, value in os.environ.items() if key.startswith(OVERRIDE_PREFIX)):
        return True
    try:
        return WORKERS in path.read_text("utf-8", "replace")
    except OSError:
        return False


def _take_in_cluster(lane: ClusterLane, name: str) -> None:
    """Take the lock on all machines, as soon as it is free there. A message says what this waits for."""
    reported = None
    try:
        while True:
            try:
                obstacle = lane.take()
            except ClusterProblem as problem:
                obstacle = f"it cannot be locked for the other machines: {problem}"
            if obstacle is None:
                return
            if reported is None:
                click.echo(f"heartbeatd: agent/{name} is busy: {obstacle}; waiting until it is free", err=True)
            reported = obstacle
            time.sleep(RETRY_SECONDS)
    except BaseException:
        with suppress(ClusterProblem):
            lane.release()
        raise


def _keep_in_background(lane: ClusterLane, lanes_here: Lanes, name: str, fd: int) -> None:
    """Start a process that keeps the lock on all machines as long as a program holds the lock `fd` here, and then releases it.

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


def _keep_until_unlocked(lane: ClusterLane, is_locked: Callable[[], bool]) -> None:
    kept_at = time.monotonic()
    while is_locked():
        time.sleep(RETRY_SECONDS)
        if time.monotonic() - kept_at >= lane.keep_every:
            with suppress(ClusterProblem):
                lane.take()
                kept_at = time.monotonic()
    with suppress(ClusterProblem):
        lane.release()


def _replace_process(command: tuple[str, ...]) -> NoReturn:
    """Replace this process by the command, which keeps the agent locked until it ends, and gets all signals."""
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
