"""A PostgreSQL server whose disk is full."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import required_programs
from daemon_process import daemons_in
from patience import PATIENCE
from servers.postgres import PostgresServer
from test_disk_full import CONFIG, Mount, did, failed_turns, mount, slots_without_a_row

__all__ = ["mount"]


@required_programs.needs("initdb")
def test_on_a_full_disk_of_the_postgresql_server_nothing_runs_and_afterwards_every_slot_is_recorded(
    mount: Mount, tmp_path: Path
) -> None:
    with TemporaryDirectory(prefix="heartbeatd-disk-") as name:
        place = Path(name)  # another user runs the server, and must get there
        disk = mount(place, "160m")
        place.chmod(0o755)
        server = PostgresServer(parent=place, min_wal_size="32MB", max_wal_size="32MB")
        try:
            address = server.start().database()
            with daemons_in(tmp_path) as start:
                it = start(CONFIG.replace("state/h.db", address))
                it.wait_until(lambda: (it.folder / "did.txt").exists() and len(did(it)) > 2)
                disk.fill()
                it.wait_until(lambda: it.readiness()[0] == 503)
                assert "free some space on the server's disk" in it.readiness()[1]
                it.wait_until(lambda: failed_turns(it) >= 2)  # runs claimed earlier have ended by now
                before, turns = did(it), failed_turns(it)
                it.wait_until(lambda: failed_turns(it) >= turns + 3)
                assert did(it) == before
                disk.clear()
                it.wait_until(lambda: it.readiness()[0] == 200)
                it.wait_until(lambda: len(did(it)) > len(before) + 2)
                assert max(Counter(did(it)).values()) == 1
                assert it.runs("tick", "--result", "skipped")
                assert slots_without_a_row(it.runs("tick"), every=1) == 0
                assert slots_without_a_row(it.runs("ops"), every=2) == 0
                assert it.stop() == 0
        finally:
            server.close()
            subprocess.run(["umount", "--lazy", str(place)], timeout=PATIENCE, check=False)
