"""A thread-safe queue of requests to the engine, which answers them in its next tick."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from scheduler.engine.tick_items import Tick
from scheduler.model.daemon_health import TickPart
from scheduler.model.expected_error import ExpectedError
from scheduler.system.log import log_event


class Refused(ExpectedError):
    """A request that cannot be carried out. The text gives the reason and a remedy; `code` is a word for programs."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)

    @property
    def exit_code(self) -> int:
        return 2 if self.code == "not_found" else 1


Request = Callable[[Tick], object]
"""What the engine carries out within a tick. It returns its answer, or raises Refused; rows that it wrote before are kept."""


class PendingRequest:
    """A request and the future of its answer."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.future: Future[object] = Future()
        self._answer: object = None
        self._refusal: Refused | None = None

    def apply(self, tick: Tick) -> None:
        """Carry the request out. The answer is kept back until the tick is committed.

        If it raises an unexpected exception, its changes and that of the plan are undone, and its sender gets a refusal.
        """
        self._answer, self._refusal = None, None
        plan = tick.plan

        def refuse(error: Exception) -> None:
            tick.adopt_plan(plan)
            log_event(logging.ERROR, "request_broken", error=error)
            tick.note_error(TickPart.REQUEST, "a request", error)
            self._refusal = Refused("broken", "the daemon failed to do this; see its log")

        def answer() -> None:
            try:
                self._answer = self.request(tick)
            except Refused as refusal:
                self._refusal = refusal

        tick.tx.run_part(answer, refuse)

    def send_reply(self) -> None:
        """Complete the future with the answer."""
        if self.future.done():
            return
        if self._refusal is not None:
            self.future.set_exception(self._refusal)
        else:
            self.future.set_result(self._answer)


class Inbox:
    """Accepts requests from any thread. Only the engine reads them. `notify` wakes its main loop."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._queue: SimpleQueue[PendingRequest] = SimpleQueue()
        self._unanswered: list[PendingRequest] = []

    def submit(self, request: Request) -> Future[object]:
        """Queue a request. The returned future gets its answer, or Refused."""
        pending = PendingRequest(request)
        self._queue.put(pending)
        self._notify()
        return pending.future

    def pending_requests(self) -> list[PendingRequest]:
        """All requests without an answer, in the order of their arrival. A tick that fails sees them again."""
        while not self._queue.empty():
            self._unanswered.append(self._queue.get_nowait())
        return list(self._unanswered)

    def reply_to(self, requests: list[PendingRequest]) -> None:
        """Send the answers of requests whose tick was committed."""
        for each in requests:
            each.send_reply()
        del self._unanswered[: len(requests)]
