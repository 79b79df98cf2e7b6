"""Whether config.yaml has changed: told by its folder, believed when two reads a moment apart agree."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.logs import event

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent

APART = 0.3  # seconds between two reads that must agree
FALLBACK = 15.0  # seconds between looks where the file system announces nothing
MAX_LINKS = 40  # as the kernel has it


class Settled:
    """Decides from successive readings of a file when a change of it is ripe.

    `content` is a hash, or None for a file that cannot be read just now: that is never ripe, as an editor may be about to put
    the new one in its place.
    """

    def __init__(self, content: str | None) -> None:
        self._known = content
        self._seen: str | None = None
        self._since = 0.0

    @property
    def is_waiting(self) -> bool:
        """True while a change has been seen that is not ripe yet: read again after `APART`."""
        return self._seen is not None

    def read(self, at: float, content: str | None) -> bool:
        """Take one reading, `at` in seconds of any steady clock; True exactly once for each ripe change."""
        if content is None or content == self._known:
            self._seen = None
            return False
        if content != self._seen:
            self._seen, self._since = content, at
            return False
        if at - self._since < APART:
            return False
        self._known, self._seen = content, None
        return True


class Watch:
    """Calls `changed` from a thread of its own after each ripe change of the file at `path`.

    Make it before the file is read by others: changes count from then on. Links on the way to the file are watched too, so
    that a swapped link is a change (as Kubernetes does it). Where nothing is announced, a look every 15 s must do.
    """

    def __init__(self, path: Path, changed: Callable[[], None]) -> None:
        self._path = path.absolute()
        self._changed = changed
        self._stirred = threading.Event()
        self._stopping = False
        self._stat = _stat(self._path)
        self._settled = Settled(content(self._path))
        self._folders = _Folders(self._stirred)
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._folders.watch(steps(self._path))
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; `changed` is not called any more once this has returned. Not to be called from `changed`."""
        self._stopping = True
        self._stirred.set()
        self._thread.join()
        self._folders.close()

    def _run(self) -> None:
        stirred = True  # the file may have changed between the first look and the watch
        while not self._stopping:
            if stirred or self._settled.is_waiting or self._stat != _stat(self._path):
                self._look()
            stirred = self._stirred.wait(APART if self._settled.is_waiting else FALLBACK)
            self._stirred.clear()

    def _look(self) -> None:
        self._folders.watch(steps(self._path))
        self._stat = _stat(self._path)
        if self._settled.read(time.monotonic(), content(self._path)):
            self._changed()


class _Folders:
    """The folders under watch, by watchdog; a stir is any change of one of the given paths."""

    def __init__(self, stirred: threading.Event) -> None:
        self._stirred = stirred
        self._steps: frozenset[Path] = frozenset()
        self._armed: frozenset[tuple[Path, int]] = frozenset()
        self._close: Callable[[], None] | None = None

    def watch(self, paths: tuple[Path, ...]) -> None:
        """Watch the folders of `paths` from now on; nothing to do while they are the same folders as before."""
        self._steps = frozenset(paths)
        wanted = frozenset((path.parent, _inode(path.parent)) for path in paths)
        if wanted == self._armed:
            return
        self.close()
        self._armed = wanted
        self._arm({folder for folder, _ in wanted})

    def close(self) -> None:
        if self._close:
            self._close()
        self._close = None

    def _arm(self, folders: set[Path]) -> None:
        try:
            self._close = _observe(folders, self._note)
        except OSError as error:
            event(logging.WARNING, "watch", problem=error.strerror, instead=f"looking every {FALLBACK:g} s")

    def _note(self, *paths: str) -> None:
        if any(path and Path(path) in self._steps for path in paths):
            self._stirred.set()


def _observe(folders: set[Path], note: Callable[[str, str], None]) -> Callable[[], None]:
    """Have `note` called with the path (and the new path) of whatever changes in `folders`; returns what ends it."""
    from watchdog.events import FileCreatedEvent, FileDeletedEvent, FileModifiedEvent, FileMovedEvent, FileSystemEventHandler
    from watchdog.observers import Observer  # both here: only a running daemon watches, and --help must be quick

    class Handler(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            note(os.fsdecode(event.src_path), os.fsdecode(event.dest_path))

    changes = [FileCreatedEvent, FileDeletedEvent, FileModifiedEvent, FileMovedEvent]  # reading it, as we do, is none
    observer = Observer()
    observer.start()

    def close() -> None:
        observer.stop()
        observer.join()

    try:
        for folder in folders:
            observer.schedule(Handler(), str(folder), event_filter=changes)
    except OSError:
        close()
        raise
    return close


def steps(path: Path) -> tuple[Path, ...]:
    """Every link on the way to the file at the absolute `path`, each by its real folder, and the file at the end."""
    here, ahead = Path("/"), list(path.parts[1:])
    met: list[Path] = []
    while ahead and len(met) < MAX_LINKS:
        name = ahead.pop(0)
        step = here.parent if name == ".." else here / name
        target = _target(step)
        if target is None:
            here = step
            continue
        met.append(step)
        here = Path("/") if target.is_absolute() else here
        ahead[:0] = target.parts[1:] if target.is_absolute() else target.parts
    return (*met, here)


def _target(step: Path) -> Path | None:
    try:
        return step.readlink()
    except OSError:  # no link, or gone
        return None


def content(path: Path) -> str | None:
    """The SHA-256 of the file, None if there is no regular file to be read."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _inode(folder: Path) -> int:
    try:
        return folder.stat().st_ino
    except OSError:
        return 0
