"""The way to the world outside: names, connections, certificates, deadlines."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest
from servers.scripted import CERTIFICATE, Act, Server, after, raw, reply, reset, silent_until_closed
from threadless import no_thread_left
from waited import waited

from heartbeat import waiting
from heartbeat.runners import Failure, wire
from heartbeat.runners.line import Names
from heartbeat.runners.trouble import Reply, Trouble

post = waited(wire.post)


class Resolver:
    """Knows every name by the same addresses, and counts how often it was asked."""

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


def trouble(url: str, seconds: float = 5.0, **more: Any) -> Trouble:
    with pytest.raises(Trouble) as caught:
        post(url, {}, b"{}", seconds, **more)
    return caught.value


def test_a_name_that_is_not_known_is_a_failure_of_its_own() -> None:
    answer = trouble("http://nobody.example/", names=Names(Resolver([]))).answer
    assert (answer.failure, answer.transient, answer.error) == (Failure.DNS, True, "its name cannot be resolved")
    assert answer.unheard


@pytest.mark.parametrize("host", ["nobody\0.example", "no body.example", "nobody\x7f.example"])
def test_a_host_that_no_head_of_a_request_can_hold_is_asked_of_nobody(host: str) -> None:
    resolver = Resolver(["127.0.0.1"])
    answer = trouble(f"http://{host}/", names=Names(resolver)).answer
    assert (answer.failure, answer.error, resolver.asked) == (Failure.BAD_REQUEST, wire.MALFORMED, 0)


def test_a_name_server_that_never_answers_does_not_hold_us() -> None:
    gate = threading.Event()
    answer = trouble("http://nobody.example/", 0.2, names=Names(Resolver(["127.0.0.1"], gate))).answer
    gate.set()
    assert (answer.failure, answer.error, answer.unheard) == (Failure.DNS, "its name was not resolved in time", True)


def test_those_who_ask_for_a_name_at_the_same_time_share_one_question() -> None:
    gate = threading.Event()
    resolver = Resolver(["127.0.0.1"], gate)
    names = Names(resolver)
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(waited(names.find), "api.example", 443, 5.0) for _ in range(8)]
        threading.Timer(0.1, gate.set).start()
        assert len({str(each.result()) for each in found}) == 1
    assert resolver.asked == 1
    waited(names.find)("api.example", 443, 5.0)
    assert resolver.asked == 2, "an answer is shared, not kept"


def test_a_name_that_nobody_could_be_sent_to_ask_for_is_asked_for_the_next_time() -> None:
    resolver = Resolver(["127.0.0.1"])
    names = Names(resolver)
    with no_thread_left(), pytest.raises(RuntimeError):
        waited(names.find)("api.example", 443, 5.0)
    assert waited(names.find)("api.example", 443, 5.0)
    assert resolver.asked == 1


def test_who_is_cut_short_while_he_waits_for_a_name_has_not_been_heard() -> None:
    gate = threading.Event()
    call = wire.post("http://nobody.example/", {}, b"{}", 5.0, names=Names(Resolver([], gate)))
    call.send(None)
    with pytest.raises(Trouble) as caught:
        call.throw(waiting.Cut())
    gate.set()
    assert (caught.value.answer.failure, caught.value.answer.unheard) == (Failure.EXIT, True)


def test_who_is_cut_short_while_he_waits_for_an_answer_closes_the_connection_and_may_have_been_heard() -> None:
    closed = threading.Event()
    with Server([silent_until_closed(closed)]) as server:
        call = wire.post(server.url, {}, b"{}", 5.0)
        call.send(None)
        with pytest.raises(Trouble) as caught:
            call.throw(waiting.Cut())
        assert closed.wait(10)
    answer = caught.value.answer
    assert (answer.failure, answer.unheard, answer.transient, answer.error) == (
        Failure.EXIT,
        False,
        False,
        "the call was cut short",
    )


def test_who_is_called_too_soon_waits_on_for_his_connection(crowded: str) -> None:
    """A descriptor's number may be another connection's by the time that the room hears of it."""
    call = wire.post(crowded, {}, b"{}", 20.0)
    call.send(None)
    call.send(True)
    with pytest.raises(Trouble) as caught:
        call.send(False)
    assert (caught.value.answer.error, caught.value.answer.unheard) == ("no connection within 10 s", True)


@pytest.fixture
def crowded() -> Iterator[str]:
    """The address of a listener whose queue is full, so that a connection to it is neither made nor refused."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as queue:
        for _ in range(3):
            queued = queue.enter_context(closing(socket.socket()))
            queued.setblocking(False)
            queued.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"


def test_the_next_address_is_tried_when_one_is_dead() -> None:
    with Server([reply({})]) as server:
        got = post(f"http://two.example:{server.port}/", {}, b"{}", 5.0, names=Names(Resolver(["127.0.0.2", "127.0.0.1"])))
    assert got.status == 200


def test_a_trusted_certificate_is_accepted() -> None:
    with Server([reply({"fine": True})], tls=True) as server:
        got = post(f"{server.url}/x", {}, b"{}", 5.0, tls=ssl.create_default_context(cafile=CERTIFICATE))
    assert got.body == b'{"fine": true}'


def test_a_trusted_certificate_of_another_name_is_refused() -> None:
    with Server([reply({})], tls=True) as server:
        answer = trouble(
            f"https://other.example:{server.port}/",
            names=Names(Resolver(["127.0.0.1"])),
            tls=ssl.create_default_context(cafile=CERTIFICATE),
        ).answer
    assert (answer.failure, answer.unheard, server.requests) == (Failure.TLS, True, [])
    assert "certificate is not trusted (Hostname mismatch" in answer.error


def test_a_server_without_tls_is_told_from_a_broken_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=greet, args=(listener,)).start()
        answer = trouble(f"https://127.0.0.1:{listener.getsockname()[1]}/").answer
    assert (answer.failure, answer.transient, answer.unheard) == (Failure.TLS, False, True)
    assert answer.error.startswith("no TLS with it (")


def test_tls_that_is_spoilt_after_the_request_is_no_proof_that_nobody_has_heard_it() -> None:
    with Server([spoil], tls=True) as server:
        answer = trouble(server.url, tls=ssl.create_default_context(cafile=CERTIFICATE)).answer
    assert (answer.failure, answer.unheard, len(server.requests)) == (Failure.TLS, False, 1)


def spoil(connection: socket.socket, over: threading.Event) -> None:
    os.write(connection.fileno(), b"what is no TLS any more")


def greet(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"220 mail.example ESMTP\r\n")
        connection.recv(65536)


def test_a_listener_that_never_accepts_tls_is_left_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answer = trouble(f"https://127.0.0.1:{listener.getsockname()[1]}/", 0.3).answer
    assert (answer.failure, answer.transient, answer.unheard) == (Failure.TIMEOUT, True, True)


def test_who_hangs_up_before_tls_is_spoken_has_heard_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=hang_up_on, args=(listener,)).start()
        answer = trouble(f"https://127.0.0.1:{listener.getsockname()[1]}/").answer
    assert (answer.failure, answer.error, answer.unheard) == (Failure.CONNECT, "it broke the connection", True)


def test_who_hangs_up_after_the_request_may_have_heard_it() -> None:
    with Server([reset()]) as server:
        answer = trouble(server.url).answer
    assert (answer.failure, answer.error, answer.unheard) == (Failure.CONNECT, "it broke the connection", False)


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
def test_a_refusal_is_told_however_its_body_ends(act: Act, status: int) -> None:
    with Server([act]) as server:
        got = post(server.url, {}, b"{}", 5.0)
    assert isinstance(got, Reply)
    assert got.status == status
    assert len(got.body) <= 65536


def test_endless_headers_are_cut() -> None:
    with Server([raw(b"HTTP/1.1 200 OK\r\n" + b"X-More: yes\r\n" * 200_000)]) as server:
        assert trouble(server.url).answer.failure is Failure.BAD_ANSWER


def test_calls_in_flight_do_not_wait_for_each_other() -> None:
    with Server([after(0.5, reply({}))]) as server, ThreadPoolExecutor(100) as pool:
        calls = [pool.submit(post, server.url, {}, b"{}", 3.0) for _ in range(100)]
        assert {call.result(20).status for call in calls} == {200}
    assert server.connections == 100


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        (b"", Failure.CONNECT),
        (b"HTTP/1.1 100 Continue\r\n\r\n", Failure.CONNECT),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", Failure.BAD_ANSWER),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n", Failure.BAD_ANSWER),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok", Failure.BAD_ANSWER),
        (b"HTTP/2 200\r\n\r\n", Failure.BAD_ANSWER),
    ],
)
def test_what_is_no_answer_of_http_is_a_failure(said: bytes, failure: Failure) -> None:
    with Server([raw(said)]) as server:
        assert trouble(server.url).answer.failure is failure


def test_what_only_informs_of_an_answer_is_passed_over() -> None:
    said = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
    with Server([raw(said)]) as server:
        assert post(server.url, {}, b"{}", 5.0).body == b"ok"


def test_hints_without_an_answer_are_no_answer() -> None:
    """They need never end, and whoever reads them thinks all the while."""
    with Server([raw(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000 + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")]) as server:
        answer = trouble(server.url).answer
    assert (answer.failure, answer.error) == (Failure.BAD_ANSWER, "it ended without a proper HTTP answer")
