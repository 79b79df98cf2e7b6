"""Open files: a run in progress keeps some, and a process may have 1,024 of them on most systems unless it asks for more."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import resource
import threading
from collections.abc import Callable

from scheduler.system.log import log_event

MAX_RUNS = 1000  # that limits.concurrency allows, which a reload may change
FILES_PER_RUN = 8  # its lane, and a socket, or the pipes of a child and what watches them
FILES_OF_DAEMON = 200  # the database, the interface, deliveries

FILES_KEPT_FREE = 16  # kept free of runs, so that the daemon can go on, answer and be looked at
LOG_INTERVAL = 60.0  # seconds between two lines about a shortage
SCARCITY_ERRORS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN}
)  # of fork, open, socket and accept

_UNLIMITED = 1 << 30


def raise_file_limit(concurrency: int) -> None:
    """Ask for what the most runs need that a config may allow, and warn where that is too little for this one's `concurrency`."""
    wanted, allowed = files_needed(concurrency), set_file_limit(files_needed(MAX_RUNS))
    if allowed < wanted:
        problem = f"concurrency: {concurrency} runs at a time may need {wanted} open files, and {allowed} are allowed"
        remedy = "write a smaller number, or allow more (ulimit -n, LimitNOFILE= of systemd)"
        log_event(logging.WARNING, "limits", problem=f"{problem}; {remedy}")


def files_needed(runs: int) -> int:
    """How many files so many runs at a time may have open, with all that the daemon itself has."""
    return FILES_OF_DAEMON + FILES_PER_RUN * runs


def set_file_limit(wanted: int) -> int:
    """Ask the system for so many open files; gives how many this process may have now. Its children inherit that."""
    soft, hard = (
        _UNLIMITED if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    if soft >= wanted:
        return soft
    allowed = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard if hard != _UNLIMITED else resource.RLIM_INFINITY))
    return allowed


def is_scarcity(error: BaseException | None) -> bool:
    """Whether something could not be begun because the system had no descriptor, memory or process for it: later it may have."""
    return isinstance(error, OSError) and error.errno in SCARCITY_ERRORS


class FileDescriptors:
    """Says how many runs may begin by the descriptors that are left, and logs a shortage once a minute at most.

    `clock` is a steady one, in seconds. Safe to call from any thread.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logged_at: float | None = None
        self._null_device = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def runs_that_fit(self, wanted: int) -> int:
        """How many of `wanted` runs, or messages, may begin now."""
        enough = FILES_KEPT_FREE + FILES_PER_RUN * wanted
        places = wanted if self._has_free_at_top(enough) else max(_count_free() - FILES_KEPT_FREE, 0) // FILES_PER_RUN
        if places < min(wanted, 1):
            self.log_shortage("nothing new begins")
        return min(places, wanted)

    def log_shortage(self, consequence: str) -> None:
        """Log that descriptors are used up, unless that was logged within the last minute."""
        with self._lock:
            now = self._clock()
            if self._logged_at is not None and now - self._logged_at < LOG_INTERVAL:
                return
            self._logged_at = now
        problem = f"too many open files: {_current_limit()} are allowed; {consequence} until some are closed"
        log_event(logging.ERROR, "descriptors_used_up", problem=f"{problem}; allow more (ulimit -n, LimitNOFILE= of systemd)")

    def _has_free_at_top(self, number: int) -> bool:
        """Whether the highest so many are surely free, for the system gives out the lowest first. Counting takes much longer."""
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
    """How many there may be now: somebody may have changed that from outside."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def _count_free() -> int:
    try:
        return _current_limit() - len(os.listdir("/proc/self/fd")) + 1  # noqa: PTH208 (names suffice); looking took one itself
    except OSError as error:
        return 0 if is_scarcity(error) else _UNLIMITED  # nowhere to look: whoever opens something finds out
