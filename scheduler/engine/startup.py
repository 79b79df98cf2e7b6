"""What a new life takes over: the state folder with its lock and its database, and what an earlier life left running."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from scheduler.engine.recovery import Survivors
from scheduler.model.settings import Settings
from scheduler.store import boots, outbox, runs
from scheduler.store.database import Store, check_file, check_links, open_read_only
from scheduler.store.disk_reserve import DiskReserve
from scheduler.system import orphans
from scheduler.system.log import log_event
from scheduler.system.state_lock import AlreadyRunning, StateLock, make_state_folder, network_filesystem

A_MOMENT = 0.3  # seconds


def take_lock(settings: Settings, instance: str, now: Callable[[], datetime]) -> StateLock:
    """Take the lock that keeps a second daemon out.

    AlreadyRunning, StateFolderError or StoreError says why that is not possible; then nothing is created.
    """
    folder = settings.state.parent
    check_file(settings.state)
    check_links(settings.state)
    if not make_state_folder(folder):
        log_event(logging.WARNING, "state_folder", problem=f"others can look into {folder}; chmod 700 {shlex.quote(str(folder))}")
    remote = network_filesystem(folder)
    if remote:
        log_event(
            logging.WARNING, "state_folder", problem=f"{folder} lies on {remote}, where SQLite's locks are not to be trusted"
        )
    path = settings.state.with_name(settings.state.name + ".lock")
    try:
        return StateLock.take(path, started_at=now(), instance=instance)
    except AlreadyRunning:
        time.sleep(A_MOMENT)  # a command that writes for an absent daemon holds it for a moment too
        return StateLock.take(path, started_at=now(), instance=instance)


def open_store(path: Path) -> Store:
    """Open the database; its every page is checked first unless the last life ended in order."""
    reserve = DiskReserve(path)
    reserve.release_if_short()  # reading needs room too, where the last life has put the log away
    clean = True
    if path.exists() and path.stat().st_size:
        connection = open_read_only(path)
        try:
            clean = boots.last_boot_ended_cleanly(connection)
        finally:
            connection.close()
    return Store.open(path, check=not clean, reserve=reserve)


def end_orphans(store: Store) -> Survivors:
    """End the processes of what was in progress when an earlier life died; says of each run whether something of it lives on.

    What a run that had ended left in the background was meant to stay, and goes on.
    """
    interrupted = _interrupted_work(store)
    if not interrupted:
        return {}
    found = orphans.find_orphans(interrupted)
    if found is None:
        return None
    programs = {pid: orphans.program_name(pid) for pids in found.values() for pid in pids}
    living = orphans.end_orphans(programs)
    for mark, pids in found.items():
        for pid in pids:
            word, level = ("orphan_not_ended", logging.ERROR) if pid in living else ("orphan_ended", logging.WARNING)
            log_event(level, word, **interrupted[mark], pid=pid, program=programs[pid])
    return {mark: bool(living & set(pids)) for mark, pids in found.items()}


def _interrupted_work(store: Store) -> dict[str, dict[str, Any]]:
    """The marks of all runs and messages that were in progress, each with what the log says of it."""
    last = boots.latest_boot(store.connection)
    if last is None:
        return {}
    running = [(kind, name, run) for kind, name, run in runs.all_open_runs(store.connection) if run.state == "running"]
    interrupted = outbox.interrupted_messages(store.connection)
    return {
        **{f"{run.owner}/{run.run_id}": {"run": run.run_id, "kind": kind, "name": name} for kind, name, run in running},
        **{f"{last['instance']}/outbox/{each.id}": {"message": each.id, "channel": each.channel} for each in interrupted},
    }
