"""Keeps a reserve file, which is removed when the disk is full, because even deleting rows needs space."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
from pathlib import Path

from scheduler.system.log import log_event

MIB = 1 << 20
SIZE = MIB
PLENTY = 16 * MIB  # must be free before the file is created, or the reserve itself might fill the disk


class DiskReserve:
    """A file of zeros next to the database, mode 0600. Only its size matters.

    Each change is logged once: the reserve was released, or cannot be created, and then that it exists again.
    """

    def __init__(self, database: Path, size: int = SIZE) -> None:
        self.path = reserve_path(database)
        self.size = size
        self._missed = False  # the shortage has been logged

    def create_if_missing(self) -> bool:
        """Create the file unless it exists; False if there is not enough room."""
        if _allocated_bytes(self.path) >= self.size:
            return True
        try:
            self._write_zeros()
        except OSError as error:
            if not self._missed:
                log_event(logging.WARNING, "reserve_missing", problem=f"cannot make {self.path}: {error.strerror}")
            self._missed = True
            return False
        if self._missed:
            log_event(logging.INFO, "reserve_made", path=self.path)
        self._missed = False
        return True

    def release_room(self) -> bool:
        """Free the room of the file and log what the user should do; False if there was nothing to free."""
        try:
            self.path.unlink()
        except OSError:
            return False
        self._missed = True
        remedy = "runs continue for a while: free some space there, or keep less history (history.keep, history.runs)"
        problem = f"no room on the disk of {self.path.parent}, so {self.path.name} was removed; {remedy}"
        log_event(logging.ERROR, "reserve_given_up", problem=problem)
        return True

    def release_if_short(self) -> None:
        """Free the room if the disk is full, before a database is opened: SQLite needs room for its log to do that."""
        if _allocated_bytes(self.path) and free_bytes(self.path) < self.size:
            self.release_room()

    def _write_zeros(self) -> None:
        if (room := free_bytes(self.path)) < PLENTY:
            raise OSError(errno.ENOSPC, f"{format_mib(room)} free, {format_mib(PLENTY)} are wanted; make room")
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, 0o600)
            os.posix_fallocate(fd, 0, self.size)
        except OSError:
            self.path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)


def reserve_path(database: Path) -> Path:
    """The path of a database's reserve: on the same disk, so next to the target of a symbolic link."""
    found = database.resolve()
    return found.with_name(found.name + ".reserve")


def reserved_bytes(database: Path) -> int:
    """The number of bytes in reserve for a database; 0 while the reserve is released or could not be created."""
    return _allocated_bytes(reserve_path(database))


def shortage_message(reserve: Path) -> str | None:
    """What is wrong while there is too little room for this reserve; None if all is well."""
    if _allocated_bytes(reserve) or (room := free_bytes(reserve)) >= PLENTY:
        return None
    return (
        f"{format_mib(room)} free and no reserve; make room in {reserve.parent}:"
        f" with {format_mib(PLENTY)} free the daemon makes it again"
    )


def free_bytes(path: Path) -> int:
    """The number of free bytes on the disk that holds the folder of `path`."""
    return shutil.disk_usage(path.parent).free


def format_mib(size: int) -> str:
    """A size for people to read."""
    return f"{size / MIB:,.1f} MiB"


def _allocated_bytes(path: Path) -> int:
    try:
        found = path.lstat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
