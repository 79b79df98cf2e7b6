"""Defines an event of the stream, and the position from which a reader resumes."""

from __future__ import annotations

import json
import random
from datetime import datetime

import httpx2
from pydantic import BaseModel, ConfigDict

from heartbeatd.errors import HeartbeatdError

READ_SECONDS = 45.0  # the daemon sends something every 15 seconds
FIRST_PAUSE = 2.0  # seconds before the next connection, unless the daemon names another time
MAX_PAUSE = 30.0  # seconds

# A reader that was connected waits and connects again after these errors.
TEMPORARY_CODES = frozenset({"unreachable", "interrupted", "timeout", "not_running", "too_many_readers"})
TEMPORARY_STATUSES = frozenset({502, 503, 504})


class Event(BaseModel):
    """One event. `type` is `started`, `ended`, `said`, `skipped`, `delivered`, `reloaded` or `gap` (events are missing).

    The other fields are those that the type has, and None otherwise. `id` is where a later reader resumes.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    id: str
    type: str
    run: int | None = None
    kind: str | None = None
    name: str | None = None
    planned_at: datetime | None = None
    trigger: str | None = None
    tries: int | None = None
    result: str | None = None
    why: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    planned_runs: int | None = None
    message: int | None = None
    channel: str | None = None
    config_hash: str | None = None


class StreamPosition:
    """The last event that a reader has received, and how long it waits before it connects again."""

    def __init__(self, last_event_id: str | None) -> None:
        self.last_event_id = last_event_id
        self._was_connected = False
        self._first_pause = FIRST_PAUSE
        self._pause = FIRST_PAUSE

    def headers(self) -> dict[str, str]:
        """The headers of the request that opens or resumes the stream. Raises HeartbeatdError."""
        if not (self.last_event_id or "").isascii():
            raise HeartbeatdError("bad_request", f"last_event_id: {self.last_event_id!r} is no ID of an event")
        return {} if self.last_event_id is None else {"Last-Event-ID": self.last_event_id}

    def receive(self, sent: httpx2.ServerSentEvent) -> Event | None:
        """The event in a message of the stream, None if the message only names a position. Raises HeartbeatdError."""
        self._was_connected = True
        self.last_event_id = sent.id or self.last_event_id
        if sent.retry is not None:
            self._first_pause = min(sent.retry / 1000, MAX_PAUSE)
        self._pause = self._first_pause
        if not sent.data:
            return None
        try:
            return Event.model_validate({**json.loads(sent.data), "id": sent.id, "type": sent.event})
        except (ValueError, TypeError):
            raise HeartbeatdError(
                "unexpected_answer", "an event cannot be read; check the address, and install the version of the daemon"
            ) from None

    def next_pause(self, error: HeartbeatdError | None = None) -> float:
        """How many seconds to wait before the next connection. Raises the error if waiting would not help.

        Many readers of one daemon must not connect at the same moment, so that the time varies. It doubles with each failure.
        """
        if error is not None and not (self._was_connected and _is_temporary(error)):
            raise error
        pause = self._pause
        self._pause = min(2 * pause, MAX_PAUSE)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 (nothing secret)


def _is_temporary(error: HeartbeatdError) -> bool:
    return error.code in TEMPORARY_CODES or error.status in TEMPORARY_STATUSES
