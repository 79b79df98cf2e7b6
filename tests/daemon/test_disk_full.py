"""On a full disk nothing runs that cannot be recorded first, and missed slots are recorded later."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
from calendar import timegm
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic, strptime
from typing import Any

import pytest
import required_programs
from daemon_process import Daemon, daemons_in
from patience import PATIENCE
from warm_start import run_heartbeatd
from world import MakeWorld

from scheduler.store.database import APPLICATION_ID, Store, StoreError
from scheduler.store.disk_reserve import MIB
from scheduler.store.migrations import migrations

pytestmark = pytest.mark.process

CONFIG = """\
state: state/h.db
server: {listen: "127.0.0.1:0"}
agents:
  ops:
    runner: {kind: command, argv: [sh, -c, "cat >/dev/null; echo $HEARTBEATD_RUN >> ../../did.txt; echo HEARTBEAT_OK"]}
    heartbeat: {interval: 2s, stagger: 0s, checklist: "- look\\n", deliver: log}
cron:
  tick: {every: 1s, command: "echo $HEARTBEATD_RUN >> did.txt; seq 3000"}
"""

STORY = """\
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 1m, stagger: 0s, checklist: "- look\\n", deliver: log}
"""

RUN = ("run", "--for", "1s")

Mount = Callable[[Path, str], "Disk"]


class Disk:
    """A separate file system that can be filled completely."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(4096))

    def clear(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def mount() -> Iterator[Mount]:
    """`mount(folder, size)` mounts a file system in memory at a new folder."""
    mounted: list[Path] = []

    def begin(folder: Path, size: str) -> Disk:
        folder.mkdir(mode=0o700, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "heartbeatd-test", str(folder)]
        required_programs.need("mount")
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if done.returncode:
            pytest.skip("needs the right to mount a disk that can be filled (run it as root)")
        mounted.append(folder)
        return Disk(folder)

    yield begin
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=PATIENCE, check=False)


@pytest.fixture
def daemon(mount: Mount, tmp_path: Path) -> Iterator[Callable[[str], tuple[Daemon, Disk]]]:
    """`daemon(size)` starts a daemon with its database on a disk of this size. Its agents work on another disk."""
    with daemons_in(tmp_path) as start:

        def start_on_disk(size: str) -> tuple[Daemon, Disk]:
            disk = mount(tmp_path / "state", size)
            return start(CONFIG), disk

        yield start_on_disk


def did(it: Daemon) -> list[str]:
    """The run IDs of all runs that did any work, with repetitions."""
    return (it.folder / "did.txt").read_text().split()


def failed_turns(it: Daemon) -> float:
    return next(float(line.split()[1]) for line in it.metrics().splitlines() if line.startswith("heartbeatd_db_busy_total "))


def slots_without_a_row(rows: list[dict[str, Any]], every: int) -> int:
    seconds = [timegm(strptime(row["planned_at"], "%Y-%m-%dT%H:%M:%SZ")) for row in rows]
    return (max(seconds) - min(seconds)) // every + 1 - sum(row["planned_runs"] for row in rows)


def test_on_a_full_disk_nothing_runs_and_afterwards_every_slot_is_recorded(
    daemon: Callable[[str], tuple[Daemon, Disk]],
) -> None:
    it, disk = daemon("3m")
    it.wait_until(lambda: len(it.runs("tick", "--result", "ok")) > 1 and it.runs("ops", "--result", "ok"))
    disk.fill()
    it.wait_until(lambda: it.readiness()[0] == 503)
    assert "full" in it.readiness()[1]
    it.wait_until(lambda: failed_turns(it) >= 2)  # runs claimed earlier have ended by now
    before, turns, begun = did(it), failed_turns(it), monotonic()
    it.wait_until(lambda: failed_turns(it) >= turns + 4)
    assert monotonic() - begun > 2  # at most one attempt per second
    assert did(it) == before
    disk.clear()
    it.wait_until(lambda: it.readiness()[0] == 200)
    it.wait_until(lambda: len(did(it)) > len(before) + 2)
    assert it.stop() == 0
    assert sum(" database_unavailable " in line for line in it.log) == 1
    assert sum(" database_available" in line for line in it.log) == 1
    assert sum(" reserve_missing " in line for line in it.log) == 1  # the disk is too small for one
    assert max(Counter(did(it)).values()) == 1
    assert it.runs("tick", "--result", "skipped")
    assert slots_without_a_row(it.runs("tick"), every=1) == 0
    assert slots_without_a_row(it.runs("ops"), every=2) == 0


def test_a_disk_that_fills_up_is_reported_once_and_the_reserve_lets_runs_continue(
    daemon: Callable[[str], tuple[Daemon, Disk]],
) -> None:
    it, disk = daemon("24m")
    reserve = it.folder / "state" / "h.db.reserve"
    it.wait_until(lambda: reserve.exists() and it.runs("tick", "--result", "ok"))
    assert f"heartbeatd_reserve_bytes {MIB}\n" in it.metrics()
    disk.fill()
    it.wait_until(lambda: not reserve.exists())
    before = len(did(it))
    it.wait_until(lambda: len(did(it)) > before + 2)
    assert it.readiness()[0] == 200
    assert "CRITICAL daemon database: " in it.expect("said kind=daemon")
    assert "heartbeatd_reserve_bytes 0\n" in it.metrics()
    assert it.json("status")["reserve_bytes"] == 0
    assert "critical: daemon database: " in it.run_command("status").stdout
    assert [found["level"] for found in it.json("doctor") if found["what"] == "disk"] == ["warn"]
    assert it.stop() == 0
    assert sum(" reserve_" in line for line in it.log) == 1
    assert sum("said kind=daemon" in line for line in it.log) == 1
    assert not [line for line in it.log if "database_unavailable" in line]
    assert slots_without_a_row(it.runs("tick"), every=1) == 0


def test_the_reserve_is_released_for_records_and_restored_when_there_is_space(
    mount: Mount, tmp_path: Path, make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    disk = mount(tmp_path / "state", "24m")
    world = make_world(STORY, reserve=MIB)
    world.run(minutes=30)
    reserve = world.state.with_name("heartbeatd.db.reserve")
    assert reserve.stat().st_blocks * 512 == MIB
    disk.fill()
    world.run(hours=4)  # without an earlier checkpoint it takes ten minutes
    assert not reserve.exists()
    assert world.engine.health.problem is None
    assert len(world.records("ops")) == 4 * 60 + 30 + 1
    assert [record.message for record in caplog.records if "reserve" in record.message] == ["reserve_given_up"]
    disk.clear()
    world.run(minutes=2)
    assert reserve.stat().st_blocks * 512 == MIB
    assert world.store.connection.execute("pragma wal_autocheckpoint").fetchone()[0] == 1000


def test_runs_continue_indefinitely_if_records_are_deleted_as_fast_as_added(
    mount: Mount, tmp_path: Path, make_world: MakeWorld
) -> None:
    disk = mount(tmp_path / "state", "24m")
    world = make_world("history: {keep: 1h}\n" + STORY)
    world.run(hours=1, minutes=30)
    disk.fill()
    world.run(hours=3)  # if nothing is deleted, there is no room after half an hour; with a reserve of 1 MiB, not within 12 hours
    assert world.engine.health.problem is None
    assert 60 <= len(world.records("ops")) <= 62


@pytest.mark.parametrize("end", [Daemon.kill, Daemon.stop], ids=["killed", "stopped"])
def test_the_reserve_lets_a_daemon_start_on_a_full_disk(
    daemon: Callable[[str], tuple[Daemon, Disk]], end: Callable[[Daemon], Any]
) -> None:
    it, disk = daemon("24m")
    it.wait_until(lambda: (it.folder / "state" / "h.db.reserve").exists() and it.runs("tick", "--result", "ok"))
    end(it)
    disk.fill()
    it.start()
    before = len(did(it))
    it.wait_until(lambda: len(did(it)) > before)
    assert it.readiness()[0] == 200
    assert it.stop() == 0
    assert sum(" reserve_" in line for line in it.log) == 1


SIZES = ("12k", "40k", "100k", "200k", "210k", "220k", "230k")  # a new database needs about 260 KiB


@pytest.mark.parametrize("size", ["4k", *SIZES])
def test_a_first_start_on_a_full_disk_names_the_path_and_remedy_and_leaves_no_partial_database(
    mount: Mount, tmp_path: Path, size: str
) -> None:
    disk = mount(tmp_path / "state", size)
    if size == "4k":
        disk.fill()
    (tmp_path / "config.yaml").write_text(CONFIG)
    start = run_heartbeatd(*RUN, cwd=tmp_path)
    assert start.returncode == 1, start.stderr
    error = start.stderr.splitlines()[-1]
    assert error.startswith("heartbeatd: cannot ")
    assert f" {tmp_path / 'state'}/" in error
    assert "free some space" in error
    left = {path.name for path in (tmp_path / "state").iterdir()} - {"ballast"}
    assert left <= {"h.db.lock", "h.db", "h.db-wal", "h.db-shm", "token", "lanes"}, left


def sizes(folder: Path) -> dict[str, int]:
    """The sizes of all files except SQLite's WAL and index, which even a reader may create."""
    return {path.name: path.stat().st_size for path in folder.iterdir() if not path.name.endswith(("-wal", "-shm"))}


def test_a_later_start_on_a_full_disk_names_the_path_and_remedy_and_changes_nothing(mount: Mount, tmp_path: Path) -> None:
    disk = mount(tmp_path / "state", "3m")
    (tmp_path / "config.yaml").write_text(CONFIG)
    run_heartbeatd("run", "--for", "2s", cwd=tmp_path).check_returncode()
    (tmp_path / "state" / "token").unlink()
    disk.fill()
    before = sizes(tmp_path / "state")
    start = run_heartbeatd(*RUN, cwd=tmp_path)
    assert start.returncode == 1, start.stderr
    assert re.search(rf"heartbeatd: cannot .* {tmp_path}/state/.*free some space", start.stderr.splitlines()[-1])
    assert sizes(tmp_path / "state") == before
    disk.clear()
    run_heartbeatd(*RUN, cwd=tmp_path).check_returncode()


def test_a_migration_on_a_full_disk_leaves_the_old_database_and_no_partial_copy(mount: Mount, tmp_path: Path) -> None:
    disk = mount(tmp_path / "state", "2m")
    path = tmp_path / "state" / "h.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"pragma application_id = {APPLICATION_ID}")
        first, *later = migrations.all
        migrations.apply(connection, stop_before=later[0])
        connection.execute("pragma journal_mode = wal")
    disk.fill()
    ballast = tmp_path / "state" / "ballast"
    os.truncate(ballast, ballast.stat().st_size - 80 * 1024)  # space to open the database, but not for a copy
    with pytest.raises(StoreError, match="its disk is full; free some space there"):
        Store.open(path)
    assert not path.with_name("h.db.before-migration").exists()
    disk.clear()
    with closing(sqlite3.connect(path)) as connection:
        assert migrations.applied(connection) == [first]
    Store.open(path).close()
