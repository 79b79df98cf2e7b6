"""Lanes: one lock file per agent, so that a beat and a user's turn never speak to it at the same time.

A lane is an flock on a file that whoever takes it opens for himself: threads that share a descriptor would share the lock.
It is let go by closing, never by unlocking, so that a process that inherited it keeps it. The file is never deleted: a deleted
lock is held by two.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
KERNEL_LOCKS = Path("/proc/locks")


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes in one folder, which is made 0700 when the first one is taken, its files 0600."""

    folder: Path

    def lock_file(self, name: str) -> Path:
        """The lock file of one agent."""
        return Path(self._lock_path(name))

    @contextmanager
    def lock_if_free(self, name: str) -> Iterator[int | None]:
        """The descriptor of a lane that is taken at once and kept within the context; None if it is not free."""
        fd = self._open_lock_file(name)
        try:
            yield fd if _try_lock(fd, fcntl.LOCK_NB) else None
        finally:
            os.close(fd)

    def wait_for_lock(self, name: str, meanwhile: Callable[[], None]) -> int:
        """The descriptor of a lane, to be closed by the caller, once it is free; `meanwhile` is called if that is not at once."""
        fd = self._open_lock_file(name)
        if not _try_lock(fd, fcntl.LOCK_NB):
            meanwhile()
            _try_lock(fd)
        return fd

    def is_locked(self, name: str) -> bool:
        """Whether somebody has the lane, from the system's list of locks: whoever only looks must not take it for a moment."""
        try:
            mark = f":{self.lock_file(name).stat().st_ino} "
            return any(" FLOCK " in line and mark in line for line in KERNEL_LOCKS.read_text("ascii").splitlines())
        except OSError:
            return False

    def make_lock_files(self, names: Iterable[str] = ()) -> None:
        """Make the folder and the files of these lanes, so that whoever locks one before its first beat finds it.

        A thousand new files take half a second; on a full disk some may be left to the first beat.
        """
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            there = {path.name for path in self.folder.iterdir()}
            for path in (self.lock_file(name) for name in names):
                if path.name not in there:
                    os.close(_create_lock_file(path))

    def _open_lock_file(self, name: str) -> int:
        try:
            return os.open(self._lock_path(name), OPEN_FLAGS)
        except FileNotFoundError:
            self.make_lock_files()
        return _create_lock_file(self.lock_file(name))

    def _lock_path(self, name: str) -> str:
        return f"{self.folder}/{name}.lock"  # in a tenth of the time that pathlib takes to join it


def lanes_beside(state: Path) -> Lanes:
    """The lanes of the agents whose database this is."""
    return Lanes(state.with_name("lanes"))


def _create_lock_file(path: Path) -> int:
    fd = os.open(path, OPEN_FLAGS | os.O_CREAT, 0o600)
    os.fchmod(fd, 0o600)  # whatever the umask
    return fd


def _try_lock(fd: int, how: int = 0) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | how)
    except BlockingIOError:
        return False
    return True
