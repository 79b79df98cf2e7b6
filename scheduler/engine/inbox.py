"""The inbox: what others ask of the engine, answered in its next turn."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from scheduler.engine.tick import Tick


class Refused(Exception):
    """What was asked cannot be done; the text says why and what to do, `code` names the kind of refusal."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class Request(Protocol):
    """Something to be done within a turn."""

    def apply(self, tick: Tick) -> Any:
        """Do it and give the answer, or raise Refused; what it wrote before that, as the row of a refusal, stays."""
        ...


class PendingRequest:
    """A request and the place for its answer."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.future: Future[Any] = Future()
        self._answer: Any = None
        self._refusal: Refused | None = None

    def apply(self, tick: Tick) -> None:
        """Carry the request out; the answer is held back until the turn is committed."""
        self._answer, self._refusal = None, None
        try:
            self._answer = self.request.apply(tick)
        except Refused as refusal:
            self._refusal = refusal

    def refuse_with(self, refusal: Refused) -> None:
        """Give no other answer than this refusal, once the turn is committed."""
        self._answer, self._refusal = None, refusal

    def send_reply(self) -> None:
        """Give the answer to whoever waits for it."""
        if self.future.done():
            return
        if self._refusal is not None:
            self.future.set_exception(self._refusal)
        else:
            self.future.set_result(self._answer)


class Inbox:
    """Takes requests from any thread; only the engine reads it."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._queue: SimpleQueue[PendingRequest] = SimpleQueue()
        self._unanswered: list[PendingRequest] = []

    def submit(self, request: Request) -> Future[Any]:
        """Put a request in; the future holds its answer, or the Refused that it met."""
        asked = PendingRequest(request)
        self._queue.put(asked)
        self._notify()
        return asked.future

    def pending_requests(self) -> list[PendingRequest]:
        """All requests that are not answered yet, in the order in which they came."""
        while True:
            try:
                self._unanswered.append(self._queue.get_nowait())
            except Empty:
                return list(self._unanswered)

    def reply_to(self, requests: list[PendingRequest]) -> None:
        """Reply to requests whose turn was committed."""
        for each in requests:
            each.send_reply()
        del self._unanswered[: len(requests)]
