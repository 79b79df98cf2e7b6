"""Tests the HTTP client: names, connections, certificates, timeouts, and the error for every kind of bad answer."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from base64 import b64decode
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from loops import loop_over
from run_async import DIRECT, new_http_client, post_with_client
from servers.scripted import CERTIFICATE, Act, Server, after, raw, reply, reset, silent_until_closed

from heartbeat.runners import Failure, HttpReply
from heartbeat.runners.call_errors import INVALID_ADDRESS, CallError
from scheduler.model.settings import Network
from scheduler.net.http_client import HttpClient

TRUSTING = Network(proxy="none", ca_file=CERTIFICATE)


class Resolver:
    """A resolver that returns the same addresses for every name, and counts its queries."""

    def __init__(self, addresses: Iterable[str], gate: threading.Event | None = None) -> None:
        self._addresses = list(addresses)
        self._gate = gate
        self.asked = 0

    def __call__(self, host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
        self.asked += 1
        if self._gate:
            self._gate.wait(10)
        if not self._addresses:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self._addresses]


def trouble(url: str, seconds: float = 5.0, **more: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        post_with_client(url, {}, b"{}", seconds, **more)
    return caught.value


def test_an_unknown_name_is_a_dns_failure() -> None:
    answer = trouble("http://nobody.example/", resolve=Resolver([])).answer
    assert (answer.failure, answer.transient, answer.error) == (Failure.DNS, True, "its name cannot be resolved")
    assert answer.not_sent


@pytest.mark.parametrize("host", ["nobody\0.example", "no body.example", "nobody\x7f.example"])
def test_a_host_that_a_request_cannot_contain_is_not_resolved(host: str) -> None:
    resolver = Resolver(["127.0.0.1"])
    answer = trouble(f"http://{host}/", resolve=resolver).answer
    assert (answer.failure, answer.error, resolver.asked) == (Failure.BAD_REQUEST, INVALID_ADDRESS, 0)


def test_a_name_server_that_never_answers_does_not_block_the_request() -> None:
    gate = threading.Event()
    answer = trouble("http://nobody.example/", 0.2, resolve=Resolver(["127.0.0.1"], gate)).answer
    gate.set()
    assert (answer.failure, answer.error, answer.not_sent) == (Failure.DNS, "its name was not resolved in time", True)


def test_simultaneous_requests_to_a_name_share_one_query() -> None:
    gate = threading.Event()
    resolver = Resolver(["127.0.0.1"], gate)

    async def eight_then_one(url: str) -> tuple[list[int], int, int]:
        async with new_http_client(resolve=resolver) as http:
            calls = [asyncio.create_task(http.post(url, {}, b"{}", 5.0)) for _ in range(8)]
            await asyncio.sleep(0.05)
            gate.set()
            statuses = [reply.status for reply in await asyncio.gather(*calls)]
            shared = resolver.asked
            await http.send_message(url, {}, b"{}", 5.0, allow_private=True)  # over a new connection
        return statuses, shared, resolver.asked

    with Server([reply({})]) as server:
        statuses, shared, after_that = asyncio.run(eight_then_one(f"http://api.example:{server.port}/"))
    assert (statuses, shared, after_that) == ([200] * 8, 1, 2), "an answer is shared, not kept"


async def cut_short(url: str, gate: threading.Event | None = None) -> CallError:
    """How a call ends that is cancelled once it waits."""
    more: dict[str, Any] = {"resolve": Resolver([], gate)} if gate else {}
    async with new_http_client(**more) as http:
        call = asyncio.create_task(http.post(url, {}, b"{}", 5.0))
        await asyncio.sleep(0.2)
        call.cancel()
        with pytest.raises(CallError) as caught:
            await call
    return caught.value


def test_a_call_cancelled_during_name_resolution_was_not_sent() -> None:
    gate = threading.Event()
    answer = asyncio.run(cut_short("http://nobody.example/", gate)).answer
    gate.set()
    assert (answer.failure, answer.not_sent) == (Failure.EXIT, True)


def test_a_call_cancelled_while_it_waits_closes_its_connection_and_may_have_arrived() -> None:
    closed = threading.Event()
    with Server([silent_until_closed(closed)]) as server:
        answer = asyncio.run(cut_short(server.url)).answer
        assert closed.wait(10)
    assert (answer.failure, answer.not_sent, answer.transient) == (Failure.EXIT, False, False)
    assert answer.error == "the call was interrupted"


def test_a_connection_that_is_never_established_times_out() -> None:
    with crowded("127.0.0.1") as port:
        answer = trouble(f"http://127.0.0.1:{port}/", 0.5).answer
    assert (answer.failure, answer.error, answer.not_sent) == (Failure.TIMEOUT, "no answer within 0.5 s", True)


@contextmanager
def crowded(host: str, port: int = 0) -> Iterator[int]:
    """The port of a listener whose queue is full, so that a connection to it is neither made nor refused."""
    with socket.create_server((host, port), backlog=0) as listener, ExitStack() as queue:
        for _ in range(3):
            queued = queue.enter_context(closing(socket.socket()))
            queued.setblocking(False)
            queued.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def test_the_next_address_is_tried_if_one_refuses_connections() -> None:
    with Server([reply({})]) as server:
        got = post_with_client(f"http://two.example:{server.port}/", {}, b"{}", 5.0, resolve=Resolver(["127.0.0.2", "127.0.0.1"]))
    assert got.status == 200


def test_the_next_address_is_tried_soon_if_one_does_not_answer() -> None:
    """Such as the IPv6 address of a provider, in a network that drops IPv6."""
    with Server([reply({})]) as server, crowded("127.0.0.2", server.port):
        got = post_with_client(f"http://two.example:{server.port}/", {}, b"{}", 5.0, resolve=Resolver(["127.0.0.2", "127.0.0.1"]))
    assert got.status == 200


def test_a_trusted_certificate_is_accepted() -> None:
    with Server([reply({"fine": True})], tls=True) as server:
        got = post_with_client(f"{server.url}/x", {}, b"{}", 5.0, network=TRUSTING)
    assert got.body == b'{"fine": true}'


def test_a_trusted_certificate_for_another_name_is_rejected() -> None:
    with Server([reply({})], tls=True) as server:
        answer = trouble(
            f"https://other.example:{server.port}/",
            resolve=Resolver(["127.0.0.1"]),
            network=TRUSTING,
        ).answer
    assert (answer.failure, answer.not_sent, server.requests) == (Failure.TLS, True, [])
    assert "certificate is not trusted (Hostname mismatch" in answer.error


def test_a_server_without_tls_and_a_broken_one_give_different_errors() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=greet, args=(listener,)).start()
        answer = trouble(f"https://127.0.0.1:{listener.getsockname()[1]}/").answer
    assert (answer.failure, answer.transient, answer.not_sent) == (Failure.TLS, False, True)
    assert answer.error.startswith("no TLS connection (")


def test_after_a_tls_error_behind_the_request_the_request_may_have_arrived() -> None:
    with Server([spoil], tls=True) as server:
        answer = trouble(server.url, network=TRUSTING).answer
    assert (answer.failure, answer.not_sent, len(server.requests)) == (Failure.TLS, False, 1)


def spoil(connection: socket.socket, over: threading.Event) -> None:
    os.write(connection.fileno(), b"what is no TLS any more")


def greet(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"220 mail.example ESMTP\r\n")
        connection.recv(65536)


def test_a_server_that_never_answers_the_tls_handshake_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answer = trouble(f"https://127.0.0.1:{listener.getsockname()[1]}/", 0.3).answer
    assert (answer.failure, answer.transient, answer.not_sent) == (Failure.TIMEOUT, True, True)


def test_after_a_hang_up_before_the_tls_handshake_the_request_was_not_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=hang_up_on, args=(listener,)).start()
        answer = trouble(f"https://127.0.0.1:{listener.getsockname()[1]}/").answer
    assert (answer.failure, answer.error, answer.not_sent) == (Failure.CONNECT, "it broke the connection", True)


def test_after_a_hang_up_behind_the_request_the_request_may_have_arrived() -> None:
    with Server([reset()]) as server:
        answer = trouble(server.url).answer
    assert (answer.failure, answer.error, answer.not_sent) == (Failure.CONNECT, "it broke the connection", False)


def hang_up_on(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    connection.close()


@pytest.mark.parametrize(
    ("act", "status"),
    [
        (raw(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nno!!"), 413),
        (raw(b"HTTP/1.1 500 Oops\r\nContent-Length: 400\r\n\r\nhalf"), 500),
        (reply(b"x" * 10_000_000, 500), 500),
        (reply(b"\x1f\x8b", 500, Content_Encoding="gzip"), 500),
    ],
)
def test_an_error_status_is_reported_however_its_body_ends(act: Act, status: int) -> None:
    with Server([act]) as server:
        got = post_with_client(server.url, {}, b"{}", 5.0)
    assert isinstance(got, HttpReply)
    assert got.status == status
    assert len(got.body) <= 65536


def test_what_has_come_of_an_error_is_kept_when_the_time_is_over() -> None:
    with Server([raw_and_open(b"HTTP/1.1 429 Slow\r\nContent-Length: 400\r\n\r\nhalf")]) as server:
        got = post_with_client(server.url, {}, b"{}", 0.3)
    assert (got.status, got.body) == (429, b"half")


def raw_and_open(data: bytes) -> Act:
    """Send these bytes, and leave the connection open."""

    def act(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(data)
        over.wait(30)

    return act


def test_a_login_in_an_address_is_sent_as_it_was_meant() -> None:
    with Server([reply({})]) as server:
        post_with_client(server.url.replace("://", "://ad%40:p%3A%2Fs@"), {}, b"{}", 5.0)
    assert b64decode(server.requests[0].headers["authorization"].removeprefix("Basic ")) == b"ad@:p:/s"


def test_endless_headers_are_an_error() -> None:
    with Server([raw(b"HTTP/1.1 200 OK\r\n" + b"X-More: yes\r\n" * 200_000)]) as server:
        assert trouble(server.url).answer.failure is Failure.BAD_ANSWER


def test_simultaneous_calls_do_not_wait_for_each_other() -> None:
    async def hundred(url: str) -> set[int]:
        async with new_http_client() as http:
            return {each.status for each in await asyncio.gather(*(http.post(url, {}, b"{}", 10.0) for _ in range(100)))}

    with Server([after(0.5, reply({}))]) as server:
        assert asyncio.run(hundred(server.url)) == {200}
    assert server.connections == 100


def test_a_request_waits_again_after_its_connection_was_made() -> None:
    """The daemon may have been frozen while it connected, and another one may lead."""
    sent: list[int] = []

    async def wait() -> None:
        sent.append(len(server.requests))

    async def post() -> None:
        async with new_http_client(wait=wait) as http:
            await http.post(server.url, {}, b"{}", 10.0)

    with Server([reply({})]) as server:
        asyncio.run(post())
    assert (sent, len(server.requests)) == ([0, 0], 1)


def test_a_request_that_may_not_be_sent_after_connecting_leaves_no_connection_open() -> None:
    """A worker may have been frozen while it connected, and another one may repeat the run."""

    async def post() -> tuple[bytes, CallError]:
        received = asyncio.get_running_loop().create_future()
        asked = 0

        async def read_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.set_result(await reader.read())  # until the client closes the connection
            writer.close()

        async def confirm() -> None:
            nonlocal asked
            asked += 1
            if asked == 2:
                raise CallError(Failure.TIMEOUT, "the time of the run was over", not_sent=True)

        async with await asyncio.start_server(read_all, "127.0.0.1", 0) as server, new_http_client() as http:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            with pytest.raises(CallError) as failed:
                await http.with_wait(confirm).post(url, {}, b"{}", 10.0)
            return await asyncio.wait_for(received, 10), failed.value

    sent, error = asyncio.run(post())
    assert sent == b""
    assert "the time of the run was over" in str(error)


@loop_over(
    ("response", "failure"),
    [
        (b"", Failure.CONNECT),
        (b"HTTP/1.1 100 Continue\r\n\r\n", Failure.CONNECT),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", Failure.BAD_ANSWER),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n", Failure.BAD_ANSWER),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok", Failure.BAD_ANSWER),
        (b"HTTP/2 200\r\n\r\n", Failure.BAD_ANSWER),
        (b"hello", Failure.BAD_ANSWER),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", Failure.BAD_ANSWER),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok", Failure.BAD_ANSWER),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", Failure.BAD_ANSWER),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            Failure.BAD_ANSWER,
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok", Failure.BAD_ANSWER),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nok", Failure.BAD_ANSWER),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 20_000 + b"\r\nContent-Length: 2\r\n\r\nok", Failure.BAD_ANSWER),
    ],
)
def test_an_answer_that_is_not_http_is_a_failure(response: bytes, failure: Failure) -> None:
    with Server([raw(response)]) as server:
        assert trouble(server.url).answer.failure is failure


def test_informational_responses_are_skipped() -> None:
    response = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
    with Server([raw(response)]) as server:
        assert post_with_client(server.url, {}, b"{}", 5.0).body == b"ok"


def hint_for_ever(connection: socket.socket, over: threading.Event) -> None:
    while not over.wait(0.001):
        connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)


def test_endless_informational_responses_time_out() -> None:
    with Server([hint_for_ever]) as server:
        answer = trouble(server.url, 0.5).answer
    assert (answer.failure, answer.error) == (Failure.TIMEOUT, "no answer within 0.5 s")


def kept_then(act: Act) -> Act:
    """An answer after which the connection is kept; what becomes of the next request on it is `act`."""

    def serve(connection: socket.socket, over: threading.Event) -> None:
        reply({"first": True})(connection, over)
        connection.recv(65536)
        act(connection, over)

    return serve


async def twice(url: str) -> list[bytes]:
    async with new_http_client() as http:
        return [(await http.post(url, {}, b"{}", 10.0)).body for _ in range(2)]


def test_a_connection_is_kept_for_the_next_request() -> None:
    with Server([kept_then(reply({"second": True}))]) as server:
        assert asyncio.run(twice(server.url)) == [b'{"first": true}', b'{"second": true}']
    assert server.connections == 1


@pytest.mark.parametrize("ends", [raw(b""), reset()])
def test_a_kept_connection_that_the_server_has_just_closed_is_replaced_once(ends: Act) -> None:
    with Server([kept_then(ends), reply({"again": True})]) as server:
        assert asyncio.run(twice(server.url)) == [b'{"first": true}', b'{"again": true}']
    assert server.connections == 2


def test_a_request_is_repeated_at_most_once() -> None:
    with Server([kept_then(raw(b"")), raw(b"")]) as server, pytest.raises(CallError) as caught:
        asyncio.run(twice(server.url))
    assert (server.connections, caught.value.answer.not_sent) == (2, False)


def test_a_request_is_not_repeated_after_a_byte_of_an_answer() -> None:
    with Server([kept_then(raw(b"HTTP/1.1 2")), reply({"again": True})]) as server, pytest.raises(CallError) as caught:
        asyncio.run(twice(server.url))
    assert (server.connections, caught.value.answer.not_sent) == (1, False)


def test_a_changed_setting_applies_to_the_next_request() -> None:
    networks = [DIRECT, Network(proxy="none", ca_file=CERTIFICATE)]

    async def before_and_after(url: str) -> int:
        async with HttpClient(lambda: networks[0]) as http:
            with pytest.raises(CallError):
                await http.post(url, {}, b"{}", 10.0)
            networks.pop(0)
            return (await http.post(url, {}, b"{}", 10.0)).status

    with Server([reply({})], tls=True) as server:
        assert asyncio.run(before_and_after(server.url)) == 200
