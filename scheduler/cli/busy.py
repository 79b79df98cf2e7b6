"""The command `busy`: runs a command while the lane of an agent is locked."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path
from typing import NoReturn

import click

from scheduler.cli import arguments, daemon_files, options
from scheduler.cli.options import InputError
from scheduler.model.outcome import Kind
from scheduler.store import entries, runs
from scheduler.system import lanes
from scheduler.system.process import RUN_ID_VARIABLE
from scheduler.system.state_lock import make_state_folder


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("agent", shell_complete=arguments.complete_names(Kind.HEARTBEAT))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@options.config_option
def busy(agent: str, command: tuple[str, ...], path: Path) -> int:
    """Lock an agent, run a command, and release the agent.

    The command starts after the agent's current run has ended. The agent's later runs wait until the command has ended.
    heartbeatd exits with the exit code of the command. A script can also lock the agent without heartbeatd: run `flock
    lanes/AGENT.lock COMMAND` in the folder of the database file.
    """
    name = arguments.name_of_kind(Kind.HEARTBEAT, agent, "jobs have no lane")
    files = daemon_files.locate_files(path)
    with daemon_files.open_for_reading(files) as db:
        _check_known(name, db, path)
        own = db is not None and _is_own_run(db, name)
    if not own:  # a heartbeat run that calls this command holds the lane already, and would wait for itself
        _take_lane(name, files.database)
    _replace_process(command)


def _check_known(name: str, db: sqlite3.Connection | None, path: Path) -> None:
    """Raise InputError if there is no such agent.

    The config is read only if the agent is not in the database, so that an invalid config does no harm.
    """
    found = entries.find_entry(db, Kind.HEARTBEAT, name) if db else None
    if found is not None and found.state != "removed":
        return
    from scheduler.config.build.load import load_config

    declared = load_config(path, os.environ).settings.heartbeats
    if name not in declared:
        raise InputError(f"no agent {name!r}{arguments.suggest_entry(name, declared)}")


def _is_own_run(db: sqlite3.Connection, name: str) -> bool:
    run = runs.find_open_run(db, Kind.HEARTBEAT, name)
    return run is not None and os.environ.get(RUN_ID_VARIABLE) == f"{run.owner}/{run.run_id}"


def _take_lane(name: str, database: Path) -> None:
    """Lock the lane for this process and for the command that replaces it."""
    make_state_folder(database.parent)
    waiting = f"heartbeatd: agent/{name} is busy; waiting until it is free"
    fd = lanes.lanes_beside(database).wait_for_lock(name, lambda: click.echo(waiting, err=True))
    os.set_inheritable(fd, True)


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
