"""Notices that config.yaml has changed, by a look at it every two seconds."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

EVERY = 2.0  # seconds between looks
APART = 0.3  # seconds between two reads that must agree


class Settled:
    """Decides from successive readings of a file when a change of it is complete.

    `content` is a hash, None for a file that is missing or cannot be read: that is a change like any other.
    """

    def __init__(self, content: str | None) -> None:
        self._known = content
        self._seen = content
        self._since = 0.0

    @property
    def is_waiting(self) -> bool:
        """True while a change has been seen that is not complete yet: read again after `APART`."""
        return self._seen != self._known

    @property
    def wants_a_reading(self) -> bool:
        """True also while the file cannot be read: it may become readable without any change of its own."""
        return self.is_waiting or self._known is None

    def read(self, at: float, content: str | None) -> bool:
        """Take one reading, `at` in seconds of any steady clock; True exactly once for each complete change."""
        if content != self._seen:
            self._seen, self._since = content, at
        if not self.is_waiting or at - self._since < APART:
            return False
        self._known = content
        return True


class Watch:
    """Calls `changed` from a thread of its own after each complete change of the file at `path`, its removal included.

    Make it before the file is read by others: changes count from then on. Links are followed, so that a swapped link is a change
    (as Kubernetes does it). A look, each `every` seconds, is one `stat`; the file is read only if that differs.
    """

    def __init__(self, path: Path, changed: Callable[[], None], every: float = EVERY) -> None:
        self._path = path.absolute()
        self._changed = changed
        self._every = every
        self._stopping = threading.Event()
        self._stat = _stat(self._path)
        self._settled = Settled(content(self._path))
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; `changed` is not called any more once this has returned. Not to be called from `changed`."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(APART if self._settled.is_waiting else self._every):
            self._look()

    def _look(self) -> None:
        found = _stat(self._path)  # before the file is read: what changes after this is seen by the next look
        if found == self._stat and not self._settled.wants_a_reading:
            return
        self._stat = found
        if self._settled.read(time.monotonic(), content(self._path)):
            self._changed()


def content(path: Path) -> str | None:
    """The SHA-256 of the file, None if there is no regular file to be read."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _stat(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns
