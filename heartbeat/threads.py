"""Lets an asyncio task wait for blocking calls in daemon threads, and for work that must not be cancelled.

Python callables, Apprise, the lookup of host names and the access to network folders are such calls. They may hang.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(function: Callable[..., T], *args: object) -> T:
    """Call `function` in a daemon thread of its own. Returns what it returns and raises what it raises, even SystemExit.

    `asyncio.to_thread` uses a small shared pool, and the interpreter waits for its threads at exit: a call that hangs would
    delay other calls and keep the daemon from stopping. If the wait is cancelled, the thread continues. Raises RuntimeError if
    no more threads can be started.
    """
    loop = asyncio.get_running_loop()
    # `asyncio.wrap_future` would never end the wait if the function raises StopIteration, as a plugin of Apprise might.
    outcome: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if not outcome.done():
            outcome.set_result((result, error))

    def call() -> None:
        result, raised = None, None
        try:
            result = function(*args)
        except BaseException as error:  # noqa: BLE001 (raised again in the waiting task)
            raised = error
        with suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(settle, result, raised)

    threading.Thread(target=call, name=getattr(function, "__name__", "call"), daemon=True).start()
    result, error = await outcome
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # None only if the function returned None


async def finish_despite_cancellation(work: asyncio.Future[T]) -> T:
    """Wait for `work` even if this task is cancelled. The cancellation is dropped.

    For work that continues whether or not anything waits for it, such as a child process that is being stopped or a callable in
    a thread, and whose lock must be held until it ends.
    """
    while True:
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if work.done():
                return work.result()
