"""Finds the daemon's files, checks whether it runs, and opens its database for reading."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scheduler.store.database import check_file, check_links, open_read_only_any_version
from scheduler.system import state_lock

if TYPE_CHECKING:  # half a second of imports that `status` and `runs` do without
    from scheduler.work.plan import Plan


@dataclass(frozen=True, slots=True)
class DaemonFiles:
    """The database, and what lies beside it."""

    database: Path

    @property
    def lock_file(self) -> Path:
        return self.database.with_name(self.database.name + ".lock")

    @property
    def address_file(self) -> Path:
        """Where a running daemon writes how it is reached."""
        return self.database.with_name("daemon.json")

    @property
    def token_file(self) -> Path:
        return self.database.with_name("token")


@dataclass(frozen=True, slots=True)
class DaemonProcess:
    """A daemon that runs; both None in the instant before it has written its name."""

    pid: int | None
    started_at: datetime | None


def locate_files(path: Path, state: Path | None = None) -> DaemonFiles:
    """The place that `--state` or the config at `path` names, however broken that config is."""
    from scheduler.config.file.lenient_reading import read_state_path, real_path

    return DaemonFiles(read_state_path(path, os.environ) if state is None else real_path(state))


def locate_files_or_warn(path: Path, state: Path | None = None) -> DaemonFiles:
    """As `place`, for commands that do without a config: where there is neither that nor a database, stderr says so."""
    found = locate_files(path, state)
    if state is None and not path.exists() and not found.database.exists():
        click.echo(
            f"heartbeatd: there is no {path} and no database; change to the config's folder or use -c"
            " (`heartbeatd init DIR` writes a config)",
            err=True,
        )
    return found


def find_running_daemon(where: DaemonFiles) -> DaemonProcess | None:
    """Who holds the database's lock right now; None if nobody does. The lock is tried, and let go at once."""
    try:
        fd = os.open(where.lock_file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = state_lock.read_lock_holder(where.lock_file)
        return DaemonProcess(holder.pid, holder.started_at) if holder else DaemonProcess(None, None)
    finally:
        os.close(fd)
    return None


@contextmanager
def open_for_reading(where: DaemonFiles) -> Iterator[sqlite3.Connection | None]:
    """A connection that only reads, closed at the end; None where there is no database yet.

    Raises StoreError for what is no database; and for one with several names, unless the daemon runs by this one: by any other
    the log is missing, and what is read is old.
    """
    check_file(where.database)
    if find_running_daemon(where) is None:
        check_links(where.database)
    if not where.database.exists():
        yield None
        return
    if not os.access(where.database, os.R_OK):
        owner = where.database.stat().st_uid
        raise click.ClickException(f"{where.database} belongs to user id {owner} and cannot be read as user id {os.geteuid()}")
    connection = open_read_only_any_version(where.database)
    try:
        yield connection
    finally:
        connection.close()


def load_declared_plan(path: Path, state: Path | None, where: DaemonFiles) -> Plan | None:
    """The plan of the config at `path`; None where `--state` was given, and where the config is broken but there is a database.

    Raises ConfigError where there is neither.
    """
    if state is not None:
        return None
    from scheduler.config.build import load
    from scheduler.config.file.diagnostics import ConfigError
    from scheduler.work import plan

    try:
        return plan.make(load.load_config(path, os.environ, resolve_secrets=False).settings)
    except ConfigError:
        if not where.database.exists():
            raise
        click.echo(f"{path} has errors (`heartbeatd check` lists them); only the database is used", err=True)
        return None
