"""Ends the programs of a worker that was killed or frozen: a second process watches the worker, and the next worker looks again.

A worker has no database from which the next one could read which runs were in progress.

Each worker has a file, whose lock it holds as long as it lives. The file contains the end of the worker's lease, and the marks of
the runs in progress. Its name is in the environment of the worker's programs, because another worker on this machine may repeat
a run with the same mark. Programs that a run has left in the background, and that were meant to continue, are in no file.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from scheduler.system import orphans
from scheduler.system.files import create_lock_file, open_lock_file, try_lock
from scheduler.system.log import log_event

HEADER = 24  # bytes at the beginning of the file, for the end of the lease
NEW = ".new-"  # prefix of the name of a file that is not locked yet
NO_LEASE = float("inf")  # before the first lease nothing is in progress
PLACE = 128  # bytes for the mark of a run in progress, which has up to 60 characters
MAX_FILE = 64 << 20
LOOK_EVERY = 0.5  # seconds between looks at the worker
START_SECONDS = 0.5  # in which a program that was being started when its worker was killed gets its environment


class WorkerFile:
    """The file of this worker, named `process_id`. It is deleted by `close`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.process_id = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.path = folder / self.process_id
        new = folder / f"{NEW}{self.process_id}"
        self._fd = create_lock_file(new)
        try_lock(self._fd)  # other workers do not open new files
        self._new_places = count()
        self._free_places: list[int] = []
        self.note_lease(NO_LEASE)
        new.rename(self.path)

    def note_lease(self, ends_at: float) -> None:
        """Write when the guard is to end the programs, by its clock. A worker that is not frozen does that before."""
        with suppress(OSError):  # on a full disk the guard knows an earlier end
            os.pwrite(self._fd, f"{ends_at:{HEADER - 1}.3f}\n".encode(), 0)

    @contextmanager
    def note_run(self, mark: str) -> Iterator[None]:
        """Write that a run is in progress, for the duration of the context. Always called in the same thread."""
        place = self._free_places.pop() if self._free_places else next(self._new_places)
        self._write(place, f"+{mark}")
        try:
            yield
        finally:
            self._write(place, "")
            self._free_places.append(place)

    def _write(self, place: int, text: str) -> None:
        """Write one line at once: the guard may read at any moment, and this worker may be killed."""
        with suppress(OSError):
            os.pwrite(self._fd, f"{text:<{PLACE - 1}}\n".encode(), HEADER + PLACE * place)

    def start_guard(self, clock: Callable[[], float], look_every: float = LOOK_EVERY) -> int:
        """Start the process that watches this worker; returns its pid. The caller has no other threads yet.

        `clock` is a clock that all processes of this machine share, in seconds.
        """
        if (guard := os.fork()) != 0:
            return guard
        try:
            os.setsid()  # a Ctrl-C in the terminal is for the worker
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            os.close(self._fd)  # the lock is that of the worker
            _watch(self.path, clock, look_every)
        except Exception as error:  # noqa: BLE001 (without the guard, the programs of a killed worker would continue)
            log_event(logging.ERROR, "guard_failed", error=error)
        finally:
            os._exit(0)

    def close(self) -> None:
        """Delete the file, because the worker stops in an orderly way. The guard then ends."""
        with suppress(OSError):
            self.path.unlink()
        os.close(self._fd)


def end_programs_of_dead_workers(folder: Path) -> None:
    """End what is left of the runs of workers that were killed together with their guards. A program takes up to 3 s to end."""
    with suppress(OSError):
        for path in sorted(each for each in folder.iterdir() if not each.name.startswith(NEW)):
            with suppress(OSError):
                fd = open_lock_file(path)
                try:
                    if try_lock(fd):
                        _end_programs(_marks_in(fd), path.name)
                        path.unlink()
                finally:
                    os.close(fd)


def _watch(path: Path, clock: Callable[[], float], look_every: float) -> None:
    """Wait until the worker has ended, or its lease is over although it runs, because it is frozen. Then end its programs."""
    fd = open_lock_file(path)

    def is_lease_over() -> bool:
        return clock() >= _lease_end_in(fd)

    while not try_lock(fd):
        if is_lease_over():
            with suppress(OSError):
                _end_programs(_marks_in(fd), path.name, is_lease_over)
        time.sleep(look_every)
    with suppress(OSError):
        if marks := _marks_in(fd):
            _end_programs(marks, path.name)
            time.sleep(START_SECONDS)
            _end_programs(marks, path.name)
        path.unlink()


def _end_programs(marks: set[str], process_id: str, may_end: Callable[[], bool] = lambda: True) -> None:
    """End the programs that this worker has started for these runs. `may_end` is called after the search, which takes a while."""
    found = orphans.find_orphans(marks, process_id) if marks else None
    if found and may_end():
        orphans.end_and_log(found, {mark: {"run": mark} for mark in found})


def _lease_end_in(fd: int) -> float:
    try:
        return float(os.pread(fd, HEADER, 0))
    except (OSError, ValueError):
        return NO_LEASE


def _marks_in(fd: int) -> set[str]:
    """The marks of runs in progress."""
    lines = os.pread(fd, MAX_FILE, HEADER).decode(errors="replace").splitlines()
    return {mark for line in lines if (mark := line.strip(" +\0"))}  # zeros are from a place that could not be written
