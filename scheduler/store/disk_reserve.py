"""The reserve: a file whose room the database is given when its disk is full, because whoever deletes needs room too."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
from pathlib import Path

from scheduler.system.log import event

MIB = 1 << 20
SIZE = MIB
PLENTY = 16 * MIB  # free before it is made: where there is less, it might be the reserve that fills the disk


class Reserve:
    """A file of zeros beside the database, 0600, and nothing to anybody but by its room.

    What becomes of it is told once: that it was given up, or that it cannot be made, and then that it is there again.
    """

    def __init__(self, database: Path, size: int = SIZE) -> None:
        self.path = beside(database)
        self.size = size
        self._missed = False  # it has been told that there is none

    def keep(self) -> bool:
        """Make it unless it is there; False where it cannot be made."""
        if _bytes(self.path) >= self.size:
            return True
        try:
            self._make()
        except OSError as error:
            if not self._missed:
                event(logging.WARNING, "reserve_missing", problem=f"cannot make {self.path}: {error.strerror}")
            self._missed = True
            return False
        if self._missed:
            event(logging.INFO, "reserve_made", path=self.path)
        self._missed = False
        return True

    def give_up(self) -> bool:
        """Let go of its room, and say loudly what to do; False where there was none to let go of."""
        try:
            self.path.unlink()
        except OSError:
            return False
        self._missed = True
        remedy = "beats go on for a while: make room there, or keep less (history.keep, history.runs)"
        problem = f"no room on the disk of {self.path.parent}, so {self.path.name} was given up; {remedy}"
        event(logging.ERROR, "reserve_given_up", problem=problem)
        return True

    def give_up_if_short(self) -> None:
        """As `give_up`, before a database is opened: that alone needs room for its log, and says little where there is none."""
        if _bytes(self.path) and free(self.path) < self.size:
            self.give_up()

    def _make(self) -> None:
        if (room := free(self.path)) < PLENTY:
            raise OSError(errno.ENOSPC, f"{mib(room)} free, {mib(PLENTY)} are wanted; make room")
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, 0o600)
            os.posix_fallocate(fd, 0, self.size)
        except OSError:
            self.path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)


def beside(database: Path) -> Path:
    """Where the reserve of a database lies: on the same disk, so where a link to it leads."""
    found = database.resolve()
    return found.with_name(found.name + ".reserve")


def held(database: Path) -> int:
    """How many bytes are in reserve for a database; 0 while it is given up or could not be made."""
    return _bytes(beside(database))


def shortage(database: Path) -> str | None:
    """What is said for as long as there is no reserve because there is little room; None where all is well."""
    if held(database) or (room := free(beside(database))) >= PLENTY:
        return None
    return f"{mib(room)} free and no reserve; make room in {database.parent}: with {mib(PLENTY)} free the daemon makes it again"


def free(path: Path) -> int:
    """How many bytes are free on the disk of a file that is in an existing folder."""
    return shutil.disk_usage(path.parent).free


def mib(size: int) -> str:
    """A size for people."""
    return f"{size / MIB:,.1f} MiB"


def _bytes(path: Path) -> int:
    try:
        found = path.lstat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
