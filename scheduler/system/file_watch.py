"""Watches config.yaml for changes, by checking it every two seconds.

One `stat` sees a write, a moved file and a changed link, on network folders too, where inotify reports nothing.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

POLL_INTERVAL = 2.0  # seconds between checks
SETTLE_TIME = 0.3  # seconds between two readings that must be equal


class ChangeDetector:
    """Decides from successive readings of a file when a change is complete.

    `content` is a hash, None for a file that is missing or cannot be read; that counts as a change, too.
    """

    def __init__(self, content: str | None) -> None:
        self._accepted = content
        self._latest = content
        self._latest_since = 0.0

    @property
    def is_settling(self) -> bool:
        """Whether a change has been seen that is not complete yet: read again after SETTLE_TIME."""
        return self._latest != self._accepted

    @property
    def needs_reading(self) -> bool:
        """Also true while the file cannot be read: it may become readable without being changed."""
        return self.is_settling or self._accepted is None

    def add_reading(self, at: float, content: str | None) -> bool:
        """Add one reading, `at` in seconds of a monotonic clock. Returns True exactly once for each complete change."""
        if content != self._latest:
            self._latest, self._latest_since = content, at
        if not self.is_settling or at - self._latest_since < SETTLE_TIME:
            return False
        self._accepted = content
        return True


class FileWatch:
    """Calls `changed` in its own thread after each complete change of the file at `path`, its removal included.

    Create it before the file is read for the first time: changes count from then on. Links are followed, so a replaced link is a
    change (Kubernetes mounts work like that). Every `every` seconds one `stat` is made; the file is read only if that differs.
    While `is_wanted` returns False, nothing is read. A change in that time is reported when watching is wanted again.
    """

    def __init__(
        self,
        path: Path,
        changed: Callable[[], None],
        every: float = POLL_INTERVAL,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._path = path.absolute()
        self._on_change = changed
        self._is_wanted = is_wanted
        self._every = every
        self._stopping = threading.Event()
        self._stat = _stat_of_file(self._path)
        self._detector = ChangeDetector(hash_of_file(self._path))
        self._thread = threading.Thread(target=self._poll_until_stopped, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. After this has returned, `changed` is not called any more. Must not be called from `changed`."""
        self._stopping.set()
        self._thread.join()

    def _poll_until_stopped(self) -> None:
        while not self._stopping.wait(SETTLE_TIME if self._detector.is_settling else self._every):
            if self._is_wanted():
                self._check_file()

    def _check_file(self) -> None:
        found = _stat_of_file(self._path)  # before the file is read, so that the next check sees later changes
        if found == self._stat and not self._detector.needs_reading:
            return
        self._stat = found
        if self._detector.add_reading(time.monotonic(), hash_of_file(self._path)):
            self._on_change()


def hash_of_file(path: Path) -> str | None:
    """The SHA-256 of the file, None if it is not a readable regular file."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _stat_of_file(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns
