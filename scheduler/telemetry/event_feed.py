"""Keeps the latest events of the engine for programs that follow them, as names and JSON data."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from heartbeatd.answers import time_as_json
from scheduler.model.events import AttemptStarted, Event, MessageMoved, QuestionMoved, RunClosed, SettingsApplied
from scheduler.model.outcome import ANSWERED, AttemptResult, DeliveryState, Kind, Outcome

KEPT_EVENTS = 1000  # for readers that resume, or that are slow
WAKE_INTERVAL = 0.2  # seconds between two wakeups of the readers: many simultaneous events are sent to each reader together
MAX_CHUNK = 100  # events that a reader gets together


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event as readers get it. `key` is its agent or job, None if it concerns the whole daemon. `data` is JSON."""

    number: int
    name: str
    key: tuple[str, str] | None
    data: str


class EventFeed:
    """Keeps the latest events for all readers. `publish` is called in the engine's thread and never waits for a reader.

    A reader keeps only its position, so a reader that does not read costs no memory here.
    """

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._lock = threading.Lock()
        self._events: deque[StreamEvent] = deque(maxlen=KEPT_EVENTS)
        self._last_number = 0
        self._readers: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_wakeup_pending = False
        self._woken_at = 0.0  # the loop's time
        self.is_closed = False
        self.max_readers = 0  # set by the HTTP server, as each reader takes one of its connections

    def publish(self, happened: Event) -> None:
        """Keep an event if readers get events of its kind, and wake the readers."""
        found = _describe_event(happened)
        if not found:
            return
        with self._lock:
            for name, key, data in found:
                self._last_number += 1
                self._events.append(StreamEvent(self._last_number, name, key, json.dumps(data)))
            self._wake_readers()

    def close(self) -> None:
        """End all streams, because the server stops."""
        with self._lock:
            self.is_closed = True
            self._wake_readers()

    def _wake_readers(self) -> None:
        """Wake all readers by one call into their loop, however many events come before it is made.

        The first event after a quiet time wakes them at once.
        """
        if self._readers and self._loop is not None and not self._is_wakeup_pending:
            self._is_wakeup_pending = True
            with suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._loop.call_at, self._woken_at + WAKE_INTERVAL, self._set_readers)

    def _set_readers(self) -> None:
        with self._lock:
            self._is_wakeup_pending = False
            self._woken_at = asyncio.get_running_loop().time()
            readers = list(self._readers)
        for reader in readers:
            reader.set()

    @property
    def reader_count(self) -> int:
        """The number of streams that are open."""
        return len(self._readers)

    def add_reader(self, news: asyncio.Event) -> None:
        """Set `news` when there are events, or the feed is closed. To be called in the loop of the readers."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._readers.add(news)

    def remove_reader(self, news: asyncio.Event) -> None:
        with self._lock:
            self._readers.discard(news)

    def event_id(self, number: int) -> str:
        """The ID by which a reader resumes after this event."""
        return f"{self._boot}-{number}"

    def find_start(self, last_id: str | None) -> tuple[int, bool]:
        """The number of the event after which a reader begins, and whether events may have been lost before that.

        Without an ID, a reader gets only later events. With an ID of another boot, or of an event that is no longer kept, it
        gets all that are kept.
        """
        with self._lock:
            oldest = self._last_number - len(self._events)
            if last_id is None:
                return self._last_number, False
            boot, _, digits = last_id.rpartition("-")
            number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else -1
            if boot == self._boot and oldest <= number <= self._last_number:
                return number, False
            return oldest, True

    def read_after(self, number: int) -> tuple[list[StreamEvent], bool]:
        """At most MAX_CHUNK events after this one, and whether events between were dropped because the reader is too slow."""
        with self._lock:
            oldest = self._last_number - len(self._events)
            first = max(number - oldest, 0)
            return list(islice(self._events, first, first + MAX_CHUNK)), number < oldest


def _describe_event(happened: Event) -> list[tuple[str, tuple[str, str] | None, dict[str, object]]]:
    """The events for readers: name, agent or job, and JSON data. They contain no text of a prompt or an answer."""
    match happened:
        case AttemptStarted():
            return [("started", (happened.kind, happened.name), _run_data(happened))]
        case RunClosed(result=AttemptResult(outcome=Outcome.SKIPPED) as result):
            skipped = {"planned_runs": happened.slots, "result": result.outcome.value, "why": result.why}
            return [("skipped", (happened.kind, happened.name), _run_data(happened) | skipped)]
        case RunClosed(result=result):
            key = happened.kind, happened.name
            ended = {
                "result": result.outcome.value,
                "why": result.why,
                "started_at": happened.started_at and time_as_json(happened.started_at),
                "finished_at": time_as_json(happened.finished_at),
            }
            said = {"run": happened.run_id, "kind": happened.kind.value, "name": happened.name}
            has_said = happened.kind is Kind.HEARTBEAT and result.outcome in ANSWERED and result.suppression is None
            return [("ended", key, _run_data(happened) | ended), *([("said", key, said)] if has_said else ())]
        case MessageMoved(state=DeliveryState.DELIVERED):
            message = {"message": happened.outbox_id, "run": happened.run_id, "channel": happened.channel}
            sender = {"kind": str(happened.kind), "name": happened.name}
            return [("delivered", (happened.kind, happened.name), message | sender)]
        case QuestionMoved():
            asked: dict[str, object] = {"question": happened.number, "run": happened.run_id, "state": happened.state}
            key = happened.kind, happened.name
            return [("question", key, asked | {"kind": happened.kind.value, "name": happened.name})]
        case SettingsApplied(settings=settings):
            return [("reloaded", None, {"config_hash": settings.hash})]
    return []


def _run_data(happened: AttemptStarted | RunClosed) -> dict[str, object]:
    return {
        "run": happened.run_id,
        "kind": happened.kind.value,
        "name": happened.name,
        "planned_at": time_as_json(happened.slot),
        "trigger": happened.trigger.value,
        "tries": happened.attempt,
    }
