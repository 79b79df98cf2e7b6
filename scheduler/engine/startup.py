"""Prepares the start of the daemon after a stop or crash: takes the lock, checks the database, ends orphans.

The database is also checked once a day while the daemon runs (`DailyCheck`).
"""

from __future__ import annotations

import logging
import os
import shlex
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from scheduler.model.settings import Settings
from scheduler.store import boots, outbox, runs
from scheduler.store.database import Store, StoreError, check_database, check_file, check_links, open_read_only
from scheduler.store.disk_reserve import DiskReserve
from scheduler.store.locations import open_for_writing
from scheduler.system import orphans
from scheduler.system.log import log_event
from scheduler.system.state_lock import (
    AlreadyRunning,
    RefusedStart,
    StateLock,
    make_state_folder,
    network_filesystem,
    record_refused_start,
)

LOCK_RETRY_SECONDS = 0.3  # seconds
MAX_LOCK_RETRIES = 60  # while a command that writes holds the lock, for example with a large config on a slow machine

FIRST_CHECK_AFTER = 3600.0  # seconds; a daemon that is restarted every day checks its database, too
CHECK_EVERY = 24 * 3600.0  # seconds

SurvivorsByRun = Mapping[str, bool] | None
"""By mark of a run: whether one of its processes could not be ended. None if processes cannot be inspected."""


def take_lock(settings: Settings, instance: str, now: Callable[[], datetime]) -> StateLock:
    """Take the lock of the state folder, so that no second daemon uses it.

    Raises AlreadyRunning, StateFolderError or StoreError; then nothing is created. A rejected start is recorded in a file next to
    the lock.
    """
    folder = settings.state.parent
    if settings.postgresql is None:
        check_file(settings.state)
        check_links(settings.state)
    if not make_state_folder(folder):
        log_event(logging.WARNING, "state_folder", problem=f"other users can read {folder}; chmod 700 {shlex.quote(str(folder))}")
    remote = network_filesystem(folder)
    if remote and settings.postgresql is None:
        log_event(logging.WARNING, "state_folder", problem=f"{folder} is on {remote}, where SQLite's locks are unreliable")
    path = settings.state.with_name(settings.state.name + ".lock")
    retries = 0
    while True:
        try:
            return StateLock.take(path, started_at=now(), instance=instance)
        except AlreadyRunning as held:  # by a command that writes while no daemon runs, or by a process that has not named itself
            if retries >= (MAX_LOCK_RETRIES if held.is_command else 1):
                record_refused_start(path, RefusedStart(now(), os.getpid(), str(settings.path)))
                raise
        retries += 1
        time.sleep(LOCK_RETRY_SECONDS)


def open_store(path: Path | str) -> Store:
    """Open the database. Unless the last boot ended cleanly, the integrity of a file is checked first.

    If the server is down, the store has no connection yet, and `Store.connect` tries again.
    """
    if isinstance(path, str):
        return open_for_writing(path, is_patient=True)
    reserve = DiskReserve(path)
    reserve.release_if_short()  # without a write-ahead log, reading needs free space too
    clean = True
    if path.exists() and path.stat().st_size:
        connection = open_read_only(path)
        try:
            last = boots.latest_boot(connection)
            clean = last is None or last.clean
        finally:
            connection.close()
    return Store.open(path, check=not clean, reserve=reserve)


class DailyCheck:
    """Reads all pages of a database file once a day, in a thread: damage is noticed before a restart or a restore.

    `report` is called with the damage, or with None. A server checks its database itself.
    """

    def __init__(self, database: Path | str, report: Callable[[str | None], object], monotonic: float) -> None:
        self._database = database
        self._report = report
        self._next_at = monotonic + FIRST_CHECK_AFTER

    def begin_if_due(self, monotonic: float) -> threading.Thread | None:
        """Begin a check, if one is due at this time of the monotonic clock. Returns its thread."""
        if monotonic < self._next_at or isinstance(self._database, str):
            return None
        self._next_at = monotonic + CHECK_EVERY
        thread = threading.Thread(target=self._check, args=(self._database,), name="check", daemon=True)
        thread.start()
        return thread

    def _check(self, path: Path) -> None:
        try:
            check_database(path)
        except StoreError as error:
            self._report(str(error))
        else:
            self._report(None)


def end_orphans(store: Store, *, runs_here: bool = True) -> SurvivorsByRun:
    """End the processes of runs and messages that were interrupted. Returns, by mark, whether a process survived.

    `runs_here` False: workers execute the runs, so only processes of messages are ended. Background processes of runs that had
    ended are left alone, because they were meant to continue.
    """
    interrupted = _interrupted_work(store, runs_here=runs_here)
    if not interrupted:
        return {}
    found = orphans.find_orphans(interrupted)
    if found is None:
        return None
    living = orphans.end_and_log(found, interrupted)
    return {mark: bool(living & set(pids)) for mark, pids in found.items()}


def _interrupted_work(store: Store, *, runs_here: bool) -> dict[str, dict[str, Any]]:
    """The marks of all interrupted runs and messages, each with its fields for the log."""
    last = boots.latest_boot(store.connection)
    if last is None:
        return {}
    open_runs = runs.all_open_runs(store.connection) if runs_here else []
    running = [(kind, name, run) for kind, name, run in open_runs if run.state == "running"]
    interrupted = outbox.interrupted_messages(store.connection)
    return {
        **{f"{run.owner}/{run.id}": {"run": run.id, "kind": kind, "name": name} for kind, name, run in running},
        **{f"{last.instance}/outbox/{each.id}": {"message": each.id, "channel": each.channel} for each in interrupted},
    }
