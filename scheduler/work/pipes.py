"""What can be heard of a child: what it writes, kept within bounds, and that it has ended."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable, Mapping
from typing import IO

PIPE_MAX = 1024 * 1024  # the most that a pipe holds (fs.pipe-max-size): one read of this size empties it
CHUNK = 64 * 1024
GLANCE = 0.02  # seconds between looks at what the kernel does not announce


class Leader:
    """Tells when the process itself has ended, whoever still holds its pipes: by a pidfd where the kernel has them."""

    def __init__(self, pid: int, has_ended: Callable[[], bool], ready: selectors.BaseSelector) -> None:
        self._has_ended = has_ended
        self._gone = False
        self._pidfd = _pidfd(pid)
        if self._pidfd is not None:
            ready.register(self._pidfd, selectors.EVENT_READ, self._note)
        self._ready = ready

    def is_gone(self) -> bool:
        return self._gone or (self._pidfd is None and self._has_ended())

    def patience(self) -> float | None:
        """How long to wait for the next event, in seconds: for good while the kernel will tell us of the end."""
        return None if self._pidfd is not None and not self._gone else GLANCE

    def close(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)

    def _note(self) -> None:
        assert self._pidfd is not None
        self._ready.unregister(self._pidfd)
        self._gone = True


class Pipes:
    """The three pipes of one child, served as they become ready, so that neither side can block the other."""

    def __init__(self, stdin: IO[bytes], unsent: bytes, sources: Mapping[int, Kept], ready: selectors.BaseSelector) -> None:
        self._ready = ready
        self._unsent = memoryview(unsent)
        self._stdin = stdin
        self._sources = dict(sources)
        for fd in self._sources:
            os.set_blocking(fd, False)
            ready.register(fd, selectors.EVENT_READ, lambda fd=fd: self._drain(fd))
        os.set_blocking(self._stdin.fileno(), False)
        ready.register(self._stdin, selectors.EVENT_WRITE, self._feed)

    def empty(self) -> None:
        """Take what is left in the pipes once the leader has ended, without waiting for whoever else holds them."""
        for fd in list(self._sources):
            self._drain(fd, PIPE_MAX)

    def _feed(self) -> None:
        try:
            sent = os.write(self._stdin.fileno(), self._unsent[:CHUNK])
        except BrokenPipeError:  # it does not want to hear more
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._ready.unregister(self._stdin)
            self._stdin.close()

    def _drain(self, fd: int, size: int = CHUNK) -> None:
        try:
            chunk = os.read(fd, size)
        except BlockingIOError:
            return
        if chunk:
            self._sources[fd].add(chunk)
            return
        self._ready.unregister(fd)
        del self._sources[fd]


class Kept:
    """The first or the last `limit` bytes of a stream, in bounded memory, and the count of all of it."""

    def __init__(self, limit: int, *, tail: bool) -> None:
        self._limit = limit
        self._tail = tail
        self._data = bytearray()
        self.total = 0

    @property
    def truncated(self) -> bool:
        return self.total > self._limit

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        if not self._tail:
            self._data += chunk[: self._limit - len(self._data)]
            return
        self._data += chunk
        if len(self._data) > self._limit:
            del self._data[: -self._limit]

    def __bytes__(self) -> bytes:
        return bytes(self._data)


def _pidfd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel, or a sandbox that does not know the call
        return None
