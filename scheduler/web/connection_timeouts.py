"""What one client may take: so long to send its request and to take its answer, and a connection while nobody needs its place."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """Seconds from a request's first byte to its last, and from there to the end of the answer.

    A reload may take half a minute.
    """

    request_seconds: float = 10.0
    answer_seconds: float = 60.0


class TimeoutConfig(uvicorn.Config):
    """uvicorn's settings, and those that it lacks: patience, and how many connections there may be with idle ones among them."""

    def __init__(self, app: ASGIApp, timeouts: ClientTimeouts, max_connections: int, **others: Any) -> None:
        super().__init__(app, **others)
        self.timeouts = timeouts
        self.max_connections = max_connections


class TimeoutProtocol(H11Protocol):
    """uvicorn waits for ever for the rest of a request, and lets idle connections keep others out; this one closes them."""

    config: TimeoutConfig
    _abort_timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0  # by the loop's clock: since when no whole request has come

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        if len(self.connections) > self.config.max_connections and not self._close_longest_idle():
            transport.abort()
            return
        self._set_deadline(self.config.timeouts.request_seconds)

    def data_received(self, data: bytes) -> None:
        if self._abort_timer is None:
            self._set_deadline(self.config.timeouts.request_seconds)
        super().data_received(data)
        if self._has_whole_request() and not self.cycle.response_complete:
            self._set_deadline(self.config.timeouts.answer_seconds)

    def on_response_complete(self) -> None:
        answered = self.cycle
        self._idle_since = self.loop.time()
        if self._has_whole_request():
            # Written is not taken: the end of the answer may still lie with us.
            self._set_deadline(self.config.timeouts.answer_seconds if self.transport.get_write_buffer_size() else None)
        super().on_response_complete()
        if self.cycle is not answered:  # the next request had been sent ahead
            self._set_deadline(
                self.config.timeouts.answer_seconds if self._has_whole_request() else self.config.timeouts.request_seconds
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_deadline(None)
        super().connection_lost(exc)

    def _close_longest_idle(self) -> bool:
        """Close the connection that has been idle longest; False where none is, and there are too many for a refusal in words.

        One that sends its request byte by byte is idle too, since it began.
        """
        others = (each for each in self.connections if isinstance(each, TimeoutProtocol) and each is not self)
        idle = [each for each in others if each.is_idle and not each.transport.is_closing()]
        if idle:
            min(idle, key=lambda each: each._idle_since).transport.abort()
        return bool(idle) or len(self.connections) <= 2 * self.config.max_connections

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return not self._has_whole_request() or self.cycle.response_complete

    def _has_whole_request(self) -> bool:
        """Whether the request at hand has been received to its end."""
        return self.cycle is not None and not self.cycle.more_body

    def _set_deadline(self, seconds: float | None) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._abort_timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)
