"""Tests that forged or unauthorized requests are rejected on every path and with every method."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from loops import loop_over
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send
from web_daemon import CONFIG, TOKENS, WebDaemon

from heartbeatd.secret import Secret
from scheduler.model.settings import Token
from scheduler.web import api_request
from scheduler.web.middleware import SecurityMiddleware
from scheduler.web.routes import build_routes

CHIEF = TOKENS["chief"]
UNSAFE = ("POST", "PUT", "PATCH", "DELETE", "BREW")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    with WebDaemon(tmp_path_factory.mktemp("gate")) as daemon:
        yield daemon


def paths(daemon: WebDaemon) -> list[str]:
    """Every route with existing names and ids in its variable parts."""
    return [_filled(route) for route in build_routes(daemon.app_state)]


def read_paths(daemon: WebDaemon) -> set[str]:
    """The paths that can be read."""
    return {
        path
        for route in build_routes(daemon.app_state)
        if "GET" in (route.methods or ()) and (path := _filled(route)) in paths(daemon)
    }


def _filled(route: Route) -> str:
    # Of jobs there is one, of agents another, and only a run of the agent can be shown by this number.
    return route.path.replace("/cron/{name}", "/cron/measure").replace("{name}", "ops").replace("{id}", "1")


def test_nothing_is_changed_without_a_token_on_any_route_by_any_method(daemon: WebDaemon) -> None:
    before = daemon.rows()
    for path in (*paths(daemon), "/nothing"):
        for method in UNSAFE:
            for headers in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": f"Basic {CHIEF}"},
                {"Authorization": "Bearer"},
            ):
                reply = daemon.send(method, path, None, headers=headers)
                assert (reply.status, reply.code) == (401, "unauthorized"), (method, path, headers)
    assert daemon.rows() == before


def test_nothing_is_changed_by_get_or_head_on_any_route(daemon: WebDaemon) -> None:
    before = daemon.rows()
    for path in paths(daemon):
        assert daemon.send("GET", path, token=CHIEF).status in (200, 404, 405, 410), path
        assert daemon.send("HEAD", path, token=CHIEF).status in (200, 404, 405, 410), path
    assert daemon.rows() == before


def test_get_on_a_path_that_is_only_written_to_is_405(daemon: WebDaemon) -> None:
    written = set(paths(daemon)) - read_paths(daemon)
    assert written > {"/api/v1/agents/ops/wake", "/api/v1/cron/measure/run", "/api/v1/pause", "/-/reload"}
    for path in written:
        reply = daemon.get(path)
        assert (reply.status, reply.code) == (405, "method_not_allowed"), path


def test_everything_under_the_api_needs_a_token_to_be_read(daemon: WebDaemon) -> None:
    readable = {path for path in read_paths(daemon) if path.startswith("/api/")}
    assert read_paths(daemon) - readable == {"/metrics", "/healthz", "/readyz"}
    assert readable > {f"/api/v1/{path}" for path in ("status", "plan", "explain/ops", "outbox", "agents/ops/checklist")}
    for path in readable:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            reply = daemon.send("GET", path, headers=headers)
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer"), path


def test_everything_under_the_api_needs_a_token_that_may_read(daemon: WebDaemon) -> None:
    for path in read_paths(daemon):
        if path.startswith("/api/") and path != "/api/v1/whoami":  # a caller may always know its own permissions
            reply = daemon.send("GET", path, token=TOKENS["waker"])
            assert (reply.status, reply.code) == (403, "forbidden"), path


def test_every_caller_may_ask_what_its_own_token_permits(daemon: WebDaemon) -> None:
    for name, may, agents in (("waker", ["wake"], ["ops"]), ("reader", ["read"], None), ("editor", ["edit", "read"], None)):
        own = daemon.get("/api/v1/whoami", token=TOKENS[name]).data
        assert (own["name"], sorted(own["may"]), own["agents"]) == (name, may, agents)


def test_many_refused_tokens_are_counted_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with WebDaemon(tmp_path) as daemon, caplog.at_level(logging.WARNING, "heartbeatd"):
        for _ in range(3):
            daemon.send("GET", "/api/v1/status", headers={"Authorization": "Bearer wrong"})
        assert b"\nheartbeatd_http_tokens_refused_total 3.0\n" in daemon.get("/metrics").body
    assert [record.getMessage() for record in caplog.records].count("token_refused") == 1


def test_two_authorization_headers_are_rejected(daemon: WebDaemon) -> None:
    request = f"GET /api/v1/status HTTP/1.1\r\nHost: localhost:{daemon.port}\r\nConnection: close\r\n"
    one = f"Authorization: Bearer {CHIEF}\r\n"
    assert b" 200 " in daemon.raw(f"{request}{one}\r\n".encode())[:20]
    assert b" 401 " in daemon.raw(f"{request}{one}{one}\r\n".encode())[:20]


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_loopback_host_names_are_accepted_with_the_port(daemon: WebDaemon, host: str) -> None:
    assert daemon.get("/metrics", Host=host.format(port=daemon.port)).status == 200


def test_the_address_that_the_daemon_listens_at_is_accepted_until_the_restart_that_another_one_needs(tmp_path: Path) -> None:
    yaml = CONFIG.replace("127.0.0.1:0", "127.0.0.2:0")
    assert yaml != CONFIG
    with WebDaemon(tmp_path, yaml) as daemon:
        url = f"http://127.0.0.2:{daemon.port}/metrics"
        assert urlopen(url).status == 200
        daemon.config.write_text(yaml.replace("127.0.0.2:0", "127.0.0.3:0"), "utf-8")
        daemon.reloader.reload(by="command")
        assert urlopen(url).status == 200


@pytest.mark.parametrize("host", ["beat.example", "beat.example:{port}", "proxy.example:8443"])
def test_configured_host_names_are_accepted(daemon: WebDaemon, host: str) -> None:
    assert daemon.get("/metrics", Host=host.format(port=daemon.port)).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "127.0.0.1.evil.example:{port}",
        "127.0.0.1", "localhost", "localhost:1", "localhost.:{port}", "127.0.0.1:{port}.evil.example", "user@127.0.0.1:{port}",
        "127.1:{port}", "2130706433:{port}", "0.0.0.0:{port}", "beat.example:1", "proxy.example", "xbeat.example",
        "127.0.0.1:{port},evil.example", "",
    ],
)  # fmt: skip
def test_other_host_names_are_rejected_on_every_route(daemon: WebDaemon, host: str) -> None:
    name = host.format(port=daemon.port)
    for path in (*paths(daemon), "/nothing"):
        for method in ("GET", "POST"):
            reply = daemon.send(method, path, token=CHIEF, headers={"Host": name})
            assert (reply.status, reply.code) == (421, "host"), (method, path)


def test_the_answer_to_a_rejected_host_name_has_the_config_line_to_add(daemon: WebDaemon) -> None:
    message = daemon.get("/metrics", Host="pi.local:7857").data["error"]["message"]
    assert 'server: {hosts: ["pi.local:7857"]}' in message


def test_an_invalid_host_name_is_not_repeated_in_the_answer(daemon: WebDaemon) -> None:
    assert "script" not in daemon.get("/metrics", Host="<script>").body.decode()


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        ("GET /metrics HTTP/1.1\r\n", 400),
        ("GET /metrics HTTP/1.0\r\n", 421),
        ("GET /metrics HTTP/1.1\r\nHost: localhost:{port}\r\nHost: evil.example\r\n", 400),
        ("GET /metrics HTTP/1.0\r\nHost: localhost:{port}\r\nHost: evil.example\r\n", 400),
        ("GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost:{port}\r\n", 421),
        ("GET http://localhost:{port}/metrics HTTP/1.1\r\nHost: localhost:{port}\r\n", 421),
        ("OPTIONS * HTTP/1.1\r\nHost: localhost:{port}\r\n", 421),
    ],
)
def test_a_request_with_no_host_or_two_hosts_is_rejected(daemon: WebDaemon, request_head: str, status: int) -> None:
    answer = daemon.raw(request_head.format(port=daemon.port).encode() + b"Connection: close\r\n\r\n")
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://localhost:1"},
        {"Origin": "http://localhost"},
        {"Origin": "http://[broken"},
        {"Origin": "http://evil.example@localhost:{port}"},
        {"Origin": "file://localhost:{port}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": ""},
        {"Origin": "http://localhost:{port}", "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_a_request_from_another_site_is_rejected_even_with_a_token(daemon: WebDaemon, headers: dict[str, str]) -> None:
    before = daemon.rows()
    given = {name: value.format(port=daemon.port) for name, value in headers.items()}
    for path in paths(daemon):
        reply = daemon.send("POST", path, {}, CHIEF, given)
        assert (reply.status, reply.code) == (403, "cross_site"), path
    assert daemon.rows() == before


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://localhost:{port}"},
        {"Origin": "https://proxy.example:8443"},
        {"Origin": "https://beat.example"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_a_request_from_the_daemons_own_page_is_accepted(daemon: WebDaemon, headers: dict[str, str]) -> None:
    given = {name: value.format(port=daemon.port) for name, value in headers.items()}
    assert daemon.send("POST", "/api/v1/resume", {}, CHIEF, given).status == 200


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/x-www-form-urlencoded", "text=x"),
        ("multipart/form-data; boundary=x", "--x--"),
        ("text/plain", '{"text": "x"}'),
        ("application/jsonp", "{}"),
        ("", "{}"),
        (None, "{}"),
        ("text/plain", ""),
    ],
)
def test_a_form_is_rejected_even_with_a_token(daemon: WebDaemon, kind: str | None, body: str) -> None:
    before = daemon.rows()
    for path in ("/api/v1/agents/ops/wake", "/api/v1/pause", "/-/reload"):
        reply = daemon.send("POST", path, body, CHIEF, {} if kind is None else {"Content-Type": kind})
        assert (reply.status, reply.code) == (415, "not_json")
    assert daemon.rows() == before


def test_json_may_name_its_charset(daemon: WebDaemon) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert daemon.send("POST", "/api/v1/resume", "{}", CHIEF, headers).status == 200


def test_two_content_types_are_rejected(daemon: WebDaemon) -> None:
    head = (
        f"POST /api/v1/pause HTTP/1.1\r\nHost: localhost:{daemon.port}\r\nAuthorization: Bearer {CHIEF}\r\nConnection: close\r\n"
    )
    kinds = "Content-Type: application/json\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}"
    assert b" 415 " in daemon.raw((head + kinds).encode())[:20]


def test_no_origin_is_ever_allowed_to_read(daemon: WebDaemon) -> None:
    origin = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    for path in paths(daemon):
        for method in ("OPTIONS", "GET"):
            reply = daemon.send(method, path, token=CHIEF, headers=origin)
            assert not [name for name in reply.headers if name.startswith("access-control")], path
    assert daemon.send("OPTIONS", "/api/v1/agents/ops/wake", headers=origin).status == 405


def test_every_answer_has_security_headers_and_does_not_name_the_server(daemon: WebDaemon) -> None:
    for method, path in (("GET", "/metrics"), ("GET", "/nothing"), ("POST", "/api/v1/pause"), ("GET", "/api/v1/status")):
        headers = daemon.send(method, path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert not headers.keys() & {"server", "date", "set-cookie"}


@pytest.mark.parametrize("size", [64 * 1024 + 1, 1_000_000])
def test_a_large_body_is_refused(daemon: WebDaemon, size: int) -> None:
    before = daemon.rows()
    body = b"{}" + b" " * (size - 2)
    reply = daemon.send("POST", "/api/v1/pause", body, CHIEF, {"Content-Type": "application/json"})
    assert (reply.status, daemon.rows()) == (413, before)
    assert reply.data["error"] == {"code": "too_large", "message": "the body is larger than 64 KiB"}


@pytest.mark.parametrize(("size", "status"), [(1024 * 1024, 200), (1024 * 1024 + 1, 413)])
def test_a_wake_may_be_larger_because_many_alerts_may_fire_at_once(daemon: WebDaemon, size: int, status: int) -> None:
    body = b'{"text": "' + b"x" * (size - 12) + b'"}'
    reply = daemon.send("POST", "/api/v1/agents/ops/wake", body, CHIEF, {"Content-Type": "application/json"})
    assert reply.status == status


def test_a_large_body_in_pieces_is_refused(daemon: WebDaemon) -> None:
    head = (
        f"POST /api/v1/pause HTTP/1.1\r\nHost: localhost:{daemon.port}\r\nAuthorization: Bearer {CHIEF}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    piece = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    assert b" 413 " in daemon.raw(head.encode() + piece * 5)[:20]


def test_a_body_of_the_largest_size_is_read(daemon: WebDaemon) -> None:
    body = "{}" + " " * (64 * 1024 - 2)
    assert daemon.send("POST", "/api/v1/resume", body, CHIEF, {"Content-Type": "application/json"}).status == 200


@pytest.mark.parametrize(
    ("header", "answers"),
    [
        ("X-Long: " + "x" * 9000, (b" 400 ", b" 431 ")),
        ("X-Long: " + "x" * 200_000, (b" 400 ", b" 431 ")),
        ("X-Fine: " + "x" * 4000, (b" 200 ",)),
    ],
)
def test_large_headers_are_refused(daemon: WebDaemon, header: str, answers: tuple[bytes, ...]) -> None:
    answer = daemon.raw(
        f"GET /healthz HTTP/1.1\r\nHost: localhost:{daemon.port}\r\n{header}\r\nConnection: close\r\n\r\n".encode()
    )
    assert any(status in answer[:20] for status in answers) or (answer == b"" and len(header) > 100_000)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"GET / HTTP/x\r\n\r\n", b"\r\n\r\n\r\nx y\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0 \r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\nBad Header: 1\r\n\r\n",
        b"POST /api/v1/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /api/v1/pause HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    ],
)  # fmt: skip
def test_nonsense_is_answered_with_400_and_no_traceback(
    daemon: WebDaemon, nonsense: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    answer = daemon.raw(nonsense)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Traceback" not in answer
    assert not caplog.records


def test_the_sender_of_a_wrong_token_is_logged_once_in_ten_seconds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with WebDaemon(tmp_path) as daemon:
        for path in ("/api/v1/status", "/api/v1/status"):
            assert daemon.get(path, token="a-token-that-is-not-known").status >= 400
    lines = [record.fields for record in caplog.records if record.msg == "token_refused"]  # type: ignore[attr-defined]
    assert lines == [{"address": "127.0.0.1", "method": "GET", "path": "/api/v1/status"}]


def test_a_body_that_breaks_off_is_rejected_without_a_traceback(daemon: WebDaemon, caplog: pytest.LogCaptureFixture) -> None:
    before = daemon.rows()
    head = (
        f"POST /api/v1/agents/ops/wake HTTP/1.1\r\nHost: localhost:{daemon.port}\r\nAuthorization: Bearer {CHIEF}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    assert b" 400 " in daemon.raw(head.encode() + b"2\r\n{}\r\nzz\r\n")[:20]
    assert daemon.rows() == before
    assert not caplog.records


def test_a_content_length_with_a_chunked_body_closes_the_connection_and_discards_the_rest(daemon: WebDaemon) -> None:
    before = daemon.rows()
    wake = f"POST /api/v1/agents/ops/wake HTTP/1.1\r\nHost: localhost:{daemon.port}\r\nAuthorization: Bearer {CHIEF}\r\n"
    json = f"{wake}Content-Type: application/json\r\n"
    both = f"{json}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    answer = daemon.raw(f"{both}{json}Content-Length: 2\r\n\r\n{{}}".encode())
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"\r\nconnection: close\r\n" in answer.lower()
    assert daemon.rows() == before


def status_at(daemon: WebDaemon, listen: str, port: int, host: str, query: str = "") -> int:
    """The status of a request with this Host header to a server at an address that a test cannot have."""
    statuses = []

    async def accept(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Message:
        raise AssertionError("no body is read")

    settings = daemon.app_state.settings()
    settings = replace(settings, server=replace(settings.server, host=listen))
    server = SecurityMiddleware(accept, lambda: settings, daemon.app_state.metrics, port, LOCAL, lambda _: None)
    scope = {"type": "http", "method": "GET", "path": "/healthz", "raw_path": b"/healthz", "query_string": query.encode()}
    asyncio.run(server(scope | {"headers": [(b"host", host.encode())]}, receive, send))
    return int(*statuses)


@pytest.mark.parametrize(("port", "status"), [(80, 200), (81, 421), (443, 421)])
def test_at_port_80_clients_leave_out_the_port(daemon: WebDaemon, port: int, status: int) -> None:
    assert status_at(daemon, "127.0.0.1", port, f"localhost:{port}") == 200
    assert status_at(daemon, "127.0.0.1", port, "localhost") == status


@pytest.mark.parametrize(
    ("listen", "host", "status"),
    [
        ("192.168.1.5", "192.168.1.5:7857", 200), ("fd00::5", "[fd00::5]:7857", 200), ("192.168.1.5", "192.168.1.6:7857", 421),
        ("0.0.0.0", "0.0.0.0:7857", 421), ("::", "[::]:7857", 421), ("0.0.0.0", "127.0.0.1:7857", 200),
    ],
)  # fmt: skip
def test_the_address_of_the_server_is_accepted_unless_it_stands_for_all(
    daemon: WebDaemon, listen: str, host: str, status: int
) -> None:
    assert status_at(daemon, listen, 7857, host) == status


def test_request_line_and_headers_together_may_have_8_kib(daemon: WebDaemon) -> None:
    rest = 8 * 1024 - len("/healthz" + "host" + "localhost:80")
    for query, status in (("x" * rest, 200), ("x" * (rest + 1), 431)):
        assert status_at(daemon, "127.0.0.1", 80, "localhost:80", query) == status


def test_a_websocket_request_is_rejected(daemon: WebDaemon) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    assert daemon.send("GET", "/api/v1/status", headers=upgrade).status == 401


LOCAL = Secret("l" * 43)
DECLARED = (Token("bot", Secret("b" * 30), frozenset({"read"}), frozenset({"ops"})),)


@loop_over(
    ("header", "name"),
    [
        (b"Bearer " + b"l" * 43, "local"),
        (b"bearer " + b"b" * 30, "bot"),
        (b"Bearer " + b"b" * 29, None),
        (b"Bearer " + b"b" * 31, None),
        (b"Bearer \xff\xfe", None),
        (b"Token " + b"l" * 43, None),
        (b"l" * 43, None),
        (b"", None),
    ],
)
def test_a_caller_is_identified_by_the_complete_token(header: bytes, name: str | None) -> None:
    found = api_request.find_caller([header], LOCAL, DECLARED)
    assert (found.name if found else None) == name


def test_only_the_local_token_is_local_even_if_another_has_its_name() -> None:
    impostor = (Token("local", Secret("i" * 30), frozenset({"read"}), None),)
    found = api_request.find_caller([b"Bearer " + b"i" * 30], LOCAL, impostor)
    assert found is not None
    assert (found.name, found.is_local, found.may) == ("local", False, frozenset({"read"}))
