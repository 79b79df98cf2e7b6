"""Keeps the daemon within its limit of open files, which is 1,024 on most systems unless a process raises it."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import resource
import threading
from collections.abc import Callable

from scheduler.system.log import log_event

MAX_RUNS = 1000  # the most that limits.concurrency allows; a reload may change it
FILES_PER_RUN = 8  # its lock, and a socket or the pipes and the pidfd of a program
FILES_OF_DAEMON = 200  # the database, 128 connections of the interface, deliveries
FILES_FOR_READERS = 512  # further connections of the interface, if the system allows them

FILES_KEPT_FREE = 16  # never used for runs, so that the daemon can continue and answer requests
LOG_INTERVAL = 60.0  # seconds between two log lines about a shortage
# Of fork, open, socket and accept.
SCARCITY_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN})

_UNLIMITED = 1 << 30


def raise_file_limit(concurrency: int) -> None:
    """Raise the limit to what the largest possible config needs. Warn if it is too low for the `concurrency` of this config."""
    wanted, allowed = files_needed(concurrency), set_file_limit(files_needed(MAX_RUNS) + FILES_FOR_READERS)
    if allowed < wanted:
        problem = f"concurrency: {concurrency} runs at a time may need {wanted} open files, and {allowed} are allowed"
        remedy = "write a smaller number, or allow more (ulimit -n, LimitNOFILE= of systemd)"
        log_event(logging.WARNING, "limits", problem=f"{problem}; {remedy}")


def files_needed(runs: int) -> int:
    """How many open files this many simultaneous runs may need, those of the daemon itself included."""
    return FILES_OF_DAEMON + FILES_PER_RUN * runs


def spare_files(runs: int) -> int:
    """How many files more than this many simultaneous runs and the daemon need are allowed at this moment."""
    return max(_current_limit() - files_needed(runs), 0)


def set_file_limit(wanted: int) -> int:
    """Ask the system for this limit of open files; returns the limit that now applies. Children inherit it."""
    soft, hard = (
        _UNLIMITED if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    if soft >= wanted:
        return soft
    allowed = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard if hard != _UNLIMITED else resource.RLIM_INFINITY))
    return allowed


def is_scarcity(error: BaseException | None) -> bool:
    """Whether something could not start because the system has no descriptor, memory or process left. It may work later."""
    return isinstance(error, OSError) and error.errno in SCARCITY_ERRORS


class FileDescriptors:
    """Returns how many runs may start with the descriptors that are left, and logs a shortage at most once a minute.

    `clock` is a monotonic clock, in seconds. Safe to call from any thread.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logged_at: float | None = None
        self._null_device = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def runs_that_fit(self, wanted: int) -> int:
        """How many of `wanted` runs, or messages, may start now."""
        enough = FILES_KEPT_FREE + FILES_PER_RUN * wanted
        places = wanted if self._has_free_at_top(enough) else max(_count_free() - FILES_KEPT_FREE, 0) // FILES_PER_RUN
        if places < min(wanted, 1):
            self.log_shortage("no further run or message starts")
        return min(places, wanted)

    def log_shortage(self, consequence: str) -> None:
        """Log that all descriptors are in use, unless that was logged within the last minute."""
        with self._lock:
            now = self._clock()
            if self._logged_at is not None and now - self._logged_at < LOG_INTERVAL:
                return
            self._logged_at = now
        problem = f"too many open files: {_current_limit()} are allowed; {consequence} until some are closed"
        log_event(logging.ERROR, "descriptors_used_up", problem=f"{problem}; allow more (ulimit -n, LimitNOFILE= of systemd)")

    def _has_free_at_top(self, number: int) -> bool:
        """Whether the highest `number` descriptors are free. The system assigns the lowest first; counting takes much longer."""
        lowest = _current_limit() - number
        if lowest < 0:
            return False
        try:
            found = fcntl.fcntl(self._null_device, fcntl.F_DUPFD_CLOEXEC, lowest)
        except OSError:
            return False
        os.close(found)
        return found == lowest


def _current_limit() -> int:
    """The limit at this moment: another process may have changed it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def _count_free() -> int:
    try:
        return _current_limit() - len(os.listdir("/proc/self/fd")) + 1  # noqa: PTH208 (names suffice); listing uses one itself
    except OSError as error:
        return 0 if is_scarcity(error) else _UNLIMITED  # there is no /proc: the next open() shows whether it works
