"""The event stream of the HTTP API: its events, resuming, tokens, and readers that are slow or too many."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from starlette.datastructures import Headers
from web_daemon import CONFIG, TOKENS, WebDaemon

from heartbeatd.answers import time_as_json
from heartbeatd.verbs import Pause
from scheduler.engine.effects import VerbRequest
from scheduler.model.events import AttemptStarted, SettingsApplied
from scheduler.telemetry import event_feed
from scheduler.web import event_stream
from scheduler.web.api_request import ApiRequest, Caller
from scheduler.web.connection_timeouts import ClientTimeouts

CHIEF, READER, WAKER, OPSMAN = (TOKENS[name] for name in ("chief", "reader", "waker", "opsman"))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[WebDaemon]:
    with WebDaemon(tmp_path) as daemon:
        daemon.world.scripts["ops"] = lambda call: f"the disk is full at {call.at}"
        yield daemon


@dataclass
class Reader:
    """A program that reads the stream."""

    connection: http.client.HTTPConnection
    response: http.client.HTTPResponse
    last_id: str = ""

    def next(self) -> tuple[str, Any]:
        """The name and the data of the next event. EOFError at the end of the stream."""
        fields: dict[str, str] = {}
        while line := self.response.readline().decode():
            key, _, value = line.rstrip("\n").partition(": ")
            if key:
                fields[key] = value
                continue
            self.last_id = fields.get("id", self.last_id)
            if "event" in fields:
                return fields["event"], json.loads(fields["data"])
            fields = {}
        raise EOFError

    def take(self, count: int) -> list[tuple[str, Any]]:
        return [self.next() for _ in range(count)]


@contextmanager
def reading(daemon: WebDaemon, token: str = READER, last_id: str | None = None) -> Iterator[Reader]:
    """A reader, which has received the beginning of the stream."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=PATIENCE)
    try:
        more = {} if last_id is None else {"Last-Event-ID": last_id}
        connection.request("GET", "/api/v1/events", headers={"Authorization": f"Bearer {token}"} | more)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.readline() == b"retry: 2000\n"
        yield Reader(connection, response)
    finally:
        connection.close()


def run(daemon: WebDaemon, minutes: int = 30) -> None:
    daemon.do(lambda: daemon.world.run(minutes=minutes))


def test_a_run_with_an_alert_is_started_ended_said_and_delivered(daemon: WebDaemon) -> None:
    with reading(daemon) as reader:
        run(daemon)
        events = [event for event in reader.take(6) if event[1]["name"] == "ops"]
    assert [name for name, _ in events] == ["started", "ended", "said", "delivered"]
    started, ended, said, delivered = (data for _, data in events)
    run_id = daemon.get("/api/v1/runs?name=ops&kind=agent&limit=1", CHIEF).data["runs"][0]["id"]
    assert started == {
        "run": run_id,
        "kind": "heartbeat",
        "name": "ops",
        "planned_at": "2026-03-02T08:30:00Z",
        "trigger": "interval",
        "tries": 1,
    }
    assert {key: ended[key] for key in ("run", "result", "why", "finished_at")} == {
        "run": run_id,
        "result": "alert",
        "why": None,
        "finished_at": "2026-03-02T08:30:00Z",
    }
    assert said == {"run": run_id, "kind": "heartbeat", "name": "ops"}
    assert (delivered["run"], delivered["channel"]) == (run_id, "log")


def test_an_event_wakes_every_reader(daemon: WebDaemon) -> None:
    run(daemon)
    [event, *_] = daemon.world.events_of(AttemptStarted)

    async def read() -> None:
        feed, readers = event_feed.EventFeed("boot"), (asyncio.Event(), asyncio.Event())
        for each in readers:
            feed.add_reader(each)
        feed.publish(event)
        await asyncio.wait_for(asyncio.gather(*map(asyncio.Event.wait, readers)), PATIENCE)

    asyncio.run(read())


def test_skipped_slots_and_reloads_are_events_and_a_reload_ends_the_stream(daemon: WebDaemon) -> None:
    with reading(daemon) as reader:
        daemon.ask(VerbRequest(Pause(until=daemon.now.replace(hour=9)))).result(20)
        run(daemon, 90)
        name, data = reader.next()
        assert (name, data["result"], data["why"]) == ("skipped", "skipped", "paused")
        daemon.config.write_text(CONFIG.replace("30m", "45m"))
        assert daemon.post("/-/reload", {}, CHIEF).status == 200
        events = []
        with pytest.raises(EOFError):
            while True:
                events.append(reader.next())
        assert events[-1] == ("reloaded", {"config_hash": daemon.settings.hash})


def test_a_reader_resumes_after_the_last_event_that_it_has_received(daemon: WebDaemon) -> None:
    with reading(daemon) as first, reading(daemon) as steady:
        run(daemon)
        before = first.take(2)
        everything = steady.take(6)
        first.connection.close()
        run(daemon)
        with reading(daemon, last_id=first.last_id) as second:
            everything += steady.take(6)
            assert before + second.take(10) == everything


@pytest.mark.parametrize("last_id", ["boot0-3", "boot1-999999", "boot1-x", "nonsense", ""])
def test_a_reader_with_an_unknown_id_is_told_of_the_gap(daemon: WebDaemon, last_id: str) -> None:
    with reading(daemon, last_id=last_id) as reader:
        name, data = reader.next()
        assert (name, data) == ("gap", {})
        first = reader.next()
    with reading(daemon, last_id="boot1-0") as reader:
        assert reader.next() == first


def test_a_reader_whose_events_are_no_longer_kept_is_told_of_the_gap(daemon: WebDaemon) -> None:
    for _ in range(event_feed.KEPT_EVENTS // 6 + 1):
        run(daemon)
    with reading(daemon, last_id="boot1-1") as reader:
        assert reader.next()[0] == "gap"
        assert reader.next()[0] in ("started", "ended", "said", "delivered")


def test_a_token_for_some_agents_gets_only_their_events(daemon: WebDaemon) -> None:
    with reading(daemon, OPSMAN) as reader:
        run(daemon)
        run(daemon)
        assert {data["name"] for _, data in reader.take(8)} == {"ops"}


def test_the_stream_needs_a_token_that_may_read(daemon: WebDaemon) -> None:
    assert daemon.get("/api/v1/events").status == 401
    assert daemon.get("/api/v1/events", WAKER).status == 403
    assert daemon.get("/api/v1/events?since=1", READER).status == 400


def test_further_readers_are_rejected_until_one_leaves(daemon: WebDaemon) -> None:
    with ExitStack() as opened:
        readers = [opened.enter_context(reading(daemon)) for _ in range(daemon.feed.max_readers)]
        reply = daemon.get("/api/v1/events", READER)
        assert (reply.status, reply.code) == (503, "too_many_readers")
        assert daemon.get("/api/v1/status", READER).status == 200
        run(daemon)
        assert {reader.next()[0] for reader in readers} == {"started"}


def test_a_reader_that_never_reads_is_dropped_and_others_go_on(tmp_path: Path) -> None:
    timeouts = ClientTimeouts(answer_seconds=0.5)
    with WebDaemon(tmp_path, timeouts=timeouts) as daemon, reading(daemon) as good, socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        lazy.connect(("127.0.0.1", daemon.port))
        head = f"GET /api/v1/events HTTP/1.1\r\nHost: localhost:{daemon.port}\r\nAuthorization: Bearer {READER}\r\n\r\n"
        lazy.sendall(head.encode())
        assert lazy.recv(64).startswith(b"HTTP/1.1 200 ")  # it is a reader from now on
        [some] = daemon.world.events_of(AttemptStarted)[:1]
        large = replace(some, name="n" * 20_000)
        large_data = {
            "run": 1,
            "kind": "heartbeat",
            "name": large.name,
            "planned_at": time_as_json(some.slot),
            "trigger": "interval",
            "tries": 1,
        }
        seen = 0
        while daemon.feed.reader_count > 1:
            for _ in range(event_feed.MAX_CHUNK):
                daemon.feed.publish(large)
            assert good.take(event_feed.MAX_CHUNK) == [("started", large_data)] * event_feed.MAX_CHUNK
            seen += event_feed.MAX_CHUNK
            assert seen < 50_000
        assert seen > 20  # the buffers of the system were full before


def test_the_stream_of_a_reader_that_has_missed_a_reload_ends_too(daemon: WebDaemon) -> None:
    run(daemon)
    [event, *_] = daemon.world.events_of(AttemptStarted)
    sent: list[str] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message.get("body", b"").decode())
        if len(sent) == 2:  # the beginning of the stream
            daemon.feed.publish(SettingsApplied(daemon.settings))
            for _ in range(event_feed.KEPT_EVENTS):
                daemon.feed.publish(event)

    async def read() -> None:
        caller = Caller("reader", frozenset(["read"]))
        response = event_stream.stream_events(ApiRequest(daemon.app_state, caller, {}, {}, Headers()))
        await asyncio.wait_for(response({}, asyncio.Event().wait, send), PATIENCE)  # type: ignore[arg-type]

    asyncio.run(read())
    assert "event: gap" in sent[2]


def test_the_stop_of_the_server_ends_the_streams(tmp_path: Path) -> None:
    with WebDaemon(tmp_path) as daemon, reading(daemon) as reader:
        daemon.server.stop()
        with pytest.raises(EOFError):
            reader.next()
        daemon.server.start()


def test_a_quiet_stream_has_one_task_besides_its_answer(daemon: WebDaemon) -> None:
    """It waits for the reader to leave. A task for each wait for events stayed until the next event."""
    with reading(daemon):
        pass
    with reading(daemon) as steady:
        run(daemon)
        steady.take(6)
        while daemon.feed.reader_count > 1:
            run(daemon)
        waiting = [repr(task.get_coro()) for task in asyncio.all_tasks(daemon.feed._loop)]
        assert [task.split()[2] for task in waiting if "disconnect" in task or "Event.wait" in task] == ["wait_for_disconnect"]


def test_many_events_at_once_wake_a_reader_a_few_times(daemon: WebDaemon) -> None:
    """The first event after a quiet time wakes it at once."""
    run(daemon)
    [event, *_] = daemon.world.events_of(AttemptStarted)

    async def is_woken(news: asyncio.Event) -> None:
        async with asyncio.timeout(10):
            while not news.is_set():
                await asyncio.sleep(0.01)
        news.clear()

    async def count() -> int:
        feed, news, woken = event_feed.EventFeed("boot1"), asyncio.Event(), 0
        feed.add_reader(news)
        feed.publish(event)
        await is_woken(news)
        began = asyncio.get_running_loop().time()
        for _ in range(100):
            feed.publish(event)
            await asyncio.sleep(0)
            woken += news.is_set()
            news.clear()
        await is_woken(news)
        assert asyncio.get_running_loop().time() - began > event_feed.WAKE_INTERVAL / 2
        return woken

    assert asyncio.run(count()) <= 2
