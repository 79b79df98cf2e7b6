"""Waits in an asyncio task for what blocks: calls in daemon threads, and work that must be waited for to its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(function: Callable[..., T], *args: object) -> T:
    """Call `function` in a daemon thread of its own; gives what it returns and raises what it raises, SystemExit too.

    `asyncio.to_thread` shares a few threads, and the interpreter waits for them at its exit: a call that hangs would delay
    other calls and keep the daemon from stopping. Cancelling the wait leaves the thread to itself. RuntimeError if the machine
    has no thread left.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((result, error))

    def call() -> None:
        result, raised = None, None
        try:
            result = function(*args)
        except BaseException as error:  # noqa: BLE001 (it is raised again, in the task that waits)
            raised = error
        with suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(settle, result, raised)

    threading.Thread(target=call, name=getattr(function, "__name__", "call"), daemon=True).start()
    result, error = await ended
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # None only where the function returned it


async def finish_despite_cancellation(work: asyncio.Future[T]) -> T:
    """Wait for `work` even if this task is cancelled meanwhile; the cancellation is dropped.

    For what goes on whether or not somebody waits (a child that is being ended, a callable in a thread), and whose lock must
    be kept as long as it does.
    """
    while True:
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if work.done():
                return work.result()
