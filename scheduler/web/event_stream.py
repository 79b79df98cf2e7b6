"""Streams the events of the engine to readers over HTTP, as server-sent events that a reader can resume.

The format is described in https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from heartbeatd.operations import Permission
from scheduler.telemetry.event_feed import MAX_CHUNK, EventFeed, StreamEvent
from scheduler.web.api_request import ApiRequest, Caller, wait_for_disconnect
from scheduler.web.connection_timeouts import STREAMING
from scheduler.web.http_errors import HttpError

PATH = "/api/v1/events"
MAY: Permission = "read"  # each reader gets the events of the agents that its token is valid for
PING_SECONDS = 15.0  # between comments on a quiet stream, so that proxies keep it open and a dead reader is noticed
SHARED_EVENTS = frozenset(("reloaded",))  # events of the whole daemon that a token for some agents gets too
RETRY_MILLISECONDS = 2000  # how long a reader waits before it connects again


def stream_events(request: ApiRequest) -> Response:
    """Stream the events of the agents that the token is valid for, as server-sent events. `Last-Event-ID` resumes a stream."""
    feed = request.app_state.feed
    if feed.reader_count >= feed.max_readers:
        raise HttpError(503, "too_many_readers", f"{feed.max_readers} programs and pages read the events; close one of them")
    return _EventStream(feed, request.caller, request.headers.get("last-event-id"))


class _EventStream(Response):
    """A response that continues until the reader leaves, the config changes, or the server stops."""

    def __init__(self, feed: EventFeed, caller: Caller, last_id: str | None) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._feed = feed
        self._caller = caller
        self._last_id = last_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        news = asyncio.Event()
        self._feed.add_reader(news)
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        gone.add_done_callback(lambda _: news.set())
        try:
            scope[STREAMING] = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._send_events(send, news, gone)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()
            self._feed.remove_reader(news)

    async def _send_events(self, send: Send, news: asyncio.Event, gone: asyncio.Future[None]) -> None:
        number, has_gap = self._feed.find_start(self._last_id)
        text = f"retry: {RETRY_MILLISECONDS}\n" + ("" if has_gap else f"id: {self._feed.event_id(number)}\n\n")
        while not gone.done():
            events, is_behind = self._feed.read_after(number)
            if has_gap or is_behind:
                first = events[0].number - 1 if events else number
                text += f"event: gap\nid: {self._feed.event_id(first)}\ndata: {{}}\n\n"
                has_gap = False
            number = events[-1].number if events else number
            text += "".join(self._format_event(event) for event in events)
            if text:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            text = ""
            # After a reload, which may be among missing events, the token may no longer be valid. The reader connects again, and
            # its token is checked again.
            if self._feed.is_closed or is_behind or any(event.name == "reloaded" for event in events):
                return
            if len(events) < MAX_CHUNK and not await self._wait_for_news(news):
                text = ": nothing new\n\n"

    async def _wait_for_news(self, news: asyncio.Event) -> bool:
        """Whether there is news within PING_SECONDS, or the reader has left."""
        try:
            async with asyncio.timeout(PING_SECONDS):
                await news.wait()
        except TimeoutError:
            return False
        news.clear()
        return True

    def _format_event(self, event: StreamEvent) -> str:
        is_hidden = event.name not in SHARED_EVENTS if event.key is None else not self._caller.may_access(*event.key)
        if is_hidden and self._caller.agents is not None:
            return ""
        return f"event: {event.name}\nid: {self._feed.event_id(event.number)}\ndata: {event.data}\n\n"
