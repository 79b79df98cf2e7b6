"""Locks agents: one lock file per agent, so that a run and a user's own session never use the agent at the same time.

Every user of a lock opens its file itself, as `system/files` explains. The children of a run inherit the descriptor, so the agent
stays locked as long as one of them lives. The executor takes a lock, and not the engine: a rollback of a transaction would not
release it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from heartbeat.words import one_line
from scheduler.model.entry import Claim
from scheduler.model.outcome import Skip
from scheduler.system.files import create_lock_file, open_lock_file, try_lock, wait_for_lock
from scheduler.system.orphans import is_process_running, program_name

KERNEL_LOCKS = Path("/proc/locks")
OPEN_FILES = Path("/dev/fd")  # the descriptors of this process


@dataclass(frozen=True, slots=True)
class Lanes:
    """The locks in one folder. The folder is created with mode 0700 when the first lock is taken, its files with 0600."""

    folder: Path

    def lock_file(self, name: str) -> Path:
        """The lock file of one agent."""
        return Path(self._lock_path(name))

    @contextmanager
    def lock_for_claim(self, claim: Claim) -> Iterator[tuple[Claim, tuple[int, ...]]]:
        """Lock the agent of a claim, for the duration of the context.

        Yields the claim, and the descriptors that its children inherit. If another process holds the lock, the claim is
        blocked as busy.
        """
        lane = claim.entry.lane
        if lane is None or Skip.BUSY in claim.facts.blocked:
            yield claim, ()
            return
        with self.lock_if_free(lane) as fd:
            yield (claim.blocked_by(Skip.BUSY, self.find_holder(lane)), ()) if fd is None else (claim, (fd,))

    @contextmanager
    def lock_if_free(self, name: str) -> Iterator[int | None]:
        """Take a lock at once, for the duration of the context. Yields its descriptor, None if another process holds the lock."""
        fd = self._open_lock_file(name)
        try:
            yield fd if try_lock(fd) else None
        finally:
            os.close(fd)

    def wait_for_lock(self, name: str, on_wait: Callable[[], None]) -> int:
        """Take a lock as soon as it is free; returns its descriptor, which the caller closes.

        `on_wait` is called once if another process holds the lock.
        """
        fd = self._open_lock_file(name)
        if not try_lock(fd):
            on_wait()
            wait_for_lock(fd)
        return fd

    def is_locked(self, name: str) -> bool:
        """Whether the lock is taken. A test by taking it would make a run skip."""
        return bool(self._locking_pids(name))

    def is_locked_by(self, name: str, pid: int) -> bool:
        """Whether this process has taken the lock, and it or a program that it has started still holds it.

        Without a list of locks from the kernel: whether the process runs.
        """
        if not KERNEL_LOCKS.exists():
            return is_process_running(pid)
        return pid in self._locking_pids(name)

    def is_inherited(self, name: str) -> bool:
        """Whether this process has inherited the lock, as the programs of a run do."""
        try:
            wanted = self.lock_file(name).stat()
            numbers = [int(entry.name) for entry in OPEN_FILES.iterdir()]
        except OSError:
            return False
        return any(_is_open_as(number, wanted) for number in numbers)

    def find_holder(self, name: str) -> str | None:
        """The process that holds a lock: its number and program. None if the lock is free, or that cannot be found out.

        Programs that a locking process has started share its lock. The kernel names the process that locked the file.
        """
        pid = next(iter(self._locking_pids(name)), None)
        if pid is None:
            return None
        name = one_line(program_name(pid))
        return f"process {pid} ({name}) has locked it" if name else f"process {pid} has locked it"

    def _locking_pids(self, name: str) -> list[int]:
        """The processes that hold a lock, by the kernel's list of locks; none if that cannot be read."""
        try:
            mark = f":{self.lock_file(name).stat().st_ino} "
            lines = [line for line in KERNEL_LOCKS.read_text("ascii").splitlines() if " FLOCK " in line and mark in line]
            return [int(line.split()[4]) for line in lines if "->" not in line]  # an arrow marks a process that waits
        except (OSError, ValueError, IndexError):
            return []

    def make_lock_files(self, names: Iterable[str] = ()) -> None:
        """Create the folder and the files of these locks, so that a user can take one before the first run.

        A thousand new files take half a second. On a full disk some may be left to the first run.
        """
        with suppress(OSError):
            self._make_folder()
            there = {path.name for path in self.folder.iterdir()}
            for path in (self.lock_file(name) for name in names):
                if path.name not in there:
                    os.close(create_lock_file(path))

    def _open_lock_file(self, name: str) -> int:
        try:
            return open_lock_file(self._lock_path(name))
        except FileNotFoundError:
            with suppress(OSError):
                self._make_folder()
        return create_lock_file(self.lock_file(name))

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _lock_path(self, name: str) -> str:
        return f"{self.folder}/{name}.lock"  # in a tenth of the time that pathlib takes to join it


def _is_open_as(number: int, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(number), file)
    except OSError:
        return False


def lanes_beside(state: Path) -> Lanes:
    """The locks of the agents in this database."""
    return Lanes(state.with_name("lanes"))


class ClusterLane(Protocol):
    """The lock of an agent on all machines of a cluster. Its methods raise ClusterProblem."""

    keep_every: float  # seconds between calls of `take` while a command holds the lock

    def is_own_run(self) -> bool:
        """Whether this command is part of a run that has the lock."""

    def take(self) -> str | None:
        """Take the lock, or prolong the time for which it is held. Returns what must end first; None: the lock is held."""

    def release(self) -> None: ...


class ClusterProblem(Exception):
    """The database of the cluster cannot be used at the moment. The message is one line."""
