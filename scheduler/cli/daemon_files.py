"""Finds the daemon's files, checks whether it runs, and opens its database for reading."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from heartbeatd.state_folder import OVERRIDE_PREFIX, address_file, is_locked
from scheduler.model.expected_error import InputError
from scheduler.model.state_address import address_problem, describe_server, server_of_path
from scheduler.store import config_history
from scheduler.store.boots import Leader, is_leader_running
from scheduler.store.database import StoreError, check_file, check_links, open_empty_database
from scheduler.store.locations import open_read_only_any_version
from scheduler.system import state_lock
from scheduler.system.orphans import is_process_stopped
from scheduler.system.state_lock import LockOwner

if TYPE_CHECKING:  # half a second of imports that `status` and `runs` do not need
    from heartbeatd.answers import Problem
    from scheduler.insight.daemon_state import DaemonState
    from scheduler.work.plan import Plan


@dataclass(frozen=True, slots=True)
class DaemonFiles:
    """The paths of the database and of the files in its folder."""

    database: Path
    server: str | None = None  # the address of the server that has the database instead

    @property
    def store(self) -> Path | str:
        """The database: a file, or the address of a server."""
        return self.server or self.database

    @property
    def may_exist(self) -> bool:
        """Whether there is a database file, or a server that may have the database."""
        return self.server is not None or self.database.exists()

    @property
    def shown(self) -> str:
        """The database for messages."""
        return describe_server(self.server) if self.server else str(self.database)

    @property
    def lock_file(self) -> Path:
        return self.database.with_name(self.database.name + ".lock")

    @property
    def address_file(self) -> Path:
        """The file in which a running daemon writes its address."""
        return address_file(self.database)

    @property
    def token_file(self) -> Path:
        return self.database.with_name("token")


@dataclass(frozen=True)
class Source:
    """What a command reads: the config, and the database (None: that of the config). `form` is the format of what it prints."""

    config: Path
    state: Path | None
    form: str

    @cached_property
    def files(self) -> DaemonFiles:
        """The files of the daemon, as `locate_files_or_warn` finds them."""
        return locate_files_or_warn(self.config, self.state)

    def open(self) -> AbstractContextManager[sqlite3.Connection]:
        """The database, as `open_for_reading` opens it."""
        return open_for_reading(self.files)


def find_problems(
    db: sqlite3.Connection, config: Path, name: str | None, now: datetime, *, also_over: bool = False, advice: str
) -> list[Problem]:
    """Everything that is wrong with a subject (None: all), or one problem. Raises InputError with `advice` for an unknown name.

    Known are the agents and jobs in the database, and the channels: those of the config, and the built-in one.
    """
    from scheduler.config.file.lenient_reading import read_names
    from scheduler.insight import problem_list
    from scheduler.model.problem import CHANNEL
    from scheduler.model.settings import LOG_CHANNEL
    from scheduler.store.entries import states_and_schedules

    known = [*states_and_schedules(db), *((CHANNEL, each) for each in (LOG_CHANNEL, *read_names(config)["channels"]))]
    try:
        return problem_list.choose_problems(problem_list.list_problems(db, now), name, known, also_over=also_over)
    except LookupError as error:
        raise InputError(f"no {error}; {advice}") from None


def locate_files(path: Path, state: Path | None = None) -> DaemonFiles:
    """The files of the database that `--state` or the config at `path` names. The config may be invalid.

    Raises InputError if the address of a server contains a password.
    """
    from heartbeatd.state_folder import read_state_path, read_state_server, real_path

    if state is None:
        return DaemonFiles(read_state_path(path, os.environ), _without_password(read_state_server(path, os.environ)))
    server = _without_password(server_of_path(state))
    return DaemonFiles(read_state_path(path, {}) if server else real_path(state), server)


def _without_password(server: str | None) -> str | None:
    """The address of a server, which may be printed. Raises InputError if it contains a password."""
    if server is not None and (problem := address_problem(server)):
        raise InputError(problem)
    return server


def locate_files_or_warn(path: Path, state: Path | None = None) -> DaemonFiles:
    """As `locate_files`, with a warning on stderr if there is no config. Raises InputError if there is no database either."""
    found = locate_files(path, state)
    if state is None and not path.exists():
        if not found.may_exist:
            raise InputError(
                f"there is no {path} and no database; change to the config's folder, use -c, or run `heartbeatd init DIR`"
            )
        click.echo(f"heartbeatd: there is no {path}; {found.shown} is used; change to the config's folder or use -c", err=True)
    return found


def find_running_daemon(files: DaemonFiles) -> LockOwner | None:
    """The process that holds the database's lock at this moment, None if there is none."""
    if not is_locked(files.lock_file):
        return None
    return state_lock.read_lock_owner(files.lock_file) or LockOwner()


def is_daemon_running(files: DaemonFiles, db: sqlite3.Connection) -> bool:
    """Whether a daemon runs with this database, on this machine or, with a server, on another one."""
    return find_running_daemon(files) is not None or is_leader_running(db)


def describe_standby(files: DaemonFiles, up: LockOwner, leader: Leader | None) -> str | None:
    """Which daemon leads instead of this one; None if it leads itself."""
    if files.server is None or up.instance is None:
        return None
    if leader is None:
        return "no daemon leads"
    return None if leader.holder == up.instance else f"{leader.host or 'another daemon'} leads"


def read_state(db: sqlite3.Connection, files: DaemonFiles, now: datetime) -> DaemonState:
    """What is known about the daemon now, from its database, its lock and its process."""
    from scheduler.insight.daemon_state import read_daemon_state

    found = find_running_daemon(files)
    pid = found.pid if found else None
    state = read_daemon_state(
        db,
        now,
        running=is_daemon_running(files, db),
        pid=pid,
        is_stopped=pid is not None and is_process_stopped(pid),
        refused_starts=state_lock.read_refused_starts(files.lock_file),
    )
    return state if found else replace(state, is_frozen=False)  # a frozen leader on another machine loses its lease


@contextmanager
def open_for_reading(files: DaemonFiles) -> Iterator[sqlite3.Connection]:
    """A read-only connection, closed at the end. If there is no database yet, it is to an empty one.

    Raises StoreError if the file is not a database. It is also raised for a database with several hard links, unless
    the daemon runs with this path: under another path SQLite does not find the write-ahead log, and would read old data.
    """
    if files.server is None:
        check_file(files.database)
        if find_running_daemon(files) is None:
            check_links(files.database)
        if files.may_exist and not os.access(files.database, os.R_OK):
            owner = files.database.stat().st_uid
            raise StoreError(f"{files.database} belongs to user id {owner} and cannot be read as user id {os.geteuid()}")
    with closing(open_read_only_any_version(files.store) if files.may_exist else open_empty_database()) as connection:
        yield connection


def daemon_environ(files: DaemonFiles) -> Mapping[str, str]:
    """The environment of this shell, with the overrides of the running daemon instead of its own."""
    from scheduler.config.settings.config_snapshot import stored_overrides

    if find_running_daemon(files) is None:
        return os.environ
    with open_for_reading(files) as db:
        found = config_history.config_in_force(db)
    return replace_overrides(stored_overrides(found[0]) if found and found[0].overrides else {})


def replace_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """The environment of this shell, with these overrides instead of its own."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(OVERRIDE_PREFIX)}
    return own | dict(overrides)


def load_declared_plan(source: Source, files: DaemonFiles) -> Plan | None:
    """The plan of the config; None if `--state` was given, or if the config is invalid and there is a database.

    Raises ConfigError if the config is invalid and there is no database.
    """
    if source.state is not None:
        return None
    from scheduler.config.file.diagnostics import ConfigError
    from scheduler.config.settings import load
    from scheduler.work import plan

    try:
        return plan.make_plan(load.load_config(source.config, daemon_environ(files), resolve_secrets=False).settings)
    except ConfigError:
        if not files.may_exist:
            raise
        click.echo(f"{source.config} has errors (`heartbeatd check` lists them); only the database is used", err=True)
        return None
