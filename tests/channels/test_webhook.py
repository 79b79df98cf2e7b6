"""Tests the webhook channel: what is posted, what each answer means, and which addresses are refused."""

import hashlib
import hmac
import runpy
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

import pytest
from checkout import HOME
from loops import loop_over
from run_async import NOW, send_message
from servers.scripted import Act, Server, hang_up, raw, silence

from heartbeat.runners.call_errors import parse_retry_after
from heartbeatd.secret import Secret
from scheduler.channels.webhook import send
from scheduler.model.message import DeliveryOutcome, DeliveryResult, Message
from scheduler.net.address_guard import is_public
from scheduler.store.outbox import OutboxMessage, split_text

MESSAGE = Message(
    key="k-1",
    kind="heartbeat",
    name="ops",
    trigger="interval",
    planned_at=datetime(2026, 11, 20, 16, 30, tzinfo=UTC),
    part=1,
    parts=2,
    text='Disk "full" – 東京\n',
    title="ops: alert",
)
QUEUED = OutboxMessage(**asdict(MESSAGE), id=1, channel="hook", recipient="", run_id=7, attempts=1, created_at=NOW, doubted=False)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Start = Callable[[Act | bytes], Server]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as servers:
        yield lambda act: servers.enter_context(Server([raw(act) if isinstance(act, bytes) else act]))


def at(server: Server, rest: str = "/hook", host: str = "127.0.0.1") -> str:
    return f"http://{host}:{server.port}{rest}"


def post(url: str, **more: Any) -> DeliveryResult:
    return send_message(send, url, MESSAGE, **more)


class Resolver:
    """A name server that gives one list of addresses after the other, and counts the questions."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        answer = self._answers.pop(0)
        if not answer:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [entry(address, port) for address in answer]


def entry(address: str, port: int) -> tuple[Any, ...]:
    if ":" in address:
        return (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))


@pytest.mark.parametrize("message", [MESSAGE, QUEUED])
def test_a_message_is_posted_as_json_with_its_key(start: Start, message: Message) -> None:
    server = start(OK)
    assert send_message(send, at(server, "/hook?to=ops"), message, host="web1") == DeliveryResult("delivered")
    request = server.requests[0]
    assert (request.method, request.path) == ("POST", "/hook?to=ops")
    assert request.headers["host"] == f"127.0.0.1:{server.port}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["idempotency-key"] == "k-1"
    assert request.headers["user-agent"].startswith("heartbeatd/")
    assert request.json == {
        "key": "k-1",
        "kind": "heartbeat",
        "name": "ops",
        "trigger": "interval",
        "planned_at": "2026-11-20T16:30:00Z",
        "part": 1,
        "parts": 2,
        "text": 'Disk "full" – 東京\n',
        "title": "ops: alert",
        "agent": "ops",
        "host": "web1",
    }


SECRET = "a canary of a secret"


def test_a_request_is_signed_over_its_time_and_its_body(start: Start) -> None:
    server = start(OK)
    assert post(at(server), signing_secret=Secret(SECRET), signature_header="X-Signature").state == "delivered"
    request, time = server.requests[0], int(NOW.timestamp())
    expected = hmac.new(SECRET.encode(), f"{time}.".encode() + request.body, hashlib.sha256).hexdigest()
    assert request.headers["x-signature"] == f"t={time},v1={expected}"


def test_the_example_of_a_receiver_accepts_a_signed_request_and_refuses_a_changed_or_an_old_one(start: Start) -> None:
    is_authentic = runpy.run_path(str(HOME / "examples" / "verify_webhook.py"))["is_authentic"]
    server = start(OK)
    post(at(server), signing_secret=Secret(SECRET), signature_header="X-Heartbeatd-Signature")
    header, body, time = server.requests[0].headers["x-heartbeatd-signature"], server.requests[0].body, NOW.timestamp()
    assert is_authentic(SECRET, header, body, time + 1)
    assert not is_authentic(SECRET, header, body + b" ", time + 1)
    assert not is_authentic("another secret", header, body, time + 1)
    assert not is_authentic(SECRET, header, body, time + 3600)
    assert not is_authentic(SECRET, header.replace("t=", "t=9"), body, time + 1)


def test_a_path_with_non_ascii_letters_is_encoded(start: Start) -> None:
    server = start(OK)
    post(at(server, "/für alle?q=é%20"))
    assert server.requests[0].path == "/f%C3%BCr%20alle?q=%C3%A9%20"


@pytest.mark.parametrize(
    ("status", "state", "error"),
    [
        ("200 OK", "delivered", ""),
        ("204 No Content", "delivered", ""),
        ("301 Moved", "dead", "answered 301 Moved Permanently: redirects are not followed; write the URL it leads to"),
        ("307 X", "dead", "answered 307 Temporary Redirect: redirects are not followed; write the URL it leads to"),
        ("400 X", "dead", "answered 400 Bad Request"),
        ("401 X", "dead", "answered 401 Unauthorized"),
        ("404 canary", "dead", "answered 404 Not Found"),
        ("408 X", "retry", "answered 408 Request Timeout"),
        ("410 X", "dead", "answered 410 Gone"),
        ("429 X", "retry", "answered 429 Too Many Requests"),
        ("500 X", "retry", "answered 500 Internal Server Error"),
        ("503 X", "retry", "answered 503 Service Unavailable"),
        ("599 X", "retry", "answered 599"),
        ("699 X", "dead", "answered 699"),
    ],
)
def test_each_status_has_its_meaning(start: Start, status: str, state: DeliveryOutcome, error: str) -> None:
    server = start(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
    assert post(at(server, "/canary")) == DeliveryResult(state, f"127.0.0.1 {error}" if error else "")


def test_a_redirect_is_not_followed(start: Start) -> None:
    hidden = start(OK)
    server = start(f"HTTP/1.1 302 Found\r\nLocation: {at(hidden, '/canary')}\r\nContent-Length: 0\r\n\r\n".encode())
    sent = post(at(server))
    assert (sent.state, "canary" in sent.error, hidden.requests) == ("dead", False, [])


DATE = "Fri, 20 Nov 2026 16:30:00 GMT"


@loop_over(
    ("headers", "wait"),
    [
        ({}, None),
        ({"retry-after": "0"}, timedelta(0)),
        ({"retry-after": "120"}, timedelta(minutes=2)),
        ({"retry-after": " 120 "}, timedelta(minutes=2)),
        ({"retry-after": "86400"}, timedelta(days=1)),
        ({"retry-after": "9" * 20}, timedelta(days=3650)),
        ({"retry-after": "9" * 5000}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "1.5"}, timedelta(seconds=1.5)),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "²"}, None),
        ({"retry-after": "Fri, 20 Nov 2026 16:32:00 GMT", "date": DATE}, timedelta(minutes=2)),
        ({"retry-after": "Fri, 20 Nov 2026 16:32:00", "date": DATE}, timedelta(minutes=2)),
        ({"retry-after": "Fri, 20 Nov 2020 16:32:00 GMT", "date": DATE}, timedelta(0)),
        ({"retry-after": "Fri, 20 Nov 9999 16:32:00 GMT", "date": DATE}, timedelta(days=3650)),
        ({"retry-after": "Fri, 32 Nov 2026 16:32:00 GMT", "date": DATE}, None),
        ({"retry-after": "Fri, 20 Nov 2026 16:32:00 GMT"}, None),
        ({"retry-after": "Fri, 20 Nov 2026 16:32:00 GMT", "date": "x"}, None),
    ],
)
def test_retry_after_is_read_and_invalid_values_are_ignored(headers: dict[str, str], wait: timedelta | None) -> None:
    assert parse_retry_after(headers) == wait


def test_a_busy_receiver_sets_the_time_of_the_next_attempt(start: Start) -> None:
    server = start(b"HTTP/1.1 429 Slow down\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n")
    assert post(at(server)).retry_after == timedelta(seconds=7)


def test_without_an_answer_the_delivery_is_uncertain(start: Start) -> None:
    assert post(at(start(silence()), "/canary"), total=0.3) == DeliveryResult("uncertain", "127.0.0.1: no answer within 0.3 s")


def test_after_a_hang_up_the_delivery_is_uncertain(start: Start) -> None:
    server = start(hang_up())
    assert post(at(server, "/canary")) == DeliveryResult(
        "uncertain", "127.0.0.1: it closed the connection before its answer was complete"
    )


def test_after_an_answer_that_is_not_http_the_delivery_is_uncertain_and_the_answer_is_not_shown(start: Start) -> None:
    server = start(b"SSH-2.0-canary\r\n\r\n")
    assert post(at(server)) == DeliveryResult("uncertain", "127.0.0.1: its answer was not valid HTTP")


def test_only_64_kib_of_an_endless_body_are_read(start: Start) -> None:
    written: list[int] = []

    def flood(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while sum(written) < 200 * 1024 * 1024:
            written.append(connection.send(b"x" * 65536))

    with Server([flood]) as server:
        assert post(at(server)).state == "delivered"
    assert sum(written) < 100 * 1024 * 1024


def test_a_body_that_never_ends_does_not_change_the_result(start: Start) -> None:
    def hang(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        over.wait(10)

    assert post(at(start(hang)), total=0.3).state == "delivered"


def test_without_a_listening_server_it_is_retried() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    assert post(f"http://127.0.0.1:{port}/canary") == DeliveryResult("retry", "127.0.0.1: no connection: Connection refused")


def test_the_address_that_was_checked_is_the_address_that_is_used(start: Start) -> None:
    """A name that resolves to a public address first and to a private one later (DNS rebinding) is resolved once."""
    server = start(OK)
    resolver = Resolver(["192.0.2.1"], ["127.0.0.1"])
    sent = post(at(server, host="hook.example"), resolve=resolver, allow_private=False)
    assert (sent.state, resolver.asked, server.requests) == ("dead", ["hook.example"], [])


@loop_over(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "239.1.1.1",
        "240.0.0.1",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%2",
        "fc00::1",
        "ff02::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "fec0::1",
        "192.0.0.9",
    ],
)
def test_no_private_address_is_connected_to(address: str) -> None:
    sent = post("http://hook.example/canary", resolve=Resolver([address]), allow_private=False)
    assert sent.state == "dead"
    assert sent.error == f"hook.example is the private address {address}; write allow_private: true if that is meant"


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::"])
def test_public_and_private_addresses_are_distinguished(address: str) -> None:
    assert is_public(ip_address(address))


def test_one_private_address_among_public_ones_is_refused() -> None:
    sent = post("http://hook.example/", resolve=Resolver(["8.8.8.8", "127.0.0.1"]), allow_private=False)
    assert sent.state == "dead"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0177.0.0.1", "0x7f.0.0.1", "0x7f000001", "127.1", "[::1]", "0"]
)
def test_loopback_is_refused_in_every_spelling(start: Start, host: str) -> None:
    server = start(OK)
    sent = post(at(server, host=host), allow_private=False)
    assert (sent.state, server.requests) == ("dead", [])


@pytest.mark.parametrize("host", ["134744072", "010.8.8.8", "0x08080808", "8.8"])
def test_an_unusual_spelling_of_an_address_is_refused_even_if_it_is_public(host: str) -> None:
    sent = post(f"http://{host}/canary", resolve=Resolver(["8.8.8.8"]), allow_private=False)
    assert (
        sent.error == f"{host} is an unusual spelling of an IP address; write it as four decimal numbers, or allow_private: true"
    )


def test_a_private_address_is_used_if_the_config_allows_it(start: Start) -> None:
    server = start(OK)
    assert post(at(server, host="hook.example"), resolve=Resolver(["127.0.0.1"]), allow_private=True).state == "delivered"


@loop_over(
    "url",
    [
        "file:///etc/canary",
        "gopher://127.0.0.1/canary",
        "ftp://host.example/canary",
        "//host.example/canary",
        "canary",
        "",
        "http:///canary",
        "http://host.example:canary/",
        "http://host.example:99999/canary",
        "http://[::1/canary",
        "http://[canary]/",
        "http://a..b/canary",
        "http://.a/canary",
        "http://" + "a" * 70 + ".example/canary",
    ],
)
def test_a_url_that_is_not_http_is_dead_and_not_shown(url: str) -> None:
    sent = post(url, resolve=Resolver())
    assert sent == DeliveryResult("dead", "its address is not valid; write http(s)://host[:port]/path")


def test_nothing_is_sent_to_a_server_with_an_untrusted_certificate() -> None:
    with Server([raw(OK)], tls=True) as server:
        sent = post(f"https://localhost:{server.port}/canary")
    assert (sent.state, server.requests) == ("retry", [])
    assert (
        sent.error
        == "localhost: its certificate is not trusted (self-signed certificate); if your own authority signed it, write network: {ca_file: PATH}"
    )


@loop_over(
    ("text", "limit", "parts"),
    [
        ("", 10, [""]),
        ("  \n ", 10, [""]),
        ("short", 10, ["short"]),
        ("exactly10!", 10, ["exactly10!"]),
        ("first one\n\nsecond one", 12, ["first one", "second one"]),
        ("first line\nsecond one", 12, ["first line", "second one"]),
        ("one two three four", 10, ["one two", "three four"]),
        ("paragraph\nline\n\nnext", 16, ["paragraph\nline", "next"]),
        ("a\n\nbbbb cccc dddd", 10, ["a\n\nbbbb", "cccc dddd"]),
        ("x" * 25, 10, ["x" * 10, "x" * 10, "x" * 5]),
        ("list:\n  one", 8, ["list:", "  one"]),
        ("one two\n \n\nthree", 9, ["one two", "three"]),
        ("東京東京東京", 4, ["東京東京", "東京"]),
        ("🙂🙂🙂", 4, ["🙂🙂", "🙂"]),
        ("🙂🙂🙂", 3, ["🙂", "🙂", "🙂"]),
        ("a b", 2, ["a", "b"]),
        ("x" + " " * 50 + "y", 10, ["x", "y"]),
    ],
)
def test_a_long_text_is_cut_at_the_strongest_mark(text: str, limit: int, parts: list[str]) -> None:
    assert split_text(text, limit) == parts


def test_no_part_is_too_long_and_no_word_is_lost() -> None:
    text = "\n\n".join(" ".join(f"w{number}" for number in range(start, start + 37)) for start in range(0, 2000, 37))
    parts = split_text(text, 200)
    assert max(map(len, parts)) <= 200
    assert " ".join(parts).split() == text.split()


def test_a_part_holds_at_least_one_character_of_any_size() -> None:
    with pytest.raises(ValueError, match="at least two units, not 1"):
        split_text("x", 1)
