"""Closes connections of slow clients, and idle connections when too many are open (a protocol class for uvicorn)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

STREAMING = "heartbeatd.streaming"  # key of a scope: the response continues as long as its reader accepts the data


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """How many seconds a request may take to arrive, and its answer from then until the client has taken all of it.

    A reload may take half a minute, and a request may wait a minute for the answer to a question. An answer that streams may last
    longer, but `answer_seconds` after its beginning, and again and again after as many seconds, the client must have taken
    everything.
    """

    request_seconds: float = 10.0
    answer_seconds: float = 75.0


class TimeoutConfig(uvicorn.Config):
    """uvicorn's settings plus the client timeouts and the number of connections above which idle ones are closed."""

    def __init__(self, app: ASGIApp, timeouts: ClientTimeouts, max_connections: int, **others: Any) -> None:
        super().__init__(app, **others)
        self.timeouts = timeouts
        self.max_connections = max_connections


# uvicorn has no setting for any of this, and documents the class only as a value of `http`. The methods and attributes used here
# are checked by tests/web/test_web_server.py. pyproject.toml has the range of versions.
class TimeoutProtocol(H11Protocol):
    """Closes slow and idle connections. uvicorn alone waits forever for a request, and lets idle clients block others."""

    config: TimeoutConfig
    _abort_timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0  # the event loop's time since which no whole request has arrived

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
        cycle = self.cycle
        self._idle_since = self.loop.time()
        if self._has_whole_request():
            # The client may not have taken all of the answer yet: the rest is still in our buffer.
            self._set_deadline(self.config.timeouts.answer_seconds if self.transport.get_write_buffer_size() else None)
        super().on_response_complete()
        if self.cycle is not cycle:  # the client had already sent its next request
            self._set_deadline(
                self.config.timeouts.answer_seconds if self._has_whole_request() else self.config.timeouts.request_seconds
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_deadline(None)
        super().connection_lost(exc)

    def _close_longest_idle(self) -> bool:
        """Close the connection that has been idle longest. False if none is idle and there are too many even to answer with 503.

        A connection whose request arrives byte by byte counts as idle since its first byte.
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
        """Whether the current request has been received completely."""
        return self.cycle is not None and not self.cycle.more_body

    def _set_deadline(self, seconds: float | None) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._abort_timer = None if seconds is None else self.loop.call_later(seconds, self._on_deadline)

    def _on_deadline(self) -> None:
        is_streaming = self.cycle is not None and not self.cycle.response_complete and STREAMING in self.cycle.scope
        if is_streaming and not self.transport.get_write_buffer_size():
            self._set_deadline(self.config.timeouts.answer_seconds)
        else:
            self.transport.abort()
