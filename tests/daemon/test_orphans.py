"""Tests that programs of a killed daemon are found by their mark and ended with their groups."""

import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.system import orphans

# A minimal daemon: it starts one command as the real one does, writes its pid, and waits to be killed.
DAEMON = """
import asyncio, sys
from pathlib import Path
from scheduler.system.process import Children
asyncio.run(Children(sys.argv[1]).start(["sh", "-c", sys.argv[2]], stdin=b"", env={}, cwd=Path("/")))
"""


def read_words(fifo: Path) -> list[bytes]:
    fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert select.select([fd], [], [], 20)[0], "the command wrote nothing"
        return os.read(fd, 1000).split()
    finally:
        os.close(fd)


class Killed:
    """A daemon that was killed with SIGKILL while its command ran."""

    def __init__(self, mark: str, command: str, pid_file: Path) -> None:
        os.mkfifo(pid_file)
        daemon = subprocess.Popen([sys.executable, "-c", DAEMON, mark, command.format(pid_file=pid_file)], start_new_session=True)
        self.pids = [int(word) for word in read_words(pid_file)]
        daemon.kill()
        daemon.wait(20)


@pytest.fixture
def instance() -> Iterator[str]:
    """The instance id of a daemon. Its remaining processes are killed after the test."""
    name = secrets.token_hex(8)
    yield name
    for pids in (orphans.find_orphans({f"{name}/12"}) or {}).values():
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def test_the_program_of_a_killed_daemon_and_its_children_are_found_by_their_mark_and_ended(instance: str, tmp_path: Path) -> None:
    """Programs of other runs and of other boots are not found."""
    killed = Killed(f"{instance}/12", "sleep 300 & echo $$ $! >{pid_file}; wait", tmp_path / "pids")
    for mark in (f"{instance}/1", f"{instance}/123", f"{instance}/", "other/12"):
        assert orphans.find_orphans({mark}) == {}, mark
    found = orphans.find_orphans({f"{instance}/12"})
    assert found is not None
    assert sorted(found[f"{instance}/12"]) == sorted(killed.pids)
    assert orphans.end_orphans(killed.pids) == set()
    assert orphans.find_orphans({f"{instance}/12"}) == {}


def test_an_orphan_that_ignores_term_is_killed(instance: str, tmp_path: Path) -> None:
    killed = Killed(f"{instance}/12", "trap '' TERM; echo $$ >{pid_file}; while :; do sleep 0.1; done", tmp_path / "pids")
    assert orphans.end_orphans(killed.pids) == set()
    assert orphans.find_orphans({f"{instance}/12"}) == {}


def test_the_daemons_own_group_is_never_ended() -> None:
    companion = subprocess.Popen(["sleep", "1000"])  # in our group
    try:
        orphans_left = orphans.end_orphans([companion.pid, os.getpid()])
        assert orphans_left == {companion.pid, os.getpid()}
        assert companion.poll() is None
    finally:
        companion.kill()
        companion.wait(20)


def test_ending_a_process_that_has_ended_does_nothing() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait(20)
    assert orphans.end_orphans([ended.pid]) == set()
