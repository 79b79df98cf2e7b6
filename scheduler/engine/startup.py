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
from scheduler.system.log import event
from scheduler.system.state_lock import Lock, Taken, filesystem_kind, private_folder

A_MOMENT = 0.3  # seconds


def take_lock(settings: Settings, instance: str, now: Callable[[], datetime]) -> Lock:
    """The lock that keeps a second daemon out; Taken, Unusable or StoreError says why there is none, and nothing is made then."""
    folder = settings.state.parent
    check_file(settings.state)
    check_links(settings.state)
    if not private_folder(folder):
        event(logging.WARNING, "state_folder", problem=f"others can look into {folder}; chmod 700 {shlex.quote(str(folder))}")
    remote = filesystem_kind(folder)
    if remote:
        event(logging.WARNING, "state_folder", problem=f"{folder} lies on {remote}, where SQLite's locks are not to be trusted")
    path = settings.state.with_name(settings.state.name + ".lock")
    try:
        return Lock.take(path, started_at=now(), instance=instance)
    except Taken:
        time.sleep(A_MOMENT)  # a command that writes for an absent daemon holds it for a moment too
        return Lock.take(path, started_at=now(), instance=instance)


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
    found = orphans.find(interrupted)
    if found is None:
        return None
    programs = {pid: orphans.program(pid) for pids in found.values() for pid in pids}
    living = orphans.end(programs)
    for mark, pids in found.items():
        for pid in pids:
            word, level = ("orphan_not_ended", logging.ERROR) if pid in living else ("orphan_ended", logging.WARNING)
            event(level, word, **interrupted[mark], pid=pid, program=programs[pid])
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
