"""The reserve: a file whose room the database is given when its disk is full, because whoever deletes needs room too."""

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
PLENTY = 16 * MIB  # free before it is made: where there is less, it might be the reserve that fills the disk


class DiskReserve:
    """A file of zeros beside the database, 0600, and nothing to anybody but by its room.

    What becomes of it is told once: that it was given up, or that it cannot be made, and then that it is there again.
    """

    def __init__(self, database: Path, size: int = SIZE) -> None:
        self.path = reserve_path(database)
        self.size = size
        self._missed = False  # it has been told that there is none

    def create_if_missing(self) -> bool:
        """Make it unless it is there; False where it cannot be made."""
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
        """Let go of its room, and say loudly what to do; False where there was none to let go of."""
        try:
            self.path.unlink()
        except OSError:
            return False
        self._missed = True
        remedy = "beats go on for a while: make room there, or keep less (history.keep, history.runs)"
        problem = f"no room on the disk of {self.path.parent}, so {self.path.name} was given up; {remedy}"
        log_event(logging.ERROR, "reserve_given_up", problem=problem)
        return True

    def release_if_short(self) -> None:
        """As `give_up`, before a database is opened: that alone needs room for its log, and says little where there is none."""
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
    """Where the reserve of a database lies: on the same disk, so where a link to it leads."""
    found = database.resolve()
    return found.with_name(found.name + ".reserve")


def reserved_bytes(database: Path) -> int:
    """How many bytes are in reserve for a database; 0 while it is given up or could not be made."""
    return _allocated_bytes(reserve_path(database))


def shortage_message(database: Path) -> str | None:
    """What is said for as long as there is no reserve because there is little room; None where all is well."""
    if reserved_bytes(database) or (room := free_bytes(reserve_path(database))) >= PLENTY:
        return None
    return (
        f"{format_mib(room)} free and no reserve; make room in {database.parent}:"
        f" with {format_mib(PLENTY)} free the daemon makes it again"
    )


def free_bytes(path: Path) -> int:
    """How many bytes are free on the disk of a file that is in an existing folder."""
    return shutil.disk_usage(path.parent).free


def format_mib(size: int) -> str:
    """A size for people."""
    return f"{size / MIB:,.1f} MiB"


def _allocated_bytes(path: Path) -> int:
    try:
        found = path.lstat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
