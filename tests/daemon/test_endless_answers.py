"""Every answer of a server is read up to a limit, whoever reads it. For the output of programs see test_process and test_tools."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from patience import PATIENCE
from run_async import call_agent, send_message, with_http
from servers.scripted import Server, reply
from test_telegram import MESSAGE

from heartbeat.runners import AgentRequest
from heartbeat.runners.call_errors import CallError
from heartbeat.spec import HttpRunner, ModelRunner, Provider
from heartbeatd import AsyncClient, Client, HeartbeatdError
from heartbeatd.secret import Secret
from heartbeatd.state_folder import MAX_DAEMON_ANSWER
from scheduler.channels import apprise, discord, telegram, webhook
from scheduler.engine.deadman_switch import Ping, send_ping
from scheduler.model.settings import Deadman
from scheduler.net import http_client
from scheduler.net.library_requests import limited_answers

KIB, MIB = 1024, 1024 * 1024
IN_TRANSIT = 24 * MIB  # that buffers of sockets and libraries may hold, for several requests
RUN = AgentRequest("ops", "How is it?", "small", Path(), timedelta(seconds=20), lambda: {"run": 7})
BLOCK = b" " * 64 * KIB
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
# The beginning of an answer, and what follows again and again.
ENDLESS = {
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + BLOCK + b"\r\n"),
    "a body without a length": (HEAD + b"Connection: close\r\n\r\n", BLOCK),
    "an error without a length": (HEAD.replace(b"200 OK", b"500 No") + b"Connection: close\r\n\r\n", BLOCK),
    "an event": (HEAD.replace(b"application/json", b"text/event-stream") + b"Connection: close\r\n\r\ndata: ", BLOCK),
    "one header": (HEAD + b"X-Long: ", BLOCK.replace(b" ", b"x")),
    "headers": (HEAD, b"X-More: 1\r\n" * 6000),
    "a status line": (b"HTTP/1.1 200 ", BLOCK.replace(b" ", b"x")),
}


@dataclass
class EndlessServer:
    """Sends the same answer until the client closes the connection, or until `most` bytes have left. Counts the bytes."""

    most: int
    begins: bytes
    repeats: bytes
    sent: int = 0

    def act(self, connection: socket.socket, over: threading.Event) -> None:
        """The `Act` of a scripted server."""
        connection.settimeout(0.2)
        with suppress(ConnectionError):
            connection.sendall(self.begins)
            rest = memoryview(self.repeats)
            while self.sent < self.most and not over.is_set():
                try:
                    count = connection.send(rest)
                except TimeoutError:
                    continue
                self.sent += count
                rest = rest[count:] or memoryview(self.repeats)


def call_model(kind: Any) -> Callable[[str], object]:
    return lambda url: call_agent(RUN, ModelRunner(Provider(kind, kind, Secret("sk-1"), url), 2000))


def call_gateway(url: str) -> object:
    return call_agent(RUN, HttpRunner(url, {}))


def send_to(channel: Any, form: str) -> Callable[[str], object]:
    def send(url: str) -> object:
        own = form.format(address=url.removeprefix("http://"), url=url)
        return send_message(channel.send, own, MESSAGE, base=None if "{" in form else url, total=10)

    return send


def ping_switch(url: str) -> object:
    ping = Ping("success", None, Deadman(Secret(url), timedelta(minutes=1), allow_private=True))
    return asyncio.run(with_http(lambda http: send_ping(ping, http)))


def use_client(url: str) -> object:
    with Client(url, "token") as daemon:
        return daemon.get_status()


def use_async_client(url: str) -> object:
    async def use() -> object:
        async with AsyncClient(url, "token") as daemon:
            return await daemon.get_status()

    return asyncio.run(use())


def follow_events(url: str) -> object:
    with Client(url, "token") as daemon:
        return next(daemon.stream_events())


WHOLE, START, DAEMON = http_client.MAX_BODY, http_client.MAX_BODY_START, MAX_DAEMON_ANSWER
# Who reads an answer, how much of it at most, and in which forms: those that take long for this reader are left out.
READERS: list[tuple[str, Callable[[str], object], int, Collection[str]]] = [
    ("a model of Anthropic", call_model("anthropic"), WHOLE, ENDLESS),
    ("a model with OpenAI's API", call_model("openai"), WHOLE, ENDLESS),
    ("a gateway", call_gateway, WHOLE, ENDLESS),
    ("a webhook", send_to(webhook, "{url}/hook"), START, ENDLESS),
    ("Telegram", send_to(telegram, "tgram://1:a/2"), START, ENDLESS),
    ("Discord", send_to(discord, "discord://1/a"), START, ENDLESS),
    ("Apprise", send_to(apprise, "json://{address}"), WHOLE, ENDLESS),
    ("the dead man's switch", ping_switch, START, ENDLESS),
    ("the Python client", use_client, DAEMON, ["a body without a length", "one header", "headers"]),
    ("the Python client with asyncio", use_async_client, DAEMON, ["a body without a length", "one header", "headers"]),
    ("a reader of events", follow_events, DAEMON, ["an error without a length", "an event", "one header", "headers"]),
]


def test_no_reader_reads_an_endless_answer_to_its_end() -> None:
    for reader, read_answer, limit, forms in READERS:
        check_reader(reader, read_answer, limit, forms)


def check_reader(reader: str, read_answer: Callable[[str], object], limit: int = WHOLE, forms: Collection[str] = ENDLESS) -> None:
    for form in forms:
        endless = EndlessServer(limit + 2 * IN_TRANSIT, *ENDLESS[form])
        with Server([endless.act]) as server, suppress(CallError, HeartbeatdError, click.ClickException):
            read_answer(server.url)
        assert 0 < endless.sent <= limit + IN_TRANSIT, (reader, form)


def test_the_requests_of_a_users_own_function_are_not_limited() -> None:
    requests: Any = import_module("requests")
    body = b"x" * (WHOLE + MIB)
    with Server([reply(body)]) as server:
        with limited_answers():
            assert len(requests.get(server.url, timeout=PATIENCE).content) < len(body)
        assert requests.get(server.url, timeout=PATIENCE).content == body
