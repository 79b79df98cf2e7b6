"""Opens and locks lock files, with flock.

A lock belongs to the opened file: threads that share a descriptor share its lock, and a process that inherits the descriptor
keeps the lock. A lock is released by closing every copy of the descriptor. Lock files are never deleted: after that, two
processes could hold locks on two files of the same name.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def open_lock_file(path: Path | str) -> int:
    """The descriptor of an existing lock file."""
    return os.open(path, _FLAGS)


def create_lock_file(path: Path | str) -> int:
    """The descriptor of a lock file, which is created if it is missing; mode 0600 whatever the umask."""
    fd = os.open(path, _FLAGS | os.O_CREAT, 0o600)
    os.fchmod(fd, 0o600)
    return fd


def try_lock(fd: int) -> bool:
    """Lock a file at once; False if another process holds the lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(fd: int) -> None:
    """Wait until no other process holds the lock of a file, and lock it."""
    fcntl.flock(fd, fcntl.LOCK_EX)
