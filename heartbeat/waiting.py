"""Waiting without keeping a thread: work says what it waits for, is put aside, and goes on once that is there.

`async` and `await` without an event loop. Whoever drives the work decides how it waits: the daemon's workers keep a thousand
calls in one waiting room (`scheduler/work/waitingroom`), and `here` just waits. Work that cannot be put aside, as a child
process is attended or a foreign callable runs, says `blocks` instead, so that somebody else can go on meanwhile.
"""

from __future__ import annotations

import selectors
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from concurrent import futures
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

_mine = threading.local()


class Cut(Exception):
    """Raised in work that waits, once somebody has ended it."""


@dataclass(frozen=True, slots=True)
class Until:
    """What is waited for, until `late_at` (seconds of the monotonic clock): a descriptor's `events`, or a future."""

    what: int | futures.Future[Any]
    events: int
    late_at: float


async def readable(descriptor: int, seconds: float) -> bool:
    """Wait until something can be read; False if nothing could within `seconds`. Raises Cut, like all that wait here."""
    return await _until(Until(descriptor, selectors.EVENT_READ, time.monotonic() + seconds))


async def writable(descriptor: int, seconds: float) -> bool:
    """Wait until something can be written, or a connection is made or refused; False if not within `seconds`."""
    return await _until(Until(descriptor, selectors.EVENT_WRITE, time.monotonic() + seconds))


async def done(future: futures.Future[Any], seconds: float) -> bool:
    """Wait until the future is set; False if it is not within `seconds`."""
    return await _until(Until(future, 0, time.monotonic() + seconds))


def here(work: Coroutine[Any, Any, T]) -> T:
    """Carry `work` through in this thread, which waits for whatever it waits for; gives its result or raises its error."""
    came: bool | None = None
    while True:
        try:
            until = work.send(came)
        except StopIteration as end:
            result: T = end.value
            return result
        blocks()
        came = _wait(until)


def blocks() -> None:
    """Say that this thread waits from now on, and can be counted on for nothing else meanwhile."""
    tell: Callable[[], None] | None = getattr(_mine, "tell", None)
    if tell:
        tell()


def tell_of_blocks(tell: Callable[[], None]) -> None:
    """From now on `tell` is called whenever this thread says that it waits."""
    _mine.tell = tell


@types.coroutine
def _until(until: Until) -> Generator[Until, bool, bool]:
    return (yield until)


def _wait(until: Until) -> bool:
    seconds = max(until.late_at - time.monotonic(), 0.0)
    if isinstance(until.what, futures.Future):
        return bool(futures.wait([until.what], seconds).done)
    with selectors.PollSelector() as ready:
        ready.register(until.what, until.events)
        return bool(ready.select(seconds))
